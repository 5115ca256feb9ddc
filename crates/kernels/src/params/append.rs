//! Launch parameters of the kernel that appends to a K/V cache.

use super::{Pages, Strides};

/// Parameters of `attention::append`.
///
/// Addresses are device addresses (in the simulator, host addresses). New K and V are [B, Sn, Hkv, D or Dv],
/// their caches as K and V of [`DecodeParams`](super::DecodeParams): [B, Sk, Hkv, D or Dv], or with a page
/// table pages, [`num_pages`, page_size, Hkv, D or Dv].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendParams {
    /// New keys, and their cache.
    pub k: AppendTensor,
    /// New values, and theirs.
    pub v: AppendTensor,
    /// Queries [B, Sq, H, D], and where those that are rotated go, which may be where they are.
    pub q: AppendTensor,
    /// Blocks of K, of K and V, and of all three.
    pub ends: [u32; 3],
    /// Keys that each sequence has before, int32 `[B]`. New rows that would lie outside of the cache, or of a
    /// page that it has, are not written.
    pub seqused_k: u64,
    /// Where rows of the cache lie that are not contiguous.
    pub pages: Pages,
    /// Pages of the cache; not read where it is contiguous.
    pub num_pages: u32,
    /// Key rows that a sequence has room for, at least 1.
    pub seqlen_k: u32,
    /// The embedding of K and Q.
    pub rotary: RotaryParams,
}

/// A rotary position embedding (Su and others, "RoFormer", 2021): pairs of a row's first `dim` columns are
/// turned by angles of the row's position.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RotaryParams {
    /// Cosines, [`rows`, `dim` / 2] of the storage type, contiguous.
    pub cos: u64,
    /// Sines, as `cos`.
    pub sin: u64,
    /// Positions that the tables have, at least 1; others are taken for the nearest.
    pub rows: u32,
    /// Columns that are turned, an even number; 0 where nothing is.
    pub dim: u32,
    /// 1 where a pair is two neighbours (GPT-J), 0 where its second column is `dim` / 2 behind the first
    /// (GPT-NeoX).
    pub interleaved: u32,
    /// 1 where query i is at the position of new key i, 0 where all are at that of the first.
    pub queries_in_order: u32,
}

/// Rows that are read in one place and written in another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendTensor {
    /// First element of what is read.
    pub source: u64,
    /// First element of what is written.
    pub target: u64,
    /// Strides of what is read.
    pub source_strides: Strides,
    /// Strides of what is written; with a page table, `batch` of a cache is from one page to the next.
    pub target_strides: Strides,
    /// Rows of each sequence that are read.
    pub rows: u32,
    /// Heads of each row, at least 1.
    pub heads: u32,
    /// Columns of each head, at least 1.
    pub columns: u32,
    /// Threads of a head: [`pieces`](crate::attention::append::pieces).
    pub pieces: u32,
    /// Blocks of a sequence: its heads of all rows over those of a block, rounded up.
    pub sequence_blocks: u32,
}
