//! The decode kernels: query heads that share keys, lengths that fill nothing, splits without keys, pages in
//! random order, and NaN wherever no sequence has a key.

use std::ops::RangeInclusive;

use anyhow::Result;
use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::decode::{DecodeProblem, DecodeRequest, E4m3Cache};
use flash_attention::forward::Factor;
use flash_attention::sim::Sim;
use flash_attention::{Backend, BackendKind, DType, Device, Element, Options};
use half::{bf16, f16};

use super::args::{Args, Sizes};
use super::entry::{CHECKED_ROWS, Effort, EntryRecord, Subject, outcomes, print, record};
use super::repeat::repeated;
use super::targets::bucket;
use crate::check::{Expected, Verdict};
use crate::decode::{Cache, Shape, describe};
use crate::measure::judged;
use crate::output::Screen;
use crate::problem::{alibi_slopes, sinks};
use crate::session::Session;

/// One problem, but for storage type and head_dim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    seq_q: usize,
    group: usize,
    seq_k: usize,
    num_splits: usize,
    page_size: Option<usize>,
    causal: bool,
    /// Keys of each sequence, whose number this is; all keys of one sequence where there is none.
    used: &'static [i32],
    tree_mask: bool,
    /// Whether splits may not depend on the batch, in place of so many.
    in_any_batch: bool,
}

/// Small problems: few key blocks, and both one and several of everything.
const SMALL_CASES: [Case; 13] = [
    case(1, 1, 70, 1, None, false, &[]),
    case(3, 4, 75, 2, Some(16), true, &[75, 0]),
    case(16, 1, 150, 5, Some(1), true, &[]),
    case(1, 8, 333, 5, None, false, &[]),
    case(3, 8, 65, 1, Some(64), false, &[37]),
    case(1, 4, 130, 2, Some(64), true, &[66]),
    case(16, 4, 20, 1, None, true, &[20, 11]),
    case(1, 8, 200, 2, Some(5), false, &[0, 131]),
    tree(case(7, 4, 150, 2, Some(16), false, &[5, 131])),
    tree(case(40, 1, 190, 1, None, false, &[190, 33])),
    // Several steps of one split, over which the largest score grows.
    case(2, 3, 300, 1, None, true, &[290, 171]),
    case(1, 5, 300, 1, None, false, &[]),
    // Alike enough to be added up by a block each.
    in_any_batch(case(1, 4, 300, 2, None, true, &[300, 290])),
];

/// Multiprocessors of the simulated device that small problems keep busy.
const FEW_MULTIPROCESSORS: u32 = 2;

/// (Sk, splits, page size) on a GPU; each meets three of the nine pairs of Sq and group.
const CACHES: [(usize, usize, Option<usize>); 6] = [
    (1, 1, None),
    (130, 2, Some(64)),
    (1025, 5, Some(1)),
    (4096, 1, Some(16)),
    (4224, 7, None),
    (10_000, 128, Some(100)),
];

/// How many times as many queries `forward_sm90` gets.
const MANY_ROWS: usize = 11;

const fn case(
    seq_q: usize,
    group: usize,
    seq_k: usize,
    num_splits: usize,
    page_size: Option<usize>,
    causal: bool,
    used: &'static [i32],
) -> Case {
    Case { seq_q, group, seq_k, num_splits, page_size, causal, used, tree_mask: false, in_any_batch: false }
}

const fn in_any_batch(case: Case) -> Case {
    Case { in_any_batch: true, ..case }
}

const fn tree(case: Case) -> Case {
    Case { tree_mask: true, ..case }
}

