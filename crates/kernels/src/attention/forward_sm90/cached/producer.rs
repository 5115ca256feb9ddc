//! The warps that copy Q, K and V where keys lie in a cache: a lane copies a box, which may be a page's.

use crate::attention::alignment::head_offset::HeadOffset;
use crate::attention::cache_box::{CacheBox, locate, rows};
use crate::attention::forward_sm90::scheduler::{Keys, TileSlots};
use crate::attention::forward_sm90::tile::{KeyBlock, KeyStages, QueryRows, Tile, ValueBlock};
use crate::attention::forward_sm90::{Maps, Pipeline, first_row};
use crate::hopper::ring::{Count, Ring};
use crate::hopper::roles::{WARPGROUP_ROWS, leads_warp};
use crate::params::PersistentParams;
use crate::ptx::{index, warp};
use crate::scheduler::WorkTile;
use crate::tile::panels::{Extent, Panels};

/// Copies Q and K of all tiles of this block.
///
/// # Safety
/// All lanes of one warp call this together, in a launch as
/// [`forward_sm90`](crate::attention::forward_sm90::forward_sm90) says; the barriers are made.
#[inline(always)]
pub(in crate::attention::forward_sm90) unsafe fn copy_queries_and_keys<T: Tile>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<T>,
) {
    // SAFETY: this warp's first lane is the producer of both rings; the maps are those of Q and K.
    unsafe {
        let mut slots = TileSlots::consumer(pipeline.schedule());
        let mut queries = Ring::<Count<1>>::producer(pipeline.q_barriers(0));
        let ring = Ring::<KeyStages<T>>::producer(pipeline.k_barriers());
        let mut keys = Boxes::<T, KeyBlock<T>> { ring, first: pipeline.k(), map: maps.k() };
        while slots.wait() {
            let (work, place) = (slots.work(), slots.keys::<T>());
            let mut next = keys.locate(params, &work, &place, place.blocks);
            let mut block = place.blocks;
            if block > 0 {
                block -= 1;
                next = keys.copy(params, &work, &place, next, (block, 0));
            }
            if leads_warp() {
                copy_queries(params, &work, maps.q(), pipeline, queries);
            }
            queries.advance();
            while block > 0 {
                block -= 1;
                next = keys.copy(params, &work, &place, next, (block, 0));
            }
            warp::sync();
            slots.leave(leads_warp());
        }
    }
}

/// As [`copy_queries_and_keys`], of V.
///
/// # Safety
/// As [`copy_queries_and_keys`].
#[inline(always)]
pub(in crate::attention::forward_sm90) unsafe fn copy_values<T: Tile>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<T>,
) {
    // SAFETY: this warp's first lane is the ring's producer; the map is V's.
    unsafe {
        let mut slots = TileSlots::consumer(pipeline.schedule());
        let ring = Ring::<KeyStages<T>>::producer(pipeline.v_barriers());
        let mut values = Boxes::<T, ValueBlock<T>> { ring, first: pipeline.v(), map: maps.v() };
        while slots.wait() {
            let (work, place) = (slots.work(), slots.keys::<T>());
            let mut next = values.locate(params, &work, &place, place.blocks);
            let mut block = place.blocks;
            while block > 0 {
                block -= 1;
                next = values.copy(params, &work, &place, next, (block, params.v_fix_up));
            }
            warp::sync();
            slots.leave(leads_warp());
        }
    }
}

/// Copies each warpgroup's rows of Q as soon as it has left those of the tile before.
///
/// # Safety
/// One thread copies Q, whose map has boxes of a pack's heads and of queries.
#[inline(always)]
unsafe fn copy_queries<T: Tile>(
    params: &PersistentParams,
    work: &WorkTile,
    map: u64,
    pipeline: Pipeline<T>,
    ring: Ring<Count<1>>,
) {
    let bits = params.cache.head_bits;
    let batch = work.batch_index(&params.attention);
    let mut warpgroup = 0;
    while warpgroup < T::CONFIG.warpgroups() {
        let row = first_row::<T>(params, work.tile) + WARPGROUP_ROWS * warpgroup;
        let position = work.queries.first + (row >> bits);
        // SAFETY: the rings of the warpgroups' rows lie behind one another; the map's axis of heads comes
        // before that of queries.
        unsafe {
            let queries = ring.behind(Ring::<Count<1>>::BYTES * warpgroup);
            let barrier = queries.acquire(Panels::<QueryRows<T>>::BYTES);
            let at = HeadOffset { class: 0, head: position, shift: 0 };
            pipeline.q(warpgroup).load(map, barrier, work.head << bits, at, batch);
        }
        warpgroup += 1;
    }
}

/// K or V: the place in its ring, its first stage, and its tensor map.
struct Boxes<T: Tile, X: Extent> {
    /// Each lane has a place of its own, and all go around alike.
    ring: Ring<KeyStages<T>>,
    first: Panels<X>,
    map: u64,
}

impl<T: Tile, X: Extent> Boxes<T, X> {
    /// Where this lane's box lies of the block before `end`, of a tile that has so many blocks or more.
    ///
    /// # Safety
    /// The page table, where there is one, has an entry for each key of the sequence.
    #[inline(always)]
    unsafe fn locate(&self, params: &PersistentParams, work: &WorkTile, place: &Keys, end: u32) -> CacheBox {
        let (pages, key) = (&params.cache.pages, place.row_of::<T>(end.saturating_sub(1)));
        // SAFETY: the table has an entry for each key of the sequence.
        unsafe { locate(pages, place.batch, key, rows(pages, T::BLOCK_N), work.keys.len) }
    }

    /// Copies a block's keys from where this lane's box lies into the next stage, once that is empty, and
    /// gives where it lies of the block before it. Copies land so many bytes behind the full barrier.
    ///
    /// # Safety
    /// As [`Self::locate`]; all lanes of the warp call this together.
    #[inline(always)]
    unsafe fn copy(
        &mut self,
        params: &PersistentParams,
        work: &WorkTile,
        place: &Keys,
        at: CacheBox,
        (block, landed): (u32, u32),
    ) -> CacheBox {
        // SAFETY: all lanes are here; the stage is empty, for the first lane has waited; a box is one lane's.
        unsafe {
            // Loaded while this block waits for its stage.
            let next = self.locate(params, work, place, block);
            if leads_warp() {
                self.ring.acquire_behind(Panels::<X>::BYTES, landed);
            }
            warp::sync();
            let first = index::thread() % 32 * rows(&params.cache.pages, T::BLOCK_N);
            if first < T::BLOCK_N {
                let stage = self.first.stage(self.ring.stage()).from_row(first);
                let head = HeadOffset { class: 0, head: place.head, shift: 0 };
                stage.load(self.map, self.ring.full() + landed, at.row, head, at.batch);
            }
            self.ring.advance();
            next
        }
    }
}
