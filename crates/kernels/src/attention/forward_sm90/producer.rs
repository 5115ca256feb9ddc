//! The threads that copy: one Q and K, one V. Neither has the registers for all three rings.

use super::schedule::{Keys, Schedule};
use super::{Maps, Pipeline, Rows, WARPGROUP_ROWS, first_row, row_classes, turns};
use crate::params::PersistentParams;
use crate::scheduler::WorkTile;
use crate::tile::head_start::HeadStart;
use crate::tile::panels::Panels;
use crate::tile::ring::Ring;
use crate::tile::row_classes::RowClasses;

/// The thread that copies Q and K: its places in their rings.
pub(super) struct QueriesAndKeys<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
    const BYTES: u32,
> {
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>,
    maps: Maps,
    queries: Ring<1>,
    keys: Copies<BLOCK_N, HEAD_DIM, STAGES, BYTES>,
}

impl<const BLOCK_M: u32, const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32, const BYTES: u32>
    QueriesAndKeys<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>
{
    #[inline(always)]
    pub(super) fn new(pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>, maps: Maps) -> Self {
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
    pub(super) unsafe fn run<const ROW_CLASSES: bool>(mut self, params: &PersistentParams, begun: bool) {
        let mut schedule = Schedule::consumer(self.pipeline.schedule());
        // SAFETY: the caller's contract.
        unsafe {
            if begun && schedule.wait() {
                self.pass_beginning(&schedule.keys());
                self.finish::<ROW_CLASSES>(params, &schedule.keys());
                schedule.leave(true);
            }
            while schedule.wait() {
                self.begin::<ROW_CLASSES>(params, &schedule.work(), &schedule.keys());
                self.finish::<ROW_CLASSES>(params, &schedule.keys());
                schedule.leave(true);
            }
        }
    }

    /// Copies what a tile is begun with: the last block of keys, and Q.
    ///
    /// # Safety
    /// As [`Self::run`]; each stage is waited for before it is filled.
    #[inline(always)]
    pub(super) unsafe fn begin<const ROW_CLASSES: bool>(
        &mut self,
        params: &PersistentParams,
        work: &WorkTile,
        place: &Keys,
    ) {
        let head = key_head::<ROW_CLASSES>(params, place, 0);
        // SAFETY: the caller's contract.
        unsafe {
            if place.blocks > 0 {
                self.keys.copy::<BLOCK_N>(place, head, place.blocks - 1, params.qk_landed, |key| (0, key));
            }
            let work = (work, head.shift);
            copy_queries::<_, _, _, _, ROW_CLASSES, _>(
                params,
                self.maps,
                self.pipeline,
                work,
                &mut self.queries,
            );
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
    unsafe fn finish<const ROW_CLASSES: bool>(&mut self, params: &PersistentParams, place: &Keys) {
        let mut turn = 0;
        let mut block = place.blocks.saturating_sub(1);
        while turn < turns::<ROW_CLASSES>(&params.attention) {
            let head = key_head::<ROW_CLASSES>(params, place, turn);
            while block > 0 {
                block -= 1;
                // SAFETY: the caller's contract.
                unsafe { self.keys.copy::<BLOCK_N>(place, head, block, params.qk_landed, |key| (0, key)) };
            }
            block = place.blocks;
            turn += 1;
        }
    }
}

/// Where the head of K starts, that of Q being shifted alike, or a turn's class of its rows.
#[inline(always)]
pub(super) fn key_head<const ROW_CLASSES: bool>(
    params: &PersistentParams,
    place: &Keys,
    turn: u32,
) -> HeadStart {
    let attention = &params.attention;
    if ROW_CLASSES {
        row_classes(attention).in_turn(turn, place.head)
    } else {
        HeadStart::of(attention.k_strides.head, place.head, params.qk_margin)
    }
}

/// Copies V of all tiles of this block, in blocks of `BLOCK_N` keys from the column and row that `at` gives
/// for the first of them on. `ring` and `first` are where its stages wait and lie, and `slots` is where the
/// tiles are announced.
///
/// # Safety
/// As [`QueriesAndKeys::run`].
#[inline(always)]
pub(super) unsafe fn copy_values<
    const BLOCK_N: u32,
    const ROWS: u32,
    const COLUMNS: u32,
    const STAGES: u32,
    const ROW_CLASSES: bool,
    const BYTES: u32,
>(
    params: &PersistentParams,
    maps: Maps,
    (ring, first): (Ring<STAGES>, Panels<ROWS, COLUMNS, BYTES>),
    slots: u32,
    at: impl Fn(u32) -> (u32, u32),
) {
    let mut values = Copies { ring, first, maps: maps.v() };
    let mut schedule = Schedule::consumer(slots);
    // SAFETY: the caller's contract; each stage is waited for before it is filled.
    unsafe {
        while schedule.wait() {
            let place = schedule.keys();
            let mut turn = 0;
            while turn < turns::<ROW_CLASSES>(&params.attention) {
                let head = if ROW_CLASSES {
                    row_classes(&params.attention).in_turn(turn, place.head)
                } else {
                    HeadStart::of(params.attention.v_strides.head, place.head, params.v_margin)
                };
                let mut block = place.blocks;
                while block > 0 {
                    block -= 1;
                    values.copy::<BLOCK_N>(&place, head, block, params.v_landed, &at);
                }
                turn += 1;
            }
            schedule.leave(true);
        }
    }
}

/// K or V: the place in its ring, its first stage, and where its tensor maps lie.
struct Copies<const ROWS: u32, const COLUMNS: u32, const STAGES: u32, const BYTES: u32> {
    ring: Ring<STAGES>,
    first: Panels<ROWS, COLUMNS, BYTES>,
    maps: u64,
}

impl<const ROWS: u32, const COLUMNS: u32, const STAGES: u32, const BYTES: u32>
    Copies<ROWS, COLUMNS, STAGES, BYTES>
{
    /// Copies the `block`-th block of keys, from the column and row that `at` gives for its first on, into
    /// the next stage, once that is empty; the copy lands so many bytes behind the full barrier.
    ///
    /// # Safety
    /// As [`QueriesAndKeys::run`].
    #[inline(always)]
    unsafe fn copy<const BLOCK_N: u32>(
        &mut self,
        place: &Keys,
        head: HeadStart,
        block: u32,
        landed: u32,
        at: impl Fn(u32) -> (u32, u32),
    ) {
        let bytes = Panels::<ROWS, COLUMNS, BYTES>::BYTES;
        let stage = self.first.stage(self.ring.stage());
        // SAFETY: the caller's contract.
        unsafe {
            let barrier = self.ring.acquire_behind(bytes, landed);
            stage.load_from(self.maps, barrier, at(place.row + block * BLOCK_N), head, place.batch);
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
unsafe fn copy_queries<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
    const ROW_CLASSES: bool,
    const BYTES: u32,
>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>,
    (work, shift): (&WorkTile, u32),
    queries: &mut Ring<1>,
) {
    let mut warpgroup = 0;
    while warpgroup < BLOCK_M / WARPGROUP_ROWS {
        let row = work.queries.first + first_row::<BLOCK_M>(params, work.tile) + WARPGROUP_ROWS * warpgroup;
        // SAFETY: the caller's contract.
        unsafe {
            let queries = queries.behind(Ring::<1>::BYTES * warpgroup);
            if ROW_CLASSES {
                let barrier = queries.acquire(Rows::<HEAD_DIM, BYTES>::BYTES);
                load_classes(
                    row_classes(&params.attention),
                    pipeline.q(warpgroup),
                    (maps.q(), barrier),
                    row,
                    work.head,
                    work.batch_index(&params.attention),
                );
            } else {
                let barrier = queries.acquire_behind(Rows::<HEAD_DIM, BYTES>::BYTES, params.qk_landed);
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
unsafe fn load_classes<const HEAD_DIM: u32, const BYTES: u32>(
    classes: RowClasses,
    rows: Rows<HEAD_DIM, BYTES>,
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
