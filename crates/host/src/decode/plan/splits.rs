//! How keys are split over blocks.

use fa_kernels::config::DecodeSm90Config;
use fa_kernels::entries::{Algorithm, Entry, Tile};
use fa_kernels::params::MAX_SPLITS;

use super::{DecodeKernel, DecodeLaunchDetails, DecodeRequest};
use crate::plan::cost::h200::{
    ALIKE, BUSY, CLUSTER_STEPS, COMBINE_STEPS, FEWEST_IN_ANY_BATCH, GOOD_ENOUGH, LEAST_SPLIT_BLOCKS,
    MLA_LEAST_SPLIT_BLOCKS, SM90_FEWEST_IN_ANY_BATCH, SM90_GOOD_ENOUGH, SM90_SPLIT_KEYS, SPLIT_KEYS,
};
use crate::{Device, Problem};

/// Bytes of shared memory that the system takes of each block (CUDA C++ Programming Guide, compute capability
/// 8.0 and later).
const RESERVED_SHARED: usize = 1024;

/// What [`CacheParams::head_bits`](fa_kernels::params::CacheParams::head_bits) takes.
const MAX_HEAD_BITS: u32 = 3;

/// Most blocks of a cluster that every device takes.
const MOST_BLOCKS: usize = 8;

/// How keys are split, and why so.
pub(super) fn splits(
    shape: &Shape,
    problem: &Problem,
    request: &DecodeRequest,
) -> (DecodeLaunchDetails, String) {
    let even = |num_splits| DecodeLaunchDetails { num_splits, ..DecodeLaunchDetails::default() };
    if problem.is_packed() {
        return (even(1), "1 split: queries are packed".to_owned());
    }
    if let Some(num_splits) = request.num_splits {
        return (even(num_splits), format!("{num_splits} splits: asked for"));
    }
    if request.batch_invariant {
        return shape.splits_in_any_batch(problem);
    }
    if shape.adds_up && shape.are_enough() && problem.seqlen_k() > SM90_SPLIT_KEYS {
        return shape.splits_of_unlike_lengths(problem);
    }
    let (num_splits, why) = shape.choose_splits();
    (even(num_splits), why)
}

/// log2 of the query heads that are rows of one tile of `forward_sm90`: as many as share keys, to eight.
pub(super) fn head_bits(problem: &Problem) -> u32 {
    problem.group().trailing_zeros().min(MAX_HEAD_BITS)
}

/// Packs of heads.
pub(crate) fn packs(problem: &Problem) -> usize {
    problem.heads() >> head_bits(problem)
}

/// Rows of a pack's so many queries.
pub(crate) fn pack_rows(queries: usize, problem: &Problem) -> usize {
    queries << head_bits(problem)
}

/// Tiles of `block_m` rows of all packs, or their most where the device alone has the sequences' offsets.
pub(crate) fn pack_tiles(problem: &Problem, block_m: u32) -> usize {
    let tiles = |queries: usize| pack_rows(queries, problem).div_ceil(block_m as usize);
    let (batch, longest) = (problem.batch(), tiles(problem.seqlen_q()));
    let of_a_pack = if problem.has_bounds_alone() {
        (batch * longest).min(tiles(problem.tensors().q.seqlen) + batch)
    } else if problem.is_packed() {
        (0..batch).map(|batch| tiles(problem.query_rows(batch).len())).sum()
    } else {
        batch * longest
    };
    packs(problem) * of_a_pack
}

/// Whether blocks of the entry can add up the splits of a tile.
fn adds_up(entry: &Entry) -> bool {
    let cache_bytes = match entry.algorithm {
        Algorithm::DecodeSm90 => 2,
        Algorithm::DecodeSm90E4m3 => 1,
        _ => return false,
    };
    let Tile { block_m, block_n, head_dim, .. } = entry.tile;
    DecodeSm90Config { block_m, block_n, head_dim, stages: 2, cache_bytes }.adds_up_splits()
}

/// What the number of splits depends on.
pub(super) struct Shape {
    /// Blocks of an unsplit launch.
    pub(super) tiles: usize,
    /// Steps over the keys of a sequence.
    key_blocks: usize,
    pub(super) blocks_per_multiprocessor: usize,
    multiprocessors: usize,
    /// Blocks that run at a time.
    pub(super) slots: usize,
    /// What the kernel's splits are chosen by.
    rule: Rule,
    /// Whether its blocks can add up the splits of a tile.
    adds_up: bool,
}

