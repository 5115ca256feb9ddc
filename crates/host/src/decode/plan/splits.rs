//! How keys are split over blocks.

use fa_kernels::entries::Entry;
use fa_kernels::params::MAX_SPLITS;

use super::{DecodeKernel, DecodeLaunchDetails, DecodeRequest};
use crate::plan::cost::h200::{BUSY, FEW_ROWS, FEWEST_ITEMS, GOOD_ENOUGH, LEAST_SPLIT_BLOCKS, SPLIT_KEYS};
use crate::{Device, Problem};

/// Bytes of shared memory that the system takes of each block (CUDA C++ Programming Guide, compute capability
/// 8.0 and later).
const RESERVED_SHARED: usize = 1024;

/// How keys are split, and why so.
pub(super) fn splits(
    kernel: DecodeKernel,
    shape: &Shape,
    problem: &Problem,
    request: &DecodeRequest,
) -> (DecodeLaunchDetails, String) {
    let even = |num_splits| DecodeLaunchDetails { num_splits, ..DecodeLaunchDetails::default() };
    if let Some(num_splits) = request.num_splits {
        return (even(num_splits), format!("{num_splits} splits: asked for"));
    }
    if request.batch_invariant || kernel == DecodeKernel::DecodeSm90 {
        let most = match kernel {
            DecodeKernel::Decode => MAX_SPLITS as usize,
            DecodeKernel::DecodeSm90 => shape.most_splits(problem),
        };
        let num_splits = problem.seqlen_k().div_ceil(SPLIT_KEYS).min(most);
        let why = format!(
            "up to {num_splits} splits of at least {SPLIT_KEYS} keys: a sequence's do not depend on others in the batch"
        );
        return (
            DecodeLaunchDetails { num_splits, split_keys: SPLIT_KEYS, ..DecodeLaunchDetails::default() },
            why,
        );
    }
    let (num_splits, why) = shape.choose_splits();
    (even(num_splits), why)
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
}

impl Shape {
    pub(super) fn new(problem: &Problem, device: &Device, entry: &Entry) -> Self {
        let row_tiles = problem.packed_rows().div_ceil(entry.tile.block_m as usize);
        let of_shared = device.shared_per_multiprocessor / (entry.shared_bytes as usize + RESERVED_SHARED);
        let blocks_per_multiprocessor = of_shared.clamp(1, entry.min_blocks as usize);
        Self {
            tiles: problem.batch() * problem.kv_heads() * row_tiles,
            key_blocks: problem.seqlen_k().div_ceil(entry.tile.block_n as usize),
            blocks_per_multiprocessor,
            multiprocessors: (device.multiprocessors as usize).max(1),
            slots: blocks_per_multiprocessor * (device.multiprocessors as usize).max(1),
        }
    }

    /// Whether blocks merge the splits of their tiles themselves: a launch more takes longer, unless few tiles
    /// have many rows each.
    pub(super) fn merges(&self, entry: &Entry) -> bool {
        entry.tile.block_m <= FEW_ROWS || self.tiles >= self.multiprocessors
    }

    /// The most splits of a sequence that do not depend on the batch: as many as let a single one fill the
    /// multiprocessors.
    fn most_splits(&self, problem: &Problem) -> usize {
        (self.slots * problem.batch() / self.tiles.max(1)).clamp(FEWEST_ITEMS, MAX_SPLITS as usize)
    }

    /// Share of the slots' time that is work: the waves of blocks each last as long as the longest split.
    fn efficiency(&self, num_splits: usize) -> f64 {
        let waves = (self.tiles * num_splits).div_ceil(self.slots);
        let longest = self.key_blocks.div_ceil(num_splits);
        (self.tiles * self.key_blocks) as f64 / (self.slots * waves * longest) as f64
    }

    /// One split where that keeps the multiprocessors busy, else the smallest number of splits that is nearly
    /// as efficient as the best, and why.
    fn choose_splits(&self) -> (usize, String) {
        if self.tiles as f64 >= BUSY * self.multiprocessors as f64 {
            let why = format!(
                "1 split: {} blocks keep {} multiprocessors reading, and leave nothing to merge",
                self.tiles, self.multiprocessors
            );
            return (1, why);
        }
        let most = (self.key_blocks / LEAST_SPLIT_BLOCKS).clamp(1, MAX_SPLITS as usize);
        let best = (1..=most).map(|splits| self.efficiency(splits)).fold(0.0, f64::max);
        let chosen = (1..=most).find(|&splits| self.efficiency(splits) >= GOOD_ENOUGH * best).unwrap_or(1);
        let why = format!(
            "{chosen} split{}: {} blocks in {} wave{} of {} keep the multiprocessors busy {:.0} % of the time, and no \
             number up to {most} (at least {LEAST_SPLIT_BLOCKS} key blocks each) more than {:.0} %",
            if chosen == 1 { "" } else { "s" },
            self.tiles * chosen,
            (self.tiles * chosen).div_ceil(self.slots),
            if self.tiles * chosen <= self.slots { "" } else { "s" },
            self.slots,
            100.0 * self.efficiency(chosen),
            100.0 * best
        );
        (chosen, why)
    }
}
