//! Tiles of the product that computes dQ from dS.

use super::feasibility::{Infeasible, Limits, OTHER_REGISTERS, all, check_multiple, check_shared};
use super::{LINE, SHARED};

/// Tile of `backward_dq_sm90`: `block_m` queries, half of them for each of two warpgroups, against
/// [`Self::STEP`] keys at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardDqSm90Config {
    /// Queries of a block (BLOCK_M): 128 or 256.
    pub block_m: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 16; smaller head_dims are padded in shared
    /// memory.
    pub head_dim: u32,
}

impl BackwardDqSm90Config {
    /// Keys of a step.
    pub const STEP: u32 = 64;

    /// Warpgroups that multiply.
    pub const WARPGROUPS: u32 = 2;

    /// Threads of a block: a warpgroup more, which copies.
    pub const THREADS: u32 = 128 * (Self::WARPGROUPS + 1);

    /// Registers of a thread that multiplies, and of one that copies: together what the block starts with.
    pub const REGISTERS: (u32, u32) = (240, 24);

    /// The most steps that shared memory holds.
    const MAX_STAGES: u32 = 6;

    /// Bytes of a row of K in shared memory, in whole lines.
    const fn row_bytes(&self) -> u64 {
        (2 * self.head_dim as u64).next_multiple_of(LINE as u64)
    }

    /// Bytes of a step of K.
    pub const fn keys_bytes(&self) -> u32 {
        Self::STEP * self.row_bytes() as u32
    }

    /// Bytes of a step of K and dS.
    pub const fn stage_bytes(&self) -> u32 {
        self.keys_bytes() + 2 * Self::STEP * self.block_m
    }

    /// Steps that shared memory holds at once: as many as fit, two at least.
    pub const fn stages(&self) -> u32 {
        let mut stages = Self::MAX_STAGES;
        while stages > 2 && self.needed(stages as u64) > SHARED as u64 {
            stages -= 1;
        }
        stages
    }

    /// Where the barriers begin: behind all stages, and behind the rows of dQ, which leave through them.
    pub const fn barriers_offset(&self) -> u32 {
        self.tiles(self.stages() as u64) as u32
    }

    /// Bytes from a full barrier to that where steps land that are fixed up before they fill the stage.
    pub const fn fix_up_distance(&self) -> u32 {
        16 * self.stages()
    }

    /// Bytes of shared memory.
    pub const fn shared_bytes(&self) -> u32 {
        self.needed(self.stages() as u64) as u32
    }

    /// [`Self::shared_bytes`], for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        self.needed(self.stages() as u64)
    }

    /// Bytes of tiles with so many stages.
    const fn tiles(&self, stages: u64) -> u64 {
        let (rows, block_m) = (Self::STEP as u64, self.block_m as u64);
        let keys = self.row_bytes().saturating_mul(rows);
        let ring = stages.saturating_mul(keys.saturating_add(2 * rows * block_m));
        let out = self.row_bytes().saturating_mul(block_m);
        if ring > out { ring } else { out }
    }

    /// Bytes of shared memory with so many stages.
    const fn needed(&self, stages: u64) -> u64 {
        // Two barriers of 8 bytes for a stage, and one where it lands to be fixed up.
        self.tiles(stages).saturating_add(24 * stages)
    }

    /// Registers that a thread needs for its part of dQ.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        (self.block_m as u64 / 128).saturating_mul(self.head_dim as u64 / 2)
    }

    /// Whether the shape is one that the kernel can be instantiated with.
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
        all([
            check_multiple("BLOCK_M", self.block_m, 128),
            check_multiple("HEAD_DIM", self.head_dim, 16),
            Ok(()),
        ])
    }

    /// Whether the tile can be built and launched.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    #[inline]
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        if let Err(reason) = self.check_shape() {
            return Err(reason);
        }
        if min_blocks > 1 {
            return Err(Infeasible::Blocks { blocks: min_blocks, limit: 1 });
        }
        if let Err(reason) = check_shared(self.shared_needed(), limits) {
            return Err(reason);
        }
        let (accumulators, limit) = (self.accumulators(), Self::REGISTERS.0);
        let needed = accumulators.saturating_add(OTHER_REGISTERS);
        if needed > limit as u64 {
            let threads = Self::THREADS;
            return Err(Infeasible::Registers { needed, accumulators, limit, threads, blocks: 1 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_steps_are_held_as_fit() {
        let tile = |block_m, head_dim| BackwardDqSm90Config { block_m, head_dim };
        let wide = tile(256, 128);
        assert_eq!((wide.stage_bytes(), wide.stages()), (48 << 10, 4));
        assert_eq!((wide.shared_bytes(), wide.check(1, &Limits::of(90))), ((192 << 10) + 24 * 4, Ok(())));
        assert_eq!((tile(128, 64).stage_bytes(), tile(128, 64).stages()), (24 << 10, 6));
        assert_eq!(tile(128, 256).check(1, &Limits::of(90)), Ok(()));
        assert!(matches!(tile(256, 256).check(1, &Limits::of(90)), Err(Infeasible::Registers { .. })));
        assert!(matches!(tile(192, 64).check_shape(), Err(Infeasible::Multiple { value: 192, of: 128, .. })));
        assert!(tile(u32::MAX - 127, 64).check(1, &Limits::of(90)).is_err());
    }
}
