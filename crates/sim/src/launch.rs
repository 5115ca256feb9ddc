//! A launch, and what its blocks did: values alone.

use crate::buffer::Buffer;
use crate::schedule::Schedule;

/// What [`launch`](crate::launch()) runs.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Name of the kernel, for messages.
    pub name: &'a str,
    /// Number of blocks, 1 to 2^31 − 1.
    pub grid: u32,
    /// Threads of a block: a multiple of 32, at most 1,024.
    pub block: u32,
    /// Bytes of dynamic shared memory of a block, at most 232,448 (227 KiB).
    pub shared_bytes: u32,
    /// How the threads of a block interleave.
    pub schedule: Schedule,
    /// The global memory that the kernel may touch.
    pub buffers: &'a [Buffer],
}

/// What a launch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Bytes that all threads loaded from global memory, and TMA for them.
    pub global_bytes_read: u64,
    /// Bytes that all threads stored to global memory, and TMA for them.
    pub global_bytes_written: u64,
    /// Bytes that all threads loaded from shared memory.
    pub shared_bytes_read: u64,
    /// Bytes that all threads stored to shared memory.
    pub shared_bytes_written: u64,
    /// Distinct source locations of `barrier::sync` and `barrier::arrive` that were executed.
    pub barrier_sites: usize,
    /// Barrier phases completed, over all blocks.
    pub barriers: u64,
    /// Times that a thread was resumed, over all blocks.
    pub switches: u64,
    /// Hash of the order in which the threads of each block advanced: equal for equal executions.
    pub trace: u64,
}
