//! dQ summed where dS is made: a warpgroup of its own multiplies dS of each step with the tile's keys, and
//! adds that to the sum of the tiles before.
//!
//! Sums lie in device memory, in fp32 and as threads hold them, and stay in L2 from one tile to the next. A
//! step's sum is begun by the first tile of keys that sees its queries, goes through all others in the order
//! of keys, and leaves as dQ from the last. So it has one order whoever computes it when, and no sum waits
//! for a tile that is taken later than its own.

use super::block::Source;
use super::epilogue::reread;
use super::tickets::{self, TileSlots};
use super::tile::{DsRows, DsStages, OwnedRows, SavedStages, SumStages, Tile};
use super::{Maps, Pipeline};
use crate::attention::alignment::head_offset::HeadOffset;
use crate::attention::alignment::row_store::store_rows_by_chunks;
use crate::attention::stored_ds::{self, GRANULE};
use crate::hopper::epilogue::{scale_rows, wait_all, wait_read};
use crate::hopper::ring::Ring;
use crate::hopper::roles::{WARP_ROWS, WARPGROUP, WARPS, Warpgroup, leads_warp};
use crate::params::{AttentionParams, BackwardParams};
use crate::ptx::wgmma::Accumulator as _;
use crate::ptx::{fence, global, index, shared, stmatrix, warp};
use crate::registers::Registers as _;
use crate::scheduler::WorkTile;
use crate::tile::panels::Panels;
use crate::tile::simt::GlobalTile;

/// Bytes of four of a thread's registers.
const PIECE: u32 = 16;

/// Where a tile of keys stands among those that add to dQ of a step.
struct Turn {
    /// Tiles before it.
    before: u32,
    is_last: bool,
}

impl Turn {
    /// Of the tile that owns keys from `owned` on, and the step that begins with `row`.
    #[inline(always)]
    fn new(params: &AttentionParams, work: &WorkTile, owned: u32, row: u32) -> Self {
        let (first, end) = stored_ds::keys(params, work, row / GRANULE * GRANULE);
        Self { before: (owned - first) / GRANULE, is_last: owned + GRANULE >= end }
    }
}

/// Hands a warp's part of a step's dS on to the warpgroup that sums dQ: rounded and packed, as A of the
/// product with Q.
///
/// # Safety
/// All lanes of the warp call this together, once for each step.
#[inline(always)]
pub(super) unsafe fn hand_on<T: Tile>(
    pipeline: Pipeline<T>,
    warpgroup: Warpgroup,
    ring: &mut Ring<DsStages<T>>,
    ds: &T::Packed,
) {
    let lane = index::reread_thread() % 32;
    let row = index::reread_thread() / 32 % WARPS * WARP_ROWS + lane % WARP_ROWS;
    ring.wait_empty();
    let panel = pipeline.ds_of_keys(ring.stage(), warpgroup.index());
    let mut block = 0;
    while 4 * block < T::Packed::LEN {
        let matrices = [0, 1, 2, 3].map(|i| ds[4 * block + i]);
        // SAFETY: the rows are this warp's, whose lanes are here, and nobody reads them before `fill`.
        unsafe { stmatrix::store_x4(panel.at(row, 2 * block as u32 + lane / WARP_ROWS), matrices) };
        block += 1;
    }
    fence::proxy_async();
    // SAFETY: all lanes of the warp are here.
    unsafe { warp::sync() };
    if index::reread_thread().is_multiple_of(32) {
        ring.fill();
    }
    ring.advance();
}

/// A step of the tiles that are announced: which of its head's it is, and the first of its queries.
struct Step {
    head: u32,
    row: u32,
    left: u32,
}

impl Step {
    /// The first of the tile at hand.
    #[inline(always)]
    fn first<T: Tile>(slots: &TileSlots<T>) -> Self {
        let block = slots.block();
        Self { head: 0, row: block.first, left: block.steps() }
    }

    /// On to the next one.
    #[inline(always)]
    fn advance<T: Tile>(&mut self, slots: &TileSlots<T>) {
        self.row = slots.block().after(self.row);
        if self.row == slots.block().first {
            self.head += 1;
        }
        self.left -= 1;
    }

