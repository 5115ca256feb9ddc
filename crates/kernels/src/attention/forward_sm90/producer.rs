//! The threads that copy: one Q and K, one V. Neither has the registers for all three rings.

use super::operand::Operand as _;
use super::scheduler::{Keys, TileSlots};
use super::tile::{KeyBlock, KeyStages, QueryRows, Tile};
use super::{Maps, Pipeline, first_row};
use crate::attention::alignment::head_offset::HeadOffset;
use crate::attention::alignment::residues::Residues;
use crate::attention::alignment::{Alignment as _, ByRows};
use crate::hopper::ring::{Count, Ring, Stages};
use crate::hopper::roles::WARPGROUP_ROWS;
use crate::params::PersistentParams;
use crate::scheduler::WorkTile;
use crate::tile::panels::{Extent, Panels};

/// The thread that copies Q and K: its places in their rings.
pub(super) struct QueriesAndKeys<T: Tile> {
    pipeline: Pipeline<T>,
    maps: Maps,
    queries: Ring<Count<1>>,
    keys: Copies<KeyBlock<T>, KeyStages<T>>,
}

impl<T: Tile> QueriesAndKeys<T> {
    /// # Safety
    /// One thread of the block copies Q and K, in a launch as [`forward_sm90`](super::forward_sm90) says; the
    /// barriers are made.
    #[inline(always)]
    pub(super) unsafe fn new(pipeline: Pipeline<T>, maps: Maps) -> Self {
        // SAFETY: this thread is the producer of both rings.
        let (queries, ring) =
            unsafe { (Ring::producer(pipeline.q_barriers(0)), Ring::producer(pipeline.k_barriers())) };
        let keys = Copies { ring, first: pipeline.k(), maps: maps.k() };
        Self { pipeline, maps, queries, keys }
    }

    /// Copies Q and K of all tiles of this block; of the first one, what [`Self::begin`] does is done where
    /// it has `begun`.
    #[inline(always)]
    pub(super) fn run(mut self, params: &PersistentParams, begun: bool) {
        // SAFETY: this thread is its warp's only one that takes part.
        let mut slots = unsafe { TileSlots::consumer(self.pipeline.schedule()) };
        if begun && slots.wait() {
            self.pass_beginning(&slots.keys::<T>());
            self.finish(params, &slots.keys::<T>());
            slots.leave(true);
        }
        while slots.wait() {
            let place = slots.keys::<T>();
            place.wait_for_copies::<T>(&params.copies);
            self.begin(params, &slots.work(), &place);
            self.finish(params, &slots.keys::<T>());
            slots.leave(true);
        }
    }

    /// Copies what a tile is begun with: the last block of keys, and Q.
    #[inline(always)]
    pub(super) fn begin(&mut self, params: &PersistentParams, work: &WorkTile, place: &Keys) {
        let head = key_head::<T>(params, place.head, 0);
        let end = self.seen_end(place, place.blocks);
        if end > 0 {
            self.copy_keys(params, place, head, end - 1);
        }
        self.copy_queries(params, work, head.shift);
    }

    /// Goes where [`Self::begin`] has led to.
    #[inline(always)]
    fn pass_beginning(&mut self, place: &Keys) {
        if place.blocks > 0 {
            self.keys.ring.advance();
        }
        self.queries.advance();
    }

    /// Copies the other blocks of keys.
    #[inline(always)]
    fn finish(&mut self, params: &PersistentParams, place: &Keys) {
        let mut pass = 0;
        let mut block = self.seen_end(place, place.blocks).saturating_sub(1);
        while pass < T::Alignment::passes(&params.attention) {
            let head = key_head::<T>(params, place.head, pass);
            block = self.seen_end(place, block);
            while block > 0 {
                block -= 1;
                self.copy_keys(params, place, head, block);
                block = self.seen_end(place, block);
            }
            block = place.blocks;
            pass += 1;
        }
    }

    /// As [`Keys::seen_end`].
    #[inline(always)]
    fn seen_end(&self, place: &Keys, end: u32) -> u32 {
        // SAFETY: this thread goes through announced tiles where the mask function knows blocks.
        unsafe { place.seen_end::<T>(self.pipeline, end) }
    }

    /// Copies a block of keys.
    #[inline(always)]
    fn copy_keys(&mut self, params: &PersistentParams, place: &Keys, head: HeadOffset, block: u32) {
        // SAFETY: the map and the ring are those of K.
        unsafe { self.keys.copy::<T>(place, head, block, params.qk_fix_up, |key| (0, key)) }
    }

