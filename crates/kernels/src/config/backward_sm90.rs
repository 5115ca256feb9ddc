//! Tiles of the backward kernels of Hopper.

use super::feasibility::{Infeasible, Limits, OTHER_REGISTERS, all, check_multiple, check_shared};
use super::{LINE, SHARED};

/// Tile of `backward_sm90`: [`Self::owned`] rows of a pair of tensors (K and V, or Q and dO) against `step`
/// rows of the other pair at a time. Two warpgroups multiply: each has 64 of the rows, or, where registers do
/// not hold both gradients, each has all of 64 keys and one gradient ([`Self::splits_roles`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardSm90Config {
    /// Whether a block owns keys, and computes dK and dV; else it owns queries, and computes dQ.
    pub owns_keys: bool,
    /// Whether a block stores dS, and goes on to tiles of queries, which compute dQ from it.
    pub stores_ds: bool,
    /// Whether a further warpgroup adds what a tile of keys has of dQ to sums in device memory.
    pub sums_dq: bool,
    /// Rows of a step, a multiple of 32.
    pub step: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 16; smaller head_dims are padded in shared
    /// memory.
    pub head_dim: u32,
}

impl BackwardSm90Config {
    /// Rows of a warpgroup.
    pub const WARPGROUP_ROWS: u32 = 64;

    /// Warpgroups that multiply.
    pub const WARPGROUPS: u32 = 2;

    /// Keys of a step of a tile that computes dQ from stored dS.
    pub const KEYS: u32 = 64;

    /// Queries of a tile that computes dQ from stored dS.
    #[inline]
    pub const fn queries(&self) -> u32 {
        Self::WARPGROUPS * Self::WARPGROUP_ROWS * self.panels()
    }

    /// Panels of queries of a warpgroup.
    #[inline]
    pub const fn panels(&self) -> u32 {
        if self.splits_roles() { 1 } else { 2 }
    }

    /// Bytes of a step of K and dS of a tile of queries.
    #[inline]
    pub const fn queries_step_bytes(&self) -> u32 {
        self.queries_step_needed() as u32
    }

    #[inline]
    const fn queries_step_needed(&self) -> u64 {
        self.row_bytes(Self::KEYS as u64).saturating_add(2 * Self::KEYS as u64 * self.queries() as u64)
    }

    /// Bytes of dQ on its way out.
    #[inline]
    pub const fn out_bytes(&self) -> u32 {
        self.row_bytes(self.queries() as u64) as u32
    }

    /// The warpgroup that copies: the last. One that sums dQ comes before it.
    #[inline]
    pub const fn copier(&self) -> u32 {
        Self::WARPGROUPS + self.sums_dq as u32
    }

    /// Threads of a block.
    #[inline]
    pub const fn threads(&self) -> u32 {
        128 * (self.copier() + 1)
    }

    /// Registers of a thread that owns rows, of one that sums dQ, and of one that copies: together what the
    /// block starts with.
    #[inline]
    pub const fn registers(&self) -> (u32, u32, u32) {
        if self.sums_dq { (208, 64, 32) } else { (240, 0, 24) }
    }

    /// Whether blocks stay on their multiprocessors and take tickets for tiles.
    #[inline]
    pub const fn takes_tickets(&self) -> bool {
        self.stores_ds || self.sums_dq
    }

    /// Stages of dS on its way to the warpgroup that sums dQ.
    #[inline]
    pub const fn ds_stages(&self) -> u32 {
        if self.sums_dq { 3 } else { 0 }
    }

    /// Bytes of one: of all keys of a tile.
    #[inline]
    pub const fn ds_bytes(&self) -> u32 {
        2 * self.owned() * self.step
    }

    /// Sums of dQ, each of a step, that are on their way at once.
    #[inline]
    pub const fn sum_stages(&self) -> u32 {
        if self.sums_dq { 2 } else { 0 }
    }

    /// Sums that are stored and not counted yet.
    #[inline]
    pub const fn saved_stages(&self) -> u32 {
        if self.sums_dq { 4 } else { 0 }
    }

    /// Bytes of dQ of a step, fp32.
    #[inline]
    pub const fn sum_bytes(&self) -> u32 {
        4 * self.step * self.head_dim
    }

