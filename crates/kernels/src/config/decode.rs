//! Tile of the kernel for decoding.

use super::{Demand, Infeasible, Limits, MAX_THREADS, all, check_multiple};

/// Keys of a decode kernel's warp and step: the depth of one `mma`.
pub const WARP_KEYS: u32 = 16;

/// Tile of a decode kernel: `block_m` packed query rows, which every warp holds whole, against a ring of
/// `stages` tiles of [`WARP_KEYS`] keys of its own for each of `warps` warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeConfig {
    /// Query rows of a block (BLOCK_M), of all heads that share a key/value head: a multiple of 16.
    pub block_m: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 32; smaller head_dims are padded in shared
    /// memory.
    pub head_dim: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Tiles of K and V that a warp has room for, at least 2.
    pub stages: u32,
}

impl DecodeConfig {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps
    }

    /// Key rows of a step (BLOCK_N).
    pub const fn block_n(&self) -> u32 {
        WARP_KEYS * self.warps
    }

    /// Bytes from one row of Q, K or V to the next: 16-bit elements, and 16 bytes of padding.
    pub const fn row_bytes(&self) -> u32 {
        2 * self.head_dim + 16
    }

    /// Bytes of one warp's ring.
    pub const fn ring_bytes(&self) -> u32 {
        self.stages * 2 * WARP_KEYS * self.row_bytes()
    }

    /// Floats from one row of a warp's partial O to the next; eight more than its columns, so that
    /// lanes of different rows write to different banks.
    pub const fn partial_stride(&self) -> u32 {
        self.head_dim + 8
    }

    /// Bytes of one warp's partial O and lse, which lie where its ring was.
    pub const fn partial_bytes(&self) -> u32 {
        4 * self.block_m * (self.partial_stride() + 1)
    }

    /// Bytes of shared memory: Q, and the rings.
    pub const fn shared_bytes(&self) -> u32 {
        self.shared_needed() as u32
    }

    /// [`Self::shared_bytes`], for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let rows = self.block_m as u64
            + (self.warps as u64 * self.stages as u64).saturating_mul(2 * WARP_KEYS as u64);
        rows.saturating_mul(2 * self.head_dim as u64 + 16)
    }

    /// Registers that a thread needs for its parts of S and O.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        (self.block_m as u64).saturating_mul(WARP_KEYS as u64 + self.head_dim as u64) / 32
    }

    /// Stages of a ring that holds a warp's partial O, at the least.
    #[inline]
    const fn least_stages(&self) -> u32 {
        let partial = 4 * self.block_m as u64 * (self.head_dim as u64 + 9);
        let stages = partial.div_ceil(2 * WARP_KEYS as u64 * (2 * self.head_dim as u64 + 16));
        if stages < 2 { 2 } else { stages as u32 }
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
        if self.warps == 0 || self.warps > MAX_THREADS / 32 {
            let needed = self.warps.saturating_mul(32);
            return Err(Infeasible::Threads { needed, limit: MAX_THREADS });
        }
        let sizes = all([
            check_multiple("BLOCK_M", self.block_m, 16),
            check_multiple("HEAD_DIM", self.head_dim, 32),
            Ok(()),
        ]);
        if sizes.is_ok() && self.stages < self.least_stages() {
            return Err(Infeasible::Stages { stages: self.stages, needed: self.least_stages() });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_ring_must_hold_the_partial_output() {
        let config = DecodeConfig { block_m: 16, head_dim: 128, warps: 4, stages: 3 };
        assert_eq!(config.shared_bytes(), 16 * 272 + 4 * 3 * 2 * 16 * 272);
        assert!(config.is_well_formed());
        assert!(!DecodeConfig { block_m: 32, stages: 2, ..config }.is_well_formed());
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers() {
        let config = DecodeConfig { block_m: 16, head_dim: 128, warps: 4, stages: 3 };
        assert_eq!(config.check(2, &Limits::of(90)), Ok(()));
        let stages = DecodeConfig { block_m: 32, stages: 2, ..config };
        assert_eq!(stages.check(1, &Limits::of(90)), Err(Infeasible::Stages { stages: 2, needed: 3 }));
        let rows = DecodeConfig { block_m: 24, ..config };
        let of = Infeasible::Multiple { what: "BLOCK_M", value: 24, of: 16 };
        assert_eq!(rows.check(1, &Limits::of(90)), Err(of));
        let warps = DecodeConfig { warps: 16, ..config };
        assert!(matches!(warps.check(1, &Limits::of(90)), Err(Infeasible::SharedMemory { .. })));
    }
}
