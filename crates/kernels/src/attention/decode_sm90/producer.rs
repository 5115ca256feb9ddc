//! The warp that copies K and V.

use crate::attention::cache_box::{CacheBox, locate, rows};
use crate::hopper::ring::Ring;
use crate::hopper::roles::leads_warp;
use crate::params::DecodeParams;
use crate::ptx::tma::{self, TensorMap};
use crate::ptx::{barrier, index, warp};
use crate::tile::panels::Panels;

use super::BARRIERS_ARE_MADE;
use super::tile::{CacheRows, Memory, Tile};
use crate::attention::work_items::{Item, ItemSlots, Items};

/// The warp that copies, and its place in the ring.
pub(super) struct Producer<T: Tile> {
    /// Address of the maps of K and V.
    maps: u64,
    memory: Memory<T>,
    /// Each lane has a place of its own, and all go around alike.
    ring: Ring<T::Ring>,
}

impl<T: Tile> Producer<T> {
    /// Its place at first.
    ///
    /// # Safety
    /// All lanes of one warp make one and call [`Self::run`], in a launch as
    /// [`decode_sm90`](super::decode_sm90) says.
    #[inline(always)]
    pub(super) unsafe fn new(maps: u64, memory: Memory<T>) -> Self {
        // SAFETY: one warp copies, by its first lane, which makes the barriers first.
        Self { maps, memory, ring: unsafe { Ring::producer(memory.ring_barriers()) } }
    }

    /// Makes all barriers, and copies K and V of all items.
    #[inline(always)]
    pub(super) fn run(mut self, params: &DecodeParams) {
        // SAFETY: the launch has both maps. The first lane makes the barriers, and leaves slots for all,
        // behind their reads.
        unsafe {
            if leads_warp() {
                tma::prefetch(self.maps);
                tma::prefetch(self.maps + TensorMap::BYTES);
                self.memory.init();
            }
            warp::sync();
            barrier::arrive(BARRIERS_ARE_MADE, T::CONFIG.threads());
            // Others are still looking for it.
            let Some(mut item) = Items::new::<T>(params).next::<T>(params) else { return };
            let mut slots = ItemSlots::consumer(self.memory.slots());
            loop {
                self.copy(params, &item);
                slots.wait();
                warp::sync();
                slots.leave(leads_warp());
                if !slots.wait() {
                    break;
                }
                item = slots.item();
            }
        }
    }

    /// Copies the keys of an item's steps.
    #[inline(always)]
    fn copy(&mut self, params: &DecodeParams, item: &Item) {
        let pages = &params.cache.pages;
        let rows = rows(pages, T::BLOCK_N);
        let policy = tma::l2_policy(params.exceeds_l2 != 0);
        let steps = item.keys.end.saturating_sub(item.keys.first).div_ceil(T::BLOCK_N);
        let used = item.used.min(item.keys.end);
        // SAFETY: the page table has an entry for each key; the maps are those of K and V; all lanes are
        // here.
        unsafe {
            let place_of = |step| {
                let first = item.keys.first + step * T::BLOCK_N;
                locate(pages, item.work.batch, first, rows, used)
            };
            let mut place = place_of(0);
            let mut step = 0;
            while step < steps {
                let next = place_of(step + 1);
                self.copy_tile((self.maps, policy), item, place, rows);
                self.copy_tile((self.maps + TensorMap::BYTES, policy), item, place, rows);
                place = next;
                step += 1;
            }
        }
    }

    /// Copies a step's keys of K or V, by a map and a policy, into the next stage, a box by each of the first
    /// lanes.
    ///
    /// # Safety
    /// The map is the tensor's; all lanes of the warp call this together.
    #[inline(always)]
    unsafe fn copy_tile(&mut self, map: (u64, u64), item: &Item, place: CacheBox, rows: u32) {
        let tile: Panels<CacheRows<T>> = self.memory.ring().stage(self.ring.stage());
        if leads_warp() {
            self.ring.acquire(Panels::<CacheRows<T>>::BYTES);
        }
        // SAFETY: all lanes are here. The stage is empty: the first lane has waited. A box is one lane's.
        unsafe {
            warp::sync();
            let first = index::thread() % 32 * rows;
            if first < T::BLOCK_N {
                let head = item.work.kv_head;
                tile.from_row(first).load_with(map, self.ring.full(), place.row, head, place.batch);
            }
        }
        self.ring.advance();
    }
}
