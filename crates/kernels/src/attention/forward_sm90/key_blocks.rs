//! Which blocks of keys a tile of queries meets, and which of them must be masked.

use core::marker::PhantomData;

use super::cached::{head_bits, part_of};
use super::tile::Tile;
use crate::functions::{MaskMod as _, Queries, Visible, within};
use crate::mask::{KeyRange, TileMask};
use crate::params::PersistentParams;
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
    pub(super) fn of_tile(params: &PersistentParams, work: &WorkTile, split: u32, first_row: u32) -> Self {
        let bits = head_bits::<T>(params);
        let rows = T::BLOCK_M >> bits;
        let mut mask = TileMask::new(&params.attention, work, first_row >> bits, rows, T::BLOCK_N);
        mask.seen.first -= mask.seen.first % T::KEY_MULTIPLE;
        mask.seen = part_of::<T>(params, (split, work.keys.len), mask.seen);
        if T::MaskMod::MASKS {
            let queries = Queries::of_tile(work, first_row, rows);
            mask.seen = within::<T::MaskMod>(&params.attention.functions, queries, mask.seen);
        }
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
        params: &PersistentParams,
        work: &WorkTile,
        first_row: u32,
        rows: u32,
    ) -> Seen {
        let bits = head_bits::<T>(params);
        let range = |row: u32| KeyRange::of_row(&params.attention, work, row >> bits);
        let (first, last) = (range(first_row), range(first_row + rows - 1));
        let from_start = |key: u32| key.saturating_sub(self.mask.seen.first);
        let (begin, end) = (from_start(first.first) / T::BLOCK_N, from_start(last.end).div_ceil(T::BLOCK_N));
        let end = if T::IN_CACHE || T::MaskMod::MASKS { end.min(self.count) } else { end };
        let exists = first_row >> bits < work.queries.len && begin < end;
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

/// Queries, and where their tile's blocks of keys begin, for a mask function that knows what is seen of them.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) queries: Queries,
    /// First key of the first block, in the sequence.
    pub(super) first_key: u32,
}

impl Asked {
    /// What the queries see of so many blocks from this one on.
    #[inline(always)]
    pub(super) fn visible<T: Tile>(&self, params: &PersistentParams, block: u32, blocks: u32) -> Visible {
        let first = self.first_key + block * T::BLOCK_N;
        let keys = KeyRange { first, end: first + blocks * T::BLOCK_N };
        T::MaskMod::block(&params.attention.functions, self.queries, keys)
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
