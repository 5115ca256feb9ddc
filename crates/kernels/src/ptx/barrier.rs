//! Block-wide barriers (PTX ISA, `bar.sync` / `barrier.cta.sync.aligned`).

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn barrier_sync(barrier: u32, threads: u32);
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
        _ => { fa_sim::barrier::sync(barrier, threads) }
    }
}
