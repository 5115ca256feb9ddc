//! Which rows and keys a block of `decode` works on.

use core::hint::assert_unchecked;

use crate::attention::splits::split_keys;
use crate::config::WARP_KEYS;
use crate::mask::KeyRange;
use crate::params::DecodeParams;
use crate::ptx::index;
use crate::scheduler::{Rows, WorkTile};

use super::tile::Tile;

/// A block's share of the problem.
pub(super) struct Work {
    /// First packed row of its tile.
    pub(super) first_row: u32,
    pub(super) kv_head: u32,
    pub(super) split: u32,
    pub(super) batch: u32,
}

/// The keys of a warp.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// The first of its first step.
    pub(super) first: u32,
    /// Where the block's keys end.
    pub(super) end: u32,
    /// Steps of all the block's warps.
    pub(super) steps: u32,
}

/// A row of Q, O and lse.
pub(super) struct QueryRow {
    pub(super) position: u32,
    pub(super) head: u32,
}

impl Work {
    /// Splits the linear block index into (batch, split, head, tile), the tile fastest, so that blocks
    /// that run at the same time read the same keys, or those of neighbouring heads.
    ///
    /// # Safety
    /// Sq, `heads`, `group` and `num_splits` are at least 1, and `group` divides `heads`.
    #[inline(always)]
    pub(super) unsafe fn of_block<T: Tile>(params: &DecodeParams) -> Self {
        // SAFETY: Sq, `heads`, `group` and `num_splits` are at least 1. Without this each division would
        // carry a call to the panic for a zero divisor, which a kernel cannot link.
        let (tiles, kv_heads) = unsafe {
            assert_unchecked(params.group > 0);
            assert_unchecked(params.num_splits > 0);
            let (tiles, kv_heads) = (packed_rows(params).div_ceil(T::BLOCK_M), params.heads / params.group);
            assert_unchecked(tiles > 0);
            assert_unchecked(kv_heads > 0);
            (tiles, kv_heads)
        };
        let (tile, rest) = (index::block() % tiles, index::block() / tiles);
        let (kv_head, rest) = (rest % kv_heads, rest / kv_heads);
        Self {
            first_row: tile * T::BLOCK_M,
            kv_head,
            split: rest % params.num_splits,
            batch: rest / params.num_splits,
        }
    }

    /// The keys of this warp: those of its block's split of what the tile sees of the sequence's `used` keys,
    /// from the warp's own on in each step of `block_n`.
    #[inline(always)]
    pub(super) fn keys(&self, params: &DecodeParams, used: u32, seen: KeyRange, block_n: u32) -> Keys {
        let KeyRange { first, end } = match split_keys(params, used) {
            0 => self.even_part(params, seen, block_n),
            keys => {
                let first = self.split * keys;
                KeyRange { first: first.max(seen.first), end: (first + keys).min(seen.end) }
            }
        };
        Keys {
            first: first + index::thread() / 32 * WARP_KEYS,
            end,
            steps: end.saturating_sub(first).div_ceil(block_n),
        }
    }

    /// The block's part of the keys `seen`, in steps of `block_n`.
    #[inline(always)]
    fn even_part(&self, params: &DecodeParams, seen: KeyRange, block_n: u32) -> KeyRange {
        // SAFETY: valid parameters have at least one split.
        unsafe { assert_unchecked(params.num_splits > 0) };
        let blocks = seen.end.saturating_sub(seen.first).div_ceil(block_n);
        // Splits differ by at most one block; the first ones have it.
        let (least, longer) = (blocks / params.num_splits, blocks % params.num_splits);
        let first = seen.first + (self.split * least + self.split.min(longer)) * block_n;
        let blocks = least + (self.split < longer) as u32;
        KeyRange { first, end: (first + blocks * block_n).min(seen.end) }
    }

    /// The row of the sequence and the query head that a packed row is.
    #[inline(always)]
    pub(super) fn query_row(&self, params: &DecodeParams, packed: u32) -> QueryRow {
        // SAFETY: valid parameters have groups of at least one head.
        unsafe { assert_unchecked(params.group > 0) };
        QueryRow {
            position: packed / params.group,
            head: self.kv_head * params.group + packed % params.group,
        }
    }
}

/// Packed rows of a key/value head.
#[inline(always)]
pub(super) fn packed_rows(params: &DecodeParams) -> u32 {
    params.seqlen_q * params.group
}

/// What a packed row sees of the sequence's `used` keys. Rows past the last see at most what exists.
#[inline(always)]
pub(super) fn seen_keys(params: &DecodeParams, used: u32, packed: u32) -> KeyRange {
    // SAFETY: valid parameters have groups of at least one head.
    unsafe { assert_unchecked(params.group > 0) };
    let rows = |len| Rows { first: 0, len };
    let sequence = WorkTile { tile: 0, head: 0, batch: 0, queries: rows(params.seqlen_q), keys: rows(used) };
    KeyRange::of_row(&params.attention(), &sequence, packed / params.group)
}