/// The cases of a size.
pub(super) fn cases(sizes: Sizes) -> Vec<Case> {
    if sizes == Sizes::Small {
        return SMALL_CASES.to_vec();
    }
    let queries = [1, 3, 16].into_iter().flat_map(|seq_q| [1, 4, 8].map(|group| (seq_q, group)));
    let of_queries = |(index, (seq_q, group)): (usize, (usize, usize))| {
        [index, index + 3].map(|cache| {
            let (seq_k, num_splits, page_size) = CACHES[cache % CACHES.len()];
            let used: &[i32] = if seq_k > 1000 && index % 2 == 0 { &[1, 1000, 0] } else { &[] };
            case(seq_q, group, seq_k, num_splits, page_size, index % 3 != 0, used)
        })
    };
    let trees = [
        tree(case(64, 1, 5000, 4, Some(64), false, &[4999, 64, 1])),
        tree(case(16, 8, 1100, 2, None, false, &[1100, 1031])),
        in_any_batch(case(1, 4, 700, 2, Some(64), true, &[700; 140])),
    ];
    queries.enumerate().flat_map(of_queries).chain(trees).collect()
}

/// The decode entries of a backend, or the least one of each algorithm.
pub(super) fn targets(backend: BackendKind, families: bool) -> Vec<&'static Entry> {
    let is_one = |entry: &&Entry| entry.algorithm.decodes() || entry.algorithm == Algorithm::Widen;
    let all = entries().filter(|entry| backend != BackendKind::Cpu && is_one(entry));
    let mut chosen: Vec<&'static Entry> = Vec::new();
    for entry in all {
        if !families || chosen.iter().all(|other| other.algorithm != entry.algorithm) {
            chosen.push(entry);
        }
    }
    chosen
}