    /// Bytes of all that summing dQ takes: dS, sums, and dQ of a step on its way out.
    #[inline]
    const fn summing_bytes(&self) -> u64 {
        if !self.sums_dq {
            return 0;
        }
        let sums = self.ds_stages() as u64 * self.ds_bytes() as u64
            + self.sum_stages() as u64 * self.sum_bytes() as u64;
        sums + self.row_bytes(self.step as u64)
    }

    /// Where dS on its way lies: behind the steps.
    #[inline]
    pub const fn ds_offset(&self) -> u32 {
        self.owned_stages() * self.owned_bytes() + self.stages() * self.step_bytes()
    }

    /// Where sums lie.
    #[inline]
    pub const fn sums_offset(&self) -> u32 {
        self.ds_offset() + self.ds_stages() * self.ds_bytes()
    }

    /// Where dQ of a step lies on its way out.
    #[inline]
    pub const fn dq_offset(&self) -> u32 {
        self.sums_offset() + self.sum_stages() * self.sum_bytes()
    }

    /// Bytes of the barriers of a stage of a ring: two barriers, that where it lands, and 8 bytes of none.
    pub const RING_BYTES: u32 = 32;

    /// The widest rows of which a warpgroup holds dK and dV, from 129 on beside steps of 32.
    const BOTH_GRADIENTS: u32 = 160;

    /// Whether one warpgroup computes P and dV, and the other dS and dK.
    #[inline]
    pub const fn splits_roles(&self) -> bool {
        self.owns_keys && self.head_dim > Self::BOTH_GRADIENTS
    }

    /// Rows of a block.
    #[inline]
    pub const fn owned(&self) -> u32 {
        if self.splits_roles() { Self::WARPGROUP_ROWS } else { Self::WARPGROUPS * Self::WARPGROUP_ROWS }
    }

    /// Rows of a box that a tensor map of what a block owns describes.
    #[inline]
    pub const fn box_rows(&self) -> u32 {
        if self.stores_ds { Self::KEYS } else { self.owned() }
    }

    /// Bytes of P, fp32, on its way from one warpgroup to the other.
    #[inline]
    pub const fn weights_bytes(&self) -> u32 {
        if self.splits_roles() { 4 * Self::WARPGROUP_ROWS * self.step } else { 0 }
    }

    /// Bytes of `rows` rows in shared memory, in whole lines.
    #[inline]
    const fn row_bytes(&self, rows: u64) -> u64 {
        rows.saturating_mul((2 * self.head_dim as u64).next_multiple_of(LINE as u64))
    }

    /// Bytes of both owned tensors.
    #[inline]
    pub const fn owned_bytes(&self) -> u32 {
        2 * self.row_bytes(self.owned() as u64) as u32
    }

    /// Bytes of dK and dV of a tile of keys, fp32, between two units of its head.
    #[inline]
    pub const fn carried_bytes(&self) -> u32 {
        4 * self.owned() * 2 * self.head_dim
    }

    /// Tiles of which shared memory holds what a block owns: the next one's too where that fits beside three
    /// steps.
    #[inline]
    pub const fn owned_stages(&self) -> u32 {
        if self.takes_tickets() && self.needed(2, 3, 2) <= SHARED as u64 { 2 } else { 1 }
    }

    /// Bytes of a step of both others; where dS is read, of K and of dS if that is more.
    #[inline]
    pub const fn step_bytes(&self) -> u32 {
        self.step_needed() as u32
    }

    #[inline]
    const fn step_needed(&self) -> u64 {
        self.row_bytes(2 * self.step as u64)
    }

    /// Bytes of a step's statistics of queries, two fp32 each.
    #[inline]
    pub const fn statistics_bytes(&self) -> u32 {
        if self.owns_keys { 8 * self.step } else { 0 }
    }

    /// Steps that are held at once at the most.
    const MOST_STAGES: u32 = 8;

    /// Steps that shared memory holds at once: as many as fit, and two at least.
    #[inline]
    pub const fn stages(&self) -> u32 {
        let mut stages = Self::MOST_STAGES;
        while stages > 2 && self.needed(self.owned_stages() as u64, stages as u64, 2) > SHARED as u64 {
            stages -= 1;
        }
        stages
    }

