//! Appending to caches in the simulator and on the CPU: rotations against f64, all else bit by bit.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Order, tensor, untouched_outside};
use flash_attention::append::{
    AppendInputs, AppendOptions, AppendOutputs, AppendProblem, AppendResults, AppendTensors, Rotary,
    RotaryQueries,
};
use flash_attention::sim::Sim;
use flash_attention::{Backend, BackendKind, Element, Plan, TensorLayout};
use half::{bf16, f16};
use proptest::prelude::*;

/// What outputs hold before.
const CANARY: f32 = -77.5;

/// A problem with its lengths and pages, as data that prints when a test fails.
#[derive(Clone, Debug)]
struct Case {
    /// B, Sn, Hkv, D, Dv.
    shape: [usize; 5],
    page_size: Option<usize>,
    /// Keys of each sequence before; more sequences than B has.
    used: [usize; 3],
    /// Rows that a sequence has room for behind the new ones.
    spare: usize,
    /// Half of the columns that are turned, in hundredths of those that there are; and of which kind.
    rotary: Option<(usize, bool)>,
    /// Sq, heads, and whether they are in order.
    queries: Option<(usize, usize, bool)>,
    /// Of what is read, and of what is written.
    orders: [Order; 2],
    seed: u64,
}

/// Everything that a run needs, in one type.
struct Made<T> {
    problem: AppendProblem,
    used: Vec<i32>,
    table: Option<Vec<i32>>,
    /// K, V, cosines, sines, Q.
    tensors: [Vec<T>; 5],
    before: AppendResults<T>,
}

