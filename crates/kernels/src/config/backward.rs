//! Tiles of the backward kernels.

use super::{Demand, Infeasible, Limits, MAX_THREADS, ROW_PADDING, SimtConfig, all, check_multiple};

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
        self.shared_needed() as u32
    }

    /// [`Self::shared_bytes`], for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let (owned, step) = (self.owned as u64, self.step as u64);
        let row = self.head_dim as u64 + ROW_PADDING as u64;
        let pairs = (2 * (owned + step)).saturating_mul(row);
        pairs.saturating_add(owned.saturating_mul(step + ROW_PADDING as u64)).saturating_mul(4)
    }

    /// Whether the shape is one that the kernels can be instantiated with, whatever the device.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.product().is_well_formed()
    }

    /// Whether the tile can be built and launched with so many blocks on a multiprocessor.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    #[inline]
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        if let Err(reason) = self.product().check_shape() {
            return Err(reason);
        }
        // P and dS, and at least one gradient.
        let (threads, accumulators) = (self.threads(), self.product().accumulators());
        Demand { threads, min_blocks, accumulators, shared_bytes: self.shared_needed() }.check(limits)
    }
}

/// Tile of a backward kernel on tensor cores, otherwise as [`BackwardConfig`]: each warp owns 16 or 32 rows,
/// or shares 16 with another, where registers hold no whole rows of both gradients ([`Self::column_warps`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardMmaConfig {
    /// Rows of a block: 16 or 32 for each warp, or 8 of wide rows.
    pub owned: u32,
    /// Rows of a step, a multiple of 16.
    pub step: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 16.
    pub head_dim: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Whether it stores dS; lse and delta of its steps lie in shared memory then.
    pub stores_ds: bool,
}

impl BackwardMmaConfig {
    /// The widest rows of which no two warps share the gradients.
    const BOTH_GRADIENTS: u32 = 128;

    /// Rows of a block, in words.
    const ROWS: &str = "16 or 32 for each warp, or 8 above HEAD_DIM 128";

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps
    }

    /// Bytes of shared memory: the owned pair, and two stages of the other, in 16-bit elements, each row 16
    /// bytes longer.
    pub const fn shared_bytes(&self) -> u32 {
        self.shared_needed() as u32
    }

    /// [`Self::shared_bytes`], for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let rows = 2 * self.owned as u64 + 4 * self.step as u64;
        let stats = if self.stores_ds { 2 * self.stats_bytes() as u64 + Self::KEPT_BYTES as u64 } else { 0 };
        rows.saturating_mul(2 * self.head_dim as u64 + 16).saturating_add(stats)
    }

    /// Bytes of what else a kernel that stores dS keeps in shared memory.
    pub const KEPT_BYTES: u32 = 48;

    /// Bytes of lse and delta of a step, in fp32.
    #[inline]
    pub const fn stats_bytes(&self) -> u32 {
        self.step.saturating_mul(8)
    }

    /// Warps that own the same rows: each computes P and dS of all columns of a step, and its share of the
    /// gradients' columns.
    #[inline]
    pub const fn column_warps(&self) -> u32 {
        if self.owned < 16 * self.warps { 2 } else { 1 }
    }

    /// Rows of a warp: 16 or 32.
    #[inline]
    pub const fn warp_rows(&self) -> u32 {
        self.owned * self.column_warps() / self.warps
    }

    /// Columns of a gradient that a warp has.
    #[inline]
    pub const fn gradient_columns(&self) -> u32 {
        self.head_dim / self.column_warps()
    }

    /// Registers that a thread needs for its parts of P and dS, and of one gradient, at the least.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        (self.warp_rows() as u64).saturating_mul(2 * self.step as u64 + self.gradient_columns() as u64) / 32
    }

    /// Whether the shape is one that the kernels can be instantiated with, whatever the device.
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
        let Self { owned, step, head_dim, warps, stores_ds } = *self;
        if warps == 0 || warps > MAX_THREADS / 32 {
            return Err(Infeasible::Threads { needed: warps.saturating_mul(32), limit: MAX_THREADS });
        }
        let sizes = all([
            check_multiple("the rows of a block", owned, 8 * warps),
            check_multiple("the rows of a step", step, 16),
            check_multiple("HEAD_DIM", head_dim, 16 * self.column_warps()),
        ]);
        if sizes.is_ok() && stores_ds && !(matches!(owned, 64 | 128) && matches!(step, 32 | 64)) {
            return Err(Infeasible::Rows { block_m: owned, available: "64 or 128, in steps of 32 or 64" });
        }
        // A warp holds 16 narrower rows of both gradients by itself.
        let are_shared = owned / warps == 8 && head_dim > Self::BOTH_GRADIENTS;
        if sizes.is_ok() && !are_shared && !matches!(owned / warps, 16 | 32) {
            return Err(Infeasible::Rows { block_m: owned, available: Self::ROWS });
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

/// Tile of the product of stored dS and K: BLOCK_M queries of dQ, over BLOCK_N keys at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardDqConfig {
    /// Queries of a block (BLOCK_M), in whole granules of stored dS.
    pub block_m: u32,
    /// Keys of a step (BLOCK_N), 32 or 64.
    pub block_n: u32,
    /// Columns of K and dQ that the tile holds (HEAD_DIM), a multiple of 64.
    pub head_dim: u32,
    /// Warps along BLOCK_M.
    pub warps_m: u32,
    /// Warps along HEAD_DIM.
    pub warps_n: u32,
    /// Steps whose operands shared memory holds at a time.
    pub stages: u32,
}

