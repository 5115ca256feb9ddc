//! Asynchronous copies from global to shared memory (PTX ISA, `cp.async`, `cp.async.commit_group`,
//! `cp.async.wait_group`).
//!
//! A copy is in flight from its issue until its own thread's [`wait_group`] covers it. Meanwhile
//! its bytes land at a time that the schedule draws, and any access to them, by any thread, is
//! [`Error::CopyInFlight`](crate::Error::CopyInFlight). The wait makes the bytes visible to the thread that
//! waits; others need a barrier after it, as after an ordinary write. A thread that returns with copies in
//! flight is [`Error::CopyNotAwaited`](crate::Error::CopyNotAwaited), which is stricter than the hardware: a
//! copy that nobody waits for is a mistake.

use std::panic::Location;

use crate::context;

/// Copies `bytes` bytes (0 to `SIZE`) from global to shared memory and fills the rest of the `SIZE`
/// bytes there with 0 (`cp.async.ca.shared.global`, for 16 bytes `.cg`). `SIZE` is 4, 8 or 16, and
/// both addresses are multiples of it. Nothing behind `bytes` is read.
///
/// # Safety
/// The launch's buffers are valid host memory until it ends, and nothing outside it writes them meanwhile.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn copy<const SIZE: usize>(shared: u32, global: u64, bytes: u32) {
    const { assert!(matches!(SIZE, 4 | 8 | 16), "a copy writes 4, 8 or 16 bytes") };
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| block.issue_copy(shared, global, SIZE, bytes, location)));
}

/// Closes a group of all copies that the thread has issued since the last one, be it empty
/// (`cp.async.commit_group`).
///
/// # Panics
/// Outside a kernel.
pub fn commit_group() {
    context::with(|block| block.copies.commit(block.current));
}

/// Waits until at most the `pending` youngest groups of the thread are in flight
/// (`cp.async.wait_group`). Copies that no [`commit_group`] has closed a group over are not waited for.
///
/// # Panics
/// Outside a kernel.
pub fn wait_group(pending: usize) {
    let current = context::current();
    context::unwrap_or_fail(current.with(|block| block.wait_for_copies(pending)));
    current.maybe_preempt();
}