    /// Those of a tile of queries, not more than of a tile of keys.
    #[inline]
    pub const fn query_stages(&self) -> u32 {
        let (owned, all) = (self.owned_stages() as u64, self.stages());
        let mut stages = all;
        while stages > 2 && self.needed(owned, all as u64, stages as u64) > SHARED as u64 {
            stages -= 1;
        }
        stages
    }

    /// Where the statistics begin: behind all tiles.
    #[inline]
    pub const fn statistics_offset(&self) -> u32 {
        self.tiles(self.owned_stages() as u64, self.stages() as u64, self.query_stages() as u64) as u32
    }

    /// Bytes of tiles with so many stages of what is owned, and of steps of keys and of queries.
    #[inline]
    const fn tiles(&self, owned_stages: u64, stages: u64, query_stages: u64) -> u64 {
        let owned = self.row_bytes(2 * self.owned() as u64).saturating_mul(owned_stages);
        let of_keys = owned
            .saturating_add(stages.saturating_mul(self.step_needed()))
            .saturating_add(self.summing_bytes());
        let step = self.queries_step_needed();
        let of_queries =
            self.row_bytes(self.queries() as u64).saturating_add(query_stages.saturating_mul(step));
        if self.stores_ds && of_queries > of_keys { of_queries } else { of_keys }
    }

    /// Where P lies.
    #[inline]
    pub const fn weights_offset(&self) -> u32 {
        self.statistics_offset() + self.stages() * self.statistics_bytes()
    }

    /// Where tiles are announced.
    #[inline]
    pub const fn schedule_offset(&self) -> u32 {
        self.weights_offset() + self.weights_bytes()
    }

    /// Where the barriers begin.
    #[inline]
    pub const fn barriers_offset(&self) -> u32 {
        self.schedule_offset() + self.schedule_bytes()
    }

    /// Bytes of what is announced of tiles.
    #[inline]
    const fn schedule_bytes(&self) -> u32 {
        if self.takes_tickets() { Self::SCHEDULE_BYTES } else { 0 }
    }

    /// Bytes of two slots in which tiles are announced, and of their barriers.
    pub const SCHEDULE_BYTES: u32 = 192;

    /// Bytes from a full barrier to that where steps land that are fixed up before they fill the stage.
    #[inline]
    pub const fn fix_up_distance(&self) -> u32 {
        16 * self.stages()
    }

    /// Bytes of shared memory.
    #[inline]
    pub const fn shared_bytes(&self) -> u32 {
        self.shared_needed() as u32
    }

