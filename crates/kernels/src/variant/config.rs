//! The tile of a kernel, whichever it is.

extern crate alloc;

use alloc::vec::Vec;

use crate::attention::{
    append, backward_delta, backward_sinks, combine, merge, mla_sm90, pack, standard, tile_schedule,
    transpose, widen,
};
use crate::config::{
    BackwardConfig, BackwardDqConfig, BackwardMmaConfig, BackwardSm90Config, DecodeConfig, DecodeSm90Config,
    Demand, GemmConfig, GemmSimtConfig, GemmSm90Config, Infeasible, Limits, MmaConfig, SimtConfig,
    Sm90Config,
};
use crate::entries::{GemmTile, Tile};
use crate::gemm::{peak, read};

/// How the elements of A and B lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whether consecutive elements of A run along K.
    pub a_along_k: bool,
    /// Whether those of B do.
    pub b_along_k: bool,
}

impl Layout {
    /// All that there are, in the order of the lists.
    pub const ALL: [Self; 4] = [
        Self { a_along_k: true, b_along_k: false },
        Self { a_along_k: true, b_along_k: true },
        Self { a_along_k: false, b_along_k: false },
        Self { a_along_k: false, b_along_k: true },
    ];

    /// As in `row_col`, for A and B.
    pub const fn name(self) -> &'static str {
        match (self.a_along_k, self.b_along_k) {
            (true, false) => "row_row",
            (true, true) => "row_col",
            (false, false) => "col_row",
            (false, true) => "col_col",
        }
    }

    /// That of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name)
    }
}

/// What a launch of a kernel without tiles to choose needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Its tile; 0 where it has no such dimension.
    pub tile: Tile,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory.
    pub shared_bytes: u32,
}

impl Fixed {
    /// Of `attention::standard::scores`.
    pub const SCORES: Self = Self {
        tile: any_head_dim(standard::BLOCK_M, standard::BLOCK_N),
        threads: standard::THREADS,
        shared_bytes: standard::SCORES_SHARED_BYTES,
    };
    /// Of `attention::standard::softmax`.
    pub const SOFTMAX: Self =
        Self { tile: any_head_dim(standard::SOFTMAX_ROWS, 0), threads: standard::THREADS, shared_bytes: 0 };
    /// Of `attention::standard::values`.
    pub const VALUES: Self = Self { shared_bytes: standard::VALUES_SHARED_BYTES, ..Self::SCORES };
    /// Of `attention::backward_delta`.
    pub const DELTA: Self = Self {
        tile: any_head_dim(backward_delta::BLOCK_M, 0),
        threads: backward_delta::THREADS,
        shared_bytes: 0,
    };
    /// Of `attention::backward_sinks`.
    pub const SINKS: Self = Self {
        tile: any_head_dim(0, 0),
        threads: backward_sinks::THREADS,
        shared_bytes: backward_sinks::SHARED_BYTES,
    };
    /// Of `attention::combine`.
    pub const COMBINE: Self =
        Self { tile: any_head_dim(combine::ROWS, 0), threads: combine::THREADS, shared_bytes: 0 };
    /// Of `attention::merge`.
    pub const MERGE: Self =
        Self { tile: any_head_dim(merge::ROWS, 0), threads: merge::THREADS, shared_bytes: 0 };
    /// Of `attention::mla_sm90`.
    pub const MLA: Self = Self {
        tile: Tile {
            block_m: mla_sm90::BLOCK_M,
            block_n: mla_sm90::BLOCK_N,
            head_dim: mla_sm90::HEAD_DIM,
            head_dim_v: mla_sm90::HEAD_DIM_V,
        },
        threads: mla_sm90::THREADS,
        shared_bytes: mla_sm90::SHARED_BYTES,
    };
    /// Of `attention::pack`.
    pub const PACK: Self =
        Self { tile: any_head_dim(0, 0), threads: pack::THREADS, shared_bytes: pack::SHARED_BYTES };
    /// Of `attention::append`.
    pub const APPEND: Self = Self { tile: any_head_dim(0, 0), threads: append::THREADS, shared_bytes: 0 };
    /// Of `attention::transpose`.
    pub const TRANSPOSE: Self = Self { threads: transpose::THREADS, ..Self::APPEND };
    /// Of `attention::widen`.
    pub const WIDEN: Self = Self { threads: widen::THREADS, ..Self::APPEND };
    /// Of `attention::tile_schedule`.
    pub const SCHEDULE: Self = Self {
        tile: any_head_dim(0, 0),
        threads: tile_schedule::THREADS,
        shared_bytes: tile_schedule::SHARED_BYTES,
    };
    /// Of `gemm::read`.
    pub const READ: Self = Self { threads: read::THREADS, ..Self::APPEND };
    /// Of `gemm::peak`.
    pub const PEAK: Self = Self { threads: peak::THREADS, ..Self::APPEND };
}

