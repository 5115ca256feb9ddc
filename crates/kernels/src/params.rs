//! Launch parameters: the only contract between kernels and host.
//!
//! One `#[repr(C)]` value is passed to every entry as its single parameter: [`AttentionParams`] to those of
//! attention, [`DecodeParams`] to those of the `decode` family, [`GemmParams`] to those of matrix multiplication.

mod decode;

pub use decode::{DecodeParams, MAX_SPLITS};

/// Strides of a [B, S, H, D] view in elements; the last dimension is contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: u64,
    /// From one row to the next.
    pub row: u64,
    /// From one head to the next.
    pub head: u64,
}

/// Parameters of an attention kernel.
///
/// Addresses are device addresses (in the simulator, host addresses). Shapes: Q and O
/// [B, Sq, H, D], K and V [B, Sk, H / `group`, D], each with its strides; `lse` fp32 [B, H, Sq] contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionParams {
    /// First element of Q.
    pub q: u64,
    /// First element of K.
    pub k: u64,
    /// First element of V.
    pub v: u64,
    /// First element of O.
    pub o: u64,
    /// First element of `lse`, or 0 where it is not wanted.
    pub lse: u64,
    /// Scores [B, H, Sq, Sk] in the storage type; only the unfused kernels have them.
    pub scores: u64,
    /// Strides of Q.
    pub q_strides: Strides,
    /// Strides of K.
    pub k_strides: Strides,
    /// Strides of V.
    pub v_strides: Strides,
    /// Strides of O.
    pub o_strides: Strides,
    /// Query rows of each sequence, at least 1.
    pub seqlen_q: u32,
    /// Key rows of each sequence, at least 1.
    pub seqlen_k: u32,
    /// Query heads, at least 1.
    pub heads: u32,
    /// Query heads that share one key/value head, at least 1.
    pub group: u32,
    /// Columns of each row, 1 to the entry's HEAD_DIM.
    pub head_dim: u32,
    /// 1 for the causal mask aligned bottom-right, 0 for none.
    pub causal: u32,
    /// Factor on Q·Kᵀ.
    pub softmax_scale: f32,
    /// Rows of the softmax kernel, B·H·Sq, in units of one; kept here so that it needs no division.
    pub rows: u64,
}

/// Parameters of a matrix multiplication C = A·B: A is M × K, B is K × N, and C is M × N and row-major (a
/// column-major C is a row-major Cᵀ = Bᵀ·Aᵀ).
///
/// Addresses as in [`AttentionParams`]. A leading dimension is the distance from one row to the next, or from
/// one column to the next where consecutive elements run along columns, in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GemmParams {
    /// First element of A.
    pub a: u64,
    /// First element of B.
    pub b: u64,
    /// First element of C.
    pub c: u64,
    /// Leading dimension of A.
    pub lda: u32,
    /// Leading dimension of B.
    pub ldb: u32,
    /// Leading dimension of C.
    pub ldc: u32,
    /// Rows of A and C, at least 1.
    pub m: u32,
    /// Columns of B and C, at least 1.
    pub n: u32,
    /// Columns of A and rows of B, at least 1.
    pub k: u32,
    /// 1 where consecutive elements of A run along K (row-major), 0 where they run along M. Entries that are
    /// built for one order do not read it.
    pub a_along_k: u32,
    /// 1 where consecutive elements of B run along K (column-major), 0 where they run along N; as `a_along_k`.
    pub b_along_k: u32,
}
