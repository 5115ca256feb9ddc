//! The blocks of a launch, spread over the cores.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::between::Between;
use crate::block::Block;
use crate::cluster;
use crate::context;
use crate::error::Error;
use crate::executor::{Executor, Progress};
use crate::launch::{Launch, Report};
use crate::site::Site;
use crate::stacks::MAX_STACKS;
use crate::state::cluster::{Board, Member};
use crate::state::shared::MAX_BYTES;
use crate::threads::WARP;

/// Most threads of a block (CUDA C++ Programming Guide, compute capabilities).
const MAX_BLOCK: u32 = 1024;

/// Blocks that a worker has at hand where they wait for each other.
const RESIDENT: usize = 2;

/// How long a worker sleeps before blocks look again whether others have come on.
const PAUSE: Duration = Duration::from_micros(20);

/// Most blocks of a one-dimensional grid: 2^31 − 1.
const MAX_GRID: u32 = i32::MAX as u32;

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
    launch_clusters(launch, 1, kernel)
}

/// As [`launch`], with so many blocks in a [cluster](crate::cluster), 1 to 8, which divide the grid.
///
/// # Errors
/// As [`launch`].
pub fn launch_clusters(
    launch: &Launch<'_>,
    cluster: u32,
    kernel: &(dyn Fn() + Sync),
) -> Result<Report, Error> {
    let has_races = launch.schedule.detect_races && launch.grid > 1;
    run((launch, cluster), kernel, has_races.then(Arc::default))
}

/// Launches that may run at the same time, and in any order but for what they wait for.
#[derive(Default)]
pub struct Neighbours {
    between: Arc<Between>,
}

impl Neighbours {
    /// As [`launch_clusters`], of a launch that may run beside those before it that were given to this.
    ///
    /// # Errors
    /// As [`launch`], and when it touches memory that one of the others does, where nothing orders the two.
    pub fn launch(
        &self,
        launch: &Launch<'_>,
        cluster: u32,
        kernel: &(dyn Fn() + Sync),
    ) -> Result<Report, Error> {
        let between = launch.schedule.detect_races.then(|| self.between.clone());
        if let Some(between) = &between {
            between.watch().map_err(|error| *error)?;
        }
        let report = run((launch, cluster), kernel, between)?;
        self.between.pass(launch.grid);
        Ok(report)
    }
}

fn run(
    (launch, cluster): (&Launch<'_>, u32),
    kernel: &(dyn Fn() + Sync),
    between: Option<Arc<Between>>,
) -> Result<Report, Error> {
    validate(launch)?;
    validate_cluster(launch, cluster)?;
    context::install_panic_hook();
    let grid =
        Grid { launch, kernel, cluster, next: AtomicU32::new(0), failed: AtomicU32::new(u32::MAX), between };
    let workers = rayon::current_num_threads()
        .min((launch.grid / cluster) as usize)
        .min(MAX_STACKS / (cluster * launch.block) as usize);
    let outcomes: Vec<Outcome> = (0..workers).into_par_iter().map(|_| grid.work()).collect();
    collect(outcomes)
}

fn validate(launch: &Launch<'_>) -> Result<(), Error> {
    let Launch { name, grid, block, shared_bytes, .. } = *launch;
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
    Err(Error::InvalidLaunch { kernel: name.to_owned(), reason })
}

fn validate_cluster(launch: &Launch<'_>, cluster: u32) -> Result<(), Error> {
    let reason = if !(1..=cluster::MAX_SIZE).contains(&cluster) {
        format!("cluster is {cluster}, not 1 to {}", cluster::MAX_SIZE)
    } else if !launch.grid.is_multiple_of(cluster) {
        format!("grid is {}, no multiple of the cluster's {cluster}", launch.grid)
    } else {
        return Ok(());
    };
    Err(Error::InvalidLaunch { kernel: launch.name.to_owned(), reason })
}

/// A launch in progress, shared by its workers.
struct Grid<'a> {
    launch: &'a Launch<'a>,
    kernel: &'a (dyn Fn() + Sync),
    /// Blocks of a cluster.
    cluster: u32,
    /// The next block to run.
    next: AtomicU32,
    /// The lowest-numbered block that has failed.
    failed: AtomicU32,
    /// `None` where races between blocks are not looked for.
    between: Option<Arc<Between>>,
}

