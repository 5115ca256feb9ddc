//! Launches for the tests.
#![allow(dead_code, reason = "each test binary uses a part of this module")]

use fa_sim::{Error, Launch, Report, Schedule, launch, shared};

/// One block of `threads` threads with 4 KiB of shared memory and no buffers.
pub(crate) fn one_block(threads: u32, seed: u64) -> Launch<'static> {
    Launch {
        name: "broken",
        grid: 1,
        block: threads,
        shared_bytes: 4096,
        schedule: Schedule::from_seed(seed),
        buffers: &[],
    }
}

/// Runs `kernel` on [`one_block`].
pub(crate) fn run(threads: u32, seed: u64, kernel: impl Fn() + Sync) -> Result<Report, Error> {
    launch(&one_block(threads, seed), &kernel)
}

/// Runs `kernel` on [`one_block`] and returns the error that it must give, with its message.
pub(crate) fn fails(threads: u32, seed: u64, kernel: impl Fn() + Sync) -> (Error, String) {
    let error = run(threads, seed, kernel).expect_err("the kernel is broken");
    let message = error.to_string();
    (error, message)
}

/// Address of the `index`-th fp32 of shared memory.
pub(crate) fn word(index: u32) -> u32 {
    shared::base() + 4 * index
}

/// Asserts that `message` contains each of `parts`.
#[track_caller]
pub(crate) fn assert_contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing from: {message}");
    }
}
