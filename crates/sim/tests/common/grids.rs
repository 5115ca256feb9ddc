//! Launches of several blocks.
#![allow(dead_code, reason = "each test binary uses a part of this module")]

use fa_sim::{Buffer, Error, Launch, Report, Schedule};

/// Bytes of shared memory of a block.
pub(crate) const SHARED_BYTES: u32 = 1024;

/// Runs blocks of a warp on so many cores.
pub(crate) fn on_cores(
    cores: usize,
    (grid, seed): (u32, u64),
    buffers: &[Buffer],
    kernel: impl Fn() + Sync,
) -> Result<Report, Error> {
    let schedule = Schedule::from_seed(seed);
    let launch = Launch { name: "kernel", grid, block: 32, shared_bytes: SHARED_BYTES, schedule, buffers };
    let workers = rayon::ThreadPoolBuilder::new().num_threads(cores).build().expect("threads");
    workers.install(|| fa_sim::launch(&launch, &kernel))
}
