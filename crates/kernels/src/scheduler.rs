//! Which tile a block works on.

use core::hint::assert_unchecked;

use crate::params::{AttentionParams, Strides};
use crate::ptx::index;

/// A block's share of the problem.
#[derive(Clone, Copy, Debug)]
pub struct WorkTile {
    /// Index of the tile within its head, 0 to `tiles` − 1.
    pub tile: u32,
    /// Query head.
    pub head: u32,
    /// Sequence.
    pub batch: u32,
}

impl WorkTile {
    /// Splits the linear block index into (batch, head, tile), the tile fastest, so that blocks
    /// that run at the same time read the same K and V and find them in L2.
    ///
    /// # Safety
    /// `tiles` and `params.heads` are at least 1.
    #[inline(always)]
    pub unsafe fn of_block(params: &AttentionParams, tiles: u32) -> Self {
        // SAFETY: the caller's contract. Without it each division would carry a call to the panic
        // for a zero divisor, which a kernel cannot link.
        unsafe { assert_unchecked(tiles > 0 && params.heads > 0) };
        let block = index::block();
        let sequence_head = block / tiles;
        Self { tile: block % tiles, head: sequence_head % params.heads, batch: sequence_head / params.heads }
    }

    /// This tile split into a row and a column of a grid of tiles `width` wide.
    ///
    /// # Safety
    /// `width` is at least 1.
    #[inline(always)]
    pub unsafe fn row_and_column(&self, width: u32) -> (u32, u32) {
        // SAFETY: the caller's contract.
        unsafe { assert_unchecked(width > 0) };
        (self.tile / width, self.tile % width)
    }

    /// The key/value head that this tile's query head reads.
    ///
    /// # Safety
    /// `params.group` is at least 1.
    #[inline(always)]
    pub unsafe fn kv_head(&self, params: &AttentionParams) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { assert_unchecked(params.group > 0) };
        self.head / params.group
    }

    /// Element offset of this tile's sequence and `head` in a view.
    #[inline(always)]
    pub fn offset(&self, strides: &Strides, head: u32) -> u64 {
        self.batch as u64 * strides.batch + head as u64 * strides.head
    }

    /// Index of this tile's sequence and head in [B, H]-major arrays such as `lse`.
    #[inline(always)]
    pub fn sequence_head(&self, params: &AttentionParams) -> u64 {
        self.batch as u64 * params.heads as u64 + self.head as u64
    }
}
