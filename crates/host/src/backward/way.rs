//! How dQ comes about in Hopper's kernel, and what that takes of the workspace.

use fa_kernels::entries::Algorithm;
use fa_kernels::params::{StoredDs, Tickets};

use super::stored::{Blocks, Estimate, Stored};
use super::summed::Summed;
use crate::{Device, Problem, TensorLayout};

/// How dQ comes about in Hopper's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DqWay {
    /// By blocks that own queries, and compute scores again.
    #[default]
    Recomputed,
    /// From dS that is stored.
    Stored(Stored),
    /// As a sum, where dS is made.
    Summed(Summed),
}

impl DqWay {
    /// Whether it is the way whose first launch of tiles is of this algorithm.
    pub(super) const fn is_by(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::Recomputed => !algorithm.stores_ds() && !algorithm.sums_dq(),
            Self::Stored(_) => algorithm.stores_ds(),
            Self::Summed(_) => algorithm.sums_dq(),
        }
    }

    /// Bytes behind delta and copies.
    pub(super) fn bytes(&self, forward: &Problem) -> u64 {
        match self {
            Self::Recomputed => 0,
            Self::Stored(stored) => stored.bytes(forward),
            Self::Summed(summed) => summed.bytes(forward),
        }
    }

    /// About how many cycles the launches take that compute gradients.
    pub(super) fn cycles(&self, forward: &Problem, device: &Device) -> f64 {
        let estimate = Estimate::new(forward, device);
        match self {
            Self::Recomputed => estimate.recomputed(),
            Self::Stored(stored) => estimate.stored(stored),
            Self::Summed(_) => estimate.summed(),
        }
    }

    /// The blocks of its launch; `None` where each has one tile.
    pub(super) fn blocks(&self, forward: &Problem, device: &Device) -> Option<Blocks> {
        match self {
            Self::Recomputed => None,
            Self::Stored(stored) => Some(stored.blocks(forward, device)),
            Self::Summed(summed) => Some(summed.blocks(forward, device)),
        }
    }

    /// The tickets of the launch that has these blocks, and what lies behind them, in a workspace whose
    /// counters begin at this address.
    pub(super) fn params(&self, forward: &Problem, blocks: Blocks, counters: u64) -> (Tickets, StoredDs) {
        match self {
            Self::Recomputed => Default::default(),
            Self::Stored(stored) => {
                let ds = stored.layout(forward, counters + stored.bytes_before_ds(forward));
                (stored.tickets(forward, blocks, counters), ds)
            }
            Self::Summed(summed) => {
                let sums = summed.layout(forward, counters + summed.bytes_before_sums(forward));
                (summed.tickets(forward, counters), sums)
            }
        }
    }

    /// What copies load of dS or of sums, as a view, and how many of its rows at a time.
    pub(super) fn view(&self, forward: &Problem) -> Option<(TensorLayout, u32)> {
        match self {
            Self::Recomputed => None,
            Self::Stored(stored) => Some(stored.view(forward)),
            Self::Summed(summed) => Some(summed.view(forward)),
        }
    }
}