    /// Copies each warpgroup's rows of Q as soon as it has left those of the tile before, shifted as K's, or
    /// class by class.
    #[inline(always)]
    fn copy_queries(&mut self, params: &PersistentParams, work: &WorkTile, shift: u32) {
        let (maps, bytes) = (self.maps.q(), Panels::<QueryRows<T>>::BYTES);
        let mut warpgroup = 0;
        while warpgroup < T::CONFIG.warpgroups() {
            let row = work.queries.first + first_row::<T>(params, work.tile) + WARPGROUP_ROWS * warpgroup;
            // SAFETY: the rings of the warpgroups' rows lie behind one another, and this thread goes around
            // all of them alike; the maps describe Q.
            unsafe {
                let queries = self.queries.behind(Ring::<Count<1>>::BYTES * warpgroup);
                let attention = &params.attention;
                if T::Alignment::BY_RESIDUES {
                    let barrier = queries.acquire(bytes);
                    let (classes, rows) = (ByRows::classes(attention), self.pipeline.q(warpgroup));
                    let batch = work.batch_index(attention);
                    load_residues(classes, rows, (maps, barrier), row, work.head, batch);
                } else {
                    let barrier = queries.acquire_behind(bytes, params.qk_fix_up);
                    let head =
                        HeadOffset { shift, ..T::Alignment::head(&params.attention.q_strides, work.head) };
                    let batch = work.batch_index(attention);
                    self.pipeline.q(warpgroup).load(maps, barrier, row, head, batch);
                }
            }
            warpgroup += 1;
        }
        self.queries.advance();
    }
}

/// Where boxes of a head of K start in a pass.
#[inline(always)]
pub(super) fn key_head<T: Tile>(params: &PersistentParams, head: u32, pass: u32) -> HeadOffset {
    T::Alignment::in_pass(&params.attention.k_strides, head, params.qk_margin, pass)
}

/// Copies V of all tiles of this block.
///
/// # Safety
/// As [`QueriesAndKeys::new`], of V.
#[inline(always)]
pub(super) unsafe fn copy_values<T: Tile>(params: &PersistentParams, maps: Maps, pipeline: Pipeline<T>) {
    // SAFETY: this thread is the ring's producer, and its warp's only one that takes part; the maps describe
    // V.
    unsafe {
        let ring = Ring::<KeyStages<T>>::producer(pipeline.v_barriers());
        let mut schedule = TileSlots::consumer(pipeline.schedule());
        let mut values = Copies { ring, first: pipeline.v(), maps: maps.v() };
        while schedule.wait() {
            let place = schedule.values::<T>(params);
            place.wait_for_copies::<T>(&params.copies);
            let mut pass = 0;
            while pass < T::Alignment::passes(&params.attention) {
                let head =
                    T::Alignment::in_pass(&params.attention.v_strides, place.head, params.v_margin, pass);
                let mut block = place.seen_end::<T>(pipeline, place.blocks);
                while block > 0 {
                    block -= 1;
                    let at = |key| if T::Element::TRANSPOSES_VALUES { (key, 0) } else { (0, key) };
                    values.copy::<T>(&place, head, block, params.v_fix_up, at);
                    block = place.seen_end::<T>(pipeline, block);
                }
                pass += 1;
            }
            schedule.leave(true);
        }
    }
}

/// K or V: the place in its ring, its first stage, and where its tensor maps lie.
struct Copies<X: Extent, S: Stages> {
    ring: Ring<S>,
    first: Panels<X>,
    maps: u64,
}

impl<X: Extent, S: Stages> Copies<X, S> {
    /// Copies a block of keys, from the column and row that `at` gives for its first, into the next stage,
    /// once that is empty; the copy lands so many bytes behind the full barrier.
    ///
    /// # Safety
    /// As [`Panels::load_from`]; `landed` leads to a barrier made for one arrival.
    #[inline(always)]
    unsafe fn copy<T: Tile>(
        &mut self,
        place: &Keys,
        head: HeadOffset,
        block: u32,
        landed: u32,
        at: impl Fn(u32) -> (u32, u32),
    ) {
        let stage = self.first.stage(self.ring.stage());
        let barrier = self.ring.acquire_behind(Panels::<X>::BYTES, landed);
        // Where the block lies is found behind the wait: this thread has no register for it.
        let at = at(place.row_of::<T>(block));
        // SAFETY: the maps describe the tensor, and the stage is empty.
        unsafe { stage.load_from(self.maps, barrier, at, head, place.batch) };
        self.ring.advance();
    }
}

/// Begins to load the rows of a head from `row` on, which is of the first class, class by class.
///
/// # Safety
/// As [`Panels::load`], with maps of the classes and boxes of their shares of the rows.
#[inline(always)]
unsafe fn load_residues<X: Extent>(
    classes: Residues,
    rows: Panels<X>,
    (maps, barrier): (u64, u32),
    row: u32,
    head: u32,
    batch: u32,
) {
    let mut class = 0;
    while class < classes.count() {
        let share = rows.from_row(class * classes.rows(WARPGROUP_ROWS));
        let start = HeadOffset { class, head, shift: 0 };
        // SAFETY: the maps are the classes', and no thread accesses the rows before the barrier's phase ends.
        unsafe { share.load(maps, barrier, classes.rows(row), start, batch) };
        class += 1;
    }
}
