//! Fences between proxies (PTX ISA, `membar`/`fence`, "Async proxy").

use crate::context;

/// Makes what this thread has written to shared memory with ordinary stores visible to the async proxy, that
/// is, to TMA and `wgmma` (`fence.proxy.async.shared::cta`), for operations that a later synchronisation
/// orders after the fence.
///
/// The writing thread fences, after the write and before it synchronises. The PTX ISA takes a fence of
/// another thread too, if it lies on the way from the write to the operation; this crate does not.
///
/// # Panics
/// Outside a kernel.
pub fn proxy_async() {
    context::with(|block| {
        let epoch = block.races.as_mut().map_or(0, |races| races.fence(block.current));
        block.mbarriers.fence(block.current, epoch);
    });
}

/// Orders accesses of this thread to global memory by the one proxy before those by the other
/// (`fence.proxy.async.global`). Global memory has no proxies here: this does nothing.
pub fn proxy_async_global() {}
