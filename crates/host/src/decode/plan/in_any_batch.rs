//! Splits of a sequence that nothing else in its batch matters to, and which blocks have them.
//!
//! Where splits begin and end depends on the sequence's keys and on the heads alone. Splits are taken in one
//! after the other whoever does that, so that the number of blocks they are spread over is free.

use fa_kernels::params::MAX_SPLITS;

use super::DecodeLaunchDetails;
use super::splits::{Adding, MOST_BLOCKS, Shape};
use crate::Problem;
use crate::plan::cost::h200::{
    ALIKE, CLUSTER_STEPS, COMBINE_STEPS, FEWEST_IN_ANY_BATCH, SM90_FEWEST_IN_ANY_BATCH, SPLIT_KEYS,
};

/// log2 of the splits of a short sequence of `decode_sm90`: as many as a cluster merges at once.
const SHORT_SPLIT_BITS: u32 = MOST_BLOCKS.ilog2();

/// Splits have a multiple of so many keys, as the kernels round them.
const SPLIT_MULTIPLE: usize = 128;

/// Who has the splits of a tile.
#[derive(Clone, Copy)]
enum Owner {
    /// One block, which adds them up.
    Block,
    /// A block each, or a few; a launch merges them.
    Launch,
    /// The blocks of a cluster, each of which has up to so many.
    Cluster { blocks: usize, splits: usize },
}

impl DecodeLaunchDetails {
    /// Keys of each split of a sequence with `used` keys, as the kernels have them.
    pub(super) fn keys_of_each(&self, used: usize) -> usize {
        let of_short = used.div_ceil(1 << self.short_split_bits);
        self.split_keys.min(of_short).max(used.div_ceil(self.num_splits)).next_multiple_of(SPLIT_MULTIPLE)
    }
}

impl Shape {
    /// Splits that do not depend on the batch, at most as many as let a sequence fill the device by itself.
    pub(super) fn splits_in_any_batch(
        &self,
        problem: &Problem,
        clusters: bool,
    ) -> (DecodeLaunchDetails, String) {
        let details = self.splits_of_any_batch(problem);
        if details.num_splits == 1 {
            let why = format!("1 split: {} keys are too few for more, in any batch", problem.seqlen_k());
            return (details, why);
        }
        let owner = self.owner(&details, problem, clusters);
        let by_whom = match owner {
            Owner::Block => "added up by one block where lengths are alike".to_owned(),
            Owner::Launch => "merged by a launch".to_owned(),
            Owner::Cluster { splits: 1, .. } => "a block of a cluster each".to_owned(),
            Owner::Cluster { splits, .. } => format!("up to {splits} in each block of a cluster"),
        };
        let why = format!(
            "up to {} splits of at least {SPLIT_MULTIPLE} keys: a sequence's do not depend on others in the batch; {by_whom}",
            details.num_splits
        );
        let details = match owner {
            Owner::Block => {
                DecodeLaunchDetails { enough_sequences: (ALIKE * problem.batch() as f64) as f32, ..details }
            }
            Owner::Launch => details,
            Owner::Cluster { blocks, splits } => {
                // A cluster has at most 8 blocks, of at most 8 splits.
                DecodeLaunchDetails { cluster: blocks as u32, splits_of_a_block: splits as u32, ..details }
            }
        };
        (details, why)
    }

    /// Where splits begin and end.
    fn splits_of_any_batch(&self, problem: &Problem) -> DecodeLaunchDetails {
        let tiles = (self.tiles / problem.batch()).max(1);
        let (filling, fewest, short_split_bits) = match self.adding {
            Adding::Never => (self.slots, FEWEST_IN_ANY_BATCH, 0),
            _ => (self.places(), SM90_FEWEST_IN_ANY_BATCH, SHORT_SPLIT_BITS),
        };
        let most = (filling / tiles).clamp(fewest, MAX_SPLITS as usize);
        // The most that any sequence of no more keys has.
        let of_short = problem.seqlen_k().div_ceil(SPLIT_MULTIPLE).min(1 << short_split_bits);
        let num_splits = problem.seqlen_k().div_ceil(SPLIT_KEYS).max(of_short).min(most);
        DecodeLaunchDetails {
            num_splits,
            split_keys: SPLIT_KEYS,
            short_split_bits,
            ..DecodeLaunchDetails::default()
        }
    }

    /// Who has the splits, so that the fewest steps follow one another.
    fn owner(&self, details: &DecodeLaunchDetails, problem: &Problem, clusters: bool) -> Owner {
        let adds = matches!(self.adding, Adding::Can | Adding::Always);
        if adds && self.are_enough() {
            return Owner::Block;
        }
        // A shorter sequence may have more, of fewer keys.
        let splits = details.num_splits;
        let steps = details.keys_of_each(problem.seqlen_k()).div_ceil(self.block_n);
        let by_cluster = |each: usize| Owner::Cluster { blocks: splits.div_ceil(each), splits: each };
        let fits = |owner: &Owner| match *owner {
            Owner::Block => adds,
            Owner::Launch => !matches!(self.adding, Adding::Always),
            Owner::Cluster { blocks, splits } => {
                let adds = splits == 1 && !matches!(self.adding, Adding::Always) || splits > 1 && adds;
                let are_merged_at_once = details.num_splits <= MOST_BLOCKS;
                clusters && adds && are_merged_at_once && self.fits_clusters(blocks, splits)
            }
        };
        let cost = |owner: &Owner| match *owner {
            Owner::Block => self.tiles.div_ceil(self.places()) * splits * steps,
            Owner::Launch => (self.tiles * splits).div_ceil(self.places()) * steps + COMBINE_STEPS,
            Owner::Cluster { blocks, splits } => {
                (self.tiles * blocks).div_ceil(self.places()) * splits * steps + CLUSTER_STEPS
            }
        };
        let owners = (1..splits).map(by_cluster).chain([Owner::Block, Owner::Launch]);
        owners.filter(fits).min_by_key(cost).unwrap_or(Owner::Launch)
    }
}
