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
    /// rowsum(dO ∘ O) − dlse, fp32 in the order of lse: what the first launch writes and the others read. Of
    /// a row that sees no key dlse is left out.
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
    /// dS, where a launch stores it or reads it.
    pub ds: StoredDs,
    /// The first head of the launch, of one sequence after the other: of key/value heads where blocks own
    /// keys. Read by `attention::backward_sm90` and `attention::backward_dq_sm90` alone.
    pub first_head: u32,
    /// Gradient of lse, fp32 in its order; 0 where there is none.
    pub dlse: u64,
    /// Gradient of the sinks, fp32 in their order; 0 where it is not wanted.
    pub dsinks: u64,
    /// Sequences that a sink is for: all, or 1 where each has its own.
    pub sequences_of_sink: u32,
}

/// dS / softmax_scale of the query heads of a launch, in the storage type, as `attention::stored_ds` says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredDs {
    /// The first byte, a multiple of 16.
    pub address: u64,
    /// Bytes from one panel of 64 queries to the next.
    pub panel_bytes: u64,
    /// Bytes from one head to the next.
    pub head_bytes: u64,
}