    /// The counter of tiles that have added to its dQ.
    #[inline(always)]
    fn counter<T: Tile>(&self, params: &BackwardParams, slots: &TileSlots<T>) -> u64 {
        let counter = params.tickets.sum_counter(slots.block().ds_head + self.head, self.row / T::STEP);
        params.tickets.counter(counter)
    }
}

/// Waits for this block's turns, and brings the sums that its tiles go on with.
///
/// # Safety
/// One thread of the block calls this, in a launch as [`backward_sm90`](super::backward_sm90) says; the
/// barriers are made.
#[inline(always)]
pub(super) unsafe fn take_turns<T: Tile>(
    params: &BackwardParams,
    maps: Maps,
    pipeline: Pipeline<T>,
    slots: &mut TileSlots<T>,
) {
    // SAFETY: this thread is the ring's producer; blocks access counters by atomics alone, and who adds to
    // the one that is waited for has taken an earlier ticket.
    unsafe {
        let mut ring = Ring::<SumStages<T>>::producer(pipeline.sum_barriers());
        while slots.wait_for_keys() {
            let mut step = Step::first(slots);
            while step.left > 0 {
                let block = (&*slots).block();
                let before = Turn::new(&params.attention, &block.work, block.owned, step.row).before;
                if before > 0 {
                    global::wait_at_least(step.counter(params, slots), before);
                    fence::proxy_async_global();
                    let landed = ring.acquire(const { T::CONFIG.sum_bytes() });
                    let of = HeadOffset { class: 0, head: step.row / T::STEP, shift: 0 };
                    let head = (&*slots).block().ds_head + step.head;
                    pipeline.sum(ring.stage()).load(maps.ds(), landed, 0, of, head);
                    ring.advance();
                }
                step.advance(slots);
            }
            slots.leave(true);
        }
    }
}

/// Announces all tiles of this block, and counts the sums that it has stored, for those whose turn is next.
///
/// # Safety
/// As [`take_turns`].
#[inline(always)]
pub(super) unsafe fn count_turns<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    slots: &mut TileSlots<T>,
) {
    // SAFETY: this thread is the ring's consumer, and blocks access counters by atomics alone.
    unsafe {
        let mut saved = Ring::<SavedStages<T>>::consumer(pipeline.saved_barriers());
        let mut announced = TileSlots::<T>::producer(pipeline.schedule());
        tickets::announce_next(&params.tickets, &mut announced);
        while slots.wait_for_keys() {
            // All have left the tile before, if this one has stored a sum.
            tickets::announce_next(&params.tickets, &mut announced);
            let mut step = Step::first(slots);
            while step.left > 0 {
                saved.wait();
                fence::proxy_async_global();
                global::add_release(step.counter(params, slots), 1);
                saved.leave(true);
                step.advance(slots);
            }
            slots.leave(true);
        }
    }
}

/// Adds to dQ of all steps of the tiles that are announced.
///
/// # Safety
/// All threads of the warpgroup call this together, in a launch as [`backward_sm90`](super::backward_sm90)
/// says; the barriers are made.
#[inline(always)]
pub(super) unsafe fn add_tiles<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    slots: &mut TileSlots<T>,
) {
    // SAFETY: the warpgroup's threads are together; its warps leave a stage of dS behind its products, and
    // one of sums when they have read it.
    unsafe {
        let warpgroup = Warpgroup::new();
        let mut ds = Ring::<DsStages<T>>::consumer(pipeline.ds_barriers());
        let mut sums = Ring::<SumStages<T>>::consumer(pipeline.sum_barriers());
        let mut saved = Ring::<SavedStages<T>>::producer(pipeline.saved_barriers());
        while let Some(stage) = slots.next_of_keys(pipeline) {
            let mut step = Step::first(slots);
            while step.left > 0 {
                let block = (&*slots).block();
                let turn = Turn::new(&params.attention, &block.work, block.owned, step.row);
                let mut dq = T::Gradient::ZERO;
                if turn.before > 0 {
                    sums.wait();
                    dq = load::<T>(pipeline, sums.stage());
                    warp::sync();
                    sums.leave(leads_warp());
                }
                ds.wait();
                warpgroup.fence_products();
                begin_products::<T>(&mut dq, pipeline, ds.stage(), stage);
                warpgroup.commit_products();
                dq.wait_group::<0>();
                ds.leave(leads_warp());
                if turn.is_last {
                    let work = WorkTile { head: block.work.head + step.head, ..block.work };
                    store::<T>(params, pipeline, &work, step.row, &mut dq);
                } else {
                    save::<T>(params, block.ds_head + step.head, step.row, &dq);
                }
                saved.wait_empty();
                warp::sync();
                if leads_warp() {
                    saved.fill();
                }
                saved.advance();
                step.advance(slots);
            }
            slots.leave_keys(pipeline);
        }
        wait_all();
    }
}

