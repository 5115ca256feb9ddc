//! Tiles of queries: dQ = softmax_scale·dS·K, of a dS that tiles of keys have stored ([`stored_ds`]).
//!
//! Each warpgroup has half of the queries. dS lies with keys as its rows, and K does too: the one is A and
//! the other B along their spans, and neither passes through registers.

use super::block::{Block, Source};
use super::epilogue::reread;
use super::tickets::TileSlots;
use super::tile::{DsRows, KeyRows, QueryRows, QueryStages, Tile};
use super::{Maps, Pipeline};
use crate::attention::alignment::Alignment as _;
use crate::attention::alignment::head_offset::HeadOffset;
use crate::attention::alignment::row_store::store_rows_by_chunks;
use crate::attention::stored_ds::{self, GRANULE, PANEL};
use crate::config::BackwardSm90Config;
use crate::hopper::epilogue::{scale_rows, wait_all, wait_read};
use crate::hopper::ring::Ring;
use crate::hopper::roles::{WARP_ROWS, WARPS, Warpgroup, leads_warp};
use crate::params::{AttentionParams, BackwardParams};
use crate::ptx::wgmma::Accumulator as _;
use crate::ptx::{fence, index, warp};
use crate::registers::Registers as _;
use crate::scheduler::WorkTile;
use crate::tile::panels::Panels;
use crate::tile::simt::GlobalTile;

/// Keys of a step.
const KEYS: u32 = BackwardSm90Config::KEYS;

/// The first and one past the last key that a warpgroup's queries see, in whole granules.
#[inline(always)]
fn keys_of<T: Tile>(params: &AttentionParams, work: &WorkTile, owned: u32, warpgroup: u32) -> (u32, u32) {
    let row = owned + warpgroup * PANEL * const { T::CONFIG.panels() } / GRANULE * GRANULE;
    if row < work.queries.len { stored_ds::keys(params, work, row) } else { (0, 0) }
}

/// Those of both warpgroups.
#[inline(always)]
fn seen<T: Tile>(params: &AttentionParams, source: &TileSlots<T>) -> [(u32, u32); 2] {
    let Block { work, owned, .. } = source.block();
    [keys_of::<T>(params, &work, owned, 0), keys_of::<T>(params, &work, owned, 1)]
}

/// Those that a tile goes over: of both.
#[inline(always)]
fn both([a, b]: [(u32, u32); 2]) -> (u32, u32) {
    match (a.0 < a.1, b.0 < b.1) {
        (true, true) => (a.0.min(b.0), a.1.max(b.1)),
        (true, false) => a,
        _ => b,
    }
}

/// Copies all steps of the tiles that are announced, and of each step the panels whose queries see it.
///
/// # Safety
/// One thread of the block calls this, in a launch as [`backward_sm90`](super::backward_sm90) says; the
/// barriers are made, and the end of keys is at hand.
#[inline(always)]
pub(super) unsafe fn copy_tiles<T: Tile>(
    params: &BackwardParams,
    maps: Maps,
    pipeline: Pipeline<T>,
    slots: &mut TileSlots<T>,
) {
    let attention = &params.attention;
    // SAFETY: this thread is the producer of the ring.
    unsafe {
        let mut ring = Ring::<QueryStages<T>>::producer(pipeline.query_barriers());
        slots.leave(true);
        while slots.wait_for_queries() {
            slots.wait_for_others(params);
            let source = &*slots;
            let seen = seen::<T>(attention, source);
            let (mut key, end) = both(seen);
            while key < end {
                let is_seen = |panel: u32| {
                    let (first, end) = seen[(panel / const { T::CONFIG.panels() }) as usize];
                    key >= first && key < end
                };
                let (mut bytes, mut panel) = (Panels::<KeyRows<T>>::BYTES, 0);
                while panel < const { T::CONFIG.queries() / PANEL } {
                    bytes += if is_seen(panel) { Panels::<DsRows>::BYTES } else { 0 };
                    panel += 1;
                }
                let landed = ring.acquire_behind(bytes, params.fix_up);
                let block = source.block();
                let row = block.work.keys.first + key;
                let batch = block.work.batch_index(attention);
                let head = T::Alignment::head(&attention.k_strides, block.kv_head);
                pipeline.keys_of_stage(ring.stage()).load(maps.keys()[0], landed, row, head, batch);
                panel = 0;
                while panel < const { T::CONFIG.queries() / PANEL } {
                    if is_seen(panel) {
                        let head = (block.owned - block.unit_row) / PANEL + panel;
                        let of = HeadOffset { class: 0, head, shift: 0 };
                        pipeline.ds_of_stage(ring.stage(), panel).load(
                            maps.ds(),
                            landed,
                            key,
                            of,
                            block.ds_head,
                        );
                    }
                    panel += 1;
                }
                ring.advance();
                key += KEYS;
            }
            slots.leave(true);
        }
    }
}