const fn any_head_dim(block_m: u32, block_n: u32) -> Tile {
    Tile { block_m, block_n, head_dim: u32::MAX, head_dim_v: u32::MAX }
}

/// The tile of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// Of a kernel whose tile cannot be chosen.
    Fixed(Fixed),
    /// Of `forward_simt`.
    Simt(SimtConfig),
    /// Of `forward_sm80`.
    Mma(MmaConfig),
    /// Of `forward_sm90`.
    Sm90(Sm90Config),
    /// Of `decode`.
    Decode(DecodeConfig),
    /// Of `decode_sm90`.
    DecodeSm90(DecodeSm90Config),
    /// Of `backward_simt`.
    Backward(BackwardConfig),
    /// Of `backward_sm80`.
    BackwardMma(BackwardMmaConfig),
    /// Of `backward_sm80::backward_dq`.
    BackwardDq(BackwardDqConfig),
    /// Of `backward_sm90`.
    BackwardSm90(BackwardSm90Config),
    /// Of `gemm::simt`.
    GemmSimt(GemmSimtConfig),
    /// Of `gemm::sm80`.
    GemmSm80 {
        /// Sizes.
        config: GemmConfig,
        /// How its operands lie.
        layout: Layout,
        /// Whether their rows start at multiples of 16 bytes.
        aligned: bool,
    },
    /// Of `gemm::sm90`.
    GemmSm90 {
        /// Sizes.
        config: GemmSm90Config,
        /// How its operands lie.
        layout: Layout,
    },
}

impl Config {
    /// It in every order of its operands.
    pub(crate) fn layouts(self) -> Vec<Self> {
        match self {
            Self::GemmSm80 { config, aligned, .. } => {
                Layout::ALL.map(|layout| Self::GemmSm80 { config, layout, aligned }).into()
            }
            Self::GemmSm90 { config, .. } => {
                Layout::ALL.map(|layout| Self::GemmSm90 { config, layout }).into()
            }
            other => [other].into(),
        }
    }

    /// BLOCK_M, BLOCK_N and both HEAD_DIMs; of a backward kernel the rows that a block owns and those of a
    /// step.
    pub const fn tile(&self) -> Tile {
        let (block_m, block_n, head_dim) = match *self {
            Self::Fixed(Fixed { tile, .. }) => return tile,
            Self::Sm90(Sm90Config { block_m, block_n, head_dim, head_dim_v, .. }) => {
                return Tile { block_m, block_n, head_dim, head_dim_v };
            }
            Self::Simt(SimtConfig { block_m, block_n, head_dim })
            | Self::Mma(MmaConfig { block_m, block_n, head_dim, .. })
            | Self::Backward(BackwardConfig { owned: block_m, step: block_n, head_dim })
            | Self::BackwardMma(BackwardMmaConfig { owned: block_m, step: block_n, head_dim, .. }) => {
                (block_m, block_n, head_dim)
            }
            Self::BackwardDq(BackwardDqConfig { block_m, block_n, head_dim, .. }) => {
                (block_m, block_n, head_dim)
            }
            Self::Decode(config) => (config.block_m, config.block_n(), config.head_dim),
            Self::DecodeSm90(config) => (config.block_m, config.block_n, config.head_dim),
            Self::BackwardSm90(config) => (config.owned(), config.step, config.head_dim),
            Self::GemmSimt(GemmSimtConfig { block_m, block_n, .. })
            | Self::GemmSm80 { config: GemmConfig { block_m, block_n, .. }, .. }
            | Self::GemmSm90 { config: GemmSm90Config { block_m, block_n, .. }, .. } => (block_m, block_n, 0),
        };
        Tile { block_m, block_n, head_dim, head_dim_v: head_dim }
    }

