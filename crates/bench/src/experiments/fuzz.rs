//! Random problems, each in memory full of NaN, against the f64 reference.

mod attention;
mod backward;
mod bench;
mod case;
mod crew;
mod data;
mod decode;
mod draw;
mod functions;
mod generate;
mod image;
mod machine;
mod outcome;
mod panics;
mod place;
mod product;
mod replay;
mod run;
mod shrink;
mod start;
mod worker;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use flash_attention::BackendKind;
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::Serialize;

use self::case::{Case, Operation};
use self::crew::{Count, Crew, Extent, Found};
use self::generate::Scope;
use self::panics::Quiet;
use self::worker::{ENDLESS, Worker};
use crate::args::{BackendArgs, ReportArgs, named, seconds};
use crate::interrupt::{self, Interrupted};
use crate::lab::Shared;
use crate::output::{Progress, Screen};
use crate::record::Header;
use crate::session::Session;

/// Arguments of `fuzz`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Problems to run [default: 1000; with --seconds no limit]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,
    /// Seconds after which no problem is begun
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// The only operation to run [default: all]
    #[arg(long, value_parser = named(&Operation::ALL, Operation::name))]
    operation: Option<Operation>,
    /// Run this problem alone, as a failure's line has it
    #[arg(long, value_name = "JSON", value_parser = Case::parse)]
    #[arg(conflicts_with_all = ["runs", "seconds", "operation", "seed", "json"])]
    problem: Option<Case>,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Problems of a run without a limit.
const RUNS: u64 = 1000;

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    header: Header,
    command: String,
    /// By operation.
    problems: BTreeMap<&'static str, Count>,
    runs: u64,
    seconds: f64,
    runs_per_second: f64,
    failures: Vec<FailureRecord>,
    /// What the library refused, and how often.
    refusals: BTreeMap<String, u64>,
    /// Why there are fewer than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<String>,
    passed: bool,
}

#[derive(Clone, Serialize)]
struct FailureRecord {
    operation: &'static str,
    what: String,
    /// Runs it alone, made smaller.
    replay: String,
    /// Runs it alone, as it was drawn.
    drawn: String,
}

/// Runs the experiment; false if a problem failed.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    interrupt::listen()?;
    let _quiet = Quiet::begin();
    if let Some(case) = &args.problem {
        return replay::one(case, &session, &screen);
    }
    screen.line("fuzz: random problems in memory full of NaN, against the f64 reference")?;
    session.header(&screen)?;
    let time = args.seconds.map(Duration::from_secs_f64);
    let runs = args.runs.unwrap_or(if time.is_some() { u64::MAX } else { RUNS });
    let extent = Extent { seed: args.report.seed, runs, time };
    let scope = Scope { backend: session.kind(), operation: args.operation };
    let team = Team::of(&session)?;
    let crew = Crew::new(scope, extent, team.pools.len());
    let mut journal =
        Journal { args, command: &shared.command, session: &session, screen: &screen, failures: Vec::new() };
    team.run(&crew, &mut journal)?;
    journal.finish(&crew)
}

/// Threads by pool: parallel parts of a problem run on its pool, and none of another problem's do.
struct Team {
    pools: Vec<ThreadPool>,
}

impl Team {
    /// A GPU and the simulator have as many problems at a time as there are cores; the CPU's kernels want
    /// several for each.
    fn of(session: &Session) -> Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (problems, threads) = match session.kind() {
            BackendKind::Cuda | BackendKind::Sim => (cores, 1),
            BackendKind::Cpu => (cores, 2),
        };
        let pool = |index| {
            let builder = ThreadPoolBuilder::new().num_threads(threads);
            builder.thread_name(move |thread| format!("fuzz {index}.{thread}")).build().context("threads")
        };
        Ok(Self { pools: (0..problems).map(pool).collect::<Result<_>>()? })
    }

    /// Lets all work, and reports failures as they come.
    fn run(&self, crew: &Crew, journal: &mut Journal<'_>) -> Result<()> {
        let session = journal.session;
        let machines: Vec<_> = self.pools.iter().map(|_| Worker::of(session)).collect::<Result<_>>()?;
        let progress = journal.screen.progress(crew.length(), "fuzz");
        let mut suspects = Vec::new();
        thread::scope(|scope| {
            let pools = self.pools.iter().zip(machines).enumerate();
            let workers: Vec<_> = pools
                .map(|(index, (pool, machine))| {
                    scope.spawn(move || pool.install(|| machine.work(crew, index)))
                })
                .collect();
            let is_over = || workers.iter().all(thread::ScopedJoinHandle::is_finished);
            let watched = watch(crew, &progress, journal, &mut suspects, is_over);
            // Where the report cannot be printed, nobody waits for more of it.
            crew.end();
            watched
        })?;
        drop(progress);
        journal.note(crew.take_found(), &mut suspects)?;
        let ordinal = journal.args.backend.device.unwrap_or(0);
        replay::culprits(session, ordinal, suspects)?.into_iter().try_for_each(|found| journal.report(found))
    }
}