    /// [`Self::shared_bytes`], for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        self.needed(self.owned_stages() as u64, self.stages() as u64, self.query_stages() as u64)
    }

    /// Bytes of shared memory with so many stages of what is owned, and of steps of keys and of queries.
    #[inline]
    const fn needed(&self, owned_stages: u64, stages: u64, query_stages: u64) -> u64 {
        let statistics = if self.owns_keys { 8 * self.step as u64 } else { 0 };
        // Tiles of queries have a ring of their own, with room for as many barriers.
        let rings = if self.stores_ds { 2 } else { 1 };
        let of_sums = 16 * (self.ds_stages() + self.sum_stages() + self.saved_stages()) as u64;
        let stage = statistics + rings * Self::RING_BYTES as u64;
        let weights =
            if self.splits_roles() { 4 * Self::WARPGROUP_ROWS as u64 * self.step as u64 } else { 0 };
        let beside =
            weights.saturating_add(self.schedule_bytes() as u64).saturating_add(16 * owned_stages + of_sums);
        self.tiles(owned_stages, stages, query_stages)
            .saturating_add(beside)
            .saturating_add(stages.saturating_mul(stage))
    }

    /// Registers that a thread needs for its parts of the gradients, of P and dP; where roles are split, of
    /// one of each, and of that rounded. (Else P is rounded as dS takes the place of dP.)
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        let (step, head_dim) = (self.step as u64, self.head_dim as u64);
        if self.splits_roles() {
            head_dim / 2 + step / 2 + step / 4
        } else if self.owns_keys {
            head_dim + step
        } else {
            head_dim / 2 + step
        }
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
            check_multiple("the rows of a step", self.step, 32),
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
        let (accumulators, limit) = (self.accumulators(), self.registers().0);
        let needed = accumulators.saturating_add(OTHER_REGISTERS);
        if needed > limit as u64 {
            let threads = self.threads();
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
        let keys =
            BackwardSm90Config { owns_keys: true, stores_ds: false, sums_dq: false, step: 64, head_dim: 128 };
        assert_eq!((keys.stages(), keys.shared_bytes()), (5, (64 << 10) + 5 * ((32 << 10) + 512 + 32) + 16));
        assert_eq!((keys.accumulators(), keys.check(1, &Limits::of(90))), (192, Ok(())));
        let queries = BackwardSm90Config {
            owns_keys: false,
            stores_ds: false,
            sums_dq: false,
            step: 128,
            head_dim: 128,
        };
        assert_eq!((queries.stages(), queries.shared_bytes()), (2, (192 << 10) + 2 * 32 + 16));
        assert_eq!((queries.accumulators(), queries.check(1, &Limits::of(90))), (192, Ok(())));
        let whole = BackwardSm90Config { stores_ds: true, ..keys };
        let bytes = (128 << 10) + 3 * ((32 << 10) + 512 + 64) + 32 + 192;
        assert_eq!((whole.owned_stages(), whole.stages(), whole.shared_bytes()), (2, 3, bytes));
        let narrow = BackwardSm90Config { head_dim: 64, ..whole };
        assert_eq!((narrow.step_bytes(), narrow.owned_stages(), narrow.stages()), (16 << 10, 2, 8));
        assert_eq!((narrow.queries(), narrow.queries_step_bytes()), (256, 40 << 10));
        assert_eq!((narrow.query_stages(), whole.query_stages()), (4, 3));
        let long = BackwardSm90Config { step: 128, ..narrow };
        assert_eq!((long.step_bytes(), long.stages(), long.query_stages()), (32 << 10, 4, 4));
        let wide =
            BackwardSm90Config { owns_keys: true, stores_ds: true, sums_dq: false, step: 64, head_dim: 256 };
        assert_eq!((wide.owned(), wide.stages(), wide.accumulators()), (64, 2, 176));
        assert_eq!((wide.weights_bytes(), wide.check(1, &Limits::of(90))), (16 << 10, Ok(())));
        let wide = BackwardSm90Config { head_dim: 192, ..wide };
        assert_eq!((wide.owned(), wide.stages()), (64, 3));
        let wide = BackwardSm90Config { step: 32, head_dim: 160, ..wide };
        assert_eq!((wide.owned(), wide.owned_stages(), wide.stages(), wide.accumulators()), (128, 1, 5, 192));
        // Beside dS, sums, and dQ on its way out.
        let summed = BackwardSm90Config { stores_ds: false, sums_dq: true, ..narrow };
        assert_eq!((summed.owned_stages(), summed.stages(), summed.threads()), (2, 4, 512));
        assert_eq!((summed.ds_offset(), summed.summing_bytes()), (128 << 10, (3 * 16 + 2 * 16 + 8) << 10));
        assert_eq!(summed.check(1, &Limits::of(90)), Ok(()));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers() {
        let reason = |owns_keys, step, head_dim| {
            BackwardSm90Config { owns_keys, stores_ds: false, sums_dq: false, step, head_dim }
                .check(1, &Limits::of(90))
                .expect_err("infeasible")
        };
        let of = Infeasible::Multiple { what: "the rows of a step", value: 48, of: 32 };
        assert_eq!(reason(true, 48, 64), of);
        assert!(matches!(reason(true, 96, 128), Infeasible::Registers { needed: 256, limit: 240, .. }));
        assert!(matches!(reason(true, 96, 256), Infeasible::SharedMemory { .. }));
        assert!(matches!(reason(false, u32::MAX - 31, 256), Infeasible::SharedMemory { .. }));
        let keys =
            BackwardSm90Config { owns_keys: true, stores_ds: false, sums_dq: false, step: 64, head_dim: 64 };
        assert_eq!(keys.check(2, &Limits::of(90)), Err(Infeasible::Blocks { blocks: 2, limit: 1 }));
    }
}
