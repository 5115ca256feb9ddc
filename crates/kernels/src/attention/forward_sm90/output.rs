//! How O and lse leave.

use super::consumer::{leads_warp, scale_rows};
use super::{Pipeline, Rows, WARPGROUP};
use crate::element::Element;
use crate::params::AttentionParams;
use crate::ptx::{barrier, fence, index, stmatrix, tma, warp};
use crate::scheduler::WorkTile;
use crate::tile::mma::{Lane, MmaElement};

/// Rows of O that one warp stores.
const WARP_ROWS: u32 = 16;

/// Hardware barrier of the first warpgroup; those of the others follow.
const FIRST_BARRIER: u32 = 4;

/// A warp's way out: sixteen rows in shared memory, from where tensor copies fetch them.
pub(super) struct Output<const BLOCK_M: u32, const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32> {
    warpgroup: u32,
    map: u64,
    rows: Rows<HEAD_DIM>,
}

impl<const BLOCK_M: u32, const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32>
    Output<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>
{
    #[inline(always)]
    pub(super) fn new(
        pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
        warpgroup: u32,
        map: u64,
    ) -> Self {
        let warp = index::thread() % WARPGROUP / 32;
        Self { warpgroup, map, rows: pipeline.o(warpgroup).from_row(WARP_ROWS * warp) }
    }

    /// Normalises and stores the rows that exist, and their log-sum-exp where it is wanted; `finished` has both rows' 1/l and lse.
    /// Beside the columns of O, those up to HEAD_DIM are written to shared memory, and clipped by the tensor map.
    ///
    /// # Safety
    /// All threads of the warpgroup call this together; these rows of O are theirs alone.
    #[inline(always)]
    pub(super) unsafe fn store<E: MmaElement, const OUT: usize>(
        &self,
        params: &AttentionParams,
        work: &WorkTile,
        o: &mut [f32; OUT],
        finished: [(f32, f32); 2],
    ) {
        let lane = Lane::current::<2>();
        let first_row = work.tile * BLOCK_M;
        scale_rows(o, [finished[0].0, finished[1].0]);
        // SAFETY: the caller's contract; the rows in shared memory are this warp's own, and no copy still reads them.
        unsafe {
            if Pipeline::<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>::CONFIG.own_output() {
                self.wait();
                warp::sync();
            } else {
                // They were Q's, which the products of the whole warpgroup have read.
                barrier::sync(FIRST_BARRIER + self.warpgroup, WARPGROUP);
            }
            let (row, half) = (index::thread() % WARP_ROWS, index::thread() % 32 / WARP_ROWS);
            let mut step = 0;
            while step < OUT / 8 {
                let at = self.rows.at(row, 2 * step as u32 + half);
                let pair = |i: usize| E::pack(o[8 * step + 2 * i], o[8 * step + 2 * i + 1]);
                stmatrix::store_x4(at, [pair(0), pair(1), pair(2), pair(3)]);
                step += 1;
            }
            fence::proxy_async();
            warp::sync();
            if leads_warp() {
                self.rows.store(self.map, first_row + lane.warp_row, work.head, work.batch);
                tma::commit_group();
            }
            let mut i = 0;
            while i < 2 {
                let row = first_row + lane.row(i);
                if params.lse != 0 && lane.pair == 0 && row < work.queries.len {
                    f32::store(params.lse + 4 * work.lse_index(params, row), finished[i].1);
                }
                i += 1;
            }
        }
    }

    /// Waits until the shared memory of this thread's stores may be written again.
    #[inline(always)]
    pub(super) fn wait(&self) {
        if leads_warp() {
            tma::wait_group_read::<0>();
        }
    }

    /// Waits until this thread's stores are over.
    #[inline(always)]
    pub(super) fn wait_all(&self) {
        if leads_warp() {
            tma::wait_group::<0>();
        }
    }
}
