//! Launch parameters of the backward kernels.

use super::{AttentionParams, Strides};

/// Parameters of `attention::backward_delta` and of the kernels behind it.
///
/// Addresses as in [`AttentionParams`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackwardParams {
    /// The forward pass, whose O and lse are read.
    pub attention: AttentionParams,
    /// First element of the gradient of O.
    pub dout: u64,
    /// First element of the gradient of Q.
    pub dq: u64,
    /// First element of the gradient of K.
    pub dk: u64,
    /// First element of the gradient of V.
    pub dv: u64,
    /// rowsum(dO ∘ O), fp32 in the order of lse: what the first launch writes and the others read.
    pub delta: u64,
    /// Strides of the gradient of O.
    pub dout_strides: Strides,
    /// Strides of the gradient of Q.
    pub dq_strides: Strides,
    /// Strides of the gradient of K.
    pub dk_strides: Strides,
    /// Strides of the gradient of V.
    pub dv_strides: Strides,
    /// Heads, of one sequence after the other, whose tiles are computed at about the same time, so that what
    /// they go over is found in L2; at least 1. Of key/value heads where blocks own keys; read by
    /// `attention::backward_sm90` alone.
    pub heads_per_swizzle: u32,
    /// Bytes from the barriers where `attention::backward_sm90` waits for a step to those where it lands, to
    /// be fixed up: of packed sequences. 0 where it lands where they wait.
    pub fix_up: u32,
}
