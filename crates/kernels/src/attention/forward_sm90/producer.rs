//! The threads that copy: one Q and K, one V. Neither has the registers for all three rings.

use super::key_blocks::KeyBlocks;
use super::schedule::Schedule;
use super::{Maps, Pipeline, Rows, WARPGROUP_ROWS};
use crate::params::{AttentionParams, PersistentParams};
use crate::ptx::tma;
use crate::scheduler::WorkTile;
use crate::tile::panels::Panels;
use crate::tile::ring::Ring;

/// Copies Q and K of all tiles of this block.
///
/// # Safety
/// One thread of the block calls this, in a launch as [`forward_sm90`](super::forward_sm90) says.
#[inline(always)]
pub(super) unsafe fn copy_queries_and_keys<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
) {
    let mut queries = Ring::<1>::producer(pipeline.q_barriers(0));
    let mut keys =
        Copies { ring: Ring::<STAGES>::producer(pipeline.k_barriers()), first: pipeline.k(), map: maps.k() };
    let mut schedule = Schedule::consumer(pipeline.schedule());
    // SAFETY: the caller's contract; each stage is waited for before it is filled.
    unsafe {
        tma::prefetch(maps.q());
        tma::prefetch(maps.k());
        while schedule.wait() {
            let work = schedule.work();
            let blocks = KeyBlocks::<BLOCK_N>::of_tile::<BLOCK_M>(&params.attention, &work);
            let place = Place::of(&params.attention, &work, &blocks);
            let mut block = blocks.count;
            if block > 0 {
                block -= 1;
                keys.copy(&place, block, 0);
            }
            copy_queries(&params.attention, maps, pipeline, &schedule.work(), &mut queries);
            while block > 0 {
                block -= 1;
                keys.copy(&place, block, 0);
            }
            schedule.leave(true);
        }
    }
}

/// Copies V of all tiles of this block.
///
/// # Safety
/// As [`copy_queries_and_keys`].
#[inline(always)]
pub(super) unsafe fn copy_values<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
) {
    let mut values =
        Copies { ring: Ring::<STAGES>::producer(pipeline.v_barriers()), first: pipeline.v(), map: maps.v() };
    let mut schedule = Schedule::consumer(pipeline.schedule());
    // SAFETY: the caller's contract; each stage is waited for before it is filled.
    unsafe {
        tma::prefetch(maps.v());
        while schedule.wait() {
            let work = schedule.work();
            let blocks = KeyBlocks::<BLOCK_N>::of_tile::<BLOCK_M>(&params.attention, &work);
            let place = Place::of(&params.attention, &work, &blocks);
            let mut block = blocks.count;
            while block > 0 {
                block -= 1;
                values.copy(&place, block, params.v_landed);
            }
            schedule.leave(true);
        }
    }
}

/// Where a tile's first block of K and V is, in the coordinates of their tensor maps.
struct Place {
    row: u32,
    head: u32,
    batch: u32,
}

impl Place {
    /// # Safety
    /// As [`copy_queries_and_keys`].
    #[inline(always)]
    unsafe fn of<const BLOCK_N: u32>(
        params: &AttentionParams,
        work: &WorkTile,
        blocks: &KeyBlocks<BLOCK_N>,
    ) -> Self {
        // SAFETY: valid parameters have no empty axis.
        let head = unsafe { work.kv_head(params) };
        Self { row: work.keys.first + blocks.first_key(0), head, batch: work.batch_index(params) }
    }
}

/// K or V: the place in its ring, its first stage, and its tensor map.
struct Copies<const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32> {
    ring: Ring<STAGES>,
    first: Panels<BLOCK_N, HEAD_DIM>,
    map: u64,
}

impl<const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32> Copies<BLOCK_N, HEAD_DIM, STAGES> {
    /// Copies the `block`-th block of keys into the next stage, once that is empty; the copy lands so many bytes behind the
    /// full barrier.
    ///
    /// # Safety
    /// As [`copy_queries_and_keys`].
    #[inline(always)]
    unsafe fn copy(&mut self, place: &Place, block: u32, landed: u32) {
        let bytes = Panels::<BLOCK_N, HEAD_DIM>::BYTES;
        let stage = self.first.stage(self.ring.stage());
        // SAFETY: the caller's contract.
        unsafe {
            let barrier = self.ring.acquire_behind(bytes, landed);
            stage.load(self.map, barrier, place.row + block * BLOCK_N, place.head, place.batch);
        }
        self.ring.advance();
    }
}

/// Copies each warpgroup's rows of Q as soon as it has left those of the tile before.
///
/// # Safety
/// As [`copy_queries_and_keys`].
#[inline(always)]
unsafe fn copy_queries<const BLOCK_M: u32, const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32>(
    params: &AttentionParams,
    maps: Maps,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
    work: &WorkTile,
    queries: &mut Ring<1>,
) {
    let mut warpgroup = 0;
    while warpgroup < BLOCK_M / WARPGROUP_ROWS {
        let row = work.queries.first + work.tile * BLOCK_M + WARPGROUP_ROWS * warpgroup;
        // SAFETY: the caller's contract.
        unsafe {
            let full = queries.behind(Ring::<1>::BYTES * warpgroup).acquire(Rows::<HEAD_DIM>::BYTES);
            pipeline.q(warpgroup).load(maps.q(), full, row, work.head, work.batch_index(params));
        }
        warpgroup += 1;
    }
    queries.advance();
}
