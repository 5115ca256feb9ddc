//! Tiles of queries: dQ = softmax_scale·dS·K, of a dS that tiles of keys have stored ([`stored_ds`]).
//!
//! Each warpgroup has 64 of the queries. dS lies with keys as its rows, and K does too: the one is A and the
//! other B along their spans, and neither passes through registers.

use super::block::{Block, Source};
use super::epilogue::reread;
use super::tile::{DsRows, QueryRows, StepRows, StepStages, Tile};
use super::Pipeline;
use crate::attention::alignment::row_store::store_rows;
use crate::attention::stored_ds::{self, PANEL};
use crate::hopper::epilogue::scale_rows;
use crate::hopper::ring::Ring;
use crate::hopper::roles::{WARP_ROWS, WARPS, Warpgroup};
use crate::params::BackwardParams;
use crate::ptx::index;
use crate::ptx::wgmma::Accumulator as _;
use crate::registers::Registers as _;
use crate::tile::panels::Panels;
use crate::tile::simt::GlobalTile;

/// Computes and stores this warpgroup's rows of dQ, through the memory of the `stage`-th owned tensors.
///
/// # Safety
/// All threads of the warpgroup call this together, in a launch as [`backward_sm90`](super::backward_sm90)
/// says; the tile at hand is one of queries, and the memory is the tile's.
#[inline(always)]
pub(super) unsafe fn run<T: Tile>(
    params: &BackwardParams,
    (warpgroup, pipeline): (Warpgroup, Pipeline<T>),
    steps: &mut Ring<StepStages<T>>,
    source: impl Source<T>,
    (dq, stage): (&mut T::Gradient, u32),
) {
    *dq = T::Gradient::ZERO;
    let mut left = source.block().steps();
    while left > 0 {
        steps.wait();
        warpgroup.fence_products();
        // SAFETY: the stage is there until it is released, behind its products.
        unsafe { begin_products::<T>(dq, pipeline, steps.stage(), warpgroup.index()) };
        warpgroup.commit_products();
        // The other warpgroup's products run while this one waits for its own.
        // SAFETY: the warpgroup's threads are together.
        unsafe { dq.wait_group::<0>() };
        steps.leave(index::reread_thread().is_multiple_of(32));
        left -= 1;
    }
    // SAFETY: all lanes of the warp are here, and the memory is the tile's.
    unsafe { store(params, pipeline, &source.block(), (dq, stage)) };
}

/// Begins the products of a stage with a warpgroup's queries.
///
/// # Safety
/// As [`Accumulator::multiply_ss`](crate::ptx::wgmma::Accumulator::multiply_ss); the stage is there.
#[inline(always)]
unsafe fn begin_products<T: Tile>(dq: &mut T::Gradient, pipeline: Pipeline<T>, stage: u32, warpgroup: u32) {
    let a = pipeline.ds(stage, warpgroup).descriptor();
    let b = pipeline.step(0, stage).descriptor();
    let mut depth = 0;
    while depth < T::STEP / 16 {
        let a = a.behind(Panels::<DsRows>::rows(depth)).bits();
        let b = b.behind(Panels::<StepRows<T>>::rows(depth)).bits();
        // SAFETY: both are there and stay until the wait; the warpgroup's threads are together.
        unsafe { dq.multiply_ss::<T::Element, true, true>(a, b, true) };
        depth += 1;
    }
}

/// Begins to store those of a warp's queries that exist.
///
/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn store<T: Tile>(
    params: &BackwardParams,
    pipeline: Pipeline<T>,
    block: &Block<T>,
    (dq, stage): (&mut T::Gradient, u32),
) {
    let attention = &params.attention;
    let (work, shape) = (block.work, (block.work.queries, attention.head_dim));
    let address = reread(params.dq);
    let target = GlobalTile::of_head::<T::Element>(address, &params.dq_strides, &work, work.head, shape);
    // Of the tile's queries the warp's are the sixteen from this one on, where dS has its panel's in order.
    let first = index::reread_thread() / 32 * WARP_ROWS;
    let warp_row = first % (WARPS * WARP_ROWS);
    let lines = Panels::<QueryRows<T>>::new(pipeline.owned(0, stage).address).from_row(first);
    scale_rows(dq, [attention.softmax_scale; 2]);
    let row = |row: u32| block.owned + first / PANEL * PANEL + stored_ds::query(warp_row + row);
    // SAFETY: all lanes of the warp are here, and the lines are its own.
    unsafe { store_rows::<T::Element, _, _>(lines, dq, (&target, 0), row) };
}
