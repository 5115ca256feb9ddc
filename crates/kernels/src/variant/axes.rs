//! What of a kernel's tile can be chosen, and the tile of what was chosen.

use super::{Config, Kernel, Layout, Storage};
use crate::config::{
    BackwardMmaConfig, BackwardSm90Config, DecodeConfig, DecodeSm90Config, GemmSm90Config, MmaConfig,
    SimtConfig, Sm90Config,
};
use crate::entries::{Algorithm, GemmAlgorithm};

/// Which sizes of a kernel's tile can be chosen, beside BLOCK_M.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axes {
    /// Columns that HEAD_DIM comes in multiples of; 0 where there is none.
    pub columns: u32,
    /// BLOCK_N, which elsewhere follows from the warps.
    pub block_n: bool,
    /// Warps of a block, which elsewhere follow from the tile.
    pub warps: bool,
    /// Stages of a ring in shared memory.
    pub stages: bool,
    /// Blocks that the registers leave room for; elsewhere they are shared out for one.
    pub min_blocks: bool,
    /// How the operands lie.
    pub layout: bool,
}

/// Sizes of a tile; those that a kernel does not let be chosen are nothing to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// BLOCK_M: query rows, or rows of C.
    pub block_m: u32,
    /// BLOCK_N: key rows, or columns of C.
    pub block_n: u32,
    /// HEAD_DIM.
    pub head_dim: u32,
    /// HEAD_DIM of V and O, of `forward_sm90`.
    pub head_dim_v: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Stages of a ring in shared memory.
    pub stages: u32,
    /// How the operands lie.
    pub layout: Layout,
}

impl Axes {
    /// Of a tile of `columns` that has BLOCK_M and BLOCK_N, and a register budget.
    const fn of_tile(columns: u32) -> Self {
        Self { columns, block_n: true, warps: false, stages: false, min_blocks: true, layout: false }
    }

    /// Those of `kernel`; `None` where its tile cannot be chosen: stored dS has one shape, and the planner
    /// estimates what reads it.
    pub const fn of(kernel: Kernel) -> Option<Self> {
        Some(match kernel {
            Kernel::Attention(Algorithm::ForwardSimt) => Self::of_tile(32),
            Kernel::Attention(
                Algorithm::ForwardSm80 | Algorithm::BackwardKeysSm80 | Algorithm::BackwardQueriesSm80,
            ) => Self { warps: true, ..Self::of_tile(16) },
            Kernel::Attention(
                Algorithm::ForwardSm90 | Algorithm::BackwardKeysSm90 | Algorithm::BackwardQueriesSm90,
            ) => Self { min_blocks: false, ..Self::of_tile(16) },
            Kernel::Attention(Algorithm::Decode) => {
                Self { block_n: false, warps: true, stages: true, ..Self::of_tile(32) }
            }
            Kernel::Attention(Algorithm::DecodeSm90) => Self { stages: true, ..Self::of_tile(64) },
            Kernel::Gemm(GemmAlgorithm::GemmSm90) => {
                Self { stages: true, min_blocks: false, layout: true, ..Self::of_tile(0) }
            }
            _ => return None,
        })
    }
}

impl Config {
    /// A tile of `kernel` in a storage type; `None` where it cannot be chosen, or the kernel's type has no
    /// such number of rows.
    pub const fn new(kernel: Kernel, dtype: Storage, sizes: Sizes) -> Option<Self> {
        let Sizes { block_m, block_n, head_dim, head_dim_v, warps, stages, layout } = sizes;
        let element_bytes = if matches!(dtype, Storage::E4m3) { 1 } else { 2 };
        Some(match kernel {
            Kernel::Attention(algorithm) => match algorithm {
                Algorithm::ForwardSimt => Self::Simt(SimtConfig { block_m, block_n, head_dim }),
                Algorithm::ForwardSm80 => Self::Mma(MmaConfig { block_m, block_n, head_dim, warps }),
                Algorithm::ForwardSm90 => {
                    Self::Sm90(Sm90Config { block_m, block_n, head_dim, head_dim_v, element_bytes })
                }
                Algorithm::Decode => Self::Decode(DecodeConfig { block_m, head_dim, warps, stages }),
                Algorithm::DecodeSm90 => {
                    let config = DecodeSm90Config { block_m, block_n, head_dim, stages, cache_bytes: 2 };
                    Self::DecodeSm90(config)
                }
                Algorithm::BackwardKeysSm80 => {
                    let (owned, step) = (block_n, block_m);
                    Self::BackwardMma(BackwardMmaConfig { owned, step, head_dim, warps, stores_ds: false })
                }
                Algorithm::BackwardQueriesSm80 => {
                    let (owned, step) = (block_m, block_n);
                    Self::BackwardMma(BackwardMmaConfig { owned, step, head_dim, warps, stores_ds: false })
                }
                Algorithm::BackwardKeysSm90 => {
                    let config = BackwardSm90Config {
                        owns_keys: true,
                        stores_ds: false,
                        sums_dq: false,
                        step: block_m,
                        head_dim,
                    };
                    if block_n != config.owned() {
                        return None;
                    }
                    Self::BackwardSm90(config)
                }
                Algorithm::BackwardQueriesSm90 => {
                    let config = BackwardSm90Config {
                        owns_keys: false,
                        stores_ds: false,
                        sums_dq: false,
                        step: block_n,
                        head_dim,
                    };
                    if block_m != config.owned() {
                        return None;
                    }
                    Self::BackwardSm90(config)
                }
                _ => return None,
            },
            Kernel::Gemm(GemmAlgorithm::GemmSm90) => {
                Self::GemmSm90 { config: GemmSm90Config { block_m, block_n, stages }, layout }
            }
            Kernel::Gemm(_) => return None,
        })
    }
}
