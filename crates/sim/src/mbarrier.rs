//! Barriers in shared memory that count arrivals and bytes (PTX ISA, "Parallel Synchronization and
//! Communication Instructions: mbarrier").
//!
//! An mbarrier is an object of 8 bytes at a multiple of 8. A phase is complete when as many threads have
//! arrived as [`init`] says and as many bytes have landed as [`arrive_expect_tx`] has announced; then the
//! next phase begins with the same count. Phases are numbered from 0, and the parity of a phase is that of
//! its number. [`wait`] returns once the phase of its parity is complete; it tells apart only the phase that
//! is under way and the one before it, so that a wait for the other parity of a new barrier returns at once.
//!
//! An arrival releases what its thread did before (`.release.cta`), and the wait for its phase acquires it
//! (`.acquire.cta`): one-to-one, threads that neither arrive nor wait are not ordered. A thread other than
//! the one that initialised a barrier has to be ordered after that by something else, a block barrier for
//! example, and TMA has to be by a [`fence_init`] or a [`fence::proxy_async`](crate::fence::proxy_async) too.
//!
//! Everything else that the bytes of a live barrier are used for is
//! [`Error::Mbarrier`](crate::Error::Mbarrier), and so is a phase that passes a waiting thread by: try_wait
//! in a loop, as on the device, may miss it.

use std::panic::Location;

pub use crate::error::Phase;

use crate::context;

/// Makes the 8 bytes at `barrier` a barrier whose phases take `arrivals` arrivals, 1 to 2^20 − 1
/// (`mbarrier.init.shared::cta.b64`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn init(barrier: u32, arrivals: u32) {
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| block.init_mbarrier(barrier, arrivals, location)));
}

/// Makes the barriers that this thread has initialised visible to the async proxy
/// (`fence.mbarrier_init.release.cluster`), to operations that are ordered after it.
///
/// # Panics
/// Outside a kernel.
pub fn fence_init() {
    context::with(|block| {
        // It orders nothing but barriers, hence an epoch of its own rather than a proxy fence's.
        let epoch = block.races.as_ref().map_or(0, |races| races.epoch_of(block.current));
        block.mbarriers.fence(block.current, epoch);
    });
}

/// Arrives at `barrier` (`mbarrier.arrive.release.cta.shared::cta.b64`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn arrive(barrier: u32) {
    arrive_with(barrier, 0, Location::caller());
}

/// Announces `bytes` bytes of loads to the phase under way, and arrives
/// (`mbarrier.arrive.expect_tx.release.cta.shared::cta.b64`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn arrive_expect_tx(barrier: u32, bytes: u32) {
    arrive_with(barrier, bytes, Location::caller());
}

fn arrive_with(barrier: u32, bytes: u32, location: &'static Location<'static>) {
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| block.arrive_at_mbarrier(barrier, bytes, location)));
}

/// Waits until the phase of `parity` (0 or 1) is complete (`mbarrier.try_wait.parity.acquire.cta` in a loop).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn wait(barrier: u32, parity: u32) {
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    let awaited = current.with(|block| block.begin_wait(barrier, parity, location));
    let (index, awaited) = context::unwrap_or_fail(awaited);
    if awaited.is_some() {
        current.suspend();
    }
    context::unwrap_or_fail(current.with(|block| block.end_wait(index, awaited, location)));
}
