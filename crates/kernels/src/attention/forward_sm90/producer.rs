//! The threads that copy: one Q and K, one V. Neither has the registers for all three rings.

use super::operand::Operand as _;
use super::schedule::{Keys, Schedule};
use super::tile::{KeyBlock, KeyStages, QueryRows, Tile};
use super::{Maps, Pipeline, WARPGROUP_ROWS, first_row, row_classes, turns};
use crate::params::PersistentParams;
use crate::scheduler::WorkTile;
use crate::tile::head_start::HeadStart;
use crate::tile::panels::{Extent, Panels};
use crate::tile::ring::{Count, Ring, Stages};
use crate::tile::row_classes::RowClasses;

/// The thread that copies Q and K: its places in their rings.
pub(super) struct QueriesAndKeys<T: Tile> {
    pipeline: Pipeline<T>,
    maps: Maps,
    queries: Ring<Count<1>>,
    keys: Copies<KeyBlock<T>, KeyStages<T>>,
}

impl<T: Tile> QueriesAndKeys<T> {
    #[inline(always)]
    pub(super) fn new(pipeline: Pipeline<T>, maps: Maps) -> Self {
        let ring = Ring::producer(pipeline.k_barriers());
        let keys = Copies { ring, first: pipeline.k(), maps: maps.k() };
        Self { pipeline, maps, queries: Ring::producer(pipeline.q_barriers(0)), keys }
    }

    /// Copies Q and K of all tiles of this block; of the first one, what [`Self::begin`] does is done where
    /// it has `begun`.
    ///
    /// # Safety
    /// One thread of the block calls this, in a launch as [`forward_sm90`](super::forward_sm90) says.
    #[inline(always)]
    pub(super) unsafe fn run(mut self, params: &PersistentParams, begun: bool) {
        let mut schedule = Schedule::consumer(self.pipeline.schedule());
        // SAFETY: the caller's contract.
        unsafe {
            if begun && schedule.wait() {
                self.pass_beginning(&schedule.keys());
                self.finish(params, &schedule.keys());
                schedule.leave(true);
            }
            while schedule.wait() {
                self.begin(params, &schedule.work(), &schedule.keys());
                self.finish(params, &schedule.keys());
                schedule.leave(true);
            }
        }
    }

