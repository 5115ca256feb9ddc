//! The ranks of this process, and the sides that are compared.

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use flash_attention::Element;
use flash_attention::distributed::{Distributed, LocalRanks, RankPlan};

use super::pass::Pass;
use super::tensors::{Expected, Part};

/// How long ranks that are there are waited for: long enough for millions of tokens on one GPU.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// The ranks of this process, with their tensors.
pub(super) struct Team<O: Pass> {
    pub(super) plan: TeamPlan<O>,
    pub(super) parts: Vec<Part>,
}

pub(super) enum TeamPlan<O: Pass> {
    /// All of them.
    Local(Box<LocalRanks<O>>),
    /// One, beside others in processes of their own.
    Rank(Box<RankPlan<O>>),
}

/// What a side computes.
pub(super) trait Work {
    /// Enqueues it once.
    fn enqueue(&self) -> Result<()>;

    /// Waits for all that was enqueued.
    fn wait(&self) -> Result<()>;
}

impl<O: Pass> Work for Team<O> {
    fn enqueue(&self) -> Result<()> {
        let addresses: Vec<_> = self.parts.iter().map(Part::addresses).collect();
        let streams: Vec<_> = self.parts.iter().map(Part::stream).collect();
        match &self.plan {
            TeamPlan::Local(ranks) => {
                // SAFETY: the tensors are as long as the shards say, and live until the streams' work is
                // over; each stream is that of the call before.
                unsafe { O::run_all(ranks, &addresses, &streams) }?;
            }
            TeamPlan::Rank(plan) => {
                for (addresses, &stream) in addresses.iter().zip(&streams) {
                    // SAFETY: as above.
                    unsafe { O::run_one(plan, addresses, stream) }?;
                }
            }
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        match &self.plan {
            TeamPlan::Local(ranks) => Ok(ranks.wait()?),
            TeamPlan::Rank(plan) => Ok(plan.wait(PATIENCE)?),
        }
    }
}

impl<O: Pass> Team<O> {
    pub(super) fn poison(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(Part::poison)
    }

    /// The first difference in bits of what the ranks wrote from the whole problem's. Each is compared in a
    /// thread of its own, since memory of several GPUs comes to the host at once.
    pub(super) fn difference<T: Element>(&self, expected: &Expected) -> Result<Option<String>> {
        let found: Vec<_> = thread::scope(|scope| {
            let comparing = self.parts.iter().map(|part| scope.spawn(|| part.difference::<T>(expected)));
            let comparing: Vec<_> = comparing.collect();
            comparing
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        Ok(found.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().next())
    }

    /// Seconds of a run of each rank by itself, with what the last run of all gathered, of the rank that
    /// takes longest; 0 where other ranks are in other processes.
    pub(super) fn slowest_rank(&self, runs: usize) -> Result<f64> {
        let TeamPlan::Local(ranks) = &self.plan else { return Ok(0.0) };
        let mut slowest = 0.0_f64;
        for (rank, part) in self.parts.iter().enumerate() {
            let start = Instant::now();
            for _ in 0..runs {
                // SAFETY: the tensors are as long as the shards say, and live until the stream's work is
                // over; it is the stream of the call before.
                unsafe { ranks.run_gathered(rank, &part.addresses(), part.stream()) }?;
            }
            ranks.wait()?;
            slowest = slowest.max(start.elapsed().as_secs_f64() / runs as f64);
        }
        Ok(slowest)
    }

    pub(super) fn reasons(&self) -> Vec<String> {
        match &self.plan {
            TeamPlan::Local(ranks) => ranks.reasons().to_vec(),
            TeamPlan::Rank(plan) => plan.reasons().to_vec(),
        }
    }

    pub(super) fn extra_bytes(&self) -> usize {
        match &self.plan {
            TeamPlan::Local(ranks) => {
                (0..ranks.world()).map(|rank| ranks.memory_bytes(rank)).max().unwrap_or_default()
            }
            TeamPlan::Rank(plan) => plan.memory_bytes(),
        }
    }
}

/// What came of ranks' work. Where it failed, what they hold is kept: a stream may wait for a rank that is
/// gone, and who frees memory for that stream.
pub(super) fn or_keep<R>(result: Result<R>, held: impl Sized) -> Result<R> {
    if result.is_err() {
        std::mem::forget(held);
    }
    result
}

/// Sides of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// One GPU computes all.
    One,
    /// Each GPU computes all.
    Independent,
    /// All GPUs together.
    Together,
}

impl Side {
    pub(super) const ALL: [Self; 3] = [Self::One, Self::Independent, Self::Together];

    /// Seconds of a run by the last of all ranks, of so many behind one another.
    pub(super) fn time<W: Work>(
        self,
        group: Option<&Distributed>,
        (team, wholes): (&impl Work, &[W]),
        runs: usize,
    ) -> Result<f64> {
        let wholes = match self {
            Self::One if group.is_none_or(|group| group.rank() == 0) => &wholes[..1],
            Self::Independent => wholes,
            _ => &[],
        };
        // Processes wait for one another.
        let meet = || group.map_or(Ok(()), |group| group.barrier(PATIENCE));
        meet()?;
        let start = Instant::now();
        for _ in 0..runs {
            wholes.iter().try_for_each(Work::enqueue)?;
            if self == Self::Together {
                team.enqueue()?;
            }
        }
        wholes.iter().try_for_each(Work::wait)?;
        if self == Self::Together {
            team.wait()?;
        }
        meet()?;
        Ok(start.elapsed().as_secs_f64() / runs as f64)
    }
}
