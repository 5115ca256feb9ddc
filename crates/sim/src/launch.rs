//! A launch: what runs, on how many threads, over which buffers.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::WARP;
use crate::context;
use crate::error::Error;
use crate::executor::Executor;
use crate::schedule::Schedule;
use crate::shared::MAX_BYTES;
use crate::site::Site;
use crate::stacks::MAX_STACKS;

/// Most threads of a block (CUDA C++ Programming Guide, compute capabilities).
const MAX_BLOCK: u32 = 1024;

/// Most blocks of a one-dimensional grid: 2^31 − 1.
const MAX_GRID: u32 = i32::MAX as u32;

/// What [`launch`] runs.
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

/// A range of global memory, which is host memory here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name for messages.
    pub name: String,
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What the kernel may do with it.
    pub access: BufferAccess,
    /// The bytes that may be written, where not all of them may: in ascending order, apart from one another.
    pub(crate) reached: Option<Arc<[Range<u64>]>>,
}

impl Buffer {
    /// The memory of `values`, for reading.
    pub fn read<T>(name: impl Into<String>, values: &[T]) -> Self {
        Self {
            name: name.into(),
            address: values.as_ptr().expose_provenance() as u64,
            bytes: size_of_val(values) as u64,
            access: BufferAccess::Read,
            reached: None,
        }
    }

    /// The memory of `values`, for reading and writing.
    pub fn read_write<T>(name: impl Into<String>, values: &mut [T]) -> Self {
        Self {
            name: name.into(),
            address: values.as_mut_ptr().expose_provenance() as u64,
            bytes: size_of_val(values) as u64,
            access: BufferAccess::ReadWrite,
            reached: None,
        }
    }

    /// Of its bytes only those in `ranges` may be written, counted from its first: what a view of it reaches.
    ///
    /// # Panics
    /// When a range ends past the buffer.
    pub fn reaching(self, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut ranges: Vec<_> =
            ranges.into_iter().map(|range| range.start as u64..range.end as u64).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let joins = next.start <= range.end;
            if joins {
                range.end = range.end.max(next.end);
            }
            joins
        });
        let end = ranges.last().map_or(0, |range| range.end);
        assert!(end <= self.bytes, "bytes to {end} of `{}`, which has {}", self.name, self.bytes);
        Self { reached: Some(ranges.into()), ..self }
    }

    /// The first of some bytes of it that may not be written.
    pub(crate) fn first_unreached(&self, address: u64, bytes: u64) -> Option<u64> {
        let reached = self.reached.as_ref()?;
        let first = address - self.address;
        let range = reached.get(reached.partition_point(|range| range.end <= first));
        match range.filter(|range| range.start <= first) {
            // Ranges that touch are one.
            Some(range) => (range.end < first + bytes).then_some(range.end),
            None => Some(first),
        }
    }
}

/// What a kernel may do with a [`Buffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferAccess {
    /// Load from it.
    Read,
    /// Load from it and store to it.
    ReadWrite,
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

/// Runs `kernel` once for each thread of each block of the grid.
///
/// Panics of the kernel are reported as errors and do not reach stderr: the first launch of a
/// process puts a panic hook in front of the one in place, which sees to that for panics in
/// kernels and hands all others on.
///
/// # Errors
/// [`Error::InvalidLaunch`] before anything runs, or what went wrong in the lowest-numbered block
/// that failed. Writes to global memory that went before stay.
pub fn launch(launch: &Launch<'_>, kernel: &(dyn Fn() + Sync)) -> Result<Report, Error> {
    launch.validate()?;
    context::install_panic_hook();
    let grid = Grid { launch, kernel, next: AtomicU32::new(0), failed: AtomicU32::new(u32::MAX) };
    let workers =
        rayon::current_num_threads().min(launch.grid as usize).min(MAX_STACKS / launch.block as usize);
    let outcomes: Vec<Outcome> = (0..workers).into_par_iter().map(|_| grid.work()).collect();
    collect(outcomes)
}

