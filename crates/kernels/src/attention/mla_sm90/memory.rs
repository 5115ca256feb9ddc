//! Where tiles and barriers lie in shared memory.

use crate::attention::work_items::{ItemSlots, ItemTile};
use crate::hopper::ring::{Count, Ring};
use crate::hopper::roles::WARPS;
use crate::ptx::shared;
use crate::tile::panels::{Extents, Panels};

use super::{BLOCK_M, BLOCK_N, HEAD_DIM, HEAD_DIM_V};

/// Columns of O that a warpgroup has.
pub(super) const HALF: u32 = HEAD_DIM_V / 2;

/// What an item is of.
#[derive(Clone, Copy)]
pub(super) struct MlaTile;

impl ItemTile for MlaTile {
    const ROWS: u32 = BLOCK_M;
    const KEYS: u32 = BLOCK_N;
    const DESCALES: bool = false;
    const ADDS_UP: bool = false;
    const CLUSTERS: bool = false;
}

/// A tile of Q.
pub(super) type QueryRows = Extents<BLOCK_M, HEAD_DIM>;

/// A block of keys.
pub(super) type KeyBlock = Extents<BLOCK_N, HEAD_DIM>;

/// The columns of a block that are one warpgroup's values.
pub(super) type ValueHalf = Extents<BLOCK_N, HALF>;

/// The columns of a block that only scores need, and P in their place.
pub(super) type LastPanel = Extents<BLOCK_N, { HEAD_DIM - HEAD_DIM_V }>;

/// Blocks that shared memory holds.
pub(super) type Blocks = Count<2>;

/// Parts of a block that are copied, waited for and left each by itself: the left and the right half of its
/// values, and the last panel. Each has a ring of barriers; all go around them alike.
pub(super) const PARTS: u32 = 3;

/// Where tiles and barriers lie.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    base: u32,
}

impl Memory {
    const MAX_OFFSET: u32 = Panels::<QueryRows>::BYTES + 2 * Panels::<KeyBlock>::BYTES;
    const SUM_OFFSET: u32 = Self::MAX_OFFSET + 2 * 4 * BLOCK_M;
    const SLOTS_OFFSET: u32 = Self::SUM_OFFSET + 2 * 4 * BLOCK_M;
    const BARRIERS_OFFSET: u32 = Self::SLOTS_OFFSET + ItemSlots::BYTES;

    /// Bytes in all.
    pub(super) const BYTES: u32 = Self::BARRIERS_OFFSET + PARTS * Ring::<Blocks>::BYTES;

    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { base: shared::base() }
    }

    /// Makes all barriers.
    ///
    /// # Safety
    /// One thread calls this, and a block barrier follows.
    #[inline(always)]
    pub(super) unsafe fn init(self) {
        // SAFETY: one thread makes the barriers, which lie behind all tiles, before the block barrier.
        unsafe {
            let mut part = 0;
            while part < PARTS {
                // One warpgroup leaves each part of a block; of the last one, which it is differs.
                Ring::<Blocks>::init(self.barriers(part), WARPS);
                part += 1;
            }
            ItemSlots::init(self.slots(), 2 * WARPS);
        }
    }

    /// Q.
    #[inline(always)]
    pub(super) fn q(self) -> Panels<QueryRows> {
        Panels::new(self.base)
    }

    /// A block of keys.
    #[inline(always)]
    pub(super) fn block(self, stage: u32) -> Panels<KeyBlock> {
        Panels::new(self.base + Panels::<QueryRows>::BYTES).stage(stage)
    }

    /// Part `side` of the values of a block.
    #[inline(always)]
    pub(super) fn half(self, stage: u32, side: u32) -> Panels<ValueHalf> {
        Panels::new(self.block(stage).address + side * Panels::<ValueHalf>::BYTES)
    }

    /// The last panel of a block.
    #[inline(always)]
    pub(super) fn last(self, stage: u32) -> Panels<LastPanel> {
        Panels::new(self.block(stage).panel(2 * Panels::<ValueHalf>::COUNT))
    }

    /// Where m of a row lies as a warpgroup has raised it last.
    #[inline(always)]
    pub(super) fn max(self, side: u32, row: u32) -> u32 {
        self.base + Self::MAX_OFFSET + 4 * (side * BLOCK_M + row)
    }

    /// Where a warpgroup's sum of a row lies.
    #[inline(always)]
    pub(super) fn sum(self, side: u32, row: u32) -> u32 {
        self.base + Self::SUM_OFFSET + 4 * (side * BLOCK_M + row)
    }

    #[inline(always)]
    pub(super) fn slots(self) -> u32 {
        self.base + Self::SLOTS_OFFSET
    }

    /// The barriers of a part's ring.
    #[inline(always)]
    pub(super) fn barriers(self, part: u32) -> u32 {
        self.base + Self::BARRIERS_OFFSET + Ring::<Blocks>::BYTES * part
    }
}
