//! Which blocks of keys a tile's queries see, for a mask function that knows: bits in shared memory.
//!
//! The warp that announces a tile asks the function, a lane for each block, and writes the bits beside the
//! tile's slot, where all others read them. Where a tile has more blocks than there are bits, a bit stands
//! for a run of 2, 4, 8, ... blocks.

use core::marker::PhantomData;

use super::Pipeline;
use super::key_blocks::Asked;
use super::scheduler::TileSlots;
use super::tile::Tile;
use crate::config::Sm90Config;
use crate::functions::Visible;
use crate::hopper::roles::{WARPGROUP_ROWS, leads_warp};
use crate::params::PersistentParams;
use crate::ptx::{index, shared, warp};

/// Bits that tell of a tile's runs of blocks: whether something is seen of each, and for each warpgroup
/// whether its rows see all, and whether they see nothing.
const BITS: u32 = 1024;

/// Bytes of so many.
const BYTES: u32 = BITS / 8;

/// Bytes of the bits of both slots.
pub(super) const fn bytes(config: Sm90Config) -> u32 {
    2 * of_slot(config)
}

/// Bytes of a slot's.
const fn of_slot(config: Sm90Config) -> u32 {
    BYTES * (1 + 2 * config.warpgroups())
}

/// The bits of a tile.
#[derive(Clone, Copy)]
pub(super) struct SeenBlocks<T> {
    address: u32,
    /// Log2 of the blocks of a run.
    shift: u32,
    tile: PhantomData<T>,
}

impl<T: Tile> SeenBlocks<T> {
    /// Those of the tile that was announced in a slot, which has so many blocks.
    #[inline(always)]
    pub(super) fn of_slot(pipeline: Pipeline<T>, slot: u32, blocks: u32) -> Self {
        let behind = if slot == pipeline.schedule() { 0 } else { const { of_slot(T::CONFIG) } };
        let shift = u32::BITS - (blocks.saturating_sub(1) / BITS).leading_zeros();
        Self { address: pipeline.seen_blocks() + behind, shift, tile: PhantomData }
    }

    /// The end of the first `end` blocks without the last runs of which nothing is seen.
    ///
    /// # Safety
    /// The tile was announced, and is not left.
    #[inline(always)]
    pub(super) unsafe fn end(self, end: u32) -> u32 {
        let mut end = end;
        while end > 0 {
            let run = (end - 1) >> self.shift;
            // SAFETY: the bits are the slot's.
            let seen = unsafe { word(self.address, run) } << (31 - run % 32);
            if seen != 0 {
                let skipped = seen.leading_zeros();
                return if skipped == 0 { end } else { (run + 1 - skipped) << self.shift };
            }
            end = (run - run % 32) << self.shift;
        }
        0
    }

    /// What a warpgroup's rows see of a block's run.
    ///
    /// # Safety
    /// As [`Self::end`].
    #[inline(always)]
    pub(super) unsafe fn visible(self, warpgroup: u32, block: u32) -> Visible {
        let (run, all) = (block >> self.shift, self.address + BYTES * (1 + 2 * warpgroup));
        let bit = 1 << (run % 32);
        // SAFETY: the bits are the slot's.
        unsafe {
            if word(all, run) & bit != 0 {
                Visible::All
            } else if word(all + BYTES, run) & bit != 0 {
                Visible::Nothing
            } else {
                Visible::Part
            }
        }
    }

    /// Asks about all blocks of the tile in a slot that is written but for this, and writes the bits.
    ///
    /// # Safety
    /// All lanes of the announcing warp call this together, and the slot is theirs.
    #[inline(always)]
    pub(super) unsafe fn find(self, params: &PersistentParams, slot: u32, blocks: u32) {
        let (lane, runs) = (index::thread() % 32, (blocks + (1 << self.shift) - 1) >> self.shift);
        let mut run = 0;
        while run < runs {
            // SAFETY: all lanes are here.
            unsafe {
                let ask = |first_row: u32, rows: u32| {
                    let queries = TileSlots::queries::<T>(slot, params, first_row, rows);
                    let asked = Asked { queries, first_key: TileSlots::first_key(slot) };
                    asked.visible::<T>(params, (run + lane) << self.shift, 1 << self.shift)
                };
                self.write(0, run, ask(0, T::BLOCK_M) != Visible::Nothing);
                let mut warpgroup = 0;
                while warpgroup < index::unknown(T::CONFIG.warpgroups()) {
                    let visible = ask(WARPGROUP_ROWS * warpgroup, WARPGROUP_ROWS);
                    self.write(1 + 2 * warpgroup, run, visible == Visible::All);
                    self.write(2 + 2 * warpgroup, run, visible == Visible::Nothing);
                    warpgroup += 1;
                }
            }
            run += 32;
        }
    }

    /// Writes the bits of 32 runs, a lane's each.
    ///
    /// # Safety
    /// As [`Self::find`].
    #[inline(always)]
    unsafe fn write(self, plane: u32, run: u32, bit: bool) {
        // SAFETY: all lanes are here, and the word is the announcing warp's.
        unsafe {
            let word = warp::ballot(bit);
            if leads_warp() {
                shared::store_b32(self.address + BYTES * plane + run / 8, word);
            }
        }
    }
}

/// The word that has a run's bit.
///
/// # Safety
/// The bits are readable.
#[inline(always)]
unsafe fn word(address: u32, run: u32) -> u32 {
    // SAFETY: as above.
    unsafe { shared::load_b32(address + run / 32 * 4) }
}
