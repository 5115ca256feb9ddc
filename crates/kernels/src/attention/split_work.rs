//! Which rows and keys are computed together, where the keys of each sequence are split.

use core::hint::assert_unchecked;

use super::splits;
use crate::mask::KeyRange;
use crate::params::DecodeParams;
use crate::scheduler::{Rows, WorkTile};

/// A tile of packed rows and a split of its sequence's keys.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// The first row.
    pub(super) first_row: u32,
    pub(super) kv_head: u32,
    pub(super) split: u32,
    pub(super) batch: u32,
}

/// A row of Q, O and lse.
pub(super) struct QueryRow {
    pub(super) position: u32,
    pub(super) head: u32,
}

impl Work {
    /// Splits an index into (split, head, tile of `block_m` rows) of a sequence, the tile fastest, so that
    /// what is computed at the same time reads the same keys, or those of neighbouring heads.
    ///
    /// # Safety
    /// Sq, `heads` and `group` are at least 1, and `group` divides `heads`.
    #[inline(always)]
    pub(super) unsafe fn of_sequence(params: &DecodeParams, block_m: u32, batch: u32, index: u32) -> Self {
        // SAFETY: as the caller says.
        let [tiles, kv_heads] = unsafe { tiles_and_heads(params, block_m) };
        let (tile, rest) = (index % tiles, index / tiles);
        Self { first_row: tile * block_m, kv_head: rest % kv_heads, split: rest / kv_heads, batch }
    }

    /// As [`Self::of_sequence`], of an index that begins with the sequence, each of which has `num_splits`.
    ///
    /// # Safety
    /// As [`Self::of_sequence`], and `num_splits` is at least 1.
    #[inline(always)]
    pub(super) unsafe fn of_batch(params: &DecodeParams, block_m: u32, index: u32) -> Self {
        // SAFETY: as the caller says. Without this the divisions would carry a call to the panic for a zero
        // divisor, which a kernel cannot link.
        unsafe {
            assert_unchecked(params.cache.num_splits > 0);
            let work = Self::of_sequence(params, block_m, 0, index);
            Self {
                split: work.split % params.cache.num_splits,
                batch: work.split / params.cache.num_splits,
                ..work
            }
        }
    }

    /// The keys of the split, of what the tile sees of the sequence's `used` keys, in steps of `block_n`.
    #[inline(always)]
    pub(super) fn keys(&self, params: &DecodeParams, used: u32, seen: KeyRange, block_n: u32) -> KeyRange {
        splits::part(&params.cache, self.split, used, seen, block_n)
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

/// Tiles of `block_m` packed rows, and key/value heads, of each sequence.
///
/// # Safety
/// As [`Work::of_sequence`].
#[inline(always)]
pub(super) unsafe fn tiles_and_heads(params: &DecodeParams, block_m: u32) -> [u32; 2] {
    // SAFETY: Sq, `heads` and `group` are at least 1, and `group` divides `heads`. Without this each division
    // would carry a call to the panic for a zero divisor, which a kernel cannot link.
    unsafe {
        assert_unchecked(params.group > 0);
        let (tiles, kv_heads) = (packed_rows(params).div_ceil(block_m), params.heads / params.group);
        assert_unchecked(tiles > 0);
        assert_unchecked(kv_heads > 0);
        [tiles, kv_heads]
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
