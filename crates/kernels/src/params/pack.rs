//! Launch parameters of the kernel that packs rows.

use super::Strides;

/// Parameters of `attention::pack`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackParams {
    /// What is copied; those behind the last have no blocks.
    pub tensors: [PackTensor; Self::MOST],
    /// Blocks of the first tensor, of the first two, of three, and of all.
    pub ends: [u32; Self::MOST],
}

impl PackParams {
    /// The most tensors of a launch: Q, K, V and dO.
    pub const MOST: usize = 4;
}

/// A [B, S, H, D] view of 16-bit elements, and where it is copied to: [B, H, S, 8·`chunks`], contiguous.
///
/// Addresses as in [`AttentionParams`](super::AttentionParams).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackTensor {
    /// First element.
    pub source: u64,
    /// Byte address behind the last element; no byte outside of the two is read.
    pub end: u64,
    /// First element of the copy, at a multiple of 16 bytes.
    pub target: u64,
    /// Strides of the view.
    pub strides: Strides,
    /// Rows of each head, at least 1.
    pub rows: u32,
    /// Heads of each sequence, at least 1.
    pub heads: u32,
    /// Columns of each row, at least 1.
    pub columns: u32,
    /// 16 bytes of each row of the copy, enough to hold the columns; at most 32.
    pub chunks: u32,
    /// Blocks of each head: its rows over [`block_rows`](crate::attention::pack::block_rows), rounded up.
    pub head_blocks: u32,
}
