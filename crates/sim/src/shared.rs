//! A block's shared memory, by 32-bit byte address (PTX ISA, `ld.shared`, `st.shared`).
//!
//! Each access is checked: inside the block's shared memory, a multiple of its size, written
//! before it is read, and ordered against the accesses of other threads.

use std::panic::Location;

use bytemuck::Pod;

use crate::context;
use crate::state::shared::BASE;

/// Address of the first byte of shared memory, aligned to 1,024 bytes.
#[inline]
pub fn base() -> u32 {
    BASE
}

/// Loads a value of 1, 2, 4, 8 or 16 bytes (`ld.shared`). `address` is a multiple of its size,
/// whatever its alignment in Rust: a vector of four fp32 takes a multiple of 16.
///
/// # Panics
/// Outside a kernel.
#[inline]
#[track_caller]
pub fn load<T: Pod>(address: u32) -> T {
    const { assert_access_size(size_of::<T>()) };
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| {
        let read = block.shared_read::<T>(address, location)?;
        Ok(read.map(|offset| block.shared.get(offset)))
    }))
    .unwrap_or_else(|| context::park())
}

/// Stores a value of 1, 2, 4, 8 or 16 bytes (`st.shared`); `address` as for [`load`].
///
/// # Panics
/// Outside a kernel.
#[inline]
#[track_caller]
pub fn store<T: Pod>(address: u32, value: T) {
    const { assert_access_size(size_of::<T>()) };
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| {
        let offset = block.shared_write::<T>(address, location)?;
        block.shared.overwrite(offset, bytemuck::bytes_of(&value));
        Ok(())
    }));
}

/// A type of another size is a mistake in the instruction wrapper: it fails to compile.
pub(crate) const fn assert_access_size(bytes: usize) {
    assert!(matches!(bytes, 1 | 2 | 4 | 8 | 16), "an access moves 1, 2, 4, 8 or 16 bytes");
}
