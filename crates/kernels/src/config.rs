//! Tile configurations as data: printable, enumerable, and rejected with a reason before anything
//! is compiled or launched. Shared by kernels, planner and sweeps.

/// Lanes that share a row of a SIMT tile: half a warp, so that its reductions are shuffles.
pub const ROW_LANES: u32 = 16;

/// Rows that each thread of a SIMT tile holds in registers.
pub const THREAD_ROWS: u32 = 4;

/// Floats of padding behind each shared row: 16-byte loads stay aligned, and consecutive rows
/// start four banks apart, so that the lanes of a quarter-warp hit different banks.
pub const ROW_PADDING: u32 = 4;

/// Tile of a SIMT attention kernel: `block_m` query rows against `block_n` key rows of `head_dim` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimtConfig {
    /// Query rows of a block (BLOCK_M), a multiple of 8.
    pub block_m: u32,
    /// Key rows of a step (BLOCK_N), a multiple of 16.
    pub block_n: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 32; smaller head_dims are padded in shared memory.
    pub head_dim: u32,
}

impl SimtConfig {
    /// Threads of a block: each half-warp owns four query rows.
    pub const fn threads(&self) -> u32 {
        self.block_m / THREAD_ROWS * ROW_LANES
    }

    /// Floats from one shared row of Q, K or V to the next.
    pub const fn row_stride(&self) -> u32 {
        self.head_dim + ROW_PADDING
    }

    /// Floats from one shared row of P to the next.
    pub const fn p_stride(&self) -> u32 {
        self.block_n + ROW_PADDING
    }

    /// Bytes of shared memory: Q, then K and V in turn in one buffer, then P, all fp32.
    pub const fn shared_bytes(&self) -> u32 {
        4 * ((self.block_m + self.block_n) * self.row_stride() + self.block_m * self.p_stride())
    }

    /// [`Self::shared_bytes`] for sizes that nobody has checked yet; `None` where they overflow.
    pub const fn checked_shared_bytes(&self) -> Option<u64> {
        if self.block_m > 1 << 20 || self.block_n > 1 << 20 || self.head_dim > 1 << 10 {
            return None;
        }
        let (m, n, row) = (self.block_m as u64, self.block_n as u64, self.row_stride() as u64);
        Some(4 * ((m + n) * row + m * self.p_stride() as u64))
    }

    /// fp32 registers that a thread needs for its parts of S and O, the bulk of its budget.
    pub const fn accumulators(&self) -> u32 {
        THREAD_ROWS * (self.block_n + self.head_dim) / ROW_LANES
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device.
    pub const fn is_well_formed(&self) -> bool {
        self.block_m.is_multiple_of(8)
            && self.block_m > 0
            && self.threads() <= 1024
            && self.block_n.is_multiple_of(ROW_LANES)
            && self.block_n > 0
            && self.head_dim.is_multiple_of(2 * ROW_LANES)
            && self.head_dim > 0
    }
}

/// Tile of a tensor-core attention kernel: `block_m` query rows, split over `warps` warps, against
/// `block_n` key rows of `head_dim` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmaConfig {
    /// Query rows of a block (BLOCK_M): 16 or 32 for each warp.
    pub block_m: u32,
    /// Key rows of a step (BLOCK_N), a multiple of 16.
    pub block_n: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 16; smaller head_dims are padded in shared memory.
    pub head_dim: u32,
    /// Warps of a block.
    pub warps: u32,
}

impl MmaConfig {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps
    }

    /// Bytes of shared memory: a tile of Q and two each of K and V in 16-bit elements, each row 16 bytes longer.
    pub const fn shared_bytes(&self) -> u32 {
        (self.block_m + 4 * self.block_n) * (2 * self.head_dim + 16)
    }

    /// [`Self::shared_bytes`] for sizes that nobody has checked yet; `None` where they overflow.
    pub const fn checked_shared_bytes(block_m: u32, block_n: u32, head_dim: u32) -> Option<u64> {
        if block_m > 1 << 20 || block_n > 1 << 20 || head_dim > 1 << 10 {
            return None;
        }
        Some((block_m as u64 + 4 * block_n as u64) * (2 * head_dim as u64 + 16))
    }

    /// fp32 registers that a thread needs for its parts of S and O, the bulk of its budget.
    pub const fn accumulators(&self) -> u32 {
        self.block_m / self.warps * (self.block_n + self.head_dim) / 32
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device.
    pub const fn is_well_formed(&self) -> bool {
        self.warps > 0
            && self.warps <= 32
            && self.block_m.is_multiple_of(16 * self.warps)
            && self.block_m > 0
            && self.block_n.is_multiple_of(16)
            && self.block_n > 0
            && self.head_dim.is_multiple_of(16)
            && self.head_dim > 0
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_counts_three_tiles() {
        let config = SimtConfig { block_m: 64, block_n: 32, head_dim: 128 };
        assert_eq!(config.threads(), 256);
        assert_eq!(config.shared_bytes(), 4 * (64 * 132 + 32 * 132 + 64 * 36));
        assert!(config.is_well_formed());
    }

    #[test]
    fn odd_tiles_are_not_well_formed() {
        for (block_m, block_n, head_dim) in
            [(60, 32, 64), (64, 24, 64), (64, 32, 48), (512, 32, 64), (0, 16, 32)]
        {
            assert!(!SimtConfig { block_m, block_n, head_dim }.is_well_formed());
        }
    }
}
