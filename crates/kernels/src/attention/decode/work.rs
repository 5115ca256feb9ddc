//! Which rows and keys a block of `decode` works on.

use core::hint::assert_unchecked;

use crate::config::WARP_KEYS;
use crate::params::DecodeParams;
use crate::ptx::{global, index};

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

    /// The keys of this warp: those of its block's split of the first `visible` keys, from the
    /// warp's own on in each step of `block_n`.
    #[inline(always)]
    pub(super) fn keys(&self, params: &DecodeParams, visible: u32, block_n: u32) -> Keys {
        // SAFETY: valid parameters have at least one split.
        unsafe { assert_unchecked(params.num_splits > 0) };
        let blocks = visible.div_ceil(block_n);
        // Splits differ by at most one block; the first ones have it.
        let (least, longer) = (blocks / params.num_splits, blocks % params.num_splits);
        let first = (self.split * least + self.split.min(longer)) * block_n;
        let steps = least + (self.split < longer) as u32;
        Keys {
            first: first + index::thread() / 32 * WARP_KEYS,
            end: (first + steps * block_n).min(visible),
            steps,
        }
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

/// Keys of a sequence.
///
/// # Safety
/// `params` describes valid device memory.
#[inline(always)]
pub(super) unsafe fn used_keys(params: &DecodeParams, batch: u32) -> u32 {
    if params.seqused_k == 0 {
        return params.seqlen_k;
    }
    // SAFETY: `seqused_k` has a readable entry for each sequence.
    let used = unsafe { global::load_b32_if(true, params.seqused_k + 4 * batch as u64) } as i32;
    (used.max(0) as u32).min(params.seqlen_k)
}

/// Keys that a packed row sees of the sequence's `used`: with the causal mask, aligned bottom-right, row i of
/// the sequence sees the first `used` − Sq + i + 1. Rows past the last see no more than `used`.
#[inline(always)]
pub(super) fn visible_keys(params: &DecodeParams, used: u32, packed: u32) -> u32 {
    // SAFETY: valid parameters have groups of at least one head.
    unsafe { assert_unchecked(params.group > 0) };
    if params.causal == 0 {
        return used;
    }
    (packed / params.group + 1 + used).saturating_sub(params.seqlen_q).min(used)
}
