//! The ranks of this process, and the sides that are compared.

use std::time::{Duration, Instant};

use anyhow::Result;
use flash_attention::distributed::{Distributed, LocalRanks, RankPlan};

use super::tensors::{Part, Whole};

/// How long ranks that are there are waited for: long enough for millions of tokens on one GPU.
const PATIENCE: Duration = Duration::from_secs(600);

/// The ranks of this process, with their tensors.
pub(super) struct Team<'a> {
    pub(super) plan: TeamPlan<'a>,
    pub(super) parts: Vec<Part>,
}

pub(super) enum TeamPlan<'a> {
    /// All of them.
    Local(Box<LocalRanks>),
    /// One, beside others in processes of their own.
    Rank(&'a Distributed, Box<RankPlan<'a>>),
}

impl Team<'_> {
    pub(super) fn poison(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(Part::poison)
    }

    pub(super) fn enqueue(&self) -> Result<()> {
        let addresses: Vec<_> = self.parts.iter().map(Part::addresses).collect();
        let streams: Vec<_> = self.parts.iter().map(Part::stream).collect();
        match &self.plan {
            TeamPlan::Local(ranks) => {
                // SAFETY: the tensors are as long as the shards say, and live until the streams' work is
                // over; each stream is that of the call before.
                unsafe { ranks.forward(&addresses, &streams) }?;
            }
            TeamPlan::Rank(_, plan) => {
                for (addresses, &stream) in addresses.iter().zip(&streams) {
                    // SAFETY: as above.
                    unsafe { plan.forward(addresses, stream) }?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn wait(&self) -> Result<()> {
        match &self.plan {
            TeamPlan::Local(ranks) => Ok(ranks.wait()?),
            TeamPlan::Rank(_, plan) => Ok(plan.wait(PATIENCE)?),
        }
    }

    /// Seconds of a run of each rank by itself, with the keys that the last run of all gathered, of the rank
    /// that takes longest; 0 where other ranks are in other processes.
    pub(super) fn slowest_rank(&self, runs: usize) -> Result<f64> {
        let TeamPlan::Local(ranks) = &self.plan else { return Ok(0.0) };
        let mut slowest = 0.0_f64;
        for (rank, part) in self.parts.iter().enumerate() {
            let start = Instant::now();
            for _ in 0..runs {
                // SAFETY: the tensors are as long as the shards say, and live until the stream's work is
                // over; it is the stream of the call before.
                unsafe { ranks.forward_gathered(rank, &part.addresses(), part.stream()) }?;
            }
            ranks.wait()?;
            slowest = slowest.max(start.elapsed().as_secs_f64() / runs as f64);
        }
        Ok(slowest)
    }

    /// Waits for the other processes.
    fn meet(&self) -> Result<()> {
        match &self.plan {
            TeamPlan::Local(_) => Ok(()),
            TeamPlan::Rank(group, _) => Ok(group.barrier(PATIENCE)?),
        }
    }

    /// Whether this process has the first rank.
    fn is_first(&self) -> bool {
        !matches!(&self.plan, TeamPlan::Rank(group, _) if group.rank() > 0)
    }

    pub(super) fn reasons(&self) -> Vec<String> {
        match &self.plan {
            TeamPlan::Local(ranks) => ranks.reasons().to_vec(),
            TeamPlan::Rank(_, plan) => plan.reasons().to_vec(),
        }
    }

    pub(super) fn extra_bytes(&self) -> usize {
        match &self.plan {
            TeamPlan::Local(ranks) => {
                (0..ranks.world()).map(|rank| ranks.memory_bytes(rank)).max().unwrap_or_default()
            }
            TeamPlan::Rank(_, plan) => plan.memory_bytes(),
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
    pub(super) fn time(self, (team, wholes): (&Team<'_>, &[Whole]), runs: usize) -> Result<f64> {
        let wholes = match self {
            Self::One if team.is_first() => &wholes[..1],
            Self::Independent => wholes,
            _ => &[],
        };
        team.meet()?;
        let start = Instant::now();
        for _ in 0..runs {
            wholes.iter().try_for_each(Whole::enqueue)?;
            if self == Self::Together {
                team.enqueue()?;
            }
        }
        wholes.iter().try_for_each(Whole::wait)?;
        if self == Self::Together {
            team.wait()?;
        }
        team.meet()?;
        Ok(start.elapsed().as_secs_f64() / runs as f64)
    }
}
