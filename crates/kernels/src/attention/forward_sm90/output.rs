//! How O and lse leave.

use super::consumer::{leads_warp, scale_rows, warpgroup};
use super::{Pipeline, WARPGROUP};
use crate::config::Sm90Config;
use crate::element::Element;
use crate::params::PersistentParams;
use crate::ptx::{barrier, fence, index, stmatrix, tma, warp};
use crate::scheduler::WorkTile;
use crate::tile::mma::{Lane, MmaElement};
use crate::tile::panel_store::store_rows;
use crate::tile::simt::GlobalTile;

/// Rows of O that one warp stores.
const WARP_ROWS: u32 = Sm90Config::WARP_ROWS;

/// Hardware barrier of the first warpgroup; those of the others follow.
const FIRST_BARRIER: u32 = 4;

/// Normalises and stores the rows that exist, and their log-sum-exp where it is wanted; `finished` has both
/// rows' 1/l and lse. Each warp rounds its rows into shared memory, from where tensor copies fetch them and
/// clip what is not there, or the warp itself where there is no tensor map.
///
/// # Safety
/// All threads of a warpgroup call this together; these rows of O are theirs alone.
#[inline(always)]
pub(super) unsafe fn store<
    E: MmaElement,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
    const OUT: usize,
>(
    params: &PersistentParams,
    map: u64,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
    work: &WorkTile,
    o: &mut [f32; OUT],
    finished: [(f32, f32); 2],
) {
    scale_rows(o, [finished[0].0, finished[1].0]);
    let PersistentParams { attention: params, o_by_rows, .. } = params;
    // Found anew rather than kept in registers over the loop, which needs all of them.
    let thread = index::thread_anew();
    let lane = Lane::of_thread::<2>(thread);
    let first_row = work.tile * BLOCK_M;
    // SAFETY: the caller's contract; the rows in shared memory are this warp's own, and no copy still reads
    // them.
    unsafe {
        if Pipeline::<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>::CONFIG.own_output() {
            wait();
            warp::sync();
        } else {
            // They were Q's, which the products of the whole warpgroup have read.
            barrier::sync(FIRST_BARRIER + warpgroup(), WARPGROUP);
        }
        let rows = pipeline.o(thread / WARPGROUP).from_row(thread % WARPGROUP / 32 * WARP_ROWS);
        let (row, half) = (thread % WARP_ROWS, thread % 32 / WARP_ROWS);
        let mut step = 0;
        while step < OUT / 8 {
            let at = rows.at(row, 2 * step as u32 + half);
            let pair = |i: usize| E::pack(o[8 * step + 2 * i], o[8 * step + 2 * i + 1]);
            stmatrix::store_x4(at, [pair(0), pair(1), pair(2), pair(3)]);
            step += 1;
        }
        fence::proxy_async();
        warp::sync();
        let first_row = first_row + lane.warp_row;
        if *o_by_rows != 0 {
            if first_row < work.queries.len {
                let shape = (work.queries, params.head_dim_v);
                let o = GlobalTile::of_head::<E>(params.o, &params.o_strides, work, work.head, shape);
                store_rows::<E, _, _>(rows, WARP_ROWS, &o.from::<E>(first_row, 0), 0);
            }
            warp::sync(); // Where O leaves through Q's memory, the first lane is about to release that.
        } else if leads_warp() {
            rows.store(map, first_row, work.head, work.batch);
            tma::commit_group();
        }
        let mut i = 0;
        while i < 2 {
            let row = first_row + 8 * i as u32 + lane.group;
            if params.lse != 0 && lane.pair == 0 && row < work.queries.len {
                f32::store(params.lse + 4 * work.lse_index(params, row), finished[i].1);
            }
            i += 1;
        }
    }
}

/// Waits until the shared memory of this thread's stores may be written again.
#[inline(always)]
pub(super) fn wait() {
    if leads_warp() {
        tma::wait_group_read::<0>();
    }
}

/// Waits until this thread's stores are over.
#[inline(always)]
pub(super) fn wait_all() {
    if leads_warp() {
        tma::wait_group::<0>();
    }
}
