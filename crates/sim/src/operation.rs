//! What the lanes of a warp meet at.

use std::fmt;

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
    /// [`warp::sync`](crate::warp::sync).
    WarpSync,
    /// [`warp::shuffle_xor`](crate::warp::shuffle_xor).
    ShuffleXor,
    /// [`warp::vote_any`](crate::warp::vote_any).
    VoteAny,
    /// [`warp::vote_all`](crate::warp::vote_all).
    VoteAll,
    /// [`ldmatrix::load`](crate::ldmatrix::load).
    LoadMatrix {
        /// Matrices that it loads.
        matrices: u32,
        /// Whether it transposes them.
        transposed: bool,
    },
    /// [`mma::m16n8k16_f16`](crate::mma::m16n8k16_f16).
    MmaF16,
    /// [`mma::m16n8k16_bf16`](crate::mma::m16n8k16_bf16).
    MmaBf16,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Barrier { barrier, threads } => {
                write!(f, "barrier {barrier} for {threads} arrivals")
            }
            Self::WarpSync => f.write_str("warp::sync"),
            Self::ShuffleXor => f.write_str("warp::shuffle_xor"),
            Self::VoteAny => f.write_str("warp::vote_any"),
            Self::VoteAll => f.write_str("warp::vote_all"),
            Self::LoadMatrix { matrices, transposed } => {
                write!(f, "ldmatrix::load_x{matrices}{}", if *transposed { "_transposed" } else { "" })
            }
            Self::MmaF16 => f.write_str("mma::m16n8k16_f16"),
            Self::MmaBf16 => f.write_str("mma::m16n8k16_bf16"),
        }
    }
}
