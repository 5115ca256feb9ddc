//! Tile configurations as data: printable, enumerable, and rejected with a reason before anything
//! is compiled or launched. Shared by kernels, planner and sweeps.
//!
//! What only the host calls is `#[inline]`: a device build then leaves nothing of it in the PTX.

mod backward;
mod backward_sm90;
mod decode;
mod decode_sm90;
mod feasibility;
mod forward_sm90;
mod gemm;

pub use backward::{BackwardConfig, BackwardDqConfig, BackwardMmaConfig};
pub use backward_sm90::BackwardSm90Config;
pub use decode::{DecodeConfig, WARP_KEYS};
pub use decode_sm90::DecodeSm90Config;
pub use feasibility::{Demand, Infeasible, Limits, check_shared};
pub use forward_sm90::Sm90Config;
pub use gemm::{GemmConfig, GemmSimtConfig, GemmSm90Config};

use feasibility::{all, check_multiple};

/// Lanes that share a row of a SIMT tile: half a warp, so that its reductions are shuffles.
pub const ROW_LANES: u32 = 16;

/// Rows that each thread of a SIMT tile holds in registers.
pub const THREAD_ROWS: u32 = 4;

/// Floats of padding behind each shared row: 16-byte loads stay aligned, and consecutive rows
/// start four banks apart, so that the lanes of a quarter-warp hit different banks.
pub const ROW_PADDING: u32 = 4;

/// Shared memory of a block on Hopper (CUDA C++ Programming Guide, technical specifications).
const SHARED: u32 = 227 << 10;

/// Bytes of a line of a row on Hopper: the span of the swizzle.
const LINE: u32 = 128;

/// Threads of a block, on every device (CUDA C++ Programming Guide, technical specifications).
const MAX_THREADS: u32 = 1024;

/// Tile of a SIMT attention kernel: `block_m` query rows against `block_n` key rows of `head_dim` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimtConfig {
    /// Query rows of a block (BLOCK_M), a multiple of 8.
    pub block_m: u32,
    /// Key rows of a step (BLOCK_N), a multiple of 16.
    pub block_n: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 32; smaller head_dims are padded in shared
    /// memory.
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
        self.shared_needed() as u32
    }

    /// [`Self::shared_bytes`] for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let (m, n) = (self.block_m as u64, self.block_n as u64);
        let row = self.head_dim as u64 + ROW_PADDING as u64;
        let tiles = (m + n).saturating_mul(row);
        tiles.saturating_add(m.saturating_mul(n + ROW_PADDING as u64)).saturating_mul(4)
    }

    /// fp32 registers that a thread needs for its parts of S and O, the bulk of its budget.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        THREAD_ROWS as u64 * (self.block_n as u64 + self.head_dim as u64) / ROW_LANES as u64
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.check_shape().is_ok()
    }

    /// As [`Self::is_well_formed`].
    ///
    /// # Errors
    /// The size that it cannot be instantiated with.
    #[inline]
    pub const fn check_shape(&self) -> Result<(), Infeasible> {
        let sizes = all([
            check_multiple("BLOCK_M", self.block_m, 8),
            check_multiple("BLOCK_N", self.block_n, ROW_LANES),
            check_multiple("HEAD_DIM", self.head_dim, 2 * ROW_LANES),
        ]);
        if sizes.is_ok() && self.block_m / THREAD_ROWS > MAX_THREADS / ROW_LANES {
            let needed = (self.block_m / THREAD_ROWS).saturating_mul(ROW_LANES);
            return Err(Infeasible::Threads { needed, limit: MAX_THREADS });
        }
        sizes
    }

    /// Whether the tile can be built and launched with so many blocks on a multiprocessor.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    #[inline]
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        if let Err(reason) = self.check_shape() {
            return Err(reason);
        }
        let (threads, accumulators) = (self.threads(), self.accumulators());
        Demand { threads, min_blocks, accumulators, shared_bytes: self.shared_needed() }.check(limits)
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
    /// Columns that the tile holds (HEAD_DIM), a multiple of 16; smaller head_dims are padded in shared
    /// memory.
    pub head_dim: u32,
    /// Warps of a block.
    pub warps: u32,
}

impl MmaConfig {
    /// Whether kernels of this HEAD_DIM have a loop for rows that all start at one distance from a multiple
    /// of 16 bytes.
    ///
    /// It is a third of the kernel, and beside it aligned rows were 2 % slower at 64 on an H200, so only the
    /// HEAD_DIMs that common head_dims do not fill have it.
    pub const fn shifted_rows(head_dim: u32) -> bool {
        !head_dim.is_multiple_of(32)
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps
    }

    /// Bytes of shared memory: a tile of Q and two each of K and V in 16-bit elements, each row 16 bytes
    /// longer.
    pub const fn shared_bytes(&self) -> u32 {
        self.shared_needed() as u32
    }

    /// [`Self::shared_bytes`] for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        (self.block_m as u64 + 4 * self.block_n as u64).saturating_mul(2 * self.head_dim as u64 + 16)
    }

    /// fp32 registers that a thread needs for its parts of S and O, the bulk of its budget.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        ((self.block_m / self.warps) as u64).saturating_mul(self.block_n as u64 + self.head_dim as u64) / 32
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.check_shape().is_ok()
    }

    /// As [`Self::is_well_formed`].
    ///
    /// # Errors
    /// The size that it cannot be instantiated with.
    #[inline]
    pub const fn check_shape(&self) -> Result<(), Infeasible> {
        if self.warps == 0 || self.warps > MAX_THREADS / 32 {
            let needed = self.warps.saturating_mul(32);
            return Err(Infeasible::Threads { needed, limit: MAX_THREADS });
        }
        all([
            check_multiple("BLOCK_M", self.block_m, 16 * self.warps),
            check_multiple("BLOCK_N", self.block_n, 16),
            check_multiple("HEAD_DIM", self.head_dim, 16),
        ])
    }

    /// Whether the tile can be built and launched with so many blocks on a multiprocessor.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    #[inline]
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        if let Err(reason) = self.check_shape() {
            return Err(reason);
        }
        let (threads, accumulators) = (self.threads(), self.accumulators());
        Demand { threads, min_blocks, accumulators, shared_bytes: self.shared_needed() }.check(limits)
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
