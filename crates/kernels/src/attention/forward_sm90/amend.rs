//! The warps that amend what has landed before it is multiplied: tensor maps clip at the ends of tensors alone.
//!
//! In launches that need it the tiles of a tensor land at barriers of their own. A warp waits there, changes them in shared
//! memory, and fills the stage that the consumers wait for. In others they land where the consumers wait.

use super::Pipeline;
use super::consumer::leads_warp;
use super::key_blocks::KeyBlocks;
use super::schedule::Schedule;
use crate::params::PersistentParams;
use crate::ptx::{fence, warp};
use crate::tile::ring::Ring;

/// Warps of a launch that amend.
#[inline(always)]
pub(super) fn warps(params: &PersistentParams) -> u32 {
    (params.v_landed != 0) as u32
}

/// Clears the rows of V past the end of their sequence, which are the next one's: P is 0 there, but 0 · NaN is NaN.
///
/// # Safety
/// All lanes of one warp call this together, in a launch as [`forward_sm90`](super::forward_sm90) says.
#[inline(always)]
pub(super) unsafe fn amend_values<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
>(
    params: &PersistentParams,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES>,
) {
    let mut schedule = Schedule::consumer(pipeline.schedule());
    let mut values = Ring::<STAGES>::consumer(pipeline.v_barriers());
    // SAFETY: the caller's contract.
    unsafe {
        while schedule.wait() {
            let work = schedule.work();
            let blocks = KeyBlocks::<BLOCK_N>::of_tile::<BLOCK_M>(&params.attention, &work);
            let mut block = blocks.count;
            while block > 0 {
                block -= 1;
                values.behind(params.v_landed).wait();
                let rows = work.keys.len - blocks.first_key(block);
                if rows < BLOCK_N {
                    pipeline.v().stage(values.stage()).clear_from_row(rows);
                    fence::proxy_async();
                }
                fill(&values);
                values.advance();
            }
            warp::sync(); // All lanes have read the slot.
            schedule.leave(leads_warp());
        }
    }
}

/// Hands the stage at hand to the consumers.
///
/// # Safety
/// All lanes of the warp call this together, behind the fences of what they have written.
#[inline(always)]
unsafe fn fill<const STAGES: u32>(ring: &Ring<STAGES>) {
    // SAFETY: the caller's contract; the copies were not counted here, so that this is the phase's only arrival.
    unsafe {
        warp::sync();
        if leads_warp() {
            ring.fill();
        }
    }
}
