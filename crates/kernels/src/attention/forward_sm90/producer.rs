//! The thread that copies.

use super::key_blocks::KeyBlocks;
use super::schedule::Schedule;
use super::{Maps, Pipeline, Rows, WARPGROUP_ROWS};
use crate::params::PersistentParams;
use crate::ptx::tma;
use crate::scheduler::{Turns, WorkTile};
use crate::tile::panels::Panels;
use crate::tile::ring::Ring;

/// Copies Q, K and V of all tiles of this block.
///
/// A block's K comes before the V of the block before it, since its scores are needed first.
///
/// # Safety
/// One thread of the block calls this, in a launch as [`forward_sm90`](super::forward_sm90) says.
#[inline(always)]
pub(super) unsafe fn produce<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
>(
    params: &PersistentParams,
    maps: u64,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
) {
    let maps = Maps { first: maps };
    let mut queries = Ring::<1>::producer(pipeline.q_barriers(0));
    let mut keys =
        Copies { ring: Ring::<STAGES>::producer(pipeline.k_barriers()), first: pipeline.k(), map: maps.k() };
    let mut values =
        Copies { ring: Ring::<STAGES>::producer(pipeline.v_barriers()), first: pipeline.v(), map: maps.v() };
    let mut schedule = Schedule::producer(pipeline.schedule());
    // SAFETY: the caller's contract; each stage is waited for before it is filled.
    unsafe {
        tma::prefetch(maps.q());
        tma::prefetch(maps.k());
        tma::prefetch(maps.v());
        let mut turns = Turns::of_block(params);
        while turns.index < params.tiles {
            let work = WorkTile::of_persistent(params, turns.index);
            schedule.announce(Some(&work));
            let blocks = KeyBlocks::<BLOCK_N>::of_tile::<BLOCK_M>(
                &params.attention,
                &work,
                pipeline.first_row(params, &work),
            );
            let head = (work.kv_head(&params.attention), work.batch);
            let mut block = blocks.count;
            if block > 0 {
                block -= 1;
                keys.copy(blocks.first_key(block), head);
            }
            copy_queries(params, maps, pipeline, &work, &mut queries);
            while block > 0 {
                block -= 1;
                keys.copy(blocks.first_key(block), head);
                values.copy(blocks.first_key(block + 1), head);
            }
            if blocks.count > 0 {
                values.copy(blocks.first_key(0), head);
            }
            turns.advance();
        }
        schedule.announce(None);
    }
}

/// K or V: the place in its ring, its first stage, and its tensor map.
struct Copies<const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32> {
    ring: Ring<STAGES>,
    first: Panels<BLOCK_N, HEAD_DIM>,
    map: u64,
}

impl<const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32> Copies<BLOCK_N, HEAD_DIM, STAGES> {
    /// Copies the block of keys that begins at `key` into the next stage, once that is empty.
    ///
    /// # Safety
    /// As [`produce`].
    #[inline(always)]
    unsafe fn copy(&mut self, key: u32, (head, batch): (u32, u32)) {
        let bytes = Panels::<BLOCK_N, HEAD_DIM>::BYTES;
        let stage = Panels::<BLOCK_N, HEAD_DIM> { address: self.first.address + self.ring.stage() * bytes };
        // SAFETY: the caller's contract.
        unsafe { stage.load(self.map, self.ring.acquire(bytes), key, head, batch) };
        self.ring.advance();
    }
}

/// Copies each warpgroup's rows of Q as soon as it has left those of the tile before.
///
/// # Safety
/// As [`produce`].
#[inline(always)]
unsafe fn copy_queries<const BLOCK_M: u32, const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
    work: &WorkTile,
    queries: &mut Ring<1>,
) {
    let mut warpgroup = 0;
    while warpgroup < BLOCK_M / WARPGROUP_ROWS {
        let row = pipeline.first_row(params, work) + WARPGROUP_ROWS * warpgroup;
        // SAFETY: the caller's contract.
        unsafe {
            let full = queries.behind(Ring::<1>::BYTES * warpgroup).acquire(Rows::<HEAD_DIM>::BYTES);
            pipeline.q(warpgroup).load(maps.q(), full, row, work.head, work.batch);
        }
        warpgroup += 1;
    }
    queries.advance();
}
