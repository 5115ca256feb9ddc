//! Decode in the simulator and on the CPU against the f64 reference, under FlashAttention's accuracy rule.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Order, for_each_element, options, sinks_of, slopes_of, tensor, untouched_outside};
use flash_attention::accuracy::Accuracy;
use flash_attention::decode::{
    CacheData, DecodeInputs, DecodeKernel, DecodeOptions, DecodePlan, DecodeProblem, DecodeRequest, E4m3Cache,
};
use flash_attention::forward::{Factor, Outputs};
use flash_attention::sim::Sim;
use flash_attention::{Backend, BackendKind, Element, Options, Plan, TensorLayout, Tensors, reference};
use float8::F8E4M3;
use half::{bf16, f16};
use proptest::prelude::*;

/// A problem with its lengths and pages, as data that prints when a test fails.
#[derive(Clone, Debug)]
struct Case {
    /// B, Sq, Hkv, query heads per key/value head, D, Dv.
    shape: [usize; 6],
    seqlen_k: usize,
    page_size: Option<usize>,
    /// Keys of each sequence, in hundredths of Sk; more sequences than B has.
    used: Option<[usize; 3]>,
    options: Options,
    /// Whether queries are a tree: without masks and ALiBi, and with four times as many rows.
    tree: bool,
    /// 0 for splits of one length.
    num_splits: usize,
    /// Elements between the rows of K, V and O.
    gap: usize,
    seed: u64,
    /// Whether K and V are in e4m3, with rows and pages as tensor maps take them.
    e4m3: bool,
}

/// Everything that a run needs, in one type.
struct Made<T> {
    problem: DecodeProblem,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    /// K and V in place of those, where they are in e4m3.
    rounded: Option<[Vec<F8E4M3>; 2]>,
    used: Option<Vec<i32>>,
    table: Option<Vec<i32>>,
    tree_mask: Option<Vec<u64>>,
}

