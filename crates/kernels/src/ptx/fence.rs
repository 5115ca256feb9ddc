//! Order between ordinary accesses and those of asynchronous engines (PTX ISA, `fence.proxy`, from sm_90 on).

/// Makes this thread's earlier accesses to shared memory visible to the asynchronous proxy, through which
/// [`tma`](super::tma) copies and [`wgmma`](super::wgmma) reads its operands
/// (`fence.proxy.async.shared::cta`).
///
/// It stands in the writing thread, between the writes and what tells the reader of them.
#[inline(always)]
#[track_caller]
pub fn proxy_async() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: orders memory accesses.
            unsafe { core::arch::asm!("fence.proxy.async.shared::cta;", options(nostack)) }
        }
        _ => { fa_sim::fence::proxy_async() }
    }
}
