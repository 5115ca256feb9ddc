//! Tiles of the backward kernels.

use super::{ROW_PADDING, SimtConfig};

/// Tile of a kernel that owns `owned` rows of a pair of tensors (K and V, or Q and dO), and goes over `step`
/// rows of the other pair at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardConfig {
    /// Rows of a block, a multiple of 8.
    pub owned: u32,
    /// Rows of a step, a multiple of 16.
    pub step: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 32.
    pub head_dim: u32,
}

impl BackwardConfig {
    /// The tile of a product of both, whose threads and rows in shared memory it has.
    pub const fn product(&self) -> SimtConfig {
        SimtConfig { block_m: self.owned, block_n: self.step, head_dim: self.head_dim }
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        self.product().threads()
    }

    /// Bytes of shared memory: both pairs, then P and dS in turn in one buffer, all fp32.
    pub const fn shared_bytes(&self) -> u32 {
        let row = self.head_dim + ROW_PADDING;
        4 * (2 * (self.owned + self.step) * row + self.owned * self.product().p_stride())
    }

    /// Whether the shape is one that the kernels can be instantiated with, whatever the device.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.product().is_well_formed()
    }
}

/// Tile of a backward kernel on tensor cores, otherwise as [`BackwardConfig`]: each warp owns 16 or 32 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardMmaConfig {
    /// Rows of a block: 16 or 32 for each warp.
    pub owned: u32,
    /// Rows of a step, a multiple of 16.
    pub step: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 16.
    pub head_dim: u32,
    /// Warps of a block.
    pub warps: u32,
}

impl BackwardMmaConfig {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps
    }

    /// Bytes of shared memory: the owned pair, and two stages of the other, in 16-bit elements, each row 16
    /// bytes longer.
    pub const fn shared_bytes(&self) -> u32 {
        (2 * self.owned + 4 * self.step) * (2 * self.head_dim + 16)
    }

    /// Whether the shape is one that the kernels can be instantiated with, whatever the device.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        let Self { owned, step, head_dim, warps } = *self;
        warps > 0
            && warps <= 32
            && (owned == 16 * warps || owned == 32 * warps)
            && step > 0
            && step.is_multiple_of(16)
            && head_dim > 0
            && head_dim.is_multiple_of(16)
    }
}