    /// Sizes of C's tile and what it asks of its operands; 0 where there is no tile.
    pub const fn gemm_tile(&self) -> GemmTile {
        let Tile { block_m, block_n, .. } = self.tile();
        let (block_k, aligned) = match *self {
            Self::GemmSimt(config) => (config.block_k, false),
            Self::GemmSm80 { config, aligned, .. } => (config.block_k, aligned),
            Self::GemmSm90 { .. } => (GemmSm90Config::BLOCK_K, true),
            _ => (peak::STEP_K, false),
        };
        let along_k = match self.layout() {
            Some(Layout { a_along_k, b_along_k }) => Some((a_along_k, b_along_k)),
            None => None,
        };
        GemmTile { block_m, block_n, block_k, along_k, aligned }
    }

    /// Warps of a block.
    pub const fn warps(&self) -> u32 {
        self.threads() / 32
    }

    /// Stages of the ring in shared memory, where their number can be chosen.
    pub const fn stages(&self) -> Option<u32> {
        match self {
            Self::Decode(config) => Some(config.stages),
            Self::DecodeSm90(config) => Some(config.stages),
            Self::GemmSm80 { config, .. } => Some(config.stages),
            Self::GemmSm90 { config, .. } => Some(config.stages),
            _ => None,
        }
    }

    /// How the operands of a product lie, where that is the kernel's.
    pub const fn layout(&self) -> Option<Layout> {
        match self {
            Self::GemmSm80 { layout, .. } | Self::GemmSm90 { layout, .. } => Some(*layout),
            _ => None,
        }
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        match self {
            Self::Fixed(fixed) => fixed.threads,
            Self::Simt(config) => config.threads(),
            Self::Mma(config) => config.threads(),
            Self::Sm90(config) => config.threads(),
            Self::Decode(config) => config.threads(),
            Self::DecodeSm90(config) => config.threads(),
            Self::Backward(config) => config.threads(),
            Self::BackwardMma(config) => config.threads(),
            Self::BackwardDq(config) => config.threads(),
            Self::BackwardSm90(config) => config.threads(),
            Self::GemmSimt(config) => config.threads(),
            Self::GemmSm80 { config, .. } => config.threads(),
            Self::GemmSm90 { config, .. } => config.threads(),
        }
    }

    /// Bytes of shared memory, for sizes that nobody has checked yet.
    pub const fn shared_needed(&self) -> u64 {
        match self {
            Self::Fixed(fixed) => fixed.shared_bytes as u64,
            Self::Simt(config) => config.shared_needed(),
            Self::Mma(config) => config.shared_needed(),
            Self::Sm90(config) => config.shared_needed(),
            Self::Decode(config) => config.shared_needed(),
            Self::DecodeSm90(config) => config.shared_needed(),
            Self::Backward(config) => config.shared_needed(),
            Self::BackwardMma(config) => config.shared_needed(),
            Self::BackwardDq(config) => config.shared_needed(),
            Self::BackwardSm90(config) => config.shared_needed(),
            Self::GemmSimt(config) => config.shared_bytes() as u64,
            Self::GemmSm80 { config, .. } => config.shared_needed(),
            Self::GemmSm90 { config, .. } => config.shared_needed(),
        }
    }

    /// Whether the tile can be built and launched with so many blocks on a multiprocessor.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        match self {
            Self::Simt(config) => config.check(min_blocks, limits),
            Self::Mma(config) => config.check(min_blocks, limits),
            Self::Sm90(config) => config.check(min_blocks, limits),
            Self::Decode(config) => config.check(min_blocks, limits),
            Self::DecodeSm90(config) => config.check(min_blocks, limits),
            Self::Backward(config) => config.check(min_blocks, limits),
            Self::BackwardMma(config) => config.check(min_blocks, limits),
            Self::BackwardDq(config) => config.check(min_blocks, limits),
            Self::BackwardSm90(config) => config.check(min_blocks, limits),
            Self::GemmSm80 { config, .. } => config.check(min_blocks, limits),
            Self::GemmSm90 { config, .. } => config.check(min_blocks, limits),
            Self::Fixed(_) | Self::GemmSimt(_) => {
                let (threads, shared_bytes) = (self.threads(), self.shared_needed());
                Demand { threads, min_blocks, accumulators: 0, shared_bytes }.check(limits)
            }
        }
    }
}
