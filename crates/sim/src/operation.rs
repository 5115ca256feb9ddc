//! What the lanes of a warp meet at.

use std::fmt;

/// What a lane brings to a meeting: as many as an `mma` takes, which is the most.
pub(crate) type Operands = [u32; 10];

/// What a lane takes away.
pub(crate) type Results = [u32; 4];

/// What the lanes of a warp meet at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`barrier::sync`](crate::barrier::sync).
    Barrier {
        /// Index of the barrier.
        barrier: u32,
        /// Threads that the barrier waits for.
        threads: u32,
    },
    /// [`cluster::sync`](crate::cluster::sync), or [`cluster::leave`](crate::cluster::leave).
    ClusterBarrier {
        /// Whether it orders what was done in shared memory.
        orders: bool,
    },
    /// [`barrier::arrive`](crate::barrier::arrive).
    BarrierArrive {
        /// Index of the barrier.
        barrier: u32,
        /// Threads that the barrier waits for.
        threads: u32,
    },
    /// [`mbarrier::wait`](crate::mbarrier::wait).
    MbarrierWait {
        /// Shared address of the barrier.
        address: u32,
        /// Parity of the phase.
        parity: u32,
    },
    /// [`global::wait_at_least`](crate::global::wait_at_least).
    GlobalWait {
        /// What the word must be at least.
        value: u32,
    },
    /// [`warp::sync`](crate::warp::sync).
    WarpSync,
    /// [`warp::shuffle_xor`](crate::warp::shuffle_xor).
    ShuffleXor,
    /// [`warp::shuffle`](crate::warp::shuffle).
    Shuffle,
    /// [`warp::broadcast`](crate::warp::broadcast).
    Broadcast,
    /// [`warp::vote_any`](crate::warp::vote_any).
    VoteAny,
    /// [`warp::ballot`](crate::warp::ballot).
    Ballot,
    /// [`ldmatrix::load`](crate::ldmatrix::load).
    LoadMatrix {
        /// Matrices that it loads.
        matrices: u32,
        /// Whether it transposes them.
        transposed: bool,
    },
    /// [`stmatrix::store_x4`](crate::stmatrix::store_x4).
    StoreMatrix {
        /// Whether it transposes the matrices.
        transposed: bool,
    },
    /// [`wgmma::multiply_ss`](crate::wgmma::multiply_ss) or
    /// [`wgmma::multiply_rs`](crate::wgmma::multiply_rs).
    Wgmma {
        /// Columns of D.
        n: u32,
        /// Whether A is in registers.
        registers: bool,
        /// What it does.
        options: Options,
    },
    /// [`wgmma::fence`](crate::wgmma::fence).
    WgmmaFence,
    /// [`wgmma::commit_group`](crate::wgmma::commit_group).
    WgmmaCommit,
    /// [`wgmma::wait_group`](crate::wgmma::wait_group).
    WgmmaWait {
        /// Groups that may be under way after it.
        pending: u32,
    },
    /// [`setmaxnreg::decrease`](crate::setmaxnreg::decrease) or
    /// [`setmaxnreg::increase`](crate::setmaxnreg::increase).
    SetRegisters {
        /// Registers of a thread.
        registers: u32,
        /// Whether it takes registers.
        increase: bool,
    },
    /// [`mma::m16n8k16_f16`](crate::mma::m16n8k16_f16).
    MmaF16,
    /// [`mma::m16n8k16_bf16`](crate::mma::m16n8k16_bf16).
    MmaBf16,
}

/// The type of A and B of a `wgmma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// fp16.
    F16,
    /// bf16.
    Bf16,
    /// e4m3.
    E4m3,
}

/// What a `wgmma` does, beside its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// The type of A and B.
    pub element: Element,
    /// Whether A in shared memory is M-major (`imm-trans-a`) rather than K-major.
    pub transposed_a: bool,
    /// Whether B is N-major (`imm-trans-b`) rather than K-major.
    pub transposed_b: bool,
    /// Whether the product is added to the accumulator rather than replacing it (`scale-d`).
    pub accumulate: bool,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Barrier { barrier, threads } => {
                write!(f, "barrier {barrier} for {threads} arrivals")
            }
            Self::BarrierArrive { barrier, threads } => {
                write!(f, "barrier::arrive at barrier {barrier} for {threads} arrivals")
            }
            Self::ClusterBarrier { .. } => f.write_str("the barrier of the cluster"),
            Self::MbarrierWait { address, parity } => {
                write!(f, "the mbarrier at {address} for parity {parity}")
            }
            Self::GlobalWait { value } => {
                write!(f, "a word of global memory for a value of at least {value}")
            }
            Self::WarpSync => f.write_str("warp::sync"),
            Self::ShuffleXor => f.write_str("warp::shuffle_xor"),
            Self::Shuffle => f.write_str("warp::shuffle"),
            Self::Broadcast => f.write_str("warp::broadcast"),
            Self::VoteAny => f.write_str("warp::vote_any"),
            Self::Ballot => f.write_str("warp::ballot"),
            Self::LoadMatrix { matrices, transposed } => {
                write!(f, "ldmatrix::load_x{matrices}{}", if *transposed { "_transposed" } else { "" })
            }
            Self::StoreMatrix { transposed } => {
                write!(f, "stmatrix::store_x4{}", if *transposed { "_transposed" } else { "" })
            }
            Self::Wgmma { n, registers, .. } => {
                write!(f, "wgmma::multiply_{} with n = {n}", if *registers { "rs" } else { "ss" })
            }
            Self::WgmmaFence => f.write_str("wgmma::fence"),
            Self::WgmmaCommit => f.write_str("wgmma::commit_group"),
            Self::WgmmaWait { pending } => write!(f, "wgmma::wait_group with {pending} pending"),
            Self::SetRegisters { registers, increase } => {
                write!(f, "setmaxnreg::{} of {registers}", if *increase { "increase" } else { "decrease" })
            }
            Self::MmaF16 => f.write_str("mma::m16n8k16_f16"),
            Self::MmaBf16 => f.write_str("mma::m16n8k16_bf16"),
        }
    }
}