impl Case {
    fn make<T: Element>(&self) -> Made<T> {
        let [b, sq, h, group, d, dv] = self.shape;
        let sq = if self.tree { (4 * sq).min(64) } else { sq };
        let (q, o) =
            (Order::Bhsd.layout(b, sq, h * group, d), Order::Padded(self.gap).layout(b, sq, h * group, dv));
        // Pages lie scattered among as many that nobody uses.
        let page_size = self.page_size.map(|size| if self.e4m3 { size.next_multiple_of(8) } else { size });
        let max_pages = page_size.map(|size| self.seqlen_k.div_ceil(size));
        let (outer, rows) = match (page_size, max_pages) {
            (Some(size), Some(max_pages)) => (2 * b * max_pages, size),
            _ => (b, self.seqlen_k),
        };
        // Heads lie side by side in a row, or each apart: [pages, Hkv, page_size, D].
        let cache = |columns: usize| {
            let row = (columns + self.gap).next_multiple_of(if self.e4m3 { 16 } else { 1 });
            let (of_row, of_head) =
                if self.seed.is_multiple_of(3) { (row, rows * row) } else { (h * row, row) };
            TensorLayout::strided([outer, rows, h, columns], [rows * h * row, of_row, of_head, 1])
        };
        let (k, v) = (cache(d), cache(dv));
        let every = |nth: u64| self.seed.is_multiple_of(nth).then_some(h * group);
        let mut attention = Options {
            alibi_slopes: every(5).map(slopes_of),
            sinks: every(2).map(sinks_of),
            ..self.options.clone()
        };
        if self.tree {
            attention = Options { causal: false, window: (None, None), alibi_slopes: None, ..attention };
        }
        let e4m3_cache = self.e4m3.then(|| self.factors());
        let options = DecodeOptions {
            attention,
            max_pages,
            e4m3_cache,
            tree_mask: self.tree,
            ..DecodeOptions::default()
        };
        let tensors = Tensors { q, k, v, o };
        let problem = DecodeProblem::new(tensors, T::DTYPE, options).unwrap();
        let limit = problem.dense().seqlen_k();
        let used: Option<Vec<_>> = self
            .used
            .map(|used| used[..b].iter().map(|hundredths| (limit * hundredths / 100) as i32).collect());
        // A stride that is prime to the number of pages visits each once.
        let table = max_pages.map(|max_pages| {
            let stride = (0..).map(|i| 7 + 2 * i).find(|stride| gcd(*stride, outer) == 1).unwrap();
            (0..b * max_pages).map(|index| ((index * stride + 3) % outer) as i32).collect()
        });
        let values =
            |cache: &TensorLayout, salt: u64| tensor::<T>(cache, self.seed.wrapping_mul(2 * salt + 1));
        let (k, v) = (values(&k, 2), values(&v, 3));
        // Any bits are a mask.
        let bits = |row: usize| (self.seed.wrapping_add(row as u64) | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let tree_mask = self.tree.then(|| (0..b * sq).map(bits).collect());
        let mut made =
            Made { problem, q: tensor(&q, self.seed), k, v, rounded: None, used, table, tree_mask };
        made.poison_unused();
        let rounded = |data: &[T]| data.iter().map(|value| F8E4M3::from_f32(value.to_f32())).collect();
        made.rounded = self.e4m3.then(|| [rounded(&made.k), rounded(&made.v)]);
        made
    }

    /// One of all heads, of each head, or of each sequence's.
    fn factors(&self) -> E4m3Cache {
        let [b, _, h, ..] = self.shape;
        let list = |len: usize| Factor::Heads((1..=len).map(|i| 0.4 * i as f32).collect());
        let [k_descale, v_descale] = match self.seed % 4 {
            0 => [Factor::Tensor(0.3), Factor::Tensor(40.0)],
            1 => [list(h), Factor::default()],
            2 => [Factor::Tensor(2.5), list(b * h)],
            _ => [list(b * h), list(h)],
        };
        E4m3Cache { k_descale, v_descale }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<T: Element> Made<T> {
    fn inputs(&self) -> DecodeInputs<'_, T> {
        let [k, v] = match &self.rounded {
            Some([k, v]) => [CacheData::E4m3(k), CacheData::E4m3(v)],
            None => [CacheData::Same(&self.k), CacheData::Same(&self.v)],
        };
        DecodeInputs {
            q: &self.q,
            k,
            v,
            seqused_k: self.used.as_deref(),
            page_table: self.table.as_deref(),
            tree_mask: self.tree_mask.as_deref(),
        }
    }

    /// NaN wherever no sequence has a key, and page numbers out of range behind the last page in use.
    fn poison_unused(&mut self) {
        let batch = self.problem.dense().batch();
        let (k, v) = (*self.problem.k(), *self.problem.v());
        let in_use = |cache: &TensorLayout, len| {
            let (inputs, mut in_use) = (self.inputs(), vec![false; len]);
            for batch in 0..batch {
                for key in 0..self.problem.used(&inputs, batch) {
                    for head in 0..cache.heads {
                        let row = self.problem.row(cache, &inputs, batch, key, head);
                        in_use[row..][..cache.head_dim].fill(true);
                    }
                }
            }
            in_use
        };
        let in_use = [in_use(&k, self.k.len()), in_use(&v, self.v.len())];
        let used: Vec<_> = (0..batch).map(|batch| self.problem.used(&self.inputs(), batch)).collect();
        if let (Some(table), Some(max_pages)) = (&mut self.table, self.problem.max_pages()) {
            for (table, used) in table.chunks_exact_mut(max_pages).zip(used) {
                table[used.div_ceil(k.seqlen)..].fill(i32::MAX);
            }
        }
        for (cache, data, in_use) in [(k, &mut self.k, &in_use[0]), (v, &mut self.v, &in_use[1])] {
            for_each_element(&cache, |at| {
                if !in_use[at] {
                    data[at] = T::from_f32(f32::NAN);
                }
            });
        }
    }

    fn check(&self, backend: &Backend, plan: &DecodePlan) -> Result<(), TestCaseError> {
        let inputs = self.inputs();
        let dense = self.problem.dense();
        let mut o = vec![T::Output::from_f32(-77.0); dense.tensors().o.span() + 3];
        let mut lse = vec![-77.0; dense.lse_len()];
        let ran = backend.run(plan, inputs, Outputs { o: &mut o, lse: Some(&mut lse) });
        prop_assert!(ran.is_ok(), "{}", ran.unwrap_err());
        prop_assert!(untouched_outside(&dense.tensors().o, &o, -77.0), "wrote outside the view");
        let rows = reference::all(dense);
        let (exact, standard) = self.problem.reference(&inputs, &rows);
        let lse: Vec<_> = rows.iter().map(|at| lse[dense.lse_index(at.batch, at.head, at.row)]).collect();
        let of_output = Accuracy::of_output(&reference::gather(dense, &o, &rows), &exact, &standard);
        let of_lse = Accuracy::of_lse(&lse, &exact, plan.score_roundoff());
        prop_assert!(of_output.passed(), "o {of_output}; {:?}", plan.reasons());
        prop_assert!(of_lse.passed(), "lse {of_lse}; {:?}", plan.reasons());
        Ok(())
    }
}

/// By the kernel of the planner's choice, and where that is one of Hopper's by the older one too, and now and
/// then by that of the forward pass, which has fewer rows than it is for.
fn run<T: Element>(case: &Case, schedule: u64) -> Result<(), TestCaseError> {
    let made = case.make::<T>();
    let backend = Backend::simulator(schedule);
    let num_splits = Some(case.num_splits).filter(|&splits| splits > 0);
    let batch_invariant = Some(num_splits.is_none());
    let mut request = DecodeRequest { num_splits, batch_invariant, ..DecodeRequest::default() };
    let plan = backend.plan(&made.problem, &request).unwrap();
    made.check(&backend, &plan)?;
    if plan.kernel() != DecodeKernel::Decode && !case.e4m3 {
        request.kernel = Some(DecodeKernel::Decode);
        made.check(&backend, &backend.plan(&made.problem, &request).unwrap())?;
    }
    if plan.kernel() == DecodeKernel::ForwardSm90 && case.e4m3 {
        request.kernel = Some(DecodeKernel::DecodeSm90);
        made.check(&backend, &backend.plan(&made.problem, &request).unwrap())?;
    }
    request.kernel = Some(DecodeKernel::ForwardSm90).filter(|_| case.seed.is_multiple_of(4));
    if let (Some(_), Ok(plan)) = (request.kernel, backend.plan(&made.problem, &request)) {
        made.check(&backend, &plan)?;
    }
    Ok(())
}

fn case() -> impl Strategy<Value = Case> {
    let eights = (1..=32_usize).prop_map(|eights| 8 * eights);
    let head_dim = prop_oneof![prop::sample::select(vec![64, 128]), eights, 1..=256_usize];
    let page_size = prop::option::of(prop::sample::select(vec![1_usize, 5, 8, 16, 48, 64, 100, 256]));
    let head_dim_v = prop::option::weighted(0.3, 1..=256_usize);
    let used = prop::option::of([0..=100_usize, 0..=100, 0..=100]);
    (
        (
            1..=3_usize,
            prop_oneof![4 => 1..=16_usize, 1 => 17..=150_usize],
            1..3_usize,
            1..=8_usize,
            head_dim,
            head_dim_v,
        ),
        (prop_oneof![3 => 1..300_usize, 1 => 300..1400_usize], page_size, used, options(300)),
        (0..=6_usize, 0..3_usize, any::<u64>(), prop::bool::weighted(0.25)),
    )
        .prop_map(
            |(
                (b, sq, h, group, d, dv),
                (seqlen_k, page_size, used, options),
                (num_splits, gap, seed, tree),
            )| {
                Case {
                    shape: [b, sq, h, group, d, dv.unwrap_or(d)],
                    seqlen_k,
                    page_size,
                    used,
                    options,
                    tree,
                    num_splits,
                    gap: 4 * gap,
                    seed,
                    e4m3: false,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, lengths, pages, masks, splits and thread schedules, with NaN wherever no key is.
    #[test]
    fn matches_the_reference(case in case(), half in any::<bool>(), schedule in any::<u64>()) {
        if half { run::<f16>(&case, schedule)? } else { run::<bf16>(&case, schedule)? }
    }

    #[test]
    fn caches_in_e4m3_cost_what_rounding_them_does(
        case in case(),
        half in any::<bool>(),
        schedule in any::<u64>(),
    ) {
        let case = Case { e4m3: true, ..case };
        if half { run::<f16>(&case, schedule)? } else { run::<bf16>(&case, schedule)? }
    }

    #[test]
    fn the_cpu_backend_takes_the_same_problems(
        case in case(),
        single in any::<bool>(),
        e4m3 in any::<bool>(),
    ) {
        let case = Case { e4m3, ..case };
        let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let request = DecodeRequest::default();
        if single {
            let made = case.make::<f32>();
            made.check(&backend, &backend.plan(&made.problem, &request).unwrap())?;
        } else {
            let made = case.make::<bf16>();
            made.check(&backend, &backend.plan(&made.problem, &request).unwrap())?;
        }
    }
}

/// A problem of eight query heads to a key/value head.
fn grouped(num_splits: usize, page_size: Option<usize>) -> Case {
    let shape = [2, 2, 2, 8, 128, 128];
    Case {
        shape,
        seqlen_k: 640,
        page_size,
        used: None,
        options: Options::default(),
        tree: false,
        num_splits,
        gap: 0,
        seed: 7,
        e4m3: false,
    }
}

/// More splits than a thread merges at once, than a warp has lanes, and than there are blocks of keys.
#[test]
fn many_splits_are_merged() {
    for num_splits in [17, 33, 128] {
        let case = Case { shape: [1, 1, 1, 2, 64, 64], seqlen_k: 2200, ..grouped(num_splits, None) };
        if let Err(error) = run::<f16>(&case, 3) {
            panic!("{num_splits} splits: {error}");
        }
    }
}

#[test]
fn each_key_is_read_once_whatever_the_heads_and_splits() {
    let sim = Sim::new(1);
    for (num_splits, page_size) in [(1, None), (5, None), (3, Some(64)), (3, Some(1))] {
        let made = grouped(num_splits, page_size).make::<f16>();
        let request =
            DecodeRequest { num_splits: Some(num_splits), clusters: Some(false), ..DecodeRequest::default() };
        let plan = Plan::new(&made.problem, sim.device(), &request).unwrap();
        let dense = made.problem.dense();
        let (mut o, mut lse) = (vec![f16::ZERO; dense.tensors().o.span()], vec![0.0; dense.lse_len()]);
        let inputs = made.inputs();
        let traffic = sim.run(&plan, inputs, Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
        let cache = made.problem.cache_bytes(&inputs);
        let queries = (num_splits * 2 * dense.tensors().q.elements()) as u64;
        let partials = if num_splits == 1 { 0 } else { plan.workspace_bytes() };
        // What is looked up beside: page numbers, and each log-sum-exp once for each warp and column.
        let beside = traffic.bytes_read - cache - queries - partials;
        if num_splits == 1 {
            assert_eq!(beside, 0);
        }
        let lookups = (dense.lse_len() * num_splits * 4 * (4 + 128)) as u64;
        let pages = if page_size.is_some() { cache / 256 * 8 * 4 } else { 0 };
        assert!(beside <= lookups + pages, "{beside} of {lookups} + {pages}");
        assert_eq!(
            traffic.bytes_written,
            2 * dense.tensors().o.elements() as u64 + 4 * lse.len() as u64 + partials
        );
        let mut declared: Vec<_> =
            plan.launches().iter().map(|launch| launch.entry.barriers as usize).collect();
        // One is in front of what blocks of a cluster hand on.
        declared[0] -= usize::from(plan.kernel() == DecodeKernel::DecodeSm90);
        assert_eq!(traffic.barrier_sites, declared);
    }
}

#[test]
fn blocks_of_a_cluster_come_to_all_barriers() {
    let made = grouped(5, None).make::<f16>();
    let request = DecodeRequest { num_splits: Some(5), ..DecodeRequest::default() };
    let sim = Sim::new(1);
    let plan = Plan::new(&made.problem, sim.device(), &request).unwrap();
    let dense = made.problem.dense();
    let (mut o, mut lse) = (vec![f16::ZERO; dense.tensors().o.span()], vec![0.0; dense.lse_len()]);
    let traffic = sim.run(&plan, made.inputs(), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    let [launch] = plan.launches() else { panic!("{plan:?}") };
    assert_eq!((launch.cluster, &traffic.barrier_sites[..]), (5, &[launch.entry.barriers as usize][..]));
}
