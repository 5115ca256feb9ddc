//! Barriers in shared memory that count arrivals and bytes (PTX ISA, `mbarrier`, from sm_90 on).
//!
//! A barrier is 8 bytes. Its phase completes once all arrivals and all bytes that were announced are there;
//! the next phase then begins by itself. A waiter names the phase by its parity: 0 for the first one, then in
//! turn 1 and 0, so that a wait for parity 1 of a new barrier returns at once.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Makes a barrier of `arrivals` arrivals a phase (`mbarrier.init`).
///
/// # Safety
/// `barrier` is 8-byte aligned and inside the block's shared memory, nobody else accesses its 8 bytes but by
/// these functions, and other threads do so only after [`fence_init`] here and a block barrier.
#[inline(always)]
#[track_caller]
pub unsafe fn init(barrier: u32, arrivals: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("mbarrier.init.shared::cta.b64 [{0}], {1};", in(reg32) barrier, in(reg32) arrivals, options(nostack))
            }
        }
        _ => { twin!(fa_sim::mbarrier::init(barrier, arrivals)) }
    }
}

/// Makes this thread's [`init`]s visible to asynchronous copies (`fence.mbarrier_init.release.cluster`).
#[inline(always)]
#[track_caller]
pub fn fence_init() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: orders memory accesses.
            unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) }
        }
        _ => { twin!(fa_sim::mbarrier::fence_init()) }
    }
}

/// One arrival, which orders this thread's accesses before it against those after a [`wait`] for the phase
/// (`mbarrier.arrive`).
///
/// # Safety
/// `barrier` was made by [`init`], and the phase still lacks an arrival.
#[inline(always)]
#[track_caller]
pub unsafe fn arrive(barrier: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("mbarrier.arrive.shared::cta.b64 _, [{0}];", in(reg32) barrier, options(nostack)) }
        }
        _ => { twin!(fa_sim::mbarrier::arrive(barrier)) }
    }
}

/// As [`arrive`]; the phase also waits for `bytes` bytes of asynchronous copies
/// (`mbarrier.arrive.expect_tx`).
///
/// # Safety
/// As [`arrive`]; the bytes announced and not yet landed are below 2^20.
#[inline(always)]
#[track_caller]
pub unsafe fn arrive_expect_tx(barrier: u32, bytes: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};",
                    in(reg32) barrier, in(reg32) bytes, options(nostack))
            }
        }
        _ => { twin!(fa_sim::mbarrier::arrive_expect_tx(barrier, bytes)) }
    }
}

/// Waits until the phase of parity `parity` has completed (`mbarrier.try_wait.parity`, again and again: the
/// instruction itself returns after a time that the hardware chooses).
///
/// One thread may wait alone. What was ordered before the phase's arrivals, and what its copies wrote, is
/// there.
///
/// # Safety
/// `barrier` was made by [`init`]; the phase waited for is the current one or the one before.
#[inline(always)]
#[track_caller]
#[allow(named_asm_labels, reason = "labels of PTX belong to the braces that they stand in")]
pub unsafe fn wait(barrier: u32, parity: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("{{", ".reg .pred done;", "AGAIN:",
                    "mbarrier.try_wait.parity.shared::cta.b64 done, [{0}], {1};", "@done bra DONE;", "bra AGAIN;",
                    "DONE:", "}}",
                    in(reg32) barrier, in(reg32) parity, options(nostack))
            }
        }
        _ => { twin!(fa_sim::mbarrier::wait(barrier, parity)) }
    }
}
