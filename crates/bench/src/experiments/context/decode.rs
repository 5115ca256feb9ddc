//! Decoding over a cache that GPUs share out: one query row for each sequence.

mod judge;
mod sides;

use anyhow::{Context as _, Result};
use flash_attention::cuda::Cuda;
use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest};
use flash_attention::distributed::LocalDecode;
use flash_attention::{Element, Plan, Tensors};
use serde::Serialize;

use super::team::Work as _;
use super::tensors::PATTERN;
use super::{Args, LAUNCHES, Ranks, in_turns};
use crate::inputs::normal;
use crate::measure::with_output_element;
use crate::problem::{Layout, describe};
use crate::table;
use judge::{Expected, Results, Verdict};
use sides::{Cache, Team, TeamPlan, Whole};

#[derive(Clone, Debug, Serialize)]
pub(super) struct DecodeRow {
    problem: String,
    seq: usize,
    /// Of K and V.
    bytes: f64,
    /// One GPU with the whole cache.
    one_s: f64,
    /// The slowest of all GPUs, each with the whole cache.
    independent_s: f64,
    /// All GPUs together.
    together_s: f64,
    turns: usize,
    /// one / (GPUs · together).
    of_linear: f64,
    /// independent / (GPUs · together).
    of_independent: f64,
    bytes_per_second_of_gpu: f64,
    /// Beside the tensors, of the rank that takes the most.
    extra_bytes: usize,
    pub(super) reasons: Vec<String>,
    checked_runs: usize,
    /// The largest error of the rows that were compared with attention in f64, over what it may be.
    of_bound: f64,
    /// The largest difference from one GPU's O, over the same.
    difference_of_bound: f64,
    pub(super) failure: Option<String>,
}

/// Titles of [`cells`].
pub(super) const TITLES: [&str; 10] = [
    "problem",
    "one GPU",
    "each by itself",
    "together",
    "of linear",
    "GB/s a GPU",
    "turns",
    "extra",
    "error, of what it may be",
    "difference from one GPU",
];

pub(super) fn cells(row: &DecodeRow) -> Vec<String> {
    let ratio = |value: f64| if row.checked_runs > 0 { format!("{value:.2}") } else { "–".to_owned() };
    vec![
        row.problem.clone(),
        table::seconds(row.one_s),
        table::seconds(row.independent_s),
        table::seconds(row.together_s),
        format!("{:.1} %", 100.0 * row.of_linear),
        format!("{:.0}", row.bytes_per_second_of_gpu / 1e9),
        row.turns.to_string(),
        table::bytes(row.extra_bytes as u64),
        match &row.failure {
            None => ratio(row.of_bound),
            Some(failure) => format!("FAIL: {failure}"),
        },
        ratio(row.difference_of_bound),
    ]
}

/// Measures decoding over so many keys.
pub(super) fn row(args: &Args, ranks: &Ranks, seq: usize) -> Result<DecodeRow> {
    with_output_element!(args.dtype, of_keys(args, ranks, seq))
}

/// Bytes that a GPU may be expected to read in a second, for how often a side runs in a turn.
const BANDWIDTH: f64 = 3.5e12;

