//! Decoding over keys that ranks share out, as threads that run the shipped kernels' source in the simulator:
//! under FlashAttention's accuracy rule, and with the same bits on all ranks.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{sinks_of, tensor, untouched_outside};
use flash_attention::accuracy::Accuracy;
use flash_attention::decode::{
    CacheData, DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest, E4m3Cache,
};
use flash_attention::distributed::{DecodeShard, threads};
use flash_attention::forward::{Factor, Outputs};
use flash_attention::sim::Sim;
use flash_attention::{DType, Element, Options, TensorLayout, Tensors, reference};
use float8::F8E4M3;
use half::{bf16, f16};
use proptest::prelude::*;

/// Rows of a page.
const PAGE: usize = 16;

/// A problem and who has its keys, as data that prints when a test fails.
#[derive(Clone, Debug)]
struct Case {
    /// B, Sq, Hkv, query heads per key/value head, D, Dv.
    shape: [usize; 6],
    /// Keys that each rank's cache has room for, of each sequence.
    room: usize,
    /// Of each rank, keys of each sequence in hundredths of that; more sequences than B has.
    used: Vec<[usize; 2]>,
    options: Options,
    pages: bool,
    e4m3: bool,
    latent: bool,
    num_splits: Option<usize>,
    seed: u64,
}

/// What a rank has.
struct Cache<T> {
    k: Vec<T>,
    v: Vec<T>,
    /// K and V in place of those, where they are in e4m3.
    rounded: Option<[Vec<F8E4M3>; 2]>,
    used: Vec<i32>,
    table: Option<Vec<i32>>,
}

impl<T: Element<Output = T>> Cache<T> {
    fn new(k: Vec<T>, v: Vec<T>, e4m3: bool, used: Vec<i32>, table: Option<Vec<i32>>) -> Self {
        let round = |data: &[T]| data.iter().map(|value| F8E4M3::from_f32(value.to_f32())).collect();
        let rounded = e4m3.then(|| [round(&k), round(&v)]);
        Self { k, v, rounded, used, table }
    }

    fn inputs<'a>(&'a self, q: &'a [T]) -> DecodeInputs<'a, T> {
        let [k, v] = match &self.rounded {
            Some([k, v]) => [CacheData::E4m3(k), CacheData::E4m3(v)],
            None => [CacheData::Same(&self.k), CacheData::Same(&self.v)],
        };
        let (seqused_k, page_table) = (Some(&self.used[..]), self.table.as_deref());
        DecodeInputs { q, k, v, seqused_k, page_table, tree_mask: None }
    }
}

impl Case {
    /// Of one rank's cache, or, of as many keys, of the whole.
    fn problem(&self, dtype: DType, whole: Option<usize>) -> DecodeProblem {
        let [b, sq, h, group, d, dv] = self.shape;
        let pages = self.pages && whole.is_none();
        let (outer, rows) =
            if pages { (b * self.room / PAGE, PAGE) } else { (b, whole.unwrap_or(self.room)) };
        let of_queries = |columns| TensorLayout::bshd(b, sq, h * group, columns);
        let k = TensorLayout::bshd(outer, rows, h, d);
        let v = if self.latent {
            TensorLayout { head_dim: dv, ..k }
        } else {
            TensorLayout::bshd(outer, rows, h, dv)
        };
        let factors = || E4m3Cache {
            k_descale: Factor::Tensor(0.3),
            v_descale: Factor::Heads((1..=h).map(|head| 0.5 * head as f32).collect()),
        };
        let sinks = self.seed.is_multiple_of(2).then(|| sinks_of(h * group));
        let options = DecodeOptions {
            attention: Options { sinks, ..self.options.clone() },
            max_pages: pages.then_some(self.room / PAGE),
            e4m3_cache: self.e4m3.then(factors),
            latent: self.latent,
            ..DecodeOptions::default()
        };
        DecodeProblem::new(Tensors { q: of_queries(d), k, v, o: of_queries(dv) }, dtype, options).unwrap()
    }

