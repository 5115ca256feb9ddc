//! Many queries, and packed ones, over a cache in e4m3, in the simulator and on the CPU against the f64
//! reference: a launch widens the keys in use to the type of Q, and the forward pass reads these.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{for_each_element, offsets, slopes_of, tensor, untouched_outside};
use flash_attention::accuracy::Accuracy;
use flash_attention::decode::{
    CacheData, DecodeInputs, DecodeKernel, DecodeOptions, DecodeProblem, DecodeRequest, E4m3Cache,
};
use flash_attention::forward::{Factor, Outputs};
use flash_attention::{Backend, BackendKind, DType, Element, Options, TensorLayout, Tensors, reference};
use float8::F8E4M3;
use half::{bf16, f16};

/// A problem with its lengths and pages, as data that prints when a test fails.
#[derive(Clone, Debug)]
struct Case {
    /// Queries of each sequence: packed, unless all have as many and it says otherwise.
    queries: Vec<usize>,
    packed: bool,
    /// Keys of each sequence, whose room is the longest's; `None` where all have that.
    used: Option<Vec<usize>>,
    room: usize,
    /// Hkv, query heads per key/value head, D, Dv.
    shape: [usize; 4],
    page_size: Option<usize>,
    options: Options,
    num_splits: Option<usize>,
    kernel: Option<DecodeKernel>,
    /// Which factors, and of the values.
    seed: u64,
}

impl Case {
    fn new(queries: &[usize], room: usize, shape: [usize; 4]) -> Self {
        Self {
            queries: queries.to_vec(),
            packed: false,
            used: None,
            room,
            shape,
            page_size: None,
            options: Options { causal: true, ..Options::default() },
            num_splits: None,
            kernel: None,
            seed: 1,
        }
    }

    /// Of all heads, of each head, or of each sequence's.
    fn factors(&self) -> E4m3Cache {
        let ([h, ..], b) = (self.shape, self.queries.len());
        let list = |len: usize| Factor::Heads((1..=len).map(|i| 0.3 * i as f32).collect());
        let [k_descale, v_descale] = match self.seed % 3 {
            0 => [Factor::Tensor(0.3), list(h)],
            1 => [list(b * h), list(b * h)],
            _ => [list(h), Factor::Tensor(20.0)],
        };
        E4m3Cache { k_descale, v_descale }
    }

    /// The layout of K or V, rows at multiples of 16 columns and nothing behind the last one's.
    fn cache(&self, columns: usize) -> TensorLayout {
        let ([h, ..], b) = (self.shape, self.queries.len());
        let (outer, rows) = match self.page_size {
            Some(size) => (2 * b * self.room.div_ceil(size), size),
            None => (b, self.room),
        };
        TensorLayout { head_dim: columns, ..TensorLayout::bshd(outer, rows, h, columns.next_multiple_of(16)) }
    }

    fn problem(&self, dtype: DType) -> DecodeProblem {
        let [h, group, d, dv] = self.shape;
        let rows = |columns: usize| match self.packed {
            true => TensorLayout::bshd(1, self.queries.iter().sum(), h * group, columns),
            false => TensorLayout::bshd(self.queries.len(), self.queries[0], h * group, columns),
        };
        let row = d.next_multiple_of(8);
        let q = TensorLayout { head_dim: d, ..rows(row) };
        let tensors = Tensors { q, k: self.cache(d), v: self.cache(dv), o: rows(dv) };
        let max_pages = self.page_size.map(|size| self.room.div_ceil(size));
        let attention = self.options.clone();
        let e4m3_cache = Some(self.factors());
        let options = DecodeOptions { attention, max_pages, e4m3_cache, ..DecodeOptions::default() };
        if !self.packed {
            return DecodeProblem::new(tensors, dtype, options).unwrap();
        }
        DecodeProblem::varlen(tensors, dtype, options, &offsets(self.queries.iter().copied())).unwrap()
    }

