//! Tiles of matrix multiplications.

use super::{Demand, Infeasible, Limits, MAX_THREADS, ROW_PADDING, all, check_multiple, check_shared};

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

    /// [`Self::shared_bytes`], for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let step = (self.block_m as u64 + self.block_n as u64).saturating_mul(self.block_k as u64);
        step.saturating_mul(2 * self.stages as u64)
    }

    /// Registers that a thread needs for its part of C.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        self.block_m as u64 * self.block_n as u64 / self.threads() as u64
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.check_shape().is_ok()
    }

    /// As [`Self::is_well_formed`], with the reason.
    ///
    /// # Errors
    /// The first size that does not fit.
    #[inline]
    pub const fn check_shape(&self) -> Result<(), Infeasible> {
        if self.warps_m == 0
            || self.warps_n == 0
            || self.warps_m.saturating_mul(self.warps_n) > MAX_THREADS / 32
        {
            let needed = self.warps_m.saturating_mul(self.warps_n).saturating_mul(32);
            return Err(Infeasible::Threads { needed, limit: MAX_THREADS });
        }
        if self.stages < 2 {
            return Err(Infeasible::Stages { stages: self.stages, needed: 2 });
        }
        if self.block_k != 32 && self.block_k != 64 {
            return Err(Infeasible::Depth { block_k: self.block_k, available: "32, 64" });
        }
        let rows = all([
            check_multiple("BLOCK_M", self.block_m, 64),
            check_multiple("BLOCK_M", self.block_m, 32 * self.warps_m),
            Ok(()),
        ]);
        let columns = all([
            check_multiple("BLOCK_N", self.block_n, 64),
            check_multiple("BLOCK_N", self.block_n, 32 * self.warps_n),
            Ok(()),
        ]);
        all([rows, columns, Ok(())])
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

    /// [`Self::shared_bytes`], for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let (rows, stages) = (self.block_m as u64 + self.block_n as u64, self.stages as u64);
        let ring = rows.saturating_mul(2 * Self::BLOCK_K as u64).saturating_mul(stages);
        ring.saturating_add(2 * 128 * self.block_m as u64 + 16 * stages)
    }

    /// Registers that a thread that multiplies needs for its part of C.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        self.block_n as u64 / 2
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.check_shape().is_ok()
    }

    /// As [`Self::is_well_formed`], with the reason. Two warpgroups that multiply are what the kernel's
    /// registers are shared out for.
    ///
    /// # Errors
    /// The first size that does not fit.
    #[inline]
    pub const fn check_shape(&self) -> Result<(), Infeasible> {
        if self.block_m != 128 {
            return Err(Infeasible::Rows { block_m: self.block_m, available: "128" });
        }
        if self.block_n != 128 && self.block_n != 256 {
            return Err(Infeasible::Multiple { what: "BLOCK_N", value: self.block_n, of: 128 });
        }
        if self.stages < 2 {
            return Err(Infeasible::Stages { stages: self.stages, needed: 2 });
        }
        Ok(())
    }

    /// Whether the tile can be built and launched with so many blocks on a multiprocessor: one, for which the
    /// registers are shared out.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    #[inline]
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        if let Err(reason) = self.check_shape() {
            return Err(reason);
        }
        if min_blocks != 1 {
            return Err(Infeasible::Blocks { blocks: min_blocks, limit: 1 });
        }
        check_shared(self.shared_needed(), limits)
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
    fn what_does_not_fit_is_refused_with_its_numbers() {
        let limits = Limits::of(90);
        let (block_m, block_n, block_k) = (128, 256, 64);
        let config = GemmConfig { block_m, block_n, block_k, warps_m: 2, warps_n: 4, stages: 3 };
        assert_eq!(config.check(1, &limits), Ok(()));
        let depth = Infeasible::Depth { block_k: 48, available: "32, 64" };
        assert_eq!(GemmConfig { block_k: 48, ..config }.check(1, &limits), Err(depth));
        let rows = Infeasible::Multiple { what: "BLOCK_M", value: 128, of: 256 };
        assert_eq!(GemmConfig { warps_m: 8, warps_n: 1, ..config }.check(1, &limits), Err(rows));
        let sm90 = GemmSm90Config { block_m, block_n, stages: 4 };
        assert_eq!(sm90.check(1, &limits), Ok(()));
        assert_eq!(sm90.check(2, &limits), Err(Infeasible::Blocks { blocks: 2, limit: 1 }));
        let ring = GemmSm90Config { stages: 5, ..sm90 };
        assert!(matches!(ring.check(1, &limits), Err(Infeasible::SharedMemory { .. })));
    }
}
