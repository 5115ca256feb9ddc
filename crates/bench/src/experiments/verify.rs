//! Every built kernel against the f64 reference, over shapes that break careless ones.

mod cases;
mod targets;

use std::ops::RangeInclusive;
use std::time::Instant;

use anyhow::{Context as _, Result};
use flash_attention::{Backend, BackendKind, DType, Element, Error, Kernel, Problem};
use rayon::prelude::*;
use serde::Serialize;

use crate::check::{Expected, Verdict};
use crate::cli::{BackendArgs, ReportArgs, named};
use crate::failure::usage;
use crate::inputs::Inputs;
use crate::measure::with_element;
use crate::output::Screen;
use crate::problem::describe;
use crate::record::Header;
use crate::session::Session;
use crate::table::judgement;
use cases::{Case, cases};
use targets::{Target, targets};

/// Rows of a case that are compared with the reference; the simulator's cases have fewer.
const CHECKED_ROWS: usize = 144;

/// Arguments of `verify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Thread orders in which the simulator runs each case; the first 8 differ in kind, the rest by chance
    #[arg(long, default_value_t = 8, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// The only kernel to verify
    #[arg(long, value_parser = named(&Kernel::ALL, Kernel::name))]
    kernel: Option<Kernel>,
    /// Only entries with this text in their name
    #[arg(long, value_name = "TEXT")]
    entry: Option<String>,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    header: Header,
    entries: Vec<EntryRecord>,
    skipped: Vec<SkippedRecord>,
    runs: usize,
    seconds: f64,
    passed: bool,
}

#[derive(Clone, Serialize)]
struct EntryRecord {
    entry: String,
    dtype: &'static str,
    head_dims: (usize, usize),
    runs: usize,
    /// Of the run with the largest error in terms of its bound.
    max_error: f64,
    bound: f64,
    failures: Vec<String>,
    passed: bool,
}

#[derive(Serialize)]
struct SkippedRecord {
    entry: String,
    reason: String,
}

/// A case made concrete for a storage type and a range of head_dims.
struct Trial<T> {
    problem: Problem,
    inputs: Inputs<T>,
    expected: Expected<T>,
    name: String,
}

/// One run: a verdict, or what stopped the kernel.
struct Outcome {
    what: String,
    result: Result<Verdict, String>,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    let (targets, skipped) = chosen(&session, args)?;
    let cases = cases(session.kind());
    session.header(&screen)?;
    let count = names(&targets).count();
    screen.line(match session.kind() {
        BackendKind::Sim => {
            format!(
                "{count} entries, each on those of {} cases that it takes, in {} schedules",
                cases.len(),
                args.schedules
            )
        }
        BackendKind::Cuda | BackendKind::Cpu => {
            format!("{count} entries, each on those of {} cases that it takes", cases.len())
        }
    })?;
    let start = Instant::now();
    let mut entries = Vec::new();
    let mut runs = 0;
    for group in groups(targets) {
        let records = with_element!(group[0].dtype, verify(&session, args, &group, &cases, &screen))?;
        runs += records.iter().map(|of_target| of_target[0].runs).sum::<usize>();
        entries.extend(records.into_iter().flatten());
    }
    for SkippedRecord { entry, reason } in &skipped {
        screen.line(format!("skip {entry}: {reason}"))?;
    }
    let failed = entries.iter().filter(|entry| !entry.passed).count();
    let seconds = start.elapsed().as_secs_f64();
    screen.line(format!(
        "{} entries passed, {failed} failed, {} skipped: {runs} runs in {seconds:.1} s",
        entries.len() - failed,
        skipped.len()
    ))?;
    let header = Header::new("verify", &session, args.report.seed);
    let document = Document { header, entries, skipped, runs, seconds, passed: failed == 0 };
    args.report.write(&document, &screen)?;
    Ok(document.passed)
}

/// The targets that the arguments select and the device can run, and the entries that it cannot.
fn chosen(session: &Session, args: &Args) -> Result<(Vec<Target>, Vec<SkippedRecord>)> {
    let available = Kernel::of_backend(session.kind());
    if let Some(kernel) = args.kernel.filter(|kernel| !available.contains(kernel)) {
        return Err(Error::KernelNotOnBackend {
            kernel: kernel.name(),
            backend: session.kind().name(),
            available: available.iter().map(|kernel| kernel.name()).collect::<Vec<_>>().join(", "),
        }
        .into());
    }
    let named = |target: &Target| {
        args.entry.as_ref().is_none_or(|text| target.names.iter().any(|name| name.contains(text)))
    };
    let all: Vec<_> = targets(session.kind(), args.kernel).into_iter().filter(named).collect();
    if all.is_empty() {
        let text = args.entry.as_deref().unwrap_or_default();
        return Err(usage(format!("--entry {text}: no entry has this in its name")));
    }
    let mut skipped = Vec::new();
    let mut chosen = Vec::new();
    for target in all {
        // The limits of GPUs are no limits of the CPU's kernels, which have no entries.
        match target.refused_by(session.device()) {
            None => chosen.push(target),
            Some(reason) => skipped.extend(
                target.names.into_iter().map(|entry| SkippedRecord { entry, reason: reason.clone() }),
            ),
        }
    }
    Ok((chosen, skipped))
}