/// What a kernel's splits are chosen by.
struct Rule {
    /// Steps that a split has at least.
    least_blocks: usize,
    /// Share of the best efficiency that fewer splits may have.
    good_enough: f64,
    /// Blocks on a multiprocessor that read as fast as it can.
    busy_blocks: usize,
    /// Blocks on each multiprocessor from which on keys are not split, where there are so many.
    enough_blocks: usize,
    /// Steps that merging is counted as: by a cluster, where it can, and by a launch.
    merging: [usize; 2],
}

impl Rule {
    fn of(kernel: DecodeKernel, e4m3: bool, blocks: usize) -> Self {
        match kernel {
            DecodeKernel::Decode => Self {
                least_blocks: LEAST_SPLIT_BLOCKS,
                good_enough: GOOD_ENOUGH,
                busy_blocks: blocks,
                enough_blocks: 1,
                merging: [0, 0],
            },
            DecodeKernel::DecodeSm90 => {
                // Of 8 bits, a step takes one block longer than its bytes take the memory.
                let busy_blocks = if e4m3 { blocks } else { 1 };
                let enough_blocks = busy_blocks;
                Self {
                    least_blocks: 1,
                    good_enough: SM90_GOOD_ENOUGH,
                    busy_blocks,
                    enough_blocks,
                    merging: [CLUSTER_STEPS, COMBINE_STEPS],
                }
            }
            DecodeKernel::MlaSm90 => Self {
                least_blocks: MLA_LEAST_SPLIT_BLOCKS,
                good_enough: SM90_GOOD_ENOUGH,
                busy_blocks: 1,
                enough_blocks: 1,
                merging: [0, 0],
            },
            DecodeKernel::ForwardSm90 => Self {
                least_blocks: LEAST_SPLIT_BLOCKS,
                good_enough: SM90_GOOD_ENOUGH,
                busy_blocks: 1,
                enough_blocks: 1,
                merging: [0, 0],
            },
        }
    }
}

impl Shape {
    pub(super) fn new(kernel: DecodeKernel, problem: &Problem, device: &Device, entry: &Entry) -> Self {
        let tiles = match kernel {
            DecodeKernel::ForwardSm90 => pack_tiles(problem, entry.tile.block_m),
            _ => {
                let of_a_head = problem.packed_rows().div_ceil(entry.tile.block_m as usize);
                problem.batch() * problem.kv_heads() * of_a_head
            }
        };
        let of_shared = device.shared_per_multiprocessor / (entry.shared_bytes as usize + RESERVED_SHARED);
        let blocks_per_multiprocessor = of_shared.clamp(1, entry.min_blocks as usize);
        Self {
            tiles,
            key_blocks: problem.seqlen_k().div_ceil(entry.tile.block_n as usize),
            blocks_per_multiprocessor,
            multiprocessors: (device.multiprocessors as usize).max(1),
            slots: blocks_per_multiprocessor * (device.multiprocessors as usize).max(1),
            rule: Rule::of(kernel, entry.algorithm == Algorithm::DecodeSm90E4m3, blocks_per_multiprocessor),
            adds_up: adds_up(entry),
        }
    }

    /// Splits that do not depend on the batch, at most as many as let a sequence fill the device by itself.
    fn splits_in_any_batch(&self, problem: &Problem) -> (DecodeLaunchDetails, String) {
        let details = self.splits_of_one_length(problem);
        let by_whom = if details.enough_sequences > 0.0 {
            ", added up by one block where lengths are alike"
        } else {
            ""
        };
        let why = format!(
            "up to {} splits of at least {} keys: a sequence's do not depend on others in the batch{by_whom}",
            details.num_splits, details.split_keys
        );
        (details, why)
    }

    /// Whole tiles, which keep the device reading, unless the device has lengths and these are unlike.
    fn splits_of_unlike_lengths(&self, problem: &Problem) -> (DecodeLaunchDetails, String) {
        let details =
            DecodeLaunchDetails { whole_without_lengths: true, ..self.splits_of_one_length(problem) };
        let why = format!(
            "1 split: {} blocks keep {} multiprocessors reading, and leave nothing to merge; where lengths are \
             unlike, up to {} of at least {} keys",
            self.tiles, self.multiprocessors, details.num_splits, details.split_keys
        );
        (details, why)
    }

