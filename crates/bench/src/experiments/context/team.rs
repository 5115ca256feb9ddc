//! The ranks of this process, and the sides that are compared.

use std::time::{Duration, Instant};

use anyhow::Result;
use flash_attention::distributed::{Distributed, LocalRanks, RankPlan};

use super::tensors::Part;

/// How long ranks that are there are waited for: long enough for millions of tokens on one GPU.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// The ranks of this process, with their tensors.
pub(super) struct Team<'a> {
    pub(super) plan: TeamPlan<'a>,
    pub(super) parts: Vec<Part>,
}

pub(super) enum TeamPlan<'a> {
    /// All of them.
    Local(Box<LocalRanks>),
    /// One, beside others in processes of their own.
    Rank(Box<RankPlan<'a>>),
}

/// What a side computes.
pub(super) trait Work {
    /// Enqueues it once.
    fn enqueue(&self) -> Result<()>;

    /// Waits for all that was enqueued.
    fn wait(&self) -> Result<()>;
}

impl Work for Team<'_> {
    fn enqueue(&self) -> Result<()> {
        let addresses: Vec<_> = self.parts.iter().map(Part::addresses).collect();
        let streams: Vec<_> = self.parts.iter().map(Part::stream).collect();
        match &self.plan {
            TeamPlan::Local(ranks) => {
                // SAFETY: the tensors are as long as the shards say, and live until the streams' work is
                // over; each stream is that of the call before.
                unsafe { ranks.forward(&addresses, &streams) }?;
            }
            TeamPlan::Rank(plan) => {
                for (addresses, &stream) in addresses.iter().zip(&streams) {
                    // SAFETY: as above.
                    unsafe { plan.forward(addresses, stream) }?;
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

impl Team<'_> {
    pub(super) fn poison(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(Part::poison)
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