/// Clears what steps have landed of keys behind their sequence.
///
/// # Safety
/// All lanes of one warp call this together, otherwise as [`copy_tiles`].
#[inline(always)]
pub(super) unsafe fn clear_ends<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    slots: &mut TileSlots<T>,
) {
    // SAFETY: a stage is this warp's from the landing of its copies until it is filled.
    unsafe {
        let mut ring = Ring::<QueryStages<T>>::consumer(pipeline.query_barriers());
        warp::sync();
        slots.leave(leads_warp());
        while slots.wait_for_queries() {
            let (mut key, end) = both(seen::<T>(&params.attention, slots));
            while key < end {
                ring.behind(params.fix_up).wait();
                let rows = (&*slots).block().work.keys.len.saturating_sub(key);
                if rows < KEYS {
                    pipeline.keys_of_stage(ring.stage()).clear_from_row(rows);
                    let mut panel = 0;
                    while panel < const { T::CONFIG.queries() / PANEL } {
                        pipeline.ds_of_stage(ring.stage(), panel).clear_from_row(rows);
                        panel += 1;
                    }
                    fence::proxy_async();
                }
                warp::sync();
                if leads_warp() {
                    ring.fill();
                }
                ring.advance();
                key += KEYS;
            }
            warp::sync();
            slots.leave(leads_warp());
        }
    }
}

/// Computes and stores this warpgroup's rows of dQ of all tiles that are announced.
///
/// # Safety
/// All threads of the warpgroup call this together, in a launch as [`backward_sm90`](super::backward_sm90)
/// says.
#[inline(always)]
pub(super) unsafe fn multiply_tiles<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    slots: &mut TileSlots<T>,
) {
    // SAFETY: the warpgroup's threads are together; a stage is there until it is released, behind its
    // products.
    unsafe {
        let warpgroup = Warpgroup::new();
        let first_panel = warpgroup.index() * const { T::CONFIG.panels() };
        let mut ring = Ring::<QueryStages<T>>::consumer(pipeline.query_barriers());
        warp::sync();
        slots.leave(leads_warp());
        while slots.wait_for_queries() {
            let mut dq = [T::Gradient::ZERO; 2];
            let seen = seen::<T>(&params.attention, slots);
            let (first_seen, end_seen) = if warpgroup.index() == 0 { seen[0] } else { seen[1] };
            let (mut key, end) = both(seen);
            while key < first_seen && key < end {
                pass(&mut ring);
                key += KEYS;
            }
            while key < end_seen {
                ring.wait();
                warpgroup.fence_products();
                begin_products::<T>(&mut dq, pipeline, ring.stage(), first_panel);
                warpgroup.commit_products();
                // The other warpgroup's products run while this one waits for its own.
                dq[0].wait_group::<0>();
                if const { T::CONFIG.panels() } == 2 {
                    dq[1].wait_group::<0>();
                }
                ring.leave(leads_warp());
                key += KEYS;
            }
            while key < end {
                pass(&mut ring);
                key += KEYS;
            }
            store::<T>(params, pipeline, &(&*slots).block(), (&mut dq, first_panel));
            slots.leave(leads_warp());
        }
        wait_all();
    }
}

/// Leaves a stage of which a warpgroup needs nothing.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
unsafe fn pass<T: Tile>(ring: &mut Ring<QueryStages<T>>) {
    ring.wait();
    // A lane that has not seen the stage filled could miss it, once it is filled again.
    // SAFETY: all lanes are here, and leave the stage once.
    unsafe {
        warp::sync();
        ring.leave(leads_warp());
    }
}

/// Begins the products of a stage with a warpgroup's panels.
///
/// # Safety
/// As [`Accumulator::multiply_ss`](crate::ptx::wgmma::Accumulator::multiply_ss); the stage is there.
#[inline(always)]
unsafe fn begin_products<T: Tile>(
    dq: &mut [T::Gradient; 2],
    pipeline: Pipeline<T>,
    stage: u32,
    first_panel: u32,
) {
    let b = pipeline.keys_of_stage(stage).descriptor();
    let a = pipeline.ds_of_stage(stage, first_panel).descriptor();
    let mut depth = 0;
    while depth < KEYS / 16 {
        let mut panel = 0;
        while panel < const { T::CONFIG.panels() } {
            let a = a.behind(panel * Panels::<DsRows>::BYTES + Panels::<DsRows>::rows(depth)).bits();
            let b = b.behind(Panels::<KeyRows<T>>::rows(depth)).bits();
            // SAFETY: both are there and stay until the wait; the warpgroup's threads are together.
            unsafe { dq[panel as usize].multiply_ss::<T::Element, true, true>(a, b, true) };
            panel += 1;
        }
        depth += 1;
    }
}

/// Begins to store those of a warp's queries that exist.
///
/// # Safety
/// As [`multiply_tiles`].
#[inline(always)]
unsafe fn store<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    block: &Block<T>,
    (dq, first_panel): (&mut [T::Gradient; 2], u32),
) {
    let attention = &params.attention;
    let (work, shape) = (block.work, (block.work.queries, attention.head_dim));
    let address = reread(params.dq);
    let target = GlobalTile::of_head::<T::Element>(address, &params.dq_strides, &work, work.head, shape);
    let warp_row = index::reread_thread() / 32 % WARPS * WARP_ROWS;
    // SAFETY: all lanes of the warp are here; stores of the tile before have read the lines.
    unsafe { wait_read() };
    let mut panel = 0;
    while panel < const { T::CONFIG.panels() } {
        let first = PANEL * (first_panel + panel);
        let lines = Panels::<QueryRows<T>>::new(pipeline.base).from_row(first + warp_row);
        let dq = &mut dq[panel as usize];
        scale_rows(dq, [attention.softmax_scale; 2]);
        let row = |row: u32| block.owned + first + stored_ds::query(warp_row + row);
        // SAFETY: all lanes of the warp are here, and the lines are its own.
        unsafe { store_rows_by_chunks::<T::Element, _, _>(lines, dq, &target, row) };
        panel += 1;
    }
}
