//! The warps that copy.

use super::block::{Block, Source};
use super::tickets::TileSlots;
use super::tile::{OwnedRows, OwnedStages, StepRows, StepStages, Tile};
use super::{Maps, Pipeline};
use crate::attention::alignment::Alignment as _;
use crate::attention::alignment::head_offset::HeadOffset;
use crate::attention::gradient::RowStats;
use crate::hopper::ring::Ring;
use crate::hopper::roles::leads_warp;
use crate::params::BackwardParams;
use crate::ptx::{fence, index, shared, warp};
use crate::scheduler::WorkTile;
use crate::tile::panels::Panels;

/// Copies what the block owns, and all steps of the others, of a block that has one tile.
///
/// # Safety
/// One thread of the block calls this, in a launch as [`backward_sm90`](super::backward_sm90) says; the
/// barriers are made.
#[inline(always)]
pub(super) unsafe fn copy<T: Tile>(
    params: &BackwardParams,
    maps: Maps,
    pipeline: Pipeline<T>,
    block: &Block<T>,
) {
    if block.steps() == 0 {
        return;
    }
    // SAFETY: this thread is the producer of both rings.
    unsafe {
        let owned = Ring::producer(pipeline.owned_barriers());
        let mut ring = Ring::producer(pipeline.step_barriers());
        copy_tile(params, (maps, pipeline), block, &owned, &mut ring);
    }
}

/// Copies what is multiplied of all tiles of keys that are announced.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_tiles<T: Tile>(
    params: &BackwardParams,
    maps: Maps,
    pipeline: Pipeline<T>,
    slots: &mut TileSlots<T>,
) {
    // SAFETY: this thread is the producer of both rings.
    unsafe {
        let mut owned = Ring::producer(pipeline.owned_barriers());
        let mut ring = Ring::producer(pipeline.step_barriers());
        while slots.wait_for_keys() {
            slots.wait_for_others(params);
            copy_tile(params, (maps, pipeline), &*slots, &owned, &mut ring);
            owned.advance();
            slots.leave(true);
        }
    }
}

/// Copies what a tile owns, and all steps of the others.
///
/// # Safety
/// As [`copy`]; this thread is the producer of both rings.
#[inline(always)]
unsafe fn copy_tile<T: Tile>(
    params: &BackwardParams,
    (maps, pipeline): (Maps, Pipeline<T>),
    source: impl Source<T>,
    owned: &Ring<OwnedStages<T>>,
    ring: &mut Ring<StepStages<T>>,
) {
    let attention = &params.attention;
    let block = source.block();
    let batch = block.work.batch_index(attention);
    let keys = (maps.keys(), [&attention.k_strides, &attention.v_strides], block.kv_head);
    let queries = (maps.queries(), [&attention.q_strides, &params.dout_strides], block.work.head);
    let (of_owned, others) = if T::OWNS_KEYS { (keys, queries) } else { (queries, keys) };
    let (owned_maps, owned_strides, owned_head) = of_owned;
    let (maps, strides, mut head) = others;
    let (step_rows, owned_rows) = block.rows();
    let mut steps = block.steps();
    // SAFETY: this thread is the producer of both rings, and a stage is its own from `acquire` on.
    unsafe {
        // Its memory is what gradients leave through, also where they are 0.
        let full = owned.acquire(if steps == 0 { 0 } else { 2 * Panels::<OwnedRows<T>>::BYTES });
        if steps == 0 {
            return;
        }
        let copy_owned = |which: usize| {
            let head = T::Alignment::head(owned_strides[which], owned_head);
            let tile = pipeline.owned(which as u32, owned.stage());
            let (map, row) = (owned_maps[which], owned_rows.first + block.owned);
            load_boxes::<T>(tile, map, full, row, head, batch);
        };
        copy_owned(0);
        copy_owned(1);
        let mut row = block.first;
        while steps > 0 {
            let landed = ring.acquire_behind(2 * Panels::<StepRows<T>>::BYTES, params.fix_up);
            let mut which = 0;
            while which < 2 {
                let tile = pipeline.step(which as u32, ring.stage());
                let first = step_rows.first + row;
                tile.load(maps[which], landed, first, T::Alignment::head(strides[which], head), batch);
                which += 1;
            }
            ring.advance();
            row = source.block().after(row);
            if row == source.block().first {
                head += 1;
            }
            steps -= 1;
        }
    }
}

/// Begins to load owned rows, box by box.
///
/// # Safety
/// As [`Panels::load`].
#[inline(always)]
unsafe fn load_boxes<T: Tile>(
    tile: Panels<OwnedRows<T>>,
    map: u64,
    full: u32,
    row: u32,
    head: HeadOffset,
    batch: u32,
) {
    let mut first = 0;
    while first < T::CONFIG.owned() {
        // SAFETY: the map is the tensor's, and the tile empty.
        unsafe { tile.from_row(first).load(map, full, row + first, head, batch) };
        first += const { T::CONFIG.box_rows() };
    }
}

/// Clears what steps of a block that has one tile have landed of rows behind its sequence ([`clear_ends`]).
///
/// # Safety
/// All lanes of one warp call this together, otherwise as [`copy`].
#[inline(always)]
pub(super) unsafe fn clear_block_ends<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    block: &Block<T>,
) {
    // SAFETY: the warp fills the ring in the producer's place.
    unsafe {
        let mut ring = Ring::consumer(pipeline.step_barriers());
        clear_ends(params, pipeline, block, &mut ring);
    }
}

