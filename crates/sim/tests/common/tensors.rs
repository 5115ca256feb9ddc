//! Tensors in global memory and boxes of them.
#![allow(dead_code, reason = "each test binary uses a part of this module")]

use fa_sim::tma::{Swizzle, TensorMap};
use fa_sim::{Buffer, Error, Launch, Report, Schedule, barrier, fence, index, mbarrier, shared};

/// Bytes of shared memory, the last 16 of them for a barrier.
pub(crate) const SHARED_BYTES: u32 = 16 * 1024 + 16;

/// Address of the barrier.
pub(crate) fn bar() -> u32 {
    shared::base() + SHARED_BYTES - 16
}

/// A contiguous tensor of 16-bit elements over `values`.
pub(crate) fn map<const N: usize>(
    values: &[u128],
    dims: [u64; N],
    boxed: [u32; N],
    swizzle: Swizzle,
) -> TensorMap {
    let mut map = TensorMap {
        address: values.as_ptr().expose_provenance() as u64,
        element_bytes: 2,
        rank: N as u32,
        dims: [0; 5],
        strides: [0; 4],
        box_dims: [0; 5],
        swizzle,
    };
    map.dims[..N].copy_from_slice(&dims);
    map.box_dims[..N].copy_from_slice(&boxed);
    let mut stride = 2;
    for (bytes, extent) in map.strides.iter_mut().zip(&dims[..N - 1]) {
        stride *= extent;
        *bytes = stride;
    }
    map
}

/// Element i is i + 1, so that none is zero.
pub(crate) fn counting(elements: usize) -> Vec<u128> {
    let bits: Vec<u16> = (0..elements.next_multiple_of(8)).map(|index| index as u16 + 1).collect();
    bytemuck::pod_collect_to_vec(&bits)
}

/// Runs one block of 64 threads.
pub(crate) fn launch_on(
    schedule: Schedule,
    buffers: &[Buffer],
    kernel: &(dyn Fn() + Sync),
) -> Result<Report, Error> {
    let config = Launch { name: "boxes", grid: 1, block: 64, shared_bytes: SHARED_BYTES, schedule, buffers };
    fa_sim::launch(&config, kernel)
}

/// Thread 0 makes the barrier and calls `issue`; all threads wait for the box and go on with `then`.
pub(crate) fn load_and(bytes: u32, issue: impl Fn(), then: impl Fn()) {
    if index::thread() == 0 {
        mbarrier::init(bar(), 1);
        fence::proxy_async();
        mbarrier::arrive_expect_tx(bar(), bytes);
        issue();
    }
    barrier::sync(0, 64);
    mbarrier::wait(bar(), 0);
    then();
}