fn of_keys<T: Element<Output = T>>(args: &Args, ranks: &Ranks, seq: usize) -> Result<DecodeRow> {
    let pattern = [0, 1, 2].map(|tensor| normal::<T>(args.report.seed, tensor, PATTERN));
    let whole = problem(args, seq)?;
    // All ranks have room for as many; the last have fewer, where these do not divide the keys.
    let room = seq.div_ceil(args.gpus);
    let of_rank = problem(args, room)?;
    let request = DecodeRequest::default();
    let part = |gpu: &Cuda, rank: usize| {
        let first = (rank * room).min(seq);
        Cache::new(gpu, &of_rank, (first..(first + room).min(seq), seq), &pattern)
    };
    let (plan, parts) = match ranks {
        Ranks::Local(gpus) => {
            let plan = LocalDecode::new(gpus, &of_rank, &request)?;
            let parts = gpus.iter().enumerate().map(|(rank, gpu)| part(gpu, rank));
            (TeamPlan::Local(Box::new(plan)), parts.collect::<Result<_>>()?)
        }
        Ranks::Process(group) => {
            let plan = group.plan_decode(&of_rank, &request)?;
            (TeamPlan::Rank(Box::new(plan)), vec![part(group.cuda(), group.rank())?])
        }
    };
    let mut team = Team { plan, parts };
    let on_gpu = |gpu: &Cuda| {
        let plan = Plan::new(&whole, gpu.device(), &request)?;
        Whole::new(gpu, plan, Cache::new(gpu, &whole, (0..seq, seq), &pattern)?)
    };
    let wholes = ranks.each_gpu(args).iter().map(on_gpu).collect::<Result<Vec<_>>>();
    let mut wholes = wholes.context("one GPU's tensors")?;
    let verdict = match args.check {
        0 => Verdict::default(),
        runs => {
            let expected = Expected::new(&wholes[0].plan, &pattern)?;
            judge(&mut team, &mut wholes[0], &expected, runs)?
        }
    };
    let bytes = whole.cache_bytes(&DecodeInputs::<T>::new(&[], &[], &[])) as f64;
    let once = bytes / BANDWIDTH + LAUNCHES;
    let ([one_s, independent_s, together_s], turns) = in_turns(args, ranks.group(), (&team, &wholes), once)?;
    let count = args.count();
    Ok(DecodeRow {
        problem: describe(whole.dense(), Layout::Bshd),
        seq,
        bytes,
        one_s,
        independent_s,
        together_s,
        turns,
        of_linear: one_s / (count * together_s),
        of_independent: independent_s / (count * together_s),
        bytes_per_second_of_gpu: bytes / together_s / count,
        extra_bytes: team.plan.extra_bytes(),
        reasons: team.plan.reasons().to_vec(),
        checked_runs: verdict.runs,
        of_bound: verdict.of_bound,
        difference_of_bound: verdict.difference_of_bound,
        failure: verdict.failure,
    })
}

/// One query row for each sequence of so many keys.
fn problem(args: &Args, seq: usize) -> Result<DecodeProblem> {
    let of = |rows, heads| Layout::Bshd.tensor(args.batch, rows, heads, args.dim);
    let (q, k) = (of(1, args.heads), of(seq, args.kv_heads.unwrap_or(args.heads)));
    Ok(DecodeProblem::new(Tensors { q, k, v: k, o: q }, args.dtype, DecodeOptions::default())?)
}

/// Judges all ranks' results by the rule, and by how far they are from one GPU's: both are within its bound
/// of what is exact, so that twice this is between them at most.
fn judge<T: Element<Output = T>>(
    team: &mut Team<'_>,
    one: &mut Whole,
    expected: &Expected<T>,
    runs: usize,
) -> Result<Verdict> {
    one.cache.poison()?;
    one.enqueue()?;
    one.wait()?;
    let of_one = one.cache.results::<T>()?;
    let mut verdict = Verdict::default();
    while verdict.runs < runs && verdict.failure.is_none() {
        team.parts.iter_mut().try_for_each(Cache::poison)?;
        team.enqueue()?;
        team.wait()?;
        verdict.runs += 1;
        let mut first: Option<Results<T>> = None;
        for (index, part) in team.parts.iter().enumerate() {
            let results = part.results::<T>()?;
            let rank = team.plan.rank(index);
            verdict.take(rank, expected, (&of_one, &results));
            if first.as_ref().is_some_and(|first| !results.are_those_of(first)) {
                verdict.fail(format!("rank {rank} has other bits than rank 0"));
            }
            first.get_or_insert(results);
        }
    }
    Ok(verdict)
}
