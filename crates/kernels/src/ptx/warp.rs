//! Data exchange within a warp (PTX ISA, `shfl.sync`, `vote.sync`, `bar.warp.sync`).

use super::index;

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.f32"]
    fn shfl_bfly(mask: u32, value: f32, lane_mask: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.f32"]
    fn shfl_idx_f32(mask: u32, value: f32, lane: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any_sync(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot_sync(mask: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
}

/// All 32 lanes.
#[cfg(target_arch = "nvptx64")]
const FULL_WARP: u32 = 0xffff_ffff;

/// The `value` of the lane whose index differs from this one's by `lane_mask` (`shfl.sync.bfly.b32`).
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn shuffle_xor(value: f32, lane_mask: u32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { shfl_bfly(FULL_WARP, value, lane_mask, 0x1f) }
        }
        _ => { twin!(f32::from_bits(fa_sim::warp::shuffle_xor(value.to_bits(), lane_mask))) }
    }
}

/// The `value` of lane `lane`, which each lane chooses for itself (`shfl.sync.idx.b32`).
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn shuffle(value: f32, lane: u32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { shfl_idx_f32(FULL_WARP, value, lane, 0x1f) }
        }
        _ => { twin!(f32::from_bits(fa_sim::warp::shuffle(value.to_bits(), lane))) }
    }
}

/// The `value` of lane `lane` (`shfl.sync.idx.b32`). ptxas knows of the result that it is the same in the
/// whole warp, and keeps what depends on it in uniform registers.
///
/// # Safety
/// All 32 lanes of the warp execute this call together, with the same `lane`.
#[inline(always)]
#[track_caller]
pub unsafe fn broadcast(value: u32, lane: u32) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { shfl_idx(FULL_WARP, value, lane, 0x1f) }
        }
        _ => { twin!(fa_sim::warp::broadcast(value, lane)) }
    }
}

/// Whether `predicate` holds in any lane of the warp (`vote.sync.any`).
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn vote_any(predicate: bool) -> bool {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { vote_any_sync(FULL_WARP, predicate) }
        }
        _ => { twin!(fa_sim::warp::vote_any(predicate)) }
    }
}

/// A bit for each lane whose `predicate` holds (`vote.sync.ballot`).
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn ballot(predicate: bool) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { vote_ballot_sync(FULL_WARP, predicate) }
        }
        _ => { twin!(fa_sim::warp::ballot(predicate)) }
    }
}

/// The sum of `value` over the lanes up to this one.
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn inclusive_sum(value: u32) -> u32 {
    let (lane, mut sum, mut distance) = (index::reread_thread() % 32, value, 1);
    while distance < 32 {
        // SAFETY: all lanes are here.
        let before = unsafe { shuffle(f32::from_bits(sum), lane.wrapping_sub(distance) % 32) }.to_bits();
        sum += if lane >= distance { before } else { 0 };
        distance *= 2;
    }
    sum
}

/// Waits for all lanes of the warp, and orders their shared-memory accesses before it against those
/// after it (`bar.warp.sync`).
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn sync() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { bar_warp_sync(FULL_WARP) }
        }
        _ => { twin!(fa_sim::warp::sync()) }
    }
}
