//! Block-wide barriers (PTX ISA, `bar.sync`, `bar.arrive` / `barrier.cta.sync.aligned`, `.arrive.aligned`).

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn barrier_sync(barrier: u32, threads: u32);
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    fn barrier_arrive(barrier: u32, threads: u32);
}

/// Waits at hardware barrier `barrier` (0 to 15) until `threads` threads have arrived there,
/// and orders their shared-memory accesses before it against those after it.
///
/// # Safety
/// `threads` is a multiple of 32 and all threads of each arriving warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn sync(barrier: u32, threads: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { barrier_sync(barrier, threads) }
        }
        _ => { twin!(fa_sim::barrier::sync(barrier, threads)) }
    }
}

/// Arrives at hardware barrier `barrier` without waiting: one of the `threads` threads that those in [`sync`]
/// wait for, whose accesses to shared memory before it are ordered against theirs after it.
///
/// # Safety
/// As [`sync`]; no warp arrives at the barrier again before it was passed.
#[inline(always)]
#[track_caller]
pub unsafe fn arrive(barrier: u32, threads: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { barrier_arrive(barrier, threads) }
        }
        _ => { twin!(fa_sim::barrier::arrive(barrier, threads)) }
    }
}
