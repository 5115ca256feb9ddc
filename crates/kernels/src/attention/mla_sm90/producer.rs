//! The warp that finds items and copies their keys.

use crate::attention::alignment::head_offset::HeadOffset;
use crate::attention::cache_box::{CacheBox, locate, rows};
use crate::attention::work_items::{Item, ItemSlots, Items};
use crate::hopper::ring::Ring;
use crate::hopper::roles::leads_warp;
use crate::params::DecodeParams;
use crate::ptx::{grid, index, warp};
use crate::tile::panels::{Extent, Panels};

use super::BLOCK_N;
use super::memory::{Blocks, HALF, Memory, MlaTile};

/// The warp that finds items, announces them, and copies their keys: its place in the rings.
pub(super) struct Producer {
    /// Address of the map of K.
    map: u64,
    memory: Memory,
    /// That of the left half; each lane has a place of its own, and all go around alike.
    ring: Ring<Blocks>,
}

impl Producer {
    /// This warp's.
    ///
    /// # Safety
    /// All lanes of one warp make one and call [`Self::run`], in a launch as [`mla_sm90`](super::mla_sm90)
    /// says, whose barriers are made.
    #[inline(always)]
    pub(super) unsafe fn new(map: u64, memory: Memory) -> Self {
        // SAFETY: the first lane announces bytes, and all copy between its wait and the filling alone.
        Self { map, memory, ring: unsafe { Ring::producer(memory.barriers(0)) } }
    }

    /// Announces all items of this block, and copies their keys.
    #[inline(always)]
    pub(super) fn run(mut self, params: &DecodeParams) {
        grid::launch_dependents();
        // SAFETY: this warp, by its first lane, is the producer of slots; its lanes walk the list together.
        unsafe {
            let mut slots = ItemSlots::producer(self.memory.slots());
            let mut items = Items::new::<MlaTile>(params);
            while let Some(item) = items.next::<MlaTile>(params) {
                if leads_warp() {
                    slots.announce(|slot| item.write(slot));
                }
                self.copy(params, &item);
            }
            if leads_warp() {
                slots.announce_end();
            }
        }
    }

    /// Copies the keys of an item.
    #[inline(always)]
    fn copy(&mut self, params: &DecodeParams, item: &Item) {
        let pages = &params.cache.pages;
        let rows = rows(pages, BLOCK_N);
        let used = item.used.min(item.keys.end);
        // SAFETY: the page table has an entry for each key; all lanes are here.
        let place_of = |key| unsafe { locate(pages, item.work.batch, key, rows, used) };
        let mut key = item.keys.first;
        let mut next = place_of(key);
        while key < item.keys.end {
            let place = next;
            next = place_of(key + BLOCK_N);
            let stage = self.ring.stage();
            // SAFETY: the map is K's; all lanes of the warp are here, and go through all parts alike.
            unsafe {
                self.copy_part(0, self.memory.half(stage, 0), item, place, rows);
                self.copy_part(1, self.memory.half(stage, 1), item, place, rows);
                self.copy_part(2, self.memory.last(stage), item, place, rows);
            }
            self.ring.advance();
            key += BLOCK_N;
        }
    }

    /// Copies a part of a block, once that is empty, a box of rows by each of the first lanes.
    ///
    /// # Safety
    /// The tile is the part's of the stage at hand; all lanes of the warp call this together.
    #[inline(always)]
    unsafe fn copy_part<X: Extent>(
        &self,
        part: u32,
        tile: Panels<X>,
        item: &Item,
        place: CacheBox,
        rows: u32,
    ) {
        // SAFETY: all lanes are here. The part is empty: the first lane has waited. A box is one lane's.
        unsafe {
            let ring = self.ring.behind(Ring::<Blocks>::BYTES * part);
            if leads_warp() {
                ring.acquire(Panels::<X>::BYTES);
            }
            warp::sync();
            let first = index::reread_thread() % 32 * rows;
            if first < BLOCK_N {
                let head = HeadOffset { class: 0, head: item.work.kv_head, shift: 0 };
                let at = (part * HALF, place.row);
                tile.from_row(first).load_from(self.map, ring.full(), at, head, place.batch);
            }
        }
    }
}
