//! Tiles of matrix multiplications.

use super::ROW_PADDING;

/// Tile of a tensor-core matrix multiplication: `block_m` × `block_n` of C, `block_k` of K at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmConfig {
    /// Rows of C of a block (BLOCK_M).
    pub block_m: u32,
    /// Columns of C of a block (BLOCK_N).
    pub block_n: u32,
    /// Products of a step (BLOCK_K), 32 or 64.
    pub block_k: u32,
    /// Warps that share the rows.
    pub warps_m: u32,
    /// Warps that share the columns.
    pub warps_n: u32,
    /// Steps that shared memory holds at once, at least 2.
    pub stages: u32,
}

impl GemmConfig {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps_m * self.warps_n
    }

    /// Bytes of shared memory of one stage: a step of A and of B in 16-bit elements.
    pub const fn stage_bytes(&self) -> u32 {
        2 * (self.block_m + self.block_n) * self.block_k
    }

    /// Bytes of shared memory.
    pub const fn shared_bytes(&self) -> u32 {
        self.stages * self.stage_bytes()
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device.
    pub const fn is_well_formed(&self) -> bool {
        self.warps_m > 0
            && self.warps_n > 0
            && self.threads() <= 1024
            && self.stages >= 2
            && (self.block_k == 32 || self.block_k == 64)
            && self.block_m > 0
            && self.block_m.is_multiple_of(64)
            && self.block_m.is_multiple_of(32 * self.warps_m)
            && self.block_n > 0
            && self.block_n.is_multiple_of(64)
            && self.block_n.is_multiple_of(32 * self.warps_n)
    }
}

/// Tile of a matrix multiplication with `wgmma`: `block_m` × `block_n` of C, [`Self::BLOCK_K`] of K at a
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmSm90Config {
    /// Rows of C of a block (BLOCK_M): 64 for each of two warpgroups.
    pub block_m: u32,
    /// Columns of C of a block (BLOCK_N): 128 or 256.
    pub block_n: u32,
    /// Steps that shared memory holds at once, at least 2.
    pub stages: u32,
}

impl GemmSm90Config {
    /// Products of a step: a line of the 128-byte swizzle.
    pub const BLOCK_K: u32 = 64;

    /// Warpgroups that multiply.
    pub const fn consumers(&self) -> u32 {
        self.block_m / 64
    }

    /// Threads of a block: a warpgroup more, which copies.
    pub const fn threads(&self) -> u32 {
        128 * (self.consumers() + 1)
    }

    /// Bytes of shared memory of the ring.
    pub const fn stages_bytes(&self) -> u32 {
        self.stages * 2 * (self.block_m + self.block_n) * Self::BLOCK_K
    }

    /// Bytes of shared memory of C on its way out: two lines of 128 bytes of each row.
    pub const fn out_bytes(&self) -> u32 {
        2 * 128 * self.block_m
    }

    /// Bytes of shared memory: the ring, C on its way out, and two barriers for each stage.
    pub const fn shared_bytes(&self) -> u32 {
        self.stages_bytes() + self.out_bytes() + 16 * self.stages
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device. Two warpgroups
    /// that multiply are what the kernel's registers are shared out for.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.block_m == 128 && (self.block_n == 128 || self.block_n == 256) && self.stages >= 2
    }
}

/// Tile of a matrix multiplication on the FMA pipe: `block_m` × `block_n` of C, eight by eight of it for each
/// thread, `block_k` of K at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmSimtConfig {
    /// Rows of C of a block (BLOCK_M).
    pub block_m: u32,
    /// Columns of C of a block (BLOCK_N).
    pub block_n: u32,
    /// Products of a step (BLOCK_K).
    pub block_k: u32,
}

impl GemmSimtConfig {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        self.block_m * self.block_n / 64
    }

    /// Floats from one shared row of A or B (one k, `block` rows or columns) to the next: 16-byte loads stay
    /// aligned, and consecutive rows start four banks apart.
    pub const fn row_stride(block: u32) -> u32 {
        block + ROW_PADDING
    }

    /// Bytes of shared memory: two stages of A and B in fp32.
    pub const fn shared_bytes(&self) -> u32 {
        2 * 4 * self.block_k * (Self::row_stride(self.block_m) + Self::row_stride(self.block_n))
    }
}
