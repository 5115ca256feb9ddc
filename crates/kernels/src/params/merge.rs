//! Launch parameters of `attention::merge`.

use super::Strides;

/// The most parts of a merge.
pub const MAX_PARTS: usize = 8;

/// What attention over a part of the keys gave.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MergePart {
    /// First element of O, [B, Sq, H, D]; not read where the log-sum-exp is −∞.
    pub o: u64,
    /// First log-sum-exp, fp32, by `lse_strides`.
    pub lse: u64,
    /// Strides of O.
    pub o_strides: Strides,
    /// Strides of the log-sum-exps.
    pub lse_strides: Strides,
}

/// Parameters of `attention::merge`. Addresses are device addresses (in the simulator, host addresses).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MergeParams {
    /// The parts; the first `count` exist.
    pub parts: [MergePart; MAX_PARTS],
    /// First element of O, [B, Sq, H, D].
    pub o: u64,
    /// fp32 [B, H, Sq] contiguous, or 0 where it is not wanted.
    pub lse: u64,
    /// Strides of O.
    pub o_strides: Strides,
    /// B·H·Sq.
    pub rows: u64,
    /// Parts that exist, 1 to [`MAX_PARTS`].
    pub count: u32,
    /// Sq.
    pub seqlen_q: u32,
    /// H.
    pub heads: u32,
    /// D.
    pub head_dim: u32,
}