/// Targets that share inputs and references: of one storage type and one range of head_dims.
fn groups(targets: Vec<Target>) -> Vec<Vec<Target>> {
    let mut groups: Vec<Vec<Target>> = Vec::new();
    for target in targets {
        let same = |group: &&mut Vec<Target>| {
            (group[0].dtype, &group[0].head_dims) == (target.dtype, &target.head_dims)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(target),
            None => groups.push(vec![target]),
        }
    }
    groups
}

fn names(targets: &[Target]) -> impl Iterator<Item = &String> {
    targets.iter().flat_map(|target| &target.names)
}

/// Verifies the targets of a group, printing a line for each entry as soon as it is known.
fn verify<T: Element>(
    session: &Session,
    args: &Args,
    group: &[Target],
    cases: &[Case],
    screen: &Screen,
) -> Result<Vec<Vec<EntryRecord>>> {
    let seeds = (args.report.seed..).zip(cases);
    let trials: Vec<Trial<T>> = seeds
        .map(|(seed, case)| Trial::new(case, T::DTYPE, &group[0].head_dims, seed))
        .collect::<Result<_>>()?;
    let mut records = Vec::new();
    for target in group {
        let taken: Vec<_> = trials.iter().filter(|trial| target.takes(&trial.problem)).collect();
        let outcomes = match session.kind() {
            BackendKind::Sim => taken
                .par_iter()
                .flat_map(|trial| (0..args.schedules).into_par_iter().map(move |seed| (trial, seed)))
                .map(|(trial, seed)| {
                    trial.run(&Backend::simulator(seed), target, &format!("schedule {seed}, "))
                })
                .collect::<Result<Vec<_>>>()?,
            BackendKind::Cuda | BackendKind::Cpu => taken
                .iter()
                .map(|trial| trial.run(&session.backend, target, ""))
                .collect::<Result<Vec<_>>>()?,
        };
        let of_target: Vec<_> = target.names.iter().map(|name| record(name, target, &outcomes)).collect();
        of_target.iter().try_for_each(|record| print(screen, record))?;
        records.push(of_target);
    }
    Ok(records)
}

impl<T: Element> Trial<T> {
    fn new(case: &Case, dtype: DType, head_dims: &RangeInclusive<usize>, seed: u64) -> Result<Self> {
        let problem = case.problem(dtype, head_dims)?;
        let inputs = Inputs::random(&problem, seed);
        let expected = Expected::new(&problem, &inputs, CHECKED_ROWS, seed);
        let name = describe(&problem, case.layout());
        Ok(Self { problem, inputs, expected, name })
    }

    /// Runs a target once over poisoned outputs. What speaks against the kernel is part of the outcome.
    ///
    /// # Errors
    /// What speaks against the machine.
    fn run(&self, backend: &Backend, target: &Target, conditions: &str) -> Result<Outcome> {
        let what = format!("{conditions}{}", self.name);
        let result = match self.verdict(backend, target) {
            Ok(result) => result,
            Err(error @ (Error::Simulator(_) | Error::Jit { .. })) => Err(error.to_string()),
            Err(error) => return Err(error).with_context(|| format!("{}, {what}", target.names.join(" + "))),
        };
        Ok(Outcome { what, result })
    }

    fn verdict(
        &self,
        backend: &Backend,
        target: &Target,
    ) -> flash_attention::Result<Result<Verdict, String>> {
        let plan = backend.plan(&self.problem, &target.request)?;
        if let Some(entry) = target.missing_from(&plan) {
            return Ok(Err(format!("the planner does not launch {entry}")));
        }
        let mut prepared = backend.prepare(&self.problem, &plan, self.inputs.tensors())?;
        prepared.poison()?;
        prepared.time()?;
        let (o, lse) = prepared.outputs()?;
        Ok(Ok(self.expected.judge(&self.problem, &plan, &o, &lse)))
    }
}

fn record(name: &str, target: &Target, outcomes: &[Outcome]) -> EntryRecord {
    let share = |verdict: &&Verdict| verdict.output.max_error / verdict.output.bound.max(f64::MIN_POSITIVE);
    let worst = outcomes
        .iter()
        .filter_map(|outcome| outcome.result.as_ref().ok())
        .max_by(|a, b| share(a).total_cmp(&share(b)))
        .map(|verdict| verdict.output);
    let failures: Vec<_> = outcomes
        .iter()
        .filter_map(|Outcome { what, result }| match result {
            Ok(verdict) if verdict.passed() => None,
            Ok(verdict) => {
                let (error, bound) = (verdict.output.max_error, verdict.output.bound);
                Some(format!("{what}: {}, max error {error:.2e}, bound {bound:.2e}", judgement(verdict)))
            }
            Err(reason) => Some(format!("{what}: {reason}")),
        })
        .collect();
    EntryRecord {
        entry: name.to_owned(),
        dtype: target.dtype.name(),
        head_dims: (*target.head_dims.start(), *target.head_dims.end()),
        runs: outcomes.len(),
        max_error: worst.map_or(0.0, |output| output.max_error),
        bound: worst.map_or(0.0, |output| output.bound),
        passed: failures.is_empty(),
        failures,
    }
}

fn print(screen: &Screen, record: &EntryRecord) -> std::io::Result<()> {
    let EntryRecord { entry, runs, max_error, bound, passed, head_dims: (least, most), .. } = record;
    let verdict = if *passed { "pass" } else { "FAIL" };
    screen.line(format!(
        "{verdict} {entry:32} head_dim {least}-{most}, {}: max error {max_error:.2e}, bound {bound:.2e}",
        if *runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") }
    ))?;
    record.failures.iter().try_for_each(|failure| screen.line(format!("     {failure}")))
}