    /// The caches of all ranks, with NaN where there is no key, and one with all their keys.
    fn caches<T: Element<Output = T>>(&self) -> (Vec<Cache<T>>, Cache<T>, DecodeProblem) {
        let ([b, sq, h, ..], world) = (self.shape, self.used.len());
        let problem = self.problem(T::DTYPE, None);
        let hides = problem.dense().window().1.is_some();
        let keys = |rank: usize, batch: usize| {
            let used = self.room * self.used[rank][batch] / 100;
            // The last rank has the newest keys, which the mask hides.
            if hides && rank + 1 == world { used.max(sq - 1) } else { used }
        };
        let total = |batch| (0..world).map(|rank| keys(rank, batch)).sum::<usize>();
        let whole_of = self.problem(T::DTYPE, Some((0..b).map(total).max().unwrap().max(1)));
        let nan = |layout: &TensorLayout| vec![T::from_f32(f32::NAN); layout.span()];
        let (mut whole_k, mut whole_v) = (nan(whole_of.k()), nan(whole_of.v()));
        let mut caches = Vec::new();
        for rank in 0..world {
            let used: Vec<i32> = (0..b).map(|batch| keys(rank, batch) as i32).collect();
            let pages = self.room / PAGE;
            // In reverse, and numbers that name no page behind the last in use.
            let page = |index: usize| {
                let in_use = (used[index / pages] as usize).div_ceil(PAGE);
                if index % pages < in_use { (b * pages - 1 - index) as i32 } else { -1 }
            };
            let table: Option<Vec<_>> = self.pages.then(|| (0..b * pages).map(page).collect());
            let lists =
                DecodeInputs { page_table: table.as_deref(), ..DecodeInputs::<T>::new(&[], &[], &[]) };
            let [mut k, mut v] = [nan(problem.k()), nan(problem.v())];
            for (name, layout, whole, own_data, all_data) in [
                (1, problem.k(), whole_of.k(), &mut k, &mut whole_k),
                (2, problem.v(), whole_of.v(), &mut v, &mut whole_v),
            ] {
                // Values of latents are columns of keys.
                let salt = if self.latent { 1 } else { name };
                let values: Vec<T> = tensor(problem.k(), self.seed.wrapping_mul(17) + 8 * rank as u64 + salt);
                for (batch, key, head) in (0..b)
                    .flat_map(|batch| (0..keys(rank, batch)).map(move |key| (batch, key)))
                    .flat_map(|(batch, key)| (0..h).map(move |head| (batch, key, head)))
                {
                    let before: usize = (0..rank).map(|rank| keys(rank, batch)).sum();
                    let from = problem.row(layout, &lists, batch, key, head);
                    let to = whole.row(batch, before + key, head);
                    for column in 0..layout.head_dim {
                        let value = values[(from + column) % problem.k().span()];
                        own_data[from + column] = value;
                        all_data[to + column] = value;
                    }
                }
            }
            caches.push(Cache::new(k, v, self.e4m3, used, table));
        }
        let totals = (0..b).map(|batch| total(batch) as i32).collect();
        (caches, Cache::new(whole_k, whole_v, self.e4m3, totals, None), whole_of)
    }

    fn check<T: Element<Output = T>>(&self) -> Result<(), TestCaseError> {
        let problem = self.problem(T::DTYPE, None);
        let (caches, whole, whole_of) = self.caches::<T>();
        let (dense, world) = (problem.dense(), caches.len());
        let q: Vec<T> = tensor(&dense.tensors().q, self.seed);
        let request = DecodeRequest { num_splits: self.num_splits, ..DecodeRequest::default() };
        let layout = dense.tensors().o;
        let found = threads::in_threads(world, |mut peers| {
            let rank = peers.rank();
            let shard = DecodeShard::new(&problem, rank, world).unwrap();
            let (mut o, mut lse) =
                (vec![T::from_f32(-77.0); layout.span() + 3], vec![-77.0; dense.lse_len()]);
            let outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
            let sim = (&Sim::new(self.seed ^ rank as u64), &request);
            let plan = threads::decode(&shard, sim, &mut peers, caches[rank].inputs(&q), outputs).unwrap();
            (o, lse, plan)
        });
        let (o, lse, plan) = &found[0];
        for (rank, (other_o, other_lse, _)) in found.iter().enumerate() {
            let alike = |a: f32, b: f32| a.to_bits() == b.to_bits();
            prop_assert!(
                o.iter().zip(other_o).all(|(a, b)| alike(a.to_f32(), b.to_f32())),
                "O of rank {rank}"
            );
            prop_assert!(lse.iter().zip(other_lse).all(|(&a, &b)| alike(a, b)), "lse of rank {rank}");
        }
        prop_assert!(untouched_outside(&layout, o, -77.0), "wrote outside the view");
        let rows = reference::all(dense);
        let (exact, standard) = whole_of.reference(&whole.inputs(&q), &rows);
        let lse: Vec<_> = rows.iter().map(|at| lse[dense.lse_index(at.batch, at.head, at.row)]).collect();
        let of_output = Accuracy::of_output(&reference::gather(dense, o, &rows), &exact, &standard);
        let of_lse = Accuracy::of_lse(&lse, &exact, plan.score_roundoff());
        prop_assert!(of_output.passed(), "o {of_output}; {:?}", plan.reasons());
        prop_assert!(of_lse.passed(), "lse {of_lse}; {:?}", plan.reasons());
        Ok(())
    }
}

/// Of the keys that a rank has room for.
fn hundredths() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0_usize), 3 => 0..=100_usize]
}