/// As [`clear_block_ends`], of all tiles of keys that are announced.
///
/// # Safety
/// As [`clear_block_ends`].
#[inline(always)]
pub(super) unsafe fn clear_all_ends<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    slots: &mut TileSlots<T>,
) {
    // SAFETY: the warp fills the ring in the producer's place.
    unsafe {
        let mut ring = Ring::consumer(pipeline.step_barriers());
        while slots.wait_for_keys() {
            clear_ends(params, pipeline, &*slots, &mut ring);
            warp::sync();
            slots.leave(leads_warp());
        }
    }
}

/// Clears what a step has landed of rows behind its sequence, the next one's or such as it does not use:
/// they are multiplied with 0, but 0 · NaN is NaN.
///
/// # Safety
/// As [`clear_block_ends`].
#[inline(always)]
unsafe fn clear_ends<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    source: impl Source<T>,
    ring: &mut Ring<StepStages<T>>,
) {
    // SAFETY: a stage is this warp's from the landing of its copies until it is filled.
    unsafe {
        let (mut row, mut steps) = (source.block().first, source.block().steps());
        while steps > 0 {
            ring.behind(params.fix_up).wait();
            let block = source.block();
            let rows = block.rows().0.len - row;
            if rows < T::STEP {
                pipeline.step(0, ring.stage()).clear_from_row(rows);
                pipeline.step(1, ring.stage()).clear_from_row(rows);
                fence::proxy_async();
            }
            warp::sync();
            if leads_warp() {
                ring.fill();
            }
            ring.advance();
            row = block.after(row);
            steps -= 1;
        }
    }
}

/// Writes lse and delta of the queries of all steps of a block that has one tile ([`write_statistics`]).
///
/// # Safety
/// All lanes of one warp call this together, otherwise as [`copy`]; `attention::backward_delta` has run.
#[inline(always)]
pub(super) unsafe fn write_block_statistics<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    block: &Block<T>,
) {
    // SAFETY: the warp is a producer of the ring.
    unsafe {
        let mut ring = Ring::producer(pipeline.step_barriers());
        write_statistics(params, pipeline, block, &mut ring);
    }
}

/// As [`write_block_statistics`], of all tiles that are announced; steps of tiles of queries have none.
///
/// # Safety
/// As [`write_block_statistics`].
#[inline(always)]
pub(super) unsafe fn write_all_statistics<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    mut slots: TileSlots<T>,
) {
    // SAFETY: the warp is a producer of the ring.
    unsafe {
        let mut ring = Ring::<StepStages<T>>::producer(pipeline.step_barriers());
        while slots.wait() {
            if slots.wait_for_keys() {
                write_statistics(params, pipeline, &slots, &mut ring);
            }
            warp::sync();
            slots.leave(leads_warp());
        }
    }
}

/// Queries of a step that a lane writes the statistics of, at the most.
const MOST_QUERIES: usize = 4;

/// Writes −lse·log2(e) and delta of the queries of all steps, each in a shape that a thread of a product
/// reads four at a time ([`read_place`]).
///
/// # Safety
/// As [`write_block_statistics`].
#[inline(always)]
unsafe fn write_statistics<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    source: impl Source<T>,
    ring: &mut Ring<StepStages<T>>,
) {
    const { assert!(T::STEP as usize <= 32 * MOST_QUERIES) };
    let lane = index::thread() % 32;
    // SAFETY: these lanes fill stages that all consumers have released; lse and delta are readable.
    unsafe {
        let load = |head: u32, row: u32| {
            let work = WorkTile { head, ..source.block().work };
            let mut statistics = [RowStats { shift: 0.0, delta: 0.0 }; MOST_QUERIES];
            let mut i = 0;
            while i < const { T::STEP as usize / 32 } {
                [statistics[i]] =
                    RowStats::load::<[RowStats; 1]>(params, &work, row + lane + 32 * i as u32, |_| 0);
                i += 1;
            }
            statistics
        };
        let (mut row, mut head) = (source.block().first, source.block().work.head);
        let mut steps = source.block().steps();
        if steps == 0 {
            return;
        }
        let mut statistics = load(head, row);
        loop {
            row = source.block().after(row);
            if row == source.block().first {
                head += 1;
            }
            steps -= 1;
            // Of the next step: memory takes longer than a step, and this one's have come meanwhile.
            // Registers hold no two longer steps.
            let ahead = const { T::STEP <= 64 };
            let next = if ahead && steps > 0 { load(head, row) } else { statistics };
            ring.wait_empty();
            let at = pipeline.statistics(ring.stage());
            let mut i = 0;
            while i < const { T::STEP as usize / 32 } {
                let RowStats { shift, delta } = statistics[i];
                let place = read_place(lane + 32 * i as u32);
                shared::store(at + 4 * place, -shift);
                shared::store(at + 4 * (T::STEP + place), delta);
                i += 1;
            }
            warp::sync();
            if leads_warp() {
                ring.fill();
            }
            ring.advance();
            if steps == 0 {
                return;
            }
            statistics = if ahead { next } else { load(head, row) };
        }
    }
}

/// Where a step's query stands among their statistics: those that a thread has in two blocks of eight columns
/// of a product, 2t, 2t + 1, 2t + 8 and 2t + 9 of sixteen, are neighbours.
#[inline(always)]
fn read_place(query: u32) -> u32 {
    query / 16 * 16 + query % 8 / 2 * 4 + query / 8 % 2 * 2 + query % 2
}