/// Notes failures and progress until all is done.
fn watch(
    crew: &Crew,
    progress: &Progress,
    journal: &mut Journal<'_>,
    suspects: &mut Vec<Found>,
    is_over: impl Fn() -> bool,
) -> Result<()> {
    let mut shown = 0;
    while !is_over() {
        thread::sleep(Duration::from_millis(20));
        let steps = crew.progress();
        progress.advance(steps - shown);
        shown = steps;
        let found = crew.take_found();
        if !found.is_empty() {
            progress.suspend(|| journal.note(found, suspects))?;
        }
        if journal.session.kind() == BackendKind::Cuda
            && let Some(found) = crew.endless(ENDLESS)
        {
            suspects.push(found);
            progress.suspend(|| suspects.drain(..).try_for_each(|found| journal.report(found)))?;
            journal.finish(crew)?;
            // The thread waits for the driver for ever, and so would whoever waits for the thread.
            std::process::exit(1);
        }
    }
    Ok(())
}

/// What a run says, and leaves behind.
struct Journal<'a> {
    args: &'a Args,
    command: &'a str,
    session: &'a Session,
    screen: &'a Screen,
    failures: Vec<FailureRecord>,
}

impl Journal<'_> {
    /// Reports failures, but for those that may be another problem's.
    fn note(&mut self, found: Vec<Found>, suspects: &mut Vec<Found>) -> Result<()> {
        for found in found {
            if replay::took_the_device(self.session, &found) {
                suspects.push(found);
            } else {
                self.report(found)?;
            }
        }
        Ok(())
    }

    fn report(&mut self, found: Found) -> Result<()> {
        let record = record(&found, self.args, self.session.kind());
        let FailureRecord { operation, what, replay, .. } = &record;
        self.screen.line(format!("FAIL {operation}: {what}; replay: {replay}"))?;
        self.failures.push(record);
        Ok(())
    }

    /// The last lines, the document, and whether all is well.
    fn finish(&mut self, crew: &Crew) -> Result<bool> {
        let seconds = crew.seconds();
        let problems: BTreeMap<_, _> = Operation::ALL
            .map(Operation::name)
            .into_iter()
            .zip(crew.counts())
            .filter(|(_, count)| count.all() > 0)
            .collect();
        let sum = |part: fn(&Count) -> u64| problems.values().map(part).sum::<u64>();
        let runs = sum(Count::all);
        let of: Vec<_> = problems.iter().map(|(name, count)| format!("{} {name}", count.all())).collect();
        self.screen.line(format!(
            "{runs} problems ({}) in {seconds:.1} s, {:.1} a second: {} right, {} refused, {} planned alone, {} failed",
            of.join(", "),
            runs as f64 / seconds,
            sum(|count| count.passed),
            sum(|count| count.refused),
            sum(|count| count.planned),
            self.failures.len(),
        ))?;
        let interrupted = interrupt::check();
        let gave_up = crew.gave_up().map(|why| format!("it ended after {runs} problems: {why}"));
        if let Some(gave_up) = &gave_up {
            self.screen.line(gave_up)?;
        }
        let stopped = if interrupted.is_err() { Some(Interrupted.to_string()) } else { gave_up };
        let passed = self.failures.is_empty();
        let document = Document {
            header: Header::new("fuzz", self.session, self.args.report.seed),
            command: self.command.to_owned(),
            problems,
            runs,
            seconds,
            runs_per_second: runs as f64 / seconds,
            failures: std::mem::take(&mut self.failures),
            refusals: crew.refusals(),
            stopped,
            passed,
        };
        self.args.report.write(&document, self.screen)?;
        if passed {
            interrupted.with_context(|| format!("fuzz: {runs} problems ran"))?;
        }
        Ok(passed)
    }
}

/// The failure with the command lines that bring it back.
fn record(found: &Found, args: &Args, kind: BackendKind) -> FailureRecord {
    let device = args.backend.device.map_or(String::new(), |ordinal| format!(" --device {ordinal}"));
    let operation =
        args.operation.map_or(String::new(), |operation| format!(" --operation {}", operation.name()));
    FailureRecord {
        operation: found.operation.name(),
        what: found.failure.to_string(),
        replay: format!("fa-bench fuzz --backend {kind}{device} --problem '{}'", found.case.text()),
        drawn: format!("fa-bench fuzz --backend {kind}{device}{operation} --seed {} --runs 1", found.name),
    }
}
