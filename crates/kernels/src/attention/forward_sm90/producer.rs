//! The thread that copies.

use super::key_blocks::KeyBlocks;
use super::{Maps, Pipeline, Rows, WARPGROUP_ROWS};
use crate::params::PersistentParams;
use crate::ptx::{index, tma};
use crate::scheduler::WorkTile;
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
    let mut keys = Ring::<STAGES>::producer(pipeline.k_barriers());
    let mut values = Ring::<STAGES>::producer(pipeline.v_barriers());
    let bytes = Panels::<BLOCK_N, HEAD_DIM>::BYTES;
    // SAFETY: the caller's contract; each stage is waited for before it is filled.
    unsafe {
        tma::prefetch(maps.q());
        tma::prefetch(maps.k());
        tma::prefetch(maps.v());
        let mut tile = index::block();
        while tile < params.tiles {
            let work = WorkTile::of_persistent::<BLOCK_M>(params, tile);
            let kv_head = work.kv_head(&params.attention);
            let blocks = KeyBlocks::<BLOCK_N>::of_tile::<BLOCK_M>(&params.attention, &work);
            let mut block = blocks.count;
            while block > 0 {
                block -= 1;
                let full = keys.acquire(bytes);
                let key = blocks.first_key(block);
                pipeline.k(keys.stage()).load(maps.k(), full, key, kv_head, work.batch);
                keys.advance();
                if block + 1 == blocks.count {
                    copy_queries(maps, pipeline, &work, &mut queries);
                } else {
                    let full = values.acquire(bytes);
                    let key = blocks.first_key(block + 1);
                    pipeline.v(values.stage()).load(maps.v(), full, key, kv_head, work.batch);
                    values.advance();
                }
            }
            if blocks.count > 0 {
                let full = values.acquire(bytes);
                pipeline.v(values.stage()).load(maps.v(), full, blocks.first_key(0), kv_head, work.batch);
                values.advance();
            } else {
                copy_queries(maps, pipeline, &work, &mut queries);
            }
            tile += index::blocks();
        }
    }
}

/// Copies each warpgroup's rows of Q as soon as it has left those of the tile before.
///
/// # Safety
/// As [`produce`].
#[inline(always)]
unsafe fn copy_queries<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
>(
    maps: Maps,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
    work: &WorkTile,
    queries: &mut Ring<1>,
) {
    let mut warpgroup = 0;
    while warpgroup < BLOCK_M / WARPGROUP_ROWS {
        let row = work.tile * BLOCK_M + WARPGROUP_ROWS * warpgroup;
        // SAFETY: the caller's contract.
        unsafe {
            let full = queries.behind(Ring::<1>::BYTES * warpgroup).acquire(Rows::<HEAD_DIM>::BYTES);
            pipeline.q(warpgroup).load(maps.q(), full, row, work.head, work.batch);
        }
        warpgroup += 1;
    }
    queries.advance();
}
