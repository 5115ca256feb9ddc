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
        _ => { twin!(fa_sim::fence::proxy_async()) }
    }
}

/// Orders this thread's accesses to device memory by ordinary loads and stores, and those that an acquire has
/// made visible to it, before its later accesses by [`tma`](super::tma), and the other way round
/// (`fence.proxy.async.global`).
#[inline(always)]
pub fn proxy_async_global() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: orders memory accesses.
            unsafe { core::arch::asm!("fence.proxy.async.global;", options(nostack)) }
        }
        _ => { twin!(fa_sim::fence::proxy_async_global()) }
    }
}
