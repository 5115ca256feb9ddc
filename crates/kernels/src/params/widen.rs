//! Launch parameters of the kernel that widens a cache in e4m3.

use super::{AttentionParams, Pages, Strides};

/// Parameters of `attention::widen`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WidenParams {
    /// The problem, of which lengths and window are read.
    pub attention: AttentionParams,
    /// Keys.
    pub k: WidenTensor,
    /// Values.
    pub v: WidenTensor,
    /// Where keys lie that are not contiguous.
    pub pages: Pages,
    /// Pages that there are; others that the table names count as zeros.
    pub num_pages: u32,
    /// Key/value heads, at least 1.
    pub heads: u32,
    /// Keys of a step of the attention, at least 1: its first one begins with a multiple of them.
    pub block_n: u32,
    /// Blocks of each head of each sequence of K, and as many of V, at least 1.
    pub head_blocks: u32,
}

/// A [B, Sk, Hkv, D] view of elements in e4m3, or [num_pages, page_size, Hkv, D], and where they go in
/// 16 bits: [B, Hkv, Sk, 8·`chunks`], contiguous.
///
/// Addresses as in [`AttentionParams`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WidenTensor {
    /// First element, at a multiple of 8 bytes.
    pub source: u64,
    /// Byte address behind the last element; no byte outside of the two is read.
    pub end: u64,
    /// First element of the copy, at a multiple of 16 bytes.
    pub target: u64,
    /// Strides of the view, multiples of 8.
    pub strides: Strides,
    /// 16 bytes of each row of the copy, enough to hold the columns; at most 32.
    pub chunks: u32,
}
