//! Copies of boxes of a tensor between global and shared memory (PTX ISA, `cp.async.bulk.tensor` in tile
//! mode, `cp.async.bulk.commit_group`, `cp.async.bulk.wait_group`), and of consecutive bytes
//! (`cp.async.bulk`).
//!
//! One thread issues a copy, and the async proxy carries it out at times that the schedule draws, whole or in
//! pieces. Coordinates are in elements, may be negative or past the end, and what of the box is outside the
//! tensor reads as zeros and is not written. In dimension 0 a coordinate is a multiple of 16 bytes, and of a
//! store not below 0. A store writes whole granules of 16 bytes: where a row of the tensor ends within one,
//! the rest of it is written too (seen on an H200), which is somebody else's memory.
//!
//! A [`load`] counts all bytes of its box on an mbarrier, inside the tensor or not. It writes from its issue
//! until its phase of the mbarrier is complete: who has not waited for that, or come after one who has, does
//! not touch the bytes. The issuing thread comes after all earlier accesses to them.
//!
//! A [`store`] reads shared memory from its issue until its thread's [`wait_group_read`] or [`wait_group`]
//! covers its group, and nobody overwrites the bytes meanwhile. Bytes written by ordinary stores need a
//! [`fence::proxy_async`](crate::fence::proxy_async) before the synchronisation. A thread that returns with a
//! store that it has not waited for is [`Error::TransferNotAwaited`](crate::Error::TransferNotAwaited):
//! shared memory ends with the block.

use std::panic::Location;

pub use crate::tensor_map::{Swizzle, TensorMap};

use crate::context;

/// Fetches the tensor map at `map` into the cache (`prefetch.tensormap`): nothing that the simulator shows.
///
/// # Panics
/// Outside a kernel.
pub fn prefetch(map: u64) {
    context::with(|_| ());
    let _ = map;
}

/// Copies the box at `coordinates`, dimension 0 first, to `shared` and counts its bytes on `barrier`
/// (`cp.async.bulk.tensor.shared::cluster.global.tile.mbarrier::complete_tx::bytes`).
///
/// `shared` is a multiple of 128, or of 16 where the map has no swizzle. Row r of the box goes to
/// `shared` + r · bytes of a row, and then chunks of 16 bytes change places by the bits of their shared
/// addresses: the pattern starts at multiples of 1,024 (128B), 512 (64B) or 256 (32B), wherever the box does.
///
/// # Safety
/// `map` is the address of what [`TensorMap::encode`] made, the launch's buffers are valid host memory until
/// it ends, and nothing outside it writes them meanwhile.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn load<const N: usize>(shared: u32, map: u64, barrier: u32, coordinates: [i32; N]) {
    let location = Location::caller();
    // SAFETY: `map` is the address of an encoded tensor map.
    let map = unsafe { read_map(map) };
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(
        current.with(|block| block.issue_load(shared, map, barrier, &coordinates, location)),
    );
}

/// Copies `bytes` consecutive bytes at `address` to `shared` and counts them on `barrier`
/// (`cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`): as [`load`], of addresses and a
/// number of bytes that are multiples of 16, here at most 2,048.
///
/// # Safety
/// As for [`load`].
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn load_bytes(shared: u32, address: u64, bytes: u32, barrier: u32) {
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    let issued = current.with(|block| block.issue_load_of_bytes(shared, (address, bytes), barrier, location));
    context::unwrap_or_fail(issued);
}

/// Copies the box at `shared` to `coordinates` of the tensor, as far as it is inside
/// (`cp.async.bulk.tensor.global.shared::cta.tile.bulk_group`). `shared` as for [`load`].
///
/// # Safety
/// As for [`load`], and nothing outside the launch accesses its writable buffers meanwhile.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn store<const N: usize>(map: u64, shared: u32, coordinates: [i32; N]) {
    let location = Location::caller();
    // SAFETY: `map` is the address of an encoded tensor map.
    let map = unsafe { read_map(map) };
    let current = context::current();
    current.maybe_preempt();
    let issued = current.with(|block| block.issue_store(map, shared, &coordinates, location));
    if !context::unwrap_or_fail(issued) {
        context::park();
    }
}

/// Copies `bytes` consecutive bytes at `shared` to global memory
/// (`cp.async.bulk.global.shared::cta.bulk_group`): as [`store`], of addresses and a number of bytes that are
/// multiples of 16, here at most 2,048.
///
/// # Safety
/// As for [`store`].
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn store_bytes(address: u64, shared: u32, bytes: u32) {
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    let issued = current.with(|block| block.issue_store_of_bytes(address, shared, bytes, location));
    if !context::unwrap_or_fail(issued) {
        context::park();
    }
}

/// Closes a group of all stores that the thread has issued since the last one, be it empty
/// (`cp.async.bulk.commit_group`).
///
/// # Panics
/// Outside a kernel.
pub fn commit_group() {
    context::with(|block| block.commit_stores());
}

/// Waits until at most the `pending` youngest groups of the thread have not been written to global memory
/// (`cp.async.bulk.wait_group`).
///
/// # Panics
/// Outside a kernel.
pub fn wait_group(pending: usize) {
    wait(pending, true);
}

/// Waits until at most the `pending` youngest groups of the thread still read shared memory
/// (`cp.async.bulk.wait_group.read`). The simulator writes global memory no later than that, but what another
/// block does there is ordered behind [`wait_group`] alone.
///
/// # Panics
/// Outside a kernel.
pub fn wait_group_read(pending: usize) {
    wait(pending, false);
}

fn wait(pending: usize, until_written: bool) {
    let current = context::current();
    context::unwrap_or_fail(current.with(|block| {
        block.wait_for_stores(pending)?;
        if until_written { block.end_groups(pending) } else { Ok(()) }
    }));
    current.maybe_preempt();
}

/// # Safety
/// `map` is the address of 128 readable bytes, a multiple of 8.
unsafe fn read_map(map: u64) -> [u64; 16] {
    let words = std::ptr::with_exposed_provenance::<[u64; 16]>(map as usize);
    // SAFETY: the address is that of 128 readable bytes, and a multiple of 8.
    unsafe { words.read() }
}
