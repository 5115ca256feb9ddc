//! Which blocks of keys a tile of queries meets, and which of them must be masked.

use crate::attention::transpose::KEYS;
use crate::mask::{KeyRange, TileMask};
use crate::params::AttentionParams;
use crate::scheduler::WorkTile;

/// The blocks of `BLOCK_N` keys that a tile of queries meets, by their index from the first on.
#[derive(Clone, Copy)]
pub(super) struct KeyBlocks<const BLOCK_N: u32> {
    /// How many there are.
    pub(super) count: u32,
    /// The tile's mask.
    pub(super) mask: TileMask,
}

impl<const BLOCK_N: u32> KeyBlocks<BLOCK_N> {
    /// Where V is transposed, keys are in the order of whole products (`attention::transpose`), and blocks
    /// begin with one.
    #[inline(always)]
    pub(super) fn of_tile<const BLOCK_M: u32, const BYTES: u32>(
        params: &AttentionParams,
        work: &WorkTile,
        first_row: u32,
    ) -> Self {
        let mut mask = TileMask::new(params, work, first_row, BLOCK_M, BLOCK_N);
        if BYTES == 1 {
            mask.seen.first -= mask.seen.first % KEYS;
        }
        Self { count: mask.seen.end.saturating_sub(mask.seen.first).div_ceil(BLOCK_N), mask }
    }

    /// First key of a block.
    #[inline(always)]
    pub(super) fn first_key(&self, block: u32) -> u32 {
        self.mask.seen.first + block * BLOCK_N
    }

    /// What the `rows` rows from `first_row` on see, of which none may exist.
    #[inline(always)]
    pub(super) fn seen_by(
        &self,
        params: &AttentionParams,
        work: &WorkTile,
        first_row: u32,
        rows: u32,
    ) -> Seen {
        let first = KeyRange::of_row(params, work, first_row);
        let last = KeyRange::of_row(params, work, first_row + rows - 1);
        let from_start = |key: u32| key.saturating_sub(self.mask.seen.first);
        let (begin, end) = (from_start(first.first) / BLOCK_N, from_start(last.end).div_ceil(BLOCK_N));
        let exists = first_row < work.queries.len && begin < end;
        Seen {
            begin: if exists { begin } else { 0 },
            end: if exists { end } else { 0 },
            whole_begin: from_start(last.first).div_ceil(BLOCK_N),
            whole_end: from_start(first.end) / BLOCK_N,
        }
    }

    /// As [`Self::seen_by`], of rows that go through all blocks, whatever they see.
    #[inline(always)]
    pub(super) fn all(&self, seen: Seen) -> Seen {
        Seen { begin: 0, end: self.count, ..seen }
    }
}

/// Blocks of keys that some rows see.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// The first that one of the rows sees a key of.
    pub(super) begin: u32,
    /// One past the last; `begin` where there is none.
    pub(super) end: u32,
    /// Blocks before this one are not seen whole by all rows.
    pub(super) whole_begin: u32,
    /// Neither are this one and those after it.
    pub(super) whole_end: u32,
}
