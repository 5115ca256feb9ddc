//! Decoding over keys that ranks share out: what each of them computes, and how results become one.
//!
//! ```text
//!         keys of a sequence               rank 0         rank 1
//! cache   0 … 999 | 1000 … 1999            0 … 999        1000 … 1999    each a cache with its own lengths
//! splits                                   O, lse (fp32)  O, lse (fp32)  all query heads, the rank's keys
//! gather                                   rank 1's       rank 0's       a few kilobytes
//! merge                                    O, lse         O, lse         the same bits on both
//! ```

mod plan;

use super::refuse;
use crate::Result;
use crate::decode::DecodeProblem;
#[cfg(feature = "cuda")]
pub(crate) use plan::{SharedPlan, merging, of_splits};

/// A rank's part of a decode problem: all queries, over the keys that are in the rank's cache.
///
/// Each rank has a cache of its own, of the same shape on all, contiguous or in pages, with its own lengths
/// and page table. A rank may have no key of a sequence. Which keys are where is the caller's choice, with
/// one limit: under a causal mask or a right window, the newest Sq − 1 keys of each sequence are in the cache
/// of the last rank, as its newest. So with one query row a new key may go to any rank.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeShard {
    problem: DecodeProblem,
    rank: usize,
    world: usize,
}

impl DecodeShard {
    /// The part of `rank` of `world` ranks, of a problem whose Q and O are those of all heads, and whose K
    /// and V are one rank's cache: Sk is what that has room for.
    ///
    /// # Errors
    /// When the rank is none of them, and when the problem has packed queries, a tree mask, a left window,
    /// ALiBi, or functions of scores.
    pub fn new(problem: &DecodeProblem, rank: usize, world: usize) -> Result<Self> {
        if rank >= world {
            return refuse(format!("rank {rank} is none of {world}"));
        }
        if let Some(reason) = refusal(problem) {
            return refuse(reason.to_owned());
        }
        // The mask hides some of the newest keys, which are the last rank's.
        let problem = if rank + 1 == world { problem.clone() } else { problem.without_window() };
        Ok(Self { problem, rank, world })
    }

    /// What the rank computes: its queries see all of its keys, those of the last rank under the mask.
    pub const fn problem(&self) -> &DecodeProblem {
        &self.problem
    }

    /// Index of the rank.
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub const fn world(&self) -> usize {
        self.world
    }
}

/// What ranks do not decode together, if the problem has it.
fn refusal(problem: &DecodeProblem) -> Option<&'static str> {
    let dense = problem.dense();
    let unfit = [
        (dense.is_packed(), "packed queries are not split"),
        (problem.has_tree_mask(), "a tree mask counts from the newest key"),
        (dense.window().0.is_some(), "a left window counts from the newest key"),
        (dense.alibi_slopes().is_some(), "ALiBi's distances are to the newest key"),
        (dense.functions().is_some(), "functions of scores count keys of one device"),
    ];
    unfit.into_iter().find(|(is_unfit, _)| *is_unfit).map(|(_, reason)| reason)
}
