//! The warps that copy.

use super::block::Block;
use super::tile::{OwnedRows, StepRows, StepStages, Tile};
use super::{Maps, Pipeline};
use crate::attention::alignment::head_offset::HeadOffset;
use crate::attention::gradient::RowStats;
use crate::hopper::ring::{Count, Ring};
use crate::hopper::roles::leads_warp;
use crate::params::BackwardParams;
use crate::ptx::{index, shared, warp};
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
    let batch = block.work.batch_index(&params.attention);
    let (owned_maps, step_maps) =
        if T::OWNS_KEYS { (maps.keys(), maps.queries()) } else { (maps.queries(), maps.keys()) };
    let (owned_head, first_head) =
        if T::OWNS_KEYS { (block.kv_head, block.work.head) } else { (block.work.head, block.kv_head) };
    let mut steps = block.steps();
    if steps == 0 {
        return;
    }
    // SAFETY: this thread is the producer of both rings, and a stage is its own from `acquire` on.
    unsafe {
        let mut ring = Ring::<StepStages<T>>::producer(pipeline.step_barriers());
        let owned = Ring::<Count<1>>::producer(pipeline.owned_barriers());
        let full = owned.acquire(2 * Panels::<OwnedRows<T>>::BYTES);
        let (mut row, mut head) = (block.first, first_head);
        let mut is_first = true;
        while steps > 0 {
            if is_first {
                pipeline.owned(0).load(
                    owned_maps[0],
                    full,
                    block.owned,
                    HeadOffset::aligned(owned_head),
                    batch,
                );
            }
            let landed = ring.acquire(2 * Panels::<StepRows<T>>::BYTES);
            let stage = 2 * ring.stage();
            let at = HeadOffset::aligned(head);
            pipeline.step(0).stage(stage).load(step_maps[0], landed, row, at, batch);
            if is_first {
                pipeline.owned(1).load(
                    owned_maps[1],
                    full,
                    block.owned,
                    HeadOffset::aligned(owned_head),
                    batch,
                );
                is_first = false;
            }
            pipeline.step(1).stage(stage).load(step_maps[1], landed, row, at, batch);
            ring.advance();
            row = block.after(row);
            if row == block.first {
                head += 1;
            }
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
