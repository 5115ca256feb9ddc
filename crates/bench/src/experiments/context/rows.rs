//! Forward and backward passes over rows that ranks share out.

use anyhow::{Context as _, Result};
use flash_attention::backward::BackwardProblem;
use flash_attention::distributed::{Distributed, LocalRanks, Partition};
use flash_attention::{Element, Problem};

use super::pass::Pass;
use super::record::{Measured, Verdict};
use super::team::{Team, TeamPlan, Work as _, or_keep};
use super::tensors::{PATTERN, Part, Whole};
use super::{Args, FLOPS, LAUNCHES, Ranks, in_turns};
use crate::inputs::normal;
use crate::interrupt;
use crate::lab::Unit;

/// Measures a forward pass.
pub(super) fn forward<T: Element<Output = T>>(
    args: &Args,
    ranks: &Ranks,
    problem: &Problem,
) -> Result<Measured> {
    measure::<Problem, T>(args, ranks, problem)
}

/// Measures the backward pass of a problem.
pub(super) fn backward<T: Element<Output = T>>(
    args: &Args,
    ranks: &Ranks,
    problem: &Problem,
) -> Result<Measured> {
    measure::<BackwardProblem, T>(args, ranks, problem)
}

fn measure<O: Pass, T: Element<Output = T>>(
    args: &Args,
    ranks: &Ranks,
    forward: &Problem,
) -> Result<Measured> {
    let problem = O::of(forward)?;
    let pattern = [0, 1, 2, 3].map(|tensor| normal::<T>(args.report.seed, tensor, PATTERN));
    let partition = if args.contiguous { Partition::Contiguous } else { Partition::ZigZag };
    let request = problem.request_of_bits();
    let wholes = ranks.each_gpu(args).iter().map(|gpu| Whole::new(gpu, (forward, &problem), &pattern));
    let wholes = wholes.collect::<Result<Vec<_>>>().context("one GPU's tensors")?;
    let (plan, parts) = match ranks {
        Ranks::Local(gpus) => {
            let ranks = LocalRanks::new(gpus, &problem, partition, &request)?;
            let shards = (0..ranks.world()).filter_map(|rank| ranks.shard(rank));
            let parts = gpus.iter().zip(shards).zip(wholes.iter().cycle());
            let parts = parts.map(|((gpu, shard), whole)| Part::new(gpu, shard, (whole, &pattern)));
            let parts = parts.collect::<Result<_>>()?;
            (TeamPlan::Local(Box::new(ranks)), parts)
        }
        Ranks::Process(group) => {
            let plan = group.plan(&problem, partition, &request)?;
            let parts = vec![Part::new(group.cuda(), plan.shard(), (&wholes[0], &pattern))?];
            (TeamPlan::Rank(Box::new(plan)), parts)
        }
    };
    let mut sides = (Team { plan, parts }, wholes);
    let measured = compare::<O, T>(args, ranks.group(), (forward, &problem), &mut sides);
    or_keep(measured, sides)
}

/// Compares bits, and times.
fn compare<O: Pass, T: Element<Output = T>>(
    args: &Args,
    group: Option<&Distributed>,
    (forward, problem): (&Problem, &O),
    (team, wholes): &mut (Team<O>, Vec<Whole<O>>),
) -> Result<Measured> {
    let mut difference = None;
    let expected = if args.check > 0 { Some(wholes[0].outputs(problem)?) } else { None };
    // As often on all ranks, also where one finds a difference.
    for run in 1..=args.check {
        interrupt::check()?;
        team.poison()?;
        team.enqueue()?;
        team.wait()?;
        if let Some(expected) = expected.as_ref().filter(|_| difference.is_none()) {
            difference = team.difference::<T>(expected)?.map(|found| (found, run));
        }
    }
    drop(expected);
    let passes = if O::IS_BACKWARD { 2.5 } else { 1.0 };
    let once = passes * forward.flops() / FLOPS + LAUNCHES;
    let slowest = |runs| team.slowest_rank(runs);
    let (times, slowest_rank) = in_turns(args, group, (&*team, &wholes[..]), once, slowest)?;
    let reasons = wholes.first().map(Whole::reason).into_iter().chain(team.reasons()).collect();
    Ok(Measured {
        problem: forward.clone(),
        pass: if O::IS_BACKWARD { "backward" } else { "forward" },
        work: (Unit::Flops, passes * forward.flops()),
        times,
        extra_bytes: team.extra_bytes(),
        reasons,
        checked_runs: args.check,
        verdict: Verdict::Bits(difference),
        slowest_rank,
    })
}
