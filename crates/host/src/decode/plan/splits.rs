//! How keys are split over blocks.

use fa_kernels::config::DecodeSm90Config;
use fa_kernels::entries::{Algorithm, Entry, Tile, entries};
use fa_kernels::params::MAX_SPLITS;

use super::{DecodeKernel, DecodeLaunchDetails, DecodeRequest};
use crate::plan::cost::h200::{
    BUSY, CLUSTER_STEPS, COMBINE_STEPS, GOOD_ENOUGH, LEAST_SPLIT_BLOCKS, MLA_LEAST_SPLIT_BLOCKS,
    SM90_GOOD_ENOUGH,
};
use crate::{Device, Problem};

/// Bytes of shared memory that the system takes of each block (CUDA C++ Programming Guide, compute capability
/// 8.0 and later).
const RESERVED_SHARED: usize = 1024;

/// What [`CacheParams::head_bits`](fa_kernels::params::CacheParams::head_bits) takes.
const MAX_HEAD_BITS: u32 = 3;

/// Most blocks of a cluster that every device takes.
pub(super) const MOST_BLOCKS: usize = 8;

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
    let clusters = request.clusters != Some(false);
    let in_any_batch = matches!(shape.adding, Adding::Can | Adding::Always);
    if request.num_splits.is_none() && request.batch_invariant.unwrap_or(in_any_batch) {
        return shape.splits_in_any_batch(problem, clusters);
    }
    let (num_splits, why) = match request.num_splits {
        Some(num_splits) => (num_splits, format!("{num_splits} splits: asked for")),
        None => shape.choose_splits(),
    };
    let cluster = if clusters && shape.fits_clusters(num_splits, 1) { num_splits as u32 } else { 1 };
    (DecodeLaunchDetails { cluster, ..even(num_splits) }, why)
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

/// Whether blocks have several splits of a tile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Adding {
    /// None of the kernel's can.
    Never,
    /// They could, but those of the entry asked for do not.
    NotHere,
    /// Those of the entry's twin can.
    Can,
    /// Those of the entry asked for can, and so they do.
    Always,
}

impl Adding {
    /// Of an entry, which was `asked` for by its name or not.
    fn of(entry: &Entry, asked: bool) -> Self {
        match (entry.algorithm.adds_up(), twin(entry).is_some(), asked) {
            (true, ..) => Self::Always,
            (false, false, _) => Self::Never,
            (false, true, true) => Self::NotHere,
            (false, true, false) => Self::Can,
        }
    }
}

/// The same with blocks that can have several splits.
pub(super) fn that_adds_up(algorithm: Algorithm) -> Option<Algorithm> {
    match algorithm {
        Algorithm::DecodeSm90 => Some(Algorithm::DecodeSm90AddsUp),
        Algorithm::DecodeSm90E4m3 => Some(Algorithm::DecodeSm90E4m3AddsUp),
        _ => None,
    }
}

/// The entry of the same tile whose blocks can have several splits.
pub(super) fn twin(entry: &Entry) -> Option<&'static Entry> {
    let algorithm = that_adds_up(entry.algorithm)?;
    entries().find(|other| (other.algorithm, other.dtype, other.tile) == (algorithm, entry.dtype, entry.tile))
}

/// Bytes of shared memory that the blocks of a launch of `decode_sm90` need: for the splits that they hand on
/// they need more than the entry does, where each has several.
pub(super) fn shared_bytes(entry: &Entry, details: &DecodeLaunchDetails) -> u32 {
    if !entry.algorithm.adds_up() || details.cluster == 1 {
        return entry.shared_bytes;
    }
    entry.shared_bytes + details.splits_of_a_block * part_bytes(entry)
}

/// Bytes that a block of the entry hands on of each split.
fn part_bytes(entry: &Entry) -> u32 {
    let Tile { block_m, block_n, head_dim, .. } = entry.tile;
    let cache_bytes = if entry.algorithm.reads_e4m3() { 1 } else { 2 };
    DecodeSm90Config { block_m, block_n, head_dim, stages: 2, cache_bytes }.part_bytes()
}

/// What the number of splits depends on.
pub(super) struct Shape {
    /// Blocks of an unsplit launch.
    pub(super) tiles: usize,
    /// Steps over the keys of a sequence.
    key_blocks: usize,
    /// Keys of a step.
    pub(super) block_n: usize,
    pub(super) blocks_per_multiprocessor: usize,
    multiprocessors: usize,
    /// Blocks that run at a time.
    pub(super) slots: usize,
    /// What the kernel's splits are chosen by.
    rule: Rule,
    /// Whether its blocks merge splits in clusters.
    clusters: bool,
    /// Whether its blocks have several splits of a tile.
    pub(super) adding: Adding,
    /// How many splits a block can hand on, where it can have several.
    most_handed_on: usize,
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
    /// Of an entry, which was `asked` for by its name or not.
    pub(super) fn new(
        kernel: DecodeKernel,
        problem: &Problem,
        device: &Device,
        entry: &Entry,
        asked: bool,
    ) -> Self {
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
            block_n: entry.tile.block_n as usize,
            blocks_per_multiprocessor,
            multiprocessors: (device.multiprocessors as usize).max(1),
            slots: blocks_per_multiprocessor * (device.multiprocessors as usize).max(1),
            rule: Rule::of(kernel, entry.algorithm == Algorithm::DecodeSm90E4m3, blocks_per_multiprocessor),
            clusters: kernel == DecodeKernel::DecodeSm90,
            adding: Adding::of(entry, asked),
            most_handed_on: device.shared_per_block.saturating_sub(entry.shared_bytes as usize)
                / part_bytes(entry) as usize,
        }
    }

    /// Whether clusters of so many blocks, of so many splits each, find places without waiting for others.
    pub(super) fn fits_clusters(&self, blocks: usize, splits: usize) -> bool {
        let places = match (blocks, splits) {
            // Two neighbours always find a place; GPCs have numbers of multiprocessors that others do not
            // divide. What is handed on of several leaves no room for a second block.
            (2, 1) => self.slots,
            (2, _) => self.multiprocessors,
            (_, 1) => self.multiprocessors.min(self.slots / 4 * 3),
            _ => self.multiprocessors / 10 * 9,
        };
        let is_in_ring = splits == 1 && self.adding != Adding::Always;
        let can_hand_on = is_in_ring || splits <= self.most_handed_on;
        self.clusters && can_hand_on && (2..=MOST_BLOCKS).contains(&blocks) && self.tiles * blocks <= places
    }

    /// Blocks that run the items of a list.
    pub(super) fn blocks(&self, items: u32, details: &DecodeLaunchDetails) -> u32 {
        // Whole tiles read fastest alone on their multiprocessors.
        let alone = details.enough_sequences > 0.0 && self.tiles <= self.places();
        items.min(if alone { self.tiles } else { self.slots } as u32)
    }

    /// Whether unsplit tiles keep the device reading.
    pub(super) fn are_enough(&self) -> bool {
        self.tiles as f64 >= BUSY * self.enough() as f64
    }

    /// Tiles that are not split, where there are so many.
    fn enough(&self) -> usize {
        self.rule.enough_blocks * self.multiprocessors
    }

    /// Places of blocks that together read as fast as the device can.
    pub(super) fn places(&self) -> usize {
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
            _ if self.fits_clusters(num_splits, 1) => by_cluster,
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