/// Verifies the targets, adds their records, and returns the number of runs.
pub(super) fn verify(
    session: &Session,
    args: &Args,
    targets: &[&'static Entry],
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let of_f16 = verify_type::<f16>(session, args, targets, screen, records)?;
    Ok(of_f16 + verify_type::<bf16>(session, args, targets, screen, records)?)
}

/// A case made concrete.
struct Trial<T: Element> {
    problem: DecodeProblem,
    cache: Cache<T>,
    expected: Expected<T>,
    num_splits: usize,
    in_any_batch: bool,
    clusters: bool,
    name: String,
}

fn verify_type<T: Element>(
    session: &Session,
    args: &Args,
    targets: &[&'static Entry],
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let targets: Vec<_> = targets.iter().copied().filter(|entry| entry.dtype == T::DTYPE.name()).collect();
    let (helpers, mut kernels): (Vec<_>, Vec<_>) = targets
        .iter()
        .copied()
        .partition(|entry| entry.algorithm.merges_splits() || entry.algorithm == Algorithm::Widen);
    if kernels.is_empty() {
        // Asked for alone, they still need splits to merge, or a kernel to widen for.
        let kernel_for = |helper: &&Entry| match helper.algorithm {
            Algorithm::DecodeCombine => Algorithm::Decode,
            Algorithm::Widen => Algorithm::ForwardSm90Cached,
            _ => Algorithm::DecodeSm90,
        };
        let of = |algorithm| {
            entries().find(move |entry| entry.algorithm == algorithm && entry.dtype == T::DTYPE.name())
        };
        kernels.extend(helpers.iter().filter_map(|helper| of(kernel_for(helper))));
    }
    let (mut helped, mut runs, effort) = (Vec::new(), 0, Effort::new(session, args));
    while let Some(first) = kernels.first().copied() {
        // Entries of one range of head_dims share inputs and references.
        let (algorithm, head_dims) = (first.algorithm, bucket(first));
        let trials = trials::<T>(args.sizes(session.kind()), algorithm, &head_dims, args.report.seed)?;
        let is_alike = |entry: &&&Entry| entry.algorithm == algorithm && bucket(entry) == head_dims;
        let of_range = kernels.iter().take_while(is_alike).count();
        for entry in kernels.drain(..of_range) {
            let subjects: Vec<_> = trials.iter().map(|trial| OnEntry { trial, entry }).collect();
            let of_trials = outcomes(session, args, &subjects)?;
            // Each trial has as many, one behind the other.
            let each = of_trials.len() / trials.len().max(1);
            let with_beside =
                |(index, outcome): (usize, _)| (trials[index / each.max(1)].beside(algorithm), outcome);
            let mut of_entry: Vec<_> = of_trials.into_iter().enumerate().map(with_beside).collect();
            runs += of_entry.len();
            if targets.iter().any(|target| std::ptr::eq(*target, entry)) {
                let outcomes = of_entry.iter().map(|(_, outcome)| outcome);
                records.push(record(entry.name, T::DTYPE, Some(&head_dims), effort, outcomes));
                records.last().map_or(Ok(()), |record| print(screen, record))?;
            }
            helped.append(&mut of_entry);
        }
    }
    for entry in helpers {
        let head_dims = 1..=flash_attention::forward::MAX_HEAD_DIM;
        let is_part = |beside: &[Option<Algorithm>; 2]| beside.contains(&Some(entry.algorithm));
        let outcomes = helped.iter().filter(|(beside, _)| is_part(beside)).map(|(_, outcome)| outcome);
        records.push(record(entry.name, T::DTYPE, Some(&head_dims), effort, outcomes));
        records.last().map_or(Ok(()), |record| print(screen, record))?;
    }
    Ok(runs)
}

/// The cases of a size for a kernel and a range of head_dims.
fn trials<T: Element>(
    sizes: Sizes,
    algorithm: Algorithm,
    head_dims: &RangeInclusive<usize>,
    seed: u64,
) -> Result<Vec<Trial<T>>> {
    let cases = cases(sizes);
    let trials = cases.iter().enumerate().flat_map(|(index, case)| {
        let trial =
            move |e4m3| case.trial((algorithm, e4m3), head_dims, index, seed.wrapping_add(index as u64));
        let is_e4m3 = algorithm.reads_e4m3();
        // The forward pass takes both types of cache.
        let widens = algorithm.is_cached_forward() && index % 2 == 0;
        [Some(trial(is_e4m3)), widens.then(|| trial(true))].into_iter().flatten()
    });
    trials.collect()
}

impl<T: Element> Trial<T> {
    /// What else a kernel's run launches: what merges splits, and what widens the cache.
    fn beside(&self, kernel: Algorithm) -> [Option<Algorithm>; 2] {
        let merges = match kernel {
            Algorithm::Decode => Algorithm::DecodeCombine,
            _ => Algorithm::DecodeCombineSm90,
        };
        let widens = kernel.is_cached_forward() && self.problem.cache_dtype() == DType::E4m3;
        [(self.num_splits > 1).then_some(merges), widens.then_some(Algorithm::Widen)]
    }
}

impl Case {
    fn trial<T: Element>(
        &self,
        (algorithm, e4m3): (Algorithm, bool),
        head_dims: &RangeInclusive<usize>,
        index: usize,
        seed: u64,
    ) -> Result<Trial<T>> {
        let (smallest, largest) = (*head_dims.start(), *head_dims.end());
        // An odd one has no row but the first on a 16-byte boundary.
        let odd = (usize::midpoint(smallest, largest) | 1).min(largest);
        let kv_heads = 1 + index % 2;
        // What tensor maps describe.
        let (multiple, columns) = match algorithm {
            Algorithm::Decode => (1, 1),
            _ if algorithm.reads_e4m3() => (8, 16),
            _ if e4m3 => (1, 16),
            _ => (8, 8),
        };
        let latent = algorithm == Algorithm::MlaSm90;
        let tree_mask = self.tree_mask && !algorithm.is_cached_forward() && !latent;
        // More rows than the other kernels are for.
        let rows = if algorithm.is_cached_forward() { MANY_ROWS } else { 1 };
        let shape = Shape {
            batch: self.used.len().max(1),
            heads: kv_heads * self.group,
            kv_heads,
            head_dim: [largest, odd, largest - 8, smallest][index % 4],
            seq_q: rows * self.seq_q,
            seq_k: self.seq_k,
            page_size: self.page_size.map(|size| size.next_multiple_of(multiple)),
            row_multiple: columns,
            tree_mask,
            latent,
            dtype: T::DTYPE,
            causal: self.causal,
            softmax_scale: None,
        };
        // Entries of the forward pass take scores that are changed, or those that are not.
        let (has_alibi, bends) = match algorithm {
            Algorithm::ForwardSm90Cached | Algorithm::MlaSm90 => (false, false),
            Algorithm::ForwardSm90CachedScoreMod => (!index.is_multiple_of(3), index % 3 < 2),
            _ => (index % 4 == 1, index % 5 == 3),
        };
        let options = Options {
            window: if index % 4 == 2 && !tree_mask { (Some(self.seq_k / 3), Some(1)) } else { (None, None) },
            softcap: if bends { 2.0 } else { 0.0 },
            alibi_slopes: (has_alibi && !tree_mask).then(|| alibi_slopes(shape.heads)),
            sinks: (index % 3 == 1).then(|| sinks(shape.heads)),
            ..Options::default()
        };
        let head_dim_v = match shape.head_dim {
            // 512 of 576.
            columns if latent => (8 * columns / 9).max(1),
            _ if index % 4 == 3 => odd,
            columns => columns,
        };
        let mut e4m3_cache = e4m3.then(|| factors(&shape, index));
        if let (Algorithm::ForwardSm90Cached, Some(cache)) = (algorithm, &mut e4m3_cache) {
            // A factor for each head is of the entries that change scores.
            cache.k_descale = Factor::Tensor(0.5);
        }
        let problem = shape.problem_with(head_dim_v, options, e4m3_cache)?;
        let used = (!self.used.is_empty()).then(|| self.used.to_vec());
        let mut cache = Cache::random(&problem, used, seed);
        cache.poison_unused(&problem);
        let expected = Expected::of_decode(&problem, &cache.inputs(), CHECKED_ROWS, seed);
        let &Self { num_splits, in_any_batch, used, .. } = self;
        let splits = if in_any_batch { "in any batch".to_owned() } else { num_splits.to_string() };
        let name = format!("{} splits={splits} seqused_k={used:?}", describe(&problem));
        // Some launches merge splits, and some clusters do.
        let clusters = index % 2 == 1;
        Ok(Trial { problem, cache, expected, num_splits, in_any_batch, clusters, name })
    }
}

/// Factors of a cache in e4m3: of all heads, of each, and of each sequence's.
fn factors(shape: &Shape, index: usize) -> E4m3Cache {
    let list = |len: usize| Factor::Heads((0..len).map(|i| 0.25 + 0.5 * i as f32).collect());
    let all = shape.batch * shape.kv_heads;
    let [k_descale, v_descale] = match index % 3 {
        0 => [list(all), Factor::Tensor(3.0)],
        1 => [Factor::Tensor(0.5), list(all)],
        _ => [list(shape.kv_heads), list(shape.kv_heads)],
    };
    E4m3Cache { k_descale, v_descale }
}

/// A case made concrete, for one entry.
struct OnEntry<'a, T: Element> {
    trial: &'a Trial<T>,
    entry: &'static Entry,
}

impl<T: Element> Subject for OnEntry<'_, T> {
    fn name(&self) -> String {
        self.trial.name.clone()
    }

    fn target(&self) -> String {
        self.entry.name.to_owned()
    }

    fn simulator(&self, seed: u64) -> Backend {
        let sim = Sim::new(seed);
        match self.trial.in_any_batch && !self.trial.clusters {
            true => {
                let device = Device { multiprocessors: FEW_MULTIPROCESSORS, ..sim.device().clone() };
                Sim::of_device(device, seed).into()
            }
            false => sim.into(),
        }
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let Trial { problem, cache, expected, num_splits, in_any_batch, clusters, .. } = self.trial;
        let request = DecodeRequest {
            num_splits: (!in_any_batch).then_some(*num_splits),
            batch_invariant: Some(*in_any_batch),
            clusters: Some(*clusters),
            entry: Some(self.entry.name.to_owned()),
            ..DecodeRequest::default()
        };
        let plan = backend.plan(problem, &request)?;
        let prepared = backend.prepare(&plan, cache.inputs())?;
        let scores = plan.score_roundoff();
        let judged = judged(prepared, |o, lse| expected.judge(problem.dense(), scores, o, lse))?;
        repeated(judged, repeats)
    }
}
