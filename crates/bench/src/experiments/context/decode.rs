//! Decoding over a cache that GPUs share out: one query row for each sequence.

mod judge;
mod sides;

use anyhow::{Context as _, Result};
use flash_attention::cuda::Cuda;
use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest};
use flash_attention::distributed::{Distributed, LocalDecode};
use flash_attention::{Element, Plan, Problem, Tensors};

use super::record::{Measured, Verdict};
use super::team::{Work as _, or_keep};
use super::tensors::PATTERN;
use super::{Args, LAUNCHES, Ranks, in_turns};
use crate::inputs::normal;
use crate::lab::Unit;
use crate::problem::Layout;
pub(super) use judge::Errors;
use judge::{Expected, Results};
use sides::{Cache, Team, TeamPlan, Whole};

/// Bytes that a GPU may be expected to read in a second, for how often a side runs in a turn.
const BANDWIDTH: f64 = 3.5e12;

/// Measures decoding over as many keys as a problem has, for as many sequences and heads.
pub(super) fn measure<T: Element<Output = T>>(args: &Args, ranks: &Ranks, of: &Problem) -> Result<Measured> {
    let seq = of.seqlen_k();
    let pattern = [0, 1, 2].map(|tensor| normal::<T>(args.report.seed, tensor, PATTERN));
    let whole = problem(of, seq)?;
    // All ranks have room for as many; the last have fewer, where these do not divide the keys.
    let room = seq.div_ceil(args.gpus);
    let of_rank = problem(of, room)?;
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
    let on_gpu = |gpu: &Cuda| {
        let plan = Plan::new(&whole, gpu.device(), &request)?;
        Whole::new(gpu, plan, Cache::new(gpu, &whole, (0..seq, seq), &pattern)?)
    };
    let wholes = ranks.each_gpu(args).iter().map(on_gpu).collect::<Result<Vec<_>>>();
    let mut sides = (Team { plan, parts }, wholes.context("one GPU's tensors")?);
    let measured = compare(args, ranks.group(), (&whole, &pattern), &mut sides);
    or_keep(measured, sides)
}

/// Compares results, and times.
fn compare<T: Element<Output = T>>(
    args: &Args,
    group: Option<&Distributed>,
    (whole, pattern): (&DecodeProblem, &[Vec<T>; 3]),
    (team, wholes): &mut (Team, Vec<Whole>),
) -> Result<Measured> {
    let errors = match args.check {
        0 => Errors::default(),
        runs => {
            let expected = Expected::new(&wholes[0].plan, pattern)?;
            judge(team, &mut wholes[0], &expected, runs)?
        }
    };
    let bytes = whole.cache_bytes(&DecodeInputs::<T>::new(&[], &[], &[])) as f64;
    let once = bytes / BANDWIDTH + LAUNCHES;
    // Ranks read their keys whatever the others do: each by itself takes as long.
    let alone = |_| Ok(f64::NAN);
    let (times, _) = in_turns(args, group, (&*team, &wholes[..]), once, alone)?;
    Ok(Measured {
        problem: whole.dense().clone(),
        pass: "decode",
        work: (Unit::BytesPerSecond, bytes),
        times,
        extra_bytes: team.plan.extra_bytes(),
        reasons: team.plan.reasons().to_vec(),
        checked_runs: errors.runs,
        verdict: Verdict::Errors(errors),
        slowest_rank: None,
    })
}

/// One query row for each sequence of so many keys.
fn problem(of: &Problem, seq: usize) -> Result<DecodeProblem> {
    let of_rows = |rows, heads| Layout::Bshd.tensor(of.batch(), rows, heads, of.head_dim());
    let (q, k) = (of_rows(1, of.heads()), of_rows(seq, of.kv_heads()));
    Ok(DecodeProblem::new(Tensors { q, k, v: k, o: q }, of.dtype(), DecodeOptions::default())?)
}

/// Judges all ranks' results by the rule, and by how far they are from one GPU's: both are within its bound
/// of what is exact, so that twice this is between them at most.
fn judge<T: Element<Output = T>>(
    team: &mut Team,
    one: &mut Whole,
    expected: &Expected<T>,
    runs: usize,
) -> Result<Errors> {
    one.cache.poison()?;
    one.enqueue()?;
    one.wait()?;
    let of_one = one.cache.results::<T>()?;
    let mut verdict = Errors::default();
    // As often on all ranks, also where one finds an error.
    while verdict.runs < runs {
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
