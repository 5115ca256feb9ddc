//! How O and lse leave.

use super::consumer::{leads_warp, scale_rows, warpgroup};
use super::schedule::Schedule;
use super::{Pipeline, WARPGROUP, first_row};
use crate::config::Sm90Config;
use crate::element::Element;
use crate::params::PersistentParams;
use crate::ptx::{barrier, fence, index, stmatrix, tma, warp};
use crate::tile::mma::{Lane, MmaElement};
use crate::tile::panel_store::store_rows;
use crate::tile::simt::GlobalTile;

/// Rows of O that one warp stores.
const WARP_ROWS: u32 = Sm90Config::WARP_ROWS;

/// Hardware barrier of the first warpgroup; those of the others follow.
const FIRST_BARRIER: u32 = 4;

/// Normalises and stores the rows that exist, and their log-sum-exp where it is wanted; `finished` has both
/// rows' 1/l and lse. Each warp rounds its rows into shared memory, from where tensor copies fetch them and
/// clip what is not there, or the warp itself where no tensor map can.
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
    const BYTES: u32,
>(
    params: &PersistentParams,
    map: u64,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>,
    schedule: &Schedule,
    o: &mut [f32; OUT],
    finished: [(f32, f32); 2],
) {
    scale_rows(o, [finished[0].0, finished[1].0]);
    // Found anew rather than kept in registers over the loop, which needs all of them.
    let thread = index::thread_anew();
    let lane = Lane::of_thread::<2>(thread);
    // SAFETY: the caller's contract; the tile at hand is not left yet; the rows in shared memory are this warp's own, and no copy still reads
    // them.
    unsafe {
        let work = schedule.work();
        let tile_row = first_row::<BLOCK_M>(params, work.tile);
        if Pipeline::<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>::CONFIG.own_output() {
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
        // Behind the barrier the first lane may leave the tile.
        let (o_by_rows, lse_address) = (schedule.o_by_rows(), schedule.lse());
        warp::sync();
        let (first_row, rows_left) =
            (lane.warp_row, work.queries.len.saturating_sub(tile_row + lane.warp_row));
        let by_rows = o_by_rows == 2 || o_by_rows == 1 && rows_left < WARP_ROWS;
        if warp::broadcast(by_rows as u32, 0) != 0 {
            let o = schedule.o(rows_left);
            let o = GlobalTile { address: o.at::<E>(first_row, 0), ..o };
            store_rows::<E, _, _>(rows, WARP_ROWS, &o, schedule.first_column());
            warp::sync(); // The first lane is about to leave the tile, and Q's memory where O leaves through that.
        } else if leads_warp() {
            // The sequences of a packed batch have one batch index.
            let batch = if o_by_rows == 0 { work.batch } else { 0 };
            rows.store(map, work.queries.first + tile_row + first_row, work.head, batch);
            tma::commit_group();
        }
        let mut i = 0;
        while i < 2 {
            let row = 8 * i as u32 + lane.group;
            if lse_address != 0 && lane.pair == 0 && row < rows_left {
                f32::store(lse_address + 4 * (first_row + row) as u64, finished[i].1);
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