/// What became of an executor's block.
enum Advance {
    Ended,
    /// It waits for others.
    Waits,
    /// There is none left.
    Idle,
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
        let first = |_| Executor::new(self.launch, self.kernel, self.between.clone());
        let mut executors: Vec<_> = match (0..self.cluster).map(first).collect() {
            Ok(executors) => executors,
            Err(error) => {
                self.failed.store(0, Relaxed);
                outcome.failure = Some((0, error));
                return outcome;
            }
        };
        match self.cluster {
            1 => self.run_blocks(&mut executors, &mut outcome),
            _ => self.run_clusters(&mut executors, &mut outcome),
        }
        for executor in &mut executors {
            outcome.finish(executor.block());
        }
        outcome
    }

    /// Runs clusters, one after the other, the blocks of each by turns.
    fn run_clusters(&self, executors: &mut [Executor<'_>], outcome: &mut Outcome) {
        while let Some(first) = self.next_block() {
            let board = Arc::new(Board::new(self.cluster));
            for (executor, rank) in executors.iter_mut().zip(0..) {
                executor.begin_in_cluster(first + rank, Member::new(board.clone(), rank));
            }
            while executors.iter().any(Executor::is_running) {
                let phase = board.phase();
                let mut ended = 0;
                for executor in executors.iter_mut().filter(|executor| executor.is_running()) {
                    ended += u32::from(matches!(self.advance(executor, outcome), Advance::Ended));
                }
                if outcome.failure.is_some() || self.has_failed() {
                    return;
                }
                // Those that wait do so in vain, and say where.
                if ended == 0 && board.phase() == phase {
                    executors.iter_mut().for_each(|executor| executor.block().give_up_cluster());
                }
            }
        }
    }

    /// Runs blocks one after the other, or, where one waits for others, it and the next by turns.
    fn run_blocks(&self, executors: &mut Vec<Executor<'_>>, outcome: &mut Outcome) {
        loop {
            let (mut waiting, mut idle) = (0, 0);
            for executor in executors.iter_mut() {
                match self.advance(executor, outcome) {
                    Advance::Ended => {}
                    Advance::Waits => waiting += 1,
                    Advance::Idle => idle += 1,
                }
            }
            // Where a block has failed, another may wait for it in vain.
            if outcome.failure.is_some() || waiting == 0 && idle > 0 || waiting > 0 && self.has_failed() {
                break;
            }
            if waiting + idle == executors.len() {
                let another = (idle == 0 && waiting < RESIDENT).then(|| executors[0].another()).flatten();
                match another {
                    Some(executor) => executors.push(executor),
                    None => thread::sleep(PAUSE),
                }
            }
        }
    }

    /// Goes on with the block that an executor has at hand, or begins the next.
    fn advance(&self, executor: &mut Executor<'_>, outcome: &mut Outcome) -> Advance {
        if !executor.is_running() {
            let Some(index) = self.next_block() else { return Advance::Idle };
            executor.begin(index);
        }
        let Progress::Ended(result) = executor.go_on() else { return Advance::Waits };
        outcome.add_block(executor.block());
        if let Err(error) = result {
            let index = executor.block().index;
            self.failed.fetch_min(index, Relaxed);
            outcome.failure.get_or_insert((index, error));
        }
        Advance::Ended
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Relaxed) < u32::MAX
    }

    /// The next block, or the first of the next cluster. They are handed out in ascending order, so each one
    /// below a failed block runs, and which error is reported does not depend on the cores.
    fn next_block(&self) -> Option<u32> {
        let index = self.next.fetch_add(self.cluster, Relaxed);
        (index < self.launch.grid && index < self.failed.load(Relaxed)).then_some(index)
    }
}

impl Outcome {
    fn add_block(&mut self, block: &Block) {
        self.report.barriers += block.barriers.completed;
        self.report.switches += block.picker.picks;
        // Rotated by the block, so that blocks that swap their traces do not go unnoticed.
        let trace = block.picker.trace.rotate_left(block.index % 64);
        self.report.trace = self.report.trace.wrapping_add(trace);
    }

    fn finish(&mut self, block: &Block) {
        self.report.global_bytes_read += block.global.bytes_read;
        self.report.global_bytes_written += block.global.bytes_written;
        self.report.shared_bytes_read += block.shared.bytes_read;
        self.report.shared_bytes_written += block.shared.bytes_written;
        let sites = block.barrier_sites.iter();
        self.barrier_sites.extend(sites.map(|&site| block.sites.get(site)));
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