impl Case {
    fn make<T: Element>(&self) -> Made<T> {
        let ([b, sn, h, d, dv], [read, written]) = (self.shape, self.orders);
        let used: Vec<i32> = self.used[..b].iter().map(|&used| used as i32).collect();
        let longest = self.used[..b].iter().max().unwrap() + sn + self.spare;
        let max_pages = self.page_size.map(|size| longest.div_ceil(size));
        // As many pages again belong to nobody.
        let (outer, rows) = match (self.page_size, max_pages) {
            (Some(size), Some(pages)) => (2 * b * pages, size),
            _ => (b, longest),
        };
        let tensors = AppendTensors {
            k: read.layout(b, sn, h, d),
            v: read.layout(b, sn, h, dv),
            k_cache: written.layout(outer, rows, h, d),
            v_cache: written.layout(outer, rows, h, dv),
        };
        let queries = self.queries.map(|(sq, heads, in_order)| RotaryQueries {
            q: read.layout(b, sq, heads, d),
            q_out: written.layout(b, sq, heads, d),
            in_order,
        });
        let room = max_pages.map_or(rows, |pages| pages * rows);
        let rotary = self.rotary.filter(|_| d > 1).map(|(hundredths, interleaved)| Rotary {
            dim: 2 * (d / 2 * hundredths).div_ceil(100),
            rows: room + self.queries.map_or(0, |(sq, ..)| sq),
            interleaved,
            queries,
        });
        let problem = AppendProblem::new(tensors, T::DTYPE, AppendOptions { max_pages, rotary }).unwrap();
        let table = max_pages.map(|pages| {
            let stride = (0..).map(|i| 7 + 2 * i).find(|stride| gcd(*stride, outer) == 1).unwrap();
            (0..b * pages).map(|index| ((index * stride + 3) % outer) as i32).collect()
        });
        let flat = |len| TensorLayout::bshd(1, 1, 1, len);
        let angles = flat(rotary.map_or(1, |rotary| rotary.rows * rotary.dim / 2));
        let q = rotary.and(queries).map_or(flat(1), |queries| queries.q);
        let random = |layout: &TensorLayout, salt: u64| tensor(layout, self.seed.wrapping_mul(2 * salt + 1));
        let canaries = |layout: &TensorLayout| vec![T::from_f32(CANARY); layout.span() + 1];
        Made {
            used,
            table,
            before: AppendResults {
                k_cache: canaries(&tensors.k_cache),
                v_cache: canaries(&tensors.v_cache),
                q: problem.queries().map_or(Vec::new(), |queries| canaries(&queries.q_out)),
            },
            tensors: [
                random(&tensors.k, 1),
                random(&tensors.v, 2),
                random(&angles, 3),
                random(&angles, 4),
                random(&q, 5),
            ],
            problem,
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<T: Element> Made<T> {
    fn inputs(&self) -> AppendInputs<'_, T> {
        let [k, v, cos, sin, q] = &self.tensors;
        AppendInputs { k, v, seqused_k: &self.used, page_table: self.table.as_deref(), cos, sin, q }
    }

    /// Runs, and judges what was written and what was not.
    fn check(&self, backend: &Backend) -> Result<(), TestCaseError> {
        let plan = backend.plan(&self.problem, &()).unwrap();
        let mut found = self.before.clone();
        let AppendResults { k_cache, v_cache, q } = &mut found;
        backend.run(&plan, self.inputs(), AppendOutputs { k_cache, v_cache, q }).unwrap();
        let report = self.problem.expected(&self.inputs(), &self.before).judge(&self.problem, &found);
        prop_assert!(report.passed(), "{report:?}");
        let AppendTensors { k_cache, v_cache, .. } = self.problem.tensors();
        prop_assert!(untouched_outside(k_cache, &found.k_cache, CANARY));
        prop_assert!(untouched_outside(v_cache, &found.v_cache, CANARY));
        if let Some(queries) = self.problem.queries() {
            prop_assert!(untouched_outside(&queries.q_out, &found.q, CANARY));
        }
        Ok(())
    }
}

fn case() -> impl Strategy<Value = Case> {
    let order = || {
        prop_oneof![
            Just(Order::Bshd),
            Just(Order::Bhsd),
            (1..9_usize).prop_map(Order::Padded),
            (0..9_usize).prop_map(Order::Spread),
        ]
    };
    let read = prop_oneof![8 => order(), 1 => Just(Order::Repeated)];
    let columns = || prop_oneof![prop::sample::select(vec![64_usize, 128]), 1..=300_usize];
    let page_size = prop::option::of(1..=256_usize);
    let used = || prop_oneof![Just(0_usize), 0..300_usize];
    let rotary = prop::option::weighted(0.7, (1..=100_usize, any::<bool>()));
    let queries = prop::option::of((1..30_usize, 1..5_usize, any::<bool>()));
    (
        (1..=3_usize, 1..40_usize, 1..4_usize, columns(), prop::option::weighted(0.4, columns())),
        (page_size, [used(), used(), used()], 0..9_usize),
        (rotary, queries, [read.boxed(), order().boxed()], any::<u64>()),
    )
        .prop_map(|((b, sn, h, d, dv), (page_size, used, spare), (rotary, queries, orders, seed))| {
            Case {
                shape: [b, sn, h, d, dv.unwrap_or(d)],
                page_size,
                used,
                spare,
                rotary,
                queries,
                orders,
                seed,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, strides, lengths, pages and embeddings, with canaries wherever nothing is appended.
    #[test]
    fn matches_the_reference(case in case(), dtype in 0..3_usize, schedule in any::<u64>()) {
        let backend = Backend::simulator(schedule);
        match dtype {
            0 => case.make::<f16>().check(&backend)?,
            1 => case.make::<bf16>().check(&backend)?,
            _ => case.make::<f32>().check(&backend)?,
        }
    }

    #[test]
    fn the_cpu_backend_takes_the_same_problems(case in case(), single in any::<bool>()) {
        let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
        if single { case.make::<f32>().check(&backend)? } else { case.make::<bf16>().check(&backend)? }
    }
}

/// Each byte is read once, but for angles and lengths, and none is written twice.
#[test]
fn a_launch_moves_what_it_must() {
    let case = Case {
        shape: [2, 5, 4, 128, 128],
        page_size: Some(16),
        used: [20, 3, 0],
        spare: 0,
        rotary: None,
        queries: None,
        orders: [Order::Bshd; 2],
        seed: 1,
    };
    let made = case.make::<f16>();
    let sim = Sim::new(0);
    let plan = Plan::new(&made.problem, sim.device(), &()).unwrap();
    let AppendResults { mut k_cache, mut v_cache, .. } = made.before.clone();
    let outputs = AppendOutputs { k_cache: &mut k_cache, v_cache: &mut v_cache, q: &mut [] };
    let traffic = sim.run(&plan, made.inputs(), outputs).unwrap();
    let new = 2 * 2 * (2 * 5 * 4 * 128);
    assert_eq!(traffic.bytes_written, new);
    // A length and a page for each 16 bytes.
    assert_eq!(traffic.bytes_read, new + new / 16 * 8);
}
