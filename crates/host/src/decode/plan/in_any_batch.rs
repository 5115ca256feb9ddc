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
            Owner::Launch => self.adding != Adding::Always,
            Owner::Cluster { blocks, splits } => {
                let is_for_it = if splits == 1 { self.adding != Adding::Always } else { adds };
                let are_merged_at_once = details.num_splits <= MOST_BLOCKS;
                clusters && is_for_it && are_merged_at_once && self.fits_clusters(blocks, splits)
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

#[cfg(test)]
mod tests {
    use super::super::tests::{on_hopper, problem};
    use crate::decode::{DecodeAddresses, DecodeRequest};
    use crate::sim::Sim;
    use crate::{DType, Plan};

    #[test]
    fn splits_do_not_depend_on_the_batch() {
        let splits = |batch, sk| on_hopper(batch, sk, None).2;
        assert_eq!([splits(1, 2048), splits(64, 2048)], [8, 8]);
        assert_eq!([splits(1, 128), splits(1, 129)], [1, 2]);
        // As many as let eight heads fill the device, and no more, whatever the batch.
        assert_eq!([splits(1, 131_072), splits(64, 131_072)], [16, 16]);
    }

    #[test]
    fn splits_do_not_depend_on_the_longest_sequence() {
        let details = |sk| {
            let problem = problem(3, [32, 8], 1, sk, 128, DType::F16);
            let plan = Plan::new(&problem, Sim::new(0).device(), &DecodeRequest::default()).unwrap();
            plan.launches()[0].details
        };
        let lengths = [
            1, 127, 128, 129, 900, 1000, 1024, 1025, 1100, 4095, 4096, 4097, 5000, 8192, 9000, 40_000,
            131_072,
        ];
        for (index, &used) in lengths.iter().enumerate() {
            let alone = details(used).keys_of_each(used);
            for &longest in &lengths[index..] {
                let details = details(longest);
                assert_eq!(details.keys_of_each(used), alone, "{used} keys beside {longest}");
                // Somebody has each of them: a shorter sequence may have more than the longest.
                let splits = used.div_ceil(alone);
                assert!(splits <= details.num_splits, "{used} keys beside {longest}: {details:?}");
                let of_cluster = (details.cluster * details.splits_of_a_block) as usize;
                assert!(
                    details.cluster == 1 || splits <= of_cluster,
                    "{used} keys beside {longest}: {details:?}"
                );
            }
        }
    }

    #[test]
    fn splits_are_merged_where_the_fewest_steps_follow_one_another() {
        let of = |batch, sk| on_hopper(batch, sk, None);
        assert_eq!([of(1, 512), of(1, 1024), of(2, 1024)], [(4, 0, 4), (8, 0, 8), (8, 0, 8)]);
        // Blocks of a cluster have three splits each, for not all clusters of four find places, or four.
        assert_eq!([of(4, 1000), of(8, 1000), of(1, 4096)], [(3, 0, 8), (2, 0, 8), (8, 0, 8)]);
        // A launch that merges 16 splits is made up for by steps that are fewer.
        assert_eq!(of(1, 8192), (1, 1, 16));
        // Two blocks for each of 72 tiles would share multiprocessors.
        assert_eq!(of(9, 1000), (1, 1, 8));
    }

    #[test]
    fn blocks_of_a_cluster_have_room_for_what_they_hand_on() {
        let plan = |batch, head_dim, entry: Option<&str>| {
            let problem = problem(batch, [8, 8], 1, 1000, head_dim, DType::F16);
            let request = DecodeRequest { entry: entry.map(str::to_owned), ..DecodeRequest::default() };
            Plan::new(&problem, Sim::new(0).device(), &request).unwrap()
        };
        let four = plan(8, 128, None);
        let launch = four.launches()[0];
        assert_eq!(launch.entry.name, "decode_sm90_f16_m16_n128_d128_s3_adds_up");
        assert_eq!(launch.shared_bytes, launch.entry.shared_bytes + 4 * 16 * (4 * 128 + 32));
        // Two rings of 256 columns fill shared memory.
        let wide = plan(8, 256, None);
        let launch = wide.launches()[0];
        assert_eq!((launch.cluster, launch.shared_bytes), (1, launch.entry.shared_bytes));
        // An entry that is asked for has several splits a block, or one, whatever is best.
        let asked = |batch, name| plan(batch, 128, Some(name)).launches()[0].details;
        let several = asked(1, "decode_sm90_f16_m16_n128_d128_s3_adds_up");
        assert_eq!((several.cluster, several.splits_of_a_block), (4, 2));
        let one = asked(8, "decode_sm90_f16_m16_n128_d128_s3");
        assert_eq!((one.splits_of_a_block, one.enough_sequences), (1, 0.0));
    }

    #[test]
    fn lengths_that_the_device_has_may_split_tiles_that_are_whole_without() {
        let problem = problem(64, [32, 8], 1, 4096, 128, DType::F16);
        let plan = Plan::new(&problem, Sim::new(0).device(), &DecodeRequest::default()).unwrap();
        let details = plan.launches()[0].details;
        assert!(details.enough_sequences > 57.0, "{details:?}");
        let launches =
            |seqused_k| plan.launches_at(&DecodeAddresses { seqused_k, ..DecodeAddresses::default() }).len();
        assert_eq!([launches(None), launches(Some(16))], [1, 2]);
    }
}
