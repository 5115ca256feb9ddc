//! Which blocks of keys a tile of queries meets, and which of them must be masked.

use core::marker::PhantomData;

use super::tile::Tile;
use crate::mask::{KeyRange, TileMask};
use crate::params::AttentionParams;
use crate::scheduler::WorkTile;

/// The blocks of keys that a tile of queries meets, by their index from the first on.
#[derive(Clone, Copy)]
pub(super) struct KeyBlocks<T> {
    /// How many there are.
    pub(super) count: u32,
    /// The tile's mask.
    pub(super) mask: TileMask,
    tile: PhantomData<T>,
}

impl<T: Tile> KeyBlocks<T> {
    #[inline(always)]
    pub(super) fn of_tile(params: &AttentionParams, work: &WorkTile, first_row: u32) -> Self {
        let mut mask = TileMask::new(params, work, first_row, T::BLOCK_M, T::BLOCK_N);
        mask.seen.first -= mask.seen.first % T::KEY_MULTIPLE;
        let count = mask.seen.end.saturating_sub(mask.seen.first).div_ceil(T::BLOCK_N);
        Self { count, mask, tile: PhantomData }
    }

    /// First key of a block.
    #[inline(always)]
    pub(super) fn first_key(&self, block: u32) -> u32 {
        self.mask.seen.first + block * T::BLOCK_N
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
        let (begin, end) = (from_start(first.first) / T::BLOCK_N, from_start(last.end).div_ceil(T::BLOCK_N));
        let exists = first_row < work.queries.len && begin < end;
        Seen {
            begin: if exists { begin } else { 0 },
            end: if exists { end } else { 0 },
            whole_begin: from_start(last.first).div_ceil(T::BLOCK_N),
            whole_end: from_start(first.end) / T::BLOCK_N,
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
