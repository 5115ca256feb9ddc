//! The warps that amend what has landed before it is multiplied: tensor maps clip at the ends of tensors
//! alone.
//!
//! In launches that need it the tiles of a tensor land at barriers of their own. A warp waits there, changes
//! them in shared memory, and fills the stage that the consumers wait for. In others they land where the
//! consumers wait.

use super::consumer::leads_warp;
use super::producer::key_head;
use super::schedule::{Keys, Schedule};
use super::tile::{KeyStages, Tile};
use super::{Pipeline, turns};
use crate::params::PersistentParams;
use crate::ptx::{fence, index, warp};
use crate::tile::head_start::HeadStart;
use crate::tile::panels::{Extent, Panels};
use crate::tile::ring::{Count, Ring, Stages};

/// Whether there is anything to amend in a launch.
#[inline(always)]
pub(super) fn is_needed(params: &PersistentParams) -> bool {
    params.qk_landed != 0 || params.v_landed != 0
}

/// Amends all tiles of this block, in the order that they are consumed in.
///
/// Of Q and K it clears the columns before the head's own that boxes bring along, which are another head's,
/// of V the rows past the end of a packed sequence, which are the next one's: what they are multiplied with
/// is 0, but 0 · NaN is NaN.
///
/// # Safety
/// All lanes of one warp call this together, in a launch as [`forward_sm90`](super::forward_sm90) says.
#[inline(always)]
pub(super) unsafe fn amend<T: Tile>(params: &PersistentParams, pipeline: Pipeline<T>) {
    let mut schedule = Schedule::consumer(pipeline.schedule());
    let mut keys = Ring::<KeyStages<T>>::consumer(pipeline.k_barriers());
    let mut values = Ring::<KeyStages<T>>::consumer(pipeline.v_barriers());
    // SAFETY: the caller's contract; each stage is changed between its copies' landing and its filling.
    unsafe {
        while schedule.wait() {
            let work = schedule.work();
            let place = schedule.keys();
            let mut block = place.blocks;
            if T::ROW_CLASSES {
                // Q is moved by those who multiply it, and V's columns before the head's are none of O's.
                amend_classes(params, pipeline, &mut keys, &place);
                block = 0;
            }
            let head = key_head::<T>(params, &place, 0);
            if !T::ROW_CLASSES && params.qk_landed != 0 {
                if block > 0 {
                    amend_keys(params, pipeline, &mut keys, head);
                }
                amend_queries(params, pipeline, schedule.phase(), head);
            }
            while block > 0 {
                block -= 1;
                if params.qk_landed != 0 && block > 0 {
                    amend_keys(params, pipeline, &mut keys, head);
                }
                if params.v_landed != 0 {
                    values.behind(params.v_landed).wait();
                    let rows = work.keys.first + work.keys.len - place.row_of::<T>(block);
                    if rows < T::BLOCK_N {
                        pipeline.v().stage(values.stage()).clear_from_row(rows);
                        fence::proxy_async();
                    }
                    fill(&values);
                    values.advance();
                }
            }
            warp::sync(); // All lanes have read the slot.
            schedule.leave(leads_warp());
        }
    }
}

/// Clears the columns before the head's in all blocks of K, class by class.
///
/// # Safety
/// As [`amend`].
#[inline(always)]
unsafe fn amend_classes<T: Tile>(
    params: &PersistentParams,
    pipeline: Pipeline<T>,
    keys: &mut Ring<KeyStages<T>>,
    place: &Keys,
) {
    let mut turn = 0;
    while turn < turns::<T>(&params.attention) {
        let mut block = 0;
        while block < place.blocks {
            // SAFETY: the caller's contract.
            unsafe { amend_keys(params, pipeline, keys, key_head::<T>(params, place, turn)) };
            block += 1;
        }
        turn += 1;
    }
}

/// Clears the columns before the head's in a block of K.
///
/// # Safety
/// As [`amend`].
#[inline(always)]
unsafe fn amend_keys<T: Tile>(
    params: &PersistentParams,
    pipeline: Pipeline<T>,
    keys: &mut Ring<KeyStages<T>>,
    head: HeadStart,
) {
    // SAFETY: the caller's contract.
    unsafe {
        keys.behind(params.qk_landed).wait();
        clear_foreign(pipeline.k().stage(keys.stage()), head);
        fill(keys);
    }
    keys.advance();
}

/// Clears the columns before the head's in a tile's rows of Q.
///
/// # Safety
/// As [`amend`].
#[inline(always)]
unsafe fn amend_queries<T: Tile>(
    params: &PersistentParams,
    pipeline: Pipeline<T>,
    phase: u32,
    head: HeadStart,
) {
    let mut warpgroup = 0;
    while warpgroup < index::unknown(T::CONFIG.warpgroups()) {
        let queries = Ring::<Count<1>>::consumer_of_phase(pipeline.q_barriers(warpgroup), phase);
        // SAFETY: the caller's contract.
        unsafe {
            queries.behind(params.qk_landed).wait();
            clear_foreign(pipeline.q(warpgroup), head);
            fill(&queries);
        }
        warpgroup += 1;
    }
}

/// Clears the columns before the head's, for the products.
///
/// # Safety
/// As [`Panels::clear_before_column`].
#[inline(always)]
unsafe fn clear_foreign<X: Extent>(tile: Panels<X>, head: HeadStart) {
    if head.foreign() > 0 {
        // SAFETY: the caller's contract; the columns outside of the map are zeros.
        unsafe { tile.clear_before_column(head.shift) };
        fence::proxy_async();
    }
}

/// Hands the stage at hand to the consumers.
///
/// # Safety
/// All lanes of the warp call this together, behind the fences of what they have written.
#[inline(always)]
unsafe fn fill<S: Stages>(ring: &Ring<S>) {
    // SAFETY: the caller's contract; the copies were not counted here, so that this is the phase's only
    // arrival.
    unsafe {
        warp::sync();
        if leads_warp() {
            ring.fill();
        }
    }
}