impl BackwardDqConfig {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps()
    }

    /// Warps of a block.
    pub const fn warps(&self) -> u32 {
        self.warps_m * self.warps_n
    }

    /// Bytes of a step: dS of its keys, and their rows of K, in 16-bit elements.
    pub const fn stage_bytes(&self) -> u32 {
        2 * self.block_n * (self.block_m + self.head_dim)
    }

    /// Bytes of shared memory, for sizes that nobody has checked yet: the stages, or rows of dQ, each 16
    /// bytes longer.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let stages = self.stage_bytes() as u64 * self.stages as u64;
        let rows = self.block_m as u64 * (2 * self.head_dim as u64 + 16);
        if stages > rows { stages } else { rows }
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
        let Self { block_m, block_n, head_dim, warps_m, warps_n, stages } = *self;
        if warps_m == 0 || warps_n == 0 || self.warps() > MAX_THREADS / 32 {
            return Err(Infeasible::Threads { needed: self.threads(), limit: MAX_THREADS });
        }
        if !matches!(block_n, 32 | 64) || !matches!(stages, 2..=4) {
            let available = "32 or 64 keys a step, in 2 to 4 stages";
            return Err(Infeasible::Rows { block_m: block_n, available });
        }
        if block_m % 128 != 0 {
            return check_multiple("BLOCK_M", block_m, 128);
        }
        all([
            check_multiple("BLOCK_M", block_m, 16 * warps_m),
            check_multiple("HEAD_DIM", head_dim, 64),
            check_multiple("HEAD_DIM", head_dim, 32 * warps_n),
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
        let threads = self.threads();
        let accumulators = self.block_m as u64 * self.head_dim as u64 / threads as u64;
        Demand { threads, min_blocks, accumulators, shared_bytes: self.shared_needed() }.check(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers() {
        let limits = Limits::of(90);
        let config = BackwardMmaConfig { owned: 128, step: 32, head_dim: 64, warps: 4, stores_ds: false };
        assert_eq!(config.check(2, &limits), Ok(()));
        let rows = BackwardMmaConfig { owned: 256, ..config };
        let available = "16 or 32 for each warp, or 8 above HEAD_DIM 128";
        assert_eq!(rows.check(1, &limits), Err(Infeasible::Rows { block_m: 256, available }));
        let shared = BackwardMmaConfig { owned: 32, ..config };
        assert_eq!(shared.check(1, &limits), Err(Infeasible::Rows { block_m: 32, available }));
        let wide = BackwardMmaConfig { owned: 64, step: 16, head_dim: 256, warps: 8, stores_ds: false };
        assert_eq!((wide.column_warps(), wide.warp_rows(), wide.gradient_columns()), (2, 16, 128));
        // All that a block has on the smallest devices since sm_80.
        assert_eq!(
            (wide.shared_bytes(), wide.accumulators(), wide.check(1, &limits)),
            (99 << 10, 80, Ok(()))
        );
        let step = BackwardMmaConfig { step: 24, ..config };
        let of = Infeasible::Multiple { what: "the rows of a step", value: 24, of: 16 };
        assert_eq!(step.check(1, &limits), Err(of));
        let simt = BackwardConfig { owned: 64, step: 64, head_dim: 256 };
        assert!(matches!(simt.check(1, &limits), Err(Infeasible::SharedMemory { .. })));
    }
}
