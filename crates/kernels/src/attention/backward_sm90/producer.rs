//! The warps that copy.

use super::block::Block;
use super::tile::{OwnedRows, StepRows, StepStages, Tile};
use super::{Maps, Pipeline};
use crate::attention::alignment::Alignment as _;
use crate::attention::gradient::RowStats;
use crate::hopper::ring::{Count, Ring};
use crate::hopper::roles::leads_warp;
use crate::params::BackwardParams;
use crate::ptx::{fence, index, shared, warp};
use crate::scheduler::WorkTile;
use crate::tile::panels::Panels;

/// Copies what the block owns, and all steps of the others.
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
    let attention = &params.attention;
    let batch = block.work.batch_index(attention);
    let keys = (maps.keys(), [&attention.k_strides, &attention.v_strides], block.kv_head);
    let queries = (maps.queries(), [&attention.q_strides, &params.dout_strides], block.work.head);
    let (owned, others) = if T::OWNS_KEYS { (keys, queries) } else { (queries, keys) };
    let (owned_maps, owned_strides, owned_head) = owned;
    let (maps, strides, mut head) = others;
    let (step_rows, owned_rows) = block.rows();
    let mut steps = block.steps();
    if steps == 0 {
        return;
    }
    // SAFETY: this thread is the producer of both rings, and a stage is its own from `acquire` on.
    unsafe {
        let mut ring = Ring::<StepStages<T>>::producer(pipeline.step_barriers());
        let full =
            Ring::<Count<1>>::producer(pipeline.owned_barriers()).acquire(2 * Panels::<OwnedRows<T>>::BYTES);
        let copy_owned = |which: usize| {
            let head = T::Alignment::head(owned_strides[which], owned_head);
            pipeline.owned(which as u32).load(
                owned_maps[which],
                full,
                owned_rows.first + block.owned,
                head,
                batch,
            );
        };
        copy_owned(0);
        copy_owned(1);
        let mut row = block.first;
        while steps > 0 {
            let landed = ring.acquire_behind(2 * Panels::<StepRows<T>>::BYTES, params.fix_up);
            let mut which = 0;
            while which < 2 {
                let tile = pipeline.step(which as u32).stage(2 * ring.stage());
                let first = step_rows.first + row;
                tile.load(maps[which], landed, first, T::Alignment::head(strides[which], head), batch);
                which += 1;
            }
            ring.advance();
            row = block.after(row);
            if row == block.first {
                head += 1;
            }
            steps -= 1;
        }
    }
}

/// Clears what a step has landed of rows behind its sequence, the next one's of a packed batch: they are
/// multiplied with 0, but 0 · NaN is NaN.
///
/// # Safety
/// All lanes of one warp call this together, otherwise as [`copy`].
#[inline(always)]
pub(super) unsafe fn clear_ends<T: Tile>(params: &BackwardParams, pipeline: Pipeline<T>, block: &Block<T>) {
    // SAFETY: a stage is this warp's from the landing of its copies until it is filled.
    unsafe {
        let mut ring = Ring::<StepStages<T>>::consumer(pipeline.step_barriers());
        let (mut row, mut steps) = (block.first, block.steps());
        while steps > 0 {
            ring.behind(params.fix_up).wait();
            let rows = block.rows().0.len - row;
            if rows < T::STEP {
                pipeline.step(0).stage(2 * ring.stage()).clear_from_row(rows);
                pipeline.step(1).stage(2 * ring.stage()).clear_from_row(rows);
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

/// Writes lse and delta of the queries of all steps, each in a shape that a thread of a product reads four at
/// a time ([`read_place`]).
///
/// # Safety
/// All lanes of one warp call this together, otherwise as [`copy`]; `attention::backward_delta` has run.
#[inline(always)]
pub(super) unsafe fn write_statistics<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    block: &Block<T>,
) {
    let lane = index::thread() % 32;
    // SAFETY: these lanes fill stages that all consumers have released; lse and delta are readable.
    unsafe {
        let mut ring = Ring::<StepStages<T>>::producer(pipeline.step_barriers());
        let (mut row, mut head) = (block.first, block.work.head);
        let mut steps = block.steps();
        while steps > 0 {
            ring.wait_empty();
            let at = pipeline.statistics(ring.stage());
            let work = WorkTile { head, ..block.work };
            let mut first = 0;
            while first < T::STEP {
                let query = first + lane;
                let [RowStats { shift, delta }] =
                    RowStats::load::<[RowStats; 1]>(params, &work, row + query, |_| 0);
                shared::store(at + 4 * read_place(query), shift);
                shared::store(at + 4 * (T::STEP + read_place(query)), delta);
                first += 32;
            }
            warp::sync();
            if leads_warp() {
                ring.fill();
            }
            ring.advance();
            row = block.after(row);
            if row == block.first {
                head += 1;
            }
            steps -= 1;
        }
    }
}

/// Where a step's query stands among their statistics: those that a thread has in two blocks of eight columns
/// of a product, 2t, 2t + 1, 2t + 8 and 2t + 9 of sixteen, are neighbours.
#[inline(always)]
fn read_place(query: u32) -> u32 {
    query / 16 * 16 + query % 8 / 2 * 4 + query / 8 % 2 * 2 + query % 2
}
