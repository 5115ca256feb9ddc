//! Global memory: real host memory by 64-bit address, checked against the launch's buffers
//! (PTX ISA, `ld.global`, `st.global`).

use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::Pod;

use crate::context;
use crate::error::AccessKind;
use crate::shared::assert_access_size;
use crate::state::global::{read, write};

/// Loads a value of 1, 2, 4, 8 or 16 bytes from `address`, a multiple of its size.
///
/// # Safety
/// The launch's buffers are valid host memory, and nothing outside the launch writes them meanwhile.
///
/// # Panics
/// Outside a kernel.
#[inline]
#[track_caller]
pub unsafe fn load<T: Pod>(address: u64) -> T {
    const { assert_access_size(size_of::<T>()) };
    let location = Location::caller();
    context::unwrap_or_fail(context::with(|block| {
        block.access_global(address, size_of::<T>(), AccessKind::Read, location)
    }));
    let mut value = T::zeroed();
    // SAFETY: the address is aligned to the size and inside a buffer, which the caller vouches for.
    unsafe { read(address, bytemuck::bytes_of_mut(&mut value)) };
    value
}

/// Stores a value of 1, 2, 4, 8 or 16 bytes to `address`, a multiple of its size.
///
/// # Safety
/// The launch's writable buffers are valid host memory that nothing outside the launch accesses meanwhile.
///
/// # Panics
/// Outside a kernel.
#[inline]
#[track_caller]
pub unsafe fn store<T: Pod>(address: u64, value: T) {
    const { assert_access_size(size_of::<T>()) };
    let location = Location::caller();
    context::unwrap_or_fail(context::with(|block| {
        block.access_global(address, size_of::<T>(), AccessKind::Write, location)
    }));
    // SAFETY: the address is aligned to the size and inside a writable buffer, which the caller vouches for.
    unsafe { write(address, bytemuck::bytes_of(&value)) };
}

/// Adds to the word at `address`, and gives what it was before (`atom.global.add.u32`). It orders nothing.
///
/// # Safety
/// As [`store`], but for other blocks of the launch, which access the word by atomics alone.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn fetch_add(address: u64, value: u32) -> u32 {
    // SAFETY: blocks access the word by atomics alone.
    unsafe { add(address, value, false, Location::caller()) }
}

/// Adds to the word at `address` what other blocks wait for with [`wait_at_least`]: this thread's accesses
/// before it, and those ordered before them, come before theirs behind the wait
/// (`red.release.gpu.global.add.u32`).
///
/// # Safety
/// As [`fetch_add`].
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn add_release(address: u64, value: u32) {
    // SAFETY: blocks access the word by atomics alone.
    unsafe { add(address, value, true, Location::caller()) };
    // Threads of this block may wait for it too.
    context::with(|block| block.wake_global_waiters());
}

/// Waits until the word at `address` is at least `value` (`ld.acquire.gpu.global.u32`, again and again).
///
/// Another block may be the one that adds to it: while no other thread of this block can run, the wait goes
/// on, and it is a deadlock where that takes too long.
///
/// Additions up to the first that makes the word `value` come before what follows. Those behind it, which
/// may be there already, do not: they need not have been.
///
/// # Safety
/// As [`fetch_add`].
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn wait_at_least(address: u64, value: u32) {
    let location = Location::caller();
    context::unwrap_or_fail(context::with(|block| {
        block.check_global(address, 4, 4, AccessKind::Read, location)?;
        block.watch()
    }));
    let word = std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
    // SAFETY: the word is readable, and blocks access it by atomics alone.
    while unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Acquire) < value {
        let current = context::current();
        current.with(|block| block.wait_for_global(value, location));
        current.suspend();
    }
    context::unwrap_or_fail(context::with(|block| block.end_global_wait(address, value, location)));
}

/// # Safety
/// As [`fetch_add`].
unsafe fn add(address: u64, value: u32, releases: bool, location: &'static Location<'static>) -> u32 {
    let word = std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
    context::unwrap_or_fail(context::with(|block| {
        block.check_global(address, 4, 4, AccessKind::Write, location)?;
        block.watch()?;
        block.add_global((address, value), releases, location, || {
            // SAFETY: the word is writable, and blocks access it by atomics alone.
            unsafe { AtomicU32::from_ptr(word) }.fetch_add(value, Ordering::AcqRel)
        })
    }))
}