/// Begins the products of a stage of dS with a stage's keys.
///
/// # Safety
/// As [`Accumulator::multiply_ss`](crate::ptx::wgmma::Accumulator::multiply_ss); both stages are there.
#[inline(always)]
unsafe fn begin_products<T: Tile>(dq: &mut T::Gradient, pipeline: Pipeline<T>, stage: u32, owned: u32) {
    let a = pipeline.ds_of_keys(stage, 0).descriptor();
    let b = pipeline.owned(0, owned).descriptor();
    let mut depth = 0;
    while depth < const { T::CONFIG.owned() } / 16 {
        let a = a.behind(Panels::<DsRows>::rows(depth)).bits();
        let b = b.behind(Panels::<OwnedRows<T>>::rows(depth)).bits();
        // SAFETY: both are there and stay until the wait; the warpgroup's threads are together.
        unsafe { dq.multiply_ss::<T::Element, true, true>(a, b, true) };
        depth += 1;
    }
}

/// This thread's part of a sum that has landed.
///
/// # Safety
/// The stage is there.
#[inline(always)]
unsafe fn load<T: Tile>(pipeline: Pipeline<T>, stage: u32) -> T::Gradient {
    let lines = pipeline.sum(stage);
    let thread = index::reread_thread() % WARPGROUP;
    let mut dq = T::Gradient::ZERO;
    let mut piece = 0;
    while 4 * piece < T::Gradient::LEN {
        let at = lines.at(WARPGROUP / 8 * piece as u32 + thread / 8, thread % 8);
        // SAFETY: the stage is there.
        let words = unsafe { shared::load4(at) };
        let mut i = 0;
        while i < 4 {
            dq[4 * piece + i] = words[i];
            i += 1;
        }
        piece += 1;
    }
    dq
}

/// Stores this thread's part of a sum, for the next tile of keys.
///
/// # Safety
/// It is this block's turn.
#[inline(always)]
unsafe fn save<T: Tile>(params: &BackwardParams, head: u32, row: u32, dq: &T::Gradient) {
    let thread = index::reread_thread() % WARPGROUP;
    let first = head * params.ds.head_pieces + row / T::STEP * params.ds.panel_pieces + thread;
    let address = params.ds.address + PIECE as u64 * first as u64;
    let mut piece = 0;
    while 4 * piece < T::Gradient::LEN {
        let words = [0, 1, 2, 3].map(|i| dq[4 * piece + i].to_bits());
        // SAFETY: the memory is this thread's for this turn.
        unsafe { global::store4(address + (PIECE * WARPGROUP) as u64 * piece as u64, words) };
        piece += 1;
    }
}

/// Begins to store dQ of those of a warp's queries that exist.
///
/// # Safety
/// As [`add_tiles`].
#[inline(always)]
unsafe fn store<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    work: &WorkTile,
    row: u32,
    dq: &mut T::Gradient,
) {
    let attention = &params.attention;
    let shape = (work.queries, attention.head_dim);
    let address = reread(params.dq);
    let target = GlobalTile::of_head::<T::Element>(address, &params.dq_strides, work, work.head, shape);
    let warp_row = index::reread_thread() / 32 % WARPS * WARP_ROWS;
    scale_rows(dq, [attention.softmax_scale; 2]);
    // SAFETY: all lanes of the warp are here, and the lines, which stores of the step before have read, are
    // its own.
    unsafe {
        wait_read();
        let lines = pipeline.dq().from_row(warp_row);
        store_rows_by_chunks::<T::Element, _, _>(lines, dq, &target, |of| row + warp_row + of);
    }
}