    /// Splits of one length, which depends on a sequence alone.
    fn splits_of_one_length(&self, problem: &Problem) -> DecodeLaunchDetails {
        let (batch, tiles) = (problem.batch(), (self.tiles / problem.batch()).max(1));
        let (filling, fewest, split_keys) = if self.adds_up {
            (self.places(), SM90_FEWEST_IN_ANY_BATCH, SM90_SPLIT_KEYS)
        } else {
            (self.slots, FEWEST_IN_ANY_BATCH, SPLIT_KEYS)
        };
        let most = (filling / tiles).clamp(fewest, MAX_SPLITS as usize);
        let num_splits = problem.seqlen_k().div_ceil(split_keys).min(most);
        let adds_up = self.adds_up && num_splits > 1 && self.are_enough();
        let enough = (BUSY * self.enough() as f64 / tiles as f64).max(ALIKE * batch as f64);
        let enough_sequences = if adds_up { enough as f32 } else { 0.0 };
        DecodeLaunchDetails { num_splits, split_keys, enough_sequences, ..DecodeLaunchDetails::default() }
    }

    /// Whether a cluster can have so many splits of a tile, without blocks that wait for others.
    fn fits_clusters(&self, num_splits: usize) -> bool {
        // Two neighbours always find a place; GPCs have numbers of multiprocessors that others do not divide.
        let places = if num_splits == 2 { self.slots } else { self.multiprocessors.min(self.slots / 4 * 3) };
        (2..=MOST_BLOCKS).contains(&num_splits) && self.tiles * num_splits <= places
    }

    /// Blocks of a cluster that has the splits of a tile; 1 where that cannot be.
    pub(super) fn cluster(&self, details: &DecodeLaunchDetails) -> u32 {
        if self.fits_clusters(details.num_splits) { details.num_splits as u32 } else { 1 }
    }

    /// Blocks that run the items of a list.
    pub(super) fn blocks(&self, items: u32, details: &DecodeLaunchDetails) -> u32 {
        // Whole tiles read fastest alone on their multiprocessors.
        let alone = details.enough_sequences > 0.0 && self.tiles <= self.places();
        items.min(if alone { self.tiles } else { self.slots } as u32)
    }

    /// Whether unsplit tiles keep the device reading.
    fn are_enough(&self) -> bool {
        self.tiles as f64 >= BUSY * self.enough() as f64
    }

    /// Tiles that are not split, where there are so many.
    fn enough(&self) -> usize {
        self.rule.enough_blocks * self.multiprocessors
    }

    /// Places of blocks that together read as fast as the device can.
    fn places(&self) -> usize {
        self.rule.busy_blocks * self.multiprocessors
    }

    /// Share of the places' time that is work: the waves of blocks each last as long as the longest split,
    /// and then splits are merged.
    fn efficiency(&self, num_splits: usize) -> f64 {
        let places = self.places();
        let waves = (self.tiles * num_splits).div_ceil(places);
        let longest = self.key_blocks.div_ceil(num_splits);
        let [by_cluster, by_launch] = self.rule.merging;
        let merging = match num_splits {
            1 => 0,
            _ if self.fits_clusters(num_splits) => by_cluster,
            _ => by_launch,
        };
        (self.tiles * self.key_blocks) as f64 / (places * (waves * longest + merging)) as f64
    }

    /// One split where that keeps the multiprocessors busy, else the smallest number of splits that is nearly
    /// as efficient as the best, and why.
    fn choose_splits(&self) -> (usize, String) {
        if self.are_enough() {
            let why = format!(
                "1 split: {} blocks keep {} multiprocessors reading, and leave nothing to merge",
                self.tiles, self.multiprocessors
            );
            return (1, why);
        }
        let most = (self.key_blocks / self.rule.least_blocks).clamp(1, MAX_SPLITS as usize);
        let best = (1..=most).map(|splits| self.efficiency(splits)).fold(0.0, f64::max);
        let chosen =
            (1..=most).find(|&splits| self.efficiency(splits) >= self.rule.good_enough * best).unwrap_or(1);
        let why = format!(
            "{chosen} split{}: {} blocks in {} wave{} of {} keep the multiprocessors busy {:.0} % of the time, and no \
             number up to {most} (at least {} key blocks each) more than {:.0} %",
            if chosen == 1 { "" } else { "s" },
            self.tiles * chosen,
            (self.tiles * chosen).div_ceil(self.places()),
            if self.tiles * chosen <= self.places() { "" } else { "s" },
            self.places(),
            100.0 * self.efficiency(chosen),
            self.rule.least_blocks,
            100.0 * best
        );
        (chosen, why)
    }
}