prop_compose! {
    fn case()(
        (b, h, group, room) in (1..=2_usize, 1..=2_usize, 1..=4_usize, 1..=10_usize),
        sq in prop_oneof![2 => Just(1_usize), 1 => 2..=12_usize],
        d in prop_oneof![Just(64_usize), Just(128), (1..=12_usize).prop_map(|eights| 8 * eights)],
        dv in prop::option::weighted(0.2, 1..=9_usize),
        used in prop::collection::vec([hundredths(), hundredths()], 1..=9),
        softcap in prop_oneof![2 => Just(0.0_f32), 1 => 1.0..20.0_f32],
        (causal, right) in (any::<bool>(), prop::option::weighted(0.2, 0..6_usize)),
        (pages, e4m3) in (any::<bool>(), prop::bool::weighted(0.3)),
        num_splits in prop::option::weighted(0.5, 2..=5_usize),
        seed in 0..1_u64 << 40,
    ) -> Case {
        // In e4m3 rows are multiples of 16 bytes.
        let of_row = |columns: usize| if e4m3 { columns.next_multiple_of(16) } else { columns };
        let (d, dv) = (of_row(d), dv.map_or(of_row(d), |eights| of_row(8 * eights)));
        let options = Options { causal, window: (None, right), softcap, ..Options::default() };
        let (shape, latent) = ([b, sq, h, group, d, dv], false);
        Case { shape, room: PAGE * room, used, options, pages, e4m3, latent, num_splits, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, numbers of ranks, lengths, pages and splits, with NaN wherever no key is.
    #[test]
    fn ranks_have_the_result_of_one(case in case(), half in any::<bool>()) {
        if half { case.check::<f16>()? } else { case.check::<bf16>()? }
    }
}

/// Two ranks, of which the first has few keys.
fn two() -> Case {
    Case {
        shape: [1, 1, 2, 4, 64, 64],
        room: 160,
        used: vec![[10, 0], [100, 0]],
        options: Options::default(),
        pages: false,
        e4m3: false,
        latent: false,
        num_splits: None,
        seed: 4,
    }
}

#[test]
fn ranks_without_keys_count_nothing() {
    let only = |rank: usize| (0..9).map(|other| [if other == rank { 90 } else { 0 }, 0]).collect();
    for used in [only(0), only(4), only(8), vec![[0, 0]; 3]] {
        Case { used, seed: 3, ..two() }.check::<bf16>().unwrap();
    }
}

/// Queries of which tensor cores of the forward pass have more than 64 packed rows.
#[test]
fn pieces_of_a_prompt_are_decoded() {
    let causal = Options { causal: true, ..Options::default() };
    Case { shape: [1, 40, 1, 4, 64, 64], options: causal, ..two() }.check::<f16>().unwrap();
}

#[test]
fn latents_are_decoded() {
    Case { shape: [2, 1, 1, 16, 576, 512], used: vec![[40, 0], [80, 100]], latent: true, ..two() }
        .check::<bf16>()
        .unwrap();
}

#[test]
fn the_last_rank_masks_the_newest_keys_alone() {
    let causal = DecodeOptions {
        attention: Options { causal: true, ..Options::default() },
        ..DecodeOptions::default()
    };
    let (q, k) = (TensorLayout::bshd(1, 4, 2, 16), TensorLayout::bshd(1, 64, 1, 16));
    let problem = DecodeProblem::new(Tensors { q, k, v: k, o: q }, DType::F16, causal).unwrap();
    let is_causal = |rank| DecodeShard::new(&problem, rank, 3).unwrap().problem().dense().causal();
    assert_eq!([0, 1, 2].map(is_causal), [false, false, true]);
}

#[test]
fn what_ranks_do_not_decode_together_is_refused_by_name() {
    let (q, k) = (TensorLayout::bshd(1, 4, 2, 64), TensorLayout::bshd(1, 640, 1, 64));
    let tensors = Tensors { q, k, v: k, o: q };
    let problem = |attention, tree_mask| {
        let options = DecodeOptions { attention, tree_mask, ..DecodeOptions::default() };
        DecodeProblem::new(tensors, DType::F16, options).unwrap()
    };
    let message = |problem: &DecodeProblem, rank, world| {
        DecodeShard::new(problem, rank, world).unwrap_err().to_string()
    };
    let named = |reason: &str| format!("context parallelism: {reason}");
    let plain = Options::default;
    assert_eq!(message(&problem(plain(), false), 2, 2), named("rank 2 is none of 2"));
    let tree = message(&problem(plain(), true), 0, 2);
    assert_eq!(tree, named("a tree mask counts from the newest key"));
    let window = Options { window: (Some(9), None), ..plain() };
    assert_eq!(message(&problem(window, false), 0, 2), named("a left window counts from the newest key"));
    let alibi = Options { alibi_slopes: Some(vec![0.5; 2]), ..plain() };
    assert_eq!(message(&problem(alibi, false), 0, 2), named("ALiBi's distances are to the newest key"));
    let packed = DecodeProblem::varlen(tensors, DType::F16, DecodeOptions::default(), &[0, 4]).unwrap();
    assert_eq!(message(&packed, 0, 2), named("packed queries are not split"));
}
