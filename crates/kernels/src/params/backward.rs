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
    /// Gradient of lse, fp32 in its order; 0 where there is none.
    pub dlse: u64,
    /// Gradient of the sinks, fp32 in their order; 0 where it is not wanted.
    pub dsinks: u64,
    /// Sequences that a sink is for: all, or 1 where each has its own.
    pub sequences_of_sink: u32,
    /// The tiles of a launch that computes all gradients.
    pub tickets: Tickets,
}

/// The order in which the blocks of a launch that computes all gradients take their tiles. A unit is a
/// key/value head of a sequence with its query heads: tiles of keys, which store dS, and tiles of queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tickets {
    /// Counters, 0 before the launch: [`Self::bytes`] from a multiple of 32 on.
    pub counters: u64,
    /// How many units there are.
    pub units: u32,
    /// Units whose dS is stored at a time, at least 1.
    pub ring: u32,
    /// Blocks that compute dQ.
    pub query_blocks: u32,
    /// Tiles of keys of a unit.
    pub key_tiles: u32,
    /// Tiles of queries of a query head.
    pub query_tiles: u32,
}

impl Tickets {
    /// Bytes of a counter, which has a sector of L2 for itself.
    pub const COUNTER_BYTES: u64 = 32;

    /// Bytes of the counters of so many units: of tickets, and of two for each unit.
    pub const fn bytes(units: u64) -> u64 {
        2 * Self::COUNTER_BYTES * (2 + units)
    }
}

/// dS / softmax_scale of the query heads of a launch, in the storage type, as `attention::stored_ds` says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredDs {
    /// The first byte, a multiple of 16.
    pub address: u64,
    /// Pieces of 16 bytes from one panel of 64 queries to the next; of all heads there are below 2^32.
    pub panel_pieces: u32,
    /// Pieces from one head to the next.
    pub head_pieces: u32,
}
