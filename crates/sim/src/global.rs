//! Global memory: real host memory by 64-bit address, checked against the launch's buffers
//! (PTX ISA, `ld.global`, `st.global`).

use std::panic::Location;

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
        block.check_global(address, size_of::<T>(), size_of::<T>(), AccessKind::Read, location)
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
        block.check_global(address, size_of::<T>(), size_of::<T>(), AccessKind::Write, location)
    }));
    // SAFETY: the address is aligned to the size and inside a writable buffer, which the caller vouches for.
    unsafe { write(address, bytemuck::bytes_of(&value)) };
}