    fn run<T: Element>(&self, schedule: u64) {
        let problem = self.problem(T::DTYPE);
        let (dense, batch) = (problem.dense(), self.queries.len());
        let used: Option<Vec<i32>> =
            self.used.as_ref().map(|used| used.iter().map(|&keys| keys as i32).collect());
        // Pages in reverse, every second one, and numbers that name none behind the last in use.
        let table = self.page_size.map(|size| {
            let max_pages = self.room.div_ceil(size);
            let page = |index: usize| {
                let of_sequence = self.used.as_ref().map_or(self.room, |used| used[index / max_pages]);
                let in_use = index % max_pages < of_sequence.div_ceil(size);
                if in_use { 2 * (batch * max_pages - 1 - index) as i32 } else { i32::MAX }
            };
            (0..batch * max_pages).map(page).collect::<Vec<_>>()
        });
        let q = tensor::<T>(&dense.tensors().q, self.seed);
        let values = |layout: &TensorLayout, salt: u64| {
            tensor::<f32>(layout, self.seed.wrapping_mul(2 * salt + 1))[..layout.span()].to_vec()
        };
        let mut caches = [(*problem.k(), values(problem.k(), 2)), (*problem.v(), values(problem.v(), 3))];
        for (layout, data) in &mut caches {
            let mut in_use = vec![false; data.len()];
            let lists = DecodeInputs {
                seqused_k: used.as_deref(),
                page_table: table.as_deref(),
                ..DecodeInputs::<f32>::new(&[], &[], &[])
            };
            for sequence in 0..batch {
                for key in 0..problem.used(&lists, sequence) {
                    for head in 0..layout.heads {
                        in_use[problem.row(layout, &lists, sequence, key, head)..][..layout.head_dim]
                            .fill(true);
                    }
                }
            }
            for_each_element(layout, |at| {
                if !in_use[at] {
                    data[at] = f32::NAN;
                }
            });
        }
        let [k, v] = caches.map(|(_, data)| data.into_iter().map(F8E4M3::from_f32).collect::<Vec<_>>());
        let inputs = DecodeInputs {
            q: &q,
            k: CacheData::E4m3(&k),
            v: CacheData::E4m3(&v),
            seqused_k: used.as_deref(),
            page_table: table.as_deref(),
            tree_mask: None,
        };
        let request =
            DecodeRequest { num_splits: self.num_splits, kernel: self.kernel, ..DecodeRequest::default() };
        let sim = Backend::simulator(schedule);
        let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let plans = [
            (&sim, sim.plan(&problem, &request).unwrap()),
            (&cpu, cpu.plan(&problem, &DecodeRequest::default()).unwrap()),
        ];
        assert_eq!(plans[0].1.kernel(), DecodeKernel::ForwardSm90, "{self:?}");
        let rows = reference::all(dense);
        let (exact, standard) = problem.reference(&inputs, &rows);
        for (backend, plan) in plans {
            let mut o = vec![T::Output::from_f32(-77.0); dense.tensors().o.span() + 3];
            let mut lse = vec![-77.0; dense.lse_len()];
            let outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
            backend.run(&plan, inputs, outputs).unwrap_or_else(|error| panic!("{self:?}: {error}"));
            assert!(untouched_outside(&dense.tensors().o, &o, -77.0), "{self:?}");
            let lse: Vec<_> = rows.iter().map(|at| lse[dense.lse_index(at.batch, at.head, at.row)]).collect();
            let of_output = Accuracy::of_output(&reference::gather(dense, &o, &rows), &exact, &standard);
            let of_lse = Accuracy::of_lse(&lse, &exact, plan.score_roundoff());
            assert!(of_output.passed() && of_lse.passed(), "{self:?}: o {of_output}; lse {of_lse}");
        }
    }

    fn check(&self) {
        self.run::<f16>(self.seed);
        self.run::<bf16>(self.seed + 1);
    }
}

#[test]
fn every_head_dim_is_widened() {
    for (seed, [d, dv]) in
        [[64, 64], [128, 128], [192, 192], [256, 256], [80, 80], [100, 33], [128, 64], [1, 250]]
            .into_iter()
            .enumerate()
    {
        let used = Some(vec![150, 97]);
        Case { used, seed: seed as u64, ..Case::new(&[70, 70], 150, [1, 2, d, dv]) }.check();
    }
}

/// A lane each counts the tiles of 32 sequences.
#[test]
fn more_packed_sequences_than_a_warp_has_lanes() {
    let queries: Vec<_> = (0..70).map(|at| if at < 40 { 0 } else { at % 3 }).collect();
    Case { packed: true, ..Case::new(&queries, 20, [1, 2, 64, 64]) }.check();
}

#[test]
fn pages_may_have_any_number_of_rows() {
    for (seed, size) in [1, 5, 8, 64, 100].into_iter().enumerate() {
        let used = Some(vec![size * 200_usize.div_ceil(size), 131, 0]);
        let page_size = Some(size);
        Case { used, page_size, seed: seed as u64, ..Case::new(&[40, 40, 40], 200, [2, 4, 64, 64]) }.check();
    }
}

#[test]
fn packed_queries_have_their_own_keys() {
    for (seed, page_size) in [None, Some(16), Some(12)].into_iter().enumerate() {
        let used = Some(vec![300, 0, 20, 170]);
        let case = Case {
            packed: true,
            page_size,
            seed: seed as u64,
            ..Case::new(&[1, 0, 20, 150], 300, [2, 4, 64, 64])
        };
        Case { used, ..case.clone() }.check();
        let window = Options { causal: true, window: (Some(40), None), ..Options::default() };
        Case { options: window, ..case }.check();
    }
}

#[test]
fn scores_may_be_changed_and_keys_split() {
    let [h, group] = [2, 3];
    let options = Options {
        softcap: 3.0,
        alibi_slopes: Some(slopes_of(h * group)),
        sinks: Some(common::sinks_of(h * group)),
        ..Options::default()
    };
    for (seed, num_splits) in [(0, 1), (1, 3), (2, 5)] {
        let case = Case {
            used: Some(vec![700, 333]),
            num_splits: Some(num_splits),
            seed,
            ..Case::new(&[33, 33], 700, [h, group, 128, 128])
        };
        case.check();
        Case { options: options.clone(), ..case }.check();
    }
}

#[test]
fn few_queries_are_taken_where_it_is_asked_for() {
    let kernel = Some(DecodeKernel::ForwardSm90);
    Case { kernel, ..Case::new(&[1, 1], 260, [2, 8, 128, 128]) }.check();
}