    /// Copies what a tile is begun with: the last block of keys, and Q.
    ///
    /// # Safety
    /// As [`Self::run`]; each stage is waited for before it is filled.
    #[inline(always)]
    pub(super) unsafe fn begin(
        &mut self,
        params: &PersistentParams,
        work: &WorkTile,
        place: &Keys,
    ) {
        let head = key_head::<T>(params, place, 0);
        // SAFETY: the caller's contract.
        unsafe {
            if place.blocks > 0 {
                self.keys.copy(place, head, (0, place.row_of::<T>(place.blocks - 1)), params.qk_landed);
            }
            let work = (work, head.shift);
            copy_queries(params, self.maps, self.pipeline, work, &mut self.queries);
        }
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
    ///
    /// # Safety
    /// As [`Self::begin`], behind it.
    #[inline(always)]
    unsafe fn finish(&mut self, params: &PersistentParams, place: &Keys) {
        let mut turn = 0;
        let mut block = place.blocks.saturating_sub(1);
        while turn < turns::<T>(&params.attention) {
            let head = key_head::<T>(params, place, turn);
            while block > 0 {
                block -= 1;
                // SAFETY: the caller's contract.
                unsafe { self.keys.copy(place, head, (0, place.row_of::<T>(block)), params.qk_landed) };
            }
            block = place.blocks;
            turn += 1;
        }
    }
}

/// Where the head of K starts, that of Q being shifted alike, or a turn's class of its rows.
#[inline(always)]
pub(super) fn key_head<T: Tile>(
    params: &PersistentParams,
    place: &Keys,
    turn: u32,
) -> HeadStart {
    let attention = &params.attention;
    if T::ROW_CLASSES {
        row_classes(attention).in_turn(turn, place.head)
    } else {
        HeadStart::of(attention.k_strides.head, place.head, params.qk_margin)
    }
}

/// Copies V of all tiles of this block.
///
/// # Safety
/// As [`QueriesAndKeys::run`].
#[inline(always)]
pub(super) unsafe fn copy_values<T: Tile>(params: &PersistentParams, maps: Maps, pipeline: Pipeline<T>) {
    let ring = Ring::<KeyStages<T>>::producer(pipeline.v_barriers());
    let mut schedule = Schedule::consumer(pipeline.schedule());
    let mut values = Copies { ring, first: pipeline.v(), maps: maps.v() };
    // SAFETY: the caller's contract; each stage is waited for before it is filled.
    unsafe {
        while schedule.wait() {
            let place = schedule.keys();
            let mut turn = 0;
            while turn < turns::<T>(&params.attention) {
                let head = if T::ROW_CLASSES {
                    row_classes(&params.attention).in_turn(turn, place.head)
                } else {
                    HeadStart::of(params.attention.v_strides.head, place.head, params.v_margin)
                };
                let mut block = place.blocks;
                while block > 0 {
                    block -= 1;
                    let key = place.row_of::<T>(block);
                    let at = if T::Element::TRANSPOSES_VALUES { (key, 0) } else { (0, key) };
                    values.copy(&place, head, at, params.v_landed);
                }
                turn += 1;
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
    /// Copies a block of keys, which begins at column and row `at`, into the next stage, once that is empty;
    /// the copy lands so many bytes behind the full barrier.
    ///
    /// # Safety
    /// As [`QueriesAndKeys::run`].
    #[inline(always)]
    unsafe fn copy(&mut self, place: &Keys, head: HeadStart, at: (u32, u32), landed: u32) {
        let stage = self.first.stage(self.ring.stage());
        // SAFETY: the caller's contract.
        unsafe {
            let barrier = self.ring.acquire_behind(Panels::<X>::BYTES, landed);
            stage.load_from(self.maps, barrier, at, head, place.batch);
        }
        self.ring.advance();
    }
}

/// Copies each warpgroup's rows of Q as soon as it has left those of the tile before, shifted as K's, or
/// class by class.
///
/// # Safety
/// As [`QueriesAndKeys::run`].
#[inline(always)]
unsafe fn copy_queries<T: Tile>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<T>,
    (work, shift): (&WorkTile, u32),
    queries: &mut Ring<Count<1>>,
) {
    let bytes = Panels::<QueryRows<T>>::BYTES;
    let mut warpgroup = 0;
    while warpgroup < T::CONFIG.warpgroups() {
        let row = work.queries.first + first_row::<T>(params, work.tile) + WARPGROUP_ROWS * warpgroup;
        // SAFETY: the caller's contract.
        unsafe {
            let queries = queries.behind(Ring::<Count<1>>::BYTES * warpgroup);
            if T::ROW_CLASSES {
                let barrier = queries.acquire(bytes);
                load_classes(
                    row_classes(&params.attention),
                    pipeline.q(warpgroup),
                    (maps.q(), barrier),
                    row,
                    work.head,
                    work.batch_index(&params.attention),
                );
            } else {
                let barrier = queries.acquire_behind(bytes, params.qk_landed);
                let head = HeadStart::of(params.attention.q_strides.head, work.head, 0);
                let head = HeadStart { shift, ..head };
                pipeline.q(warpgroup).load(maps.q(), barrier, row, head, work.batch_index(&params.attention));
            }
        }
        warpgroup += 1;
    }
    queries.advance();
}

/// Begins to load the rows of a head from `row` on, which is of the first class, class by class.
///
/// # Safety
/// As [`Panels::load`], with maps of the classes and boxes of their shares of the rows.
#[inline(always)]
unsafe fn load_classes<X: Extent>(
    classes: RowClasses,
    rows: Panels<X>,
    (maps, barrier): (u64, u32),
    row: u32,
    head: u32,
    batch: u32,
) {
    let mut class = 0;
    while class < classes.count() {
        let share = rows.from_row(class * classes.rows(WARPGROUP_ROWS));
        let start = HeadStart { class, head, shift: 0 };
        // SAFETY: the caller's contract.
        unsafe { share.load(maps, barrier, classes.rows(row), start, batch) };
        class += 1;
    }
}