impl Launch<'_> {
    fn validate(&self) -> Result<(), Error> {
        let Self { grid, block, shared_bytes, .. } = *self;
        let reason = if context::is_inside() {
            String::from("it was called from within a kernel")
        } else if !(1..=MAX_GRID).contains(&grid) {
            format!("grid is {grid}, not 1 to {MAX_GRID}")
        } else if !(1..=MAX_BLOCK).contains(&block) || !block.is_multiple_of(WARP) {
            format!("block is {block}, not a multiple of {WARP} from {WARP} to {MAX_BLOCK}")
        } else if shared_bytes > MAX_BYTES {
            format!("shared_bytes is {shared_bytes}, the limit is {MAX_BYTES}")
        } else {
            return Ok(());
        };
        Err(Error::InvalidLaunch { kernel: self.name.to_owned(), reason })
    }
}

/// A launch in progress, shared by its workers.
struct Grid<'a> {
    launch: &'a Launch<'a>,
    kernel: &'a (dyn Fn() + Sync),
    /// The next block to run.
    next: AtomicU32,
    /// The lowest-numbered block that has failed.
    failed: AtomicU32,
}

/// What one worker's blocks did.
#[derive(Default)]
struct Outcome {
    report: Report,
    barrier_sites: HashSet<Site>,
    /// The block that failed, with its error.
    failure: Option<(u32, Error)>,
}

impl Grid<'_> {
    /// Runs blocks until none are left.
    fn work(&self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut executor = match Executor::new(self.launch, self.kernel) {
            Ok(executor) => executor,
            Err(error) => {
                self.failed.store(0, Relaxed);
                outcome.failure = Some((0, error));
                return outcome;
            }
        };
        while let Some(index) = self.next_block() {
            let result = executor.run(index);
            outcome.add_block(executor.block());
            if let Err(error) = result {
                self.failed.fetch_min(index, Relaxed);
                outcome.failure = Some((index, error));
                break;
            }
        }
        outcome.finish(executor.block());
        outcome
    }

    /// Blocks are handed out in ascending order, so each one below a failed block runs, and
    /// which error is reported does not depend on the cores.
    fn next_block(&self) -> Option<u32> {
        let index = self.next.fetch_add(1, Relaxed);
        (index < self.launch.grid && index < self.failed.load(Relaxed)).then_some(index)
    }
}

impl Outcome {
    fn add_block(&mut self, block: &crate::block::Block) {
        self.report.barriers += block.barriers.completed;
        self.report.switches += block.picker.picks;
        // Rotated by the block, so that blocks that swap their traces do not go unnoticed.
        let trace = block.picker.trace.rotate_left(block.index % 64);
        self.report.trace = self.report.trace.wrapping_add(trace);
    }

    fn finish(&mut self, block: &crate::block::Block) {
        self.report.global_bytes_read = block.global.bytes_read;
        self.report.global_bytes_written = block.global.bytes_written;
        self.report.shared_bytes_read = block.shared.bytes_read;
        self.report.shared_bytes_written = block.shared.bytes_written;
        let sites = block.barrier_sites.iter();
        self.barrier_sites = sites.map(|&site| block.sites.get(site)).collect();
    }
}

fn collect(outcomes: Vec<Outcome>) -> Result<Report, Error> {
    let mut total = Report::default();
    let mut sites = HashSet::new();
    let mut failures = Vec::new();
    for outcome in outcomes {
        let report = outcome.report;
        total.global_bytes_read += report.global_bytes_read;
        total.global_bytes_written += report.global_bytes_written;
        total.shared_bytes_read += report.shared_bytes_read;
        total.shared_bytes_written += report.shared_bytes_written;
        total.barriers += report.barriers;
        total.switches += report.switches;
        total.trace = total.trace.wrapping_add(report.trace);
        sites.extend(outcome.barrier_sites);
        failures.extend(outcome.failure);
    }
    total.barrier_sites = sites.len();
    match failures.into_iter().min_by_key(|(block, _)| *block) {
        Some((_, error)) => Err(error),
        None => Ok(total),
    }
}
