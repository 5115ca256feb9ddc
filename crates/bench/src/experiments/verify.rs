//! Every built kernel against the f64 reference, over shapes that break careless ones.

mod args;
mod backward;
mod cases;
mod decode;
mod products;
mod repeat;
mod targets;

use std::ops::RangeInclusive;
use std::time::Instant;

use anyhow::{Context as _, Result};
use fa_kernels::entries::Entry;
use flash_attention::{Backend, BackendKind, DType, Element, Error, Problem};
use rayon::prelude::*;
use serde::Serialize;

use crate::check::{Expected, Verdict};
use crate::failure::usage;
use crate::inputs::Inputs;
use crate::measure::{judged, with_element};
use crate::output::Screen;
use crate::problem::describe;
use crate::record::Header;
use crate::session::Session;
use crate::table::judgement;
pub(crate) use args::Args;
use args::{AnyKernel, Sizes};
use cases::{Case, cases};
use products::verify as verify_product;
use repeat::repeated;
use targets::{Target, refusal, targets};

/// Rows of a case that are compared with the reference; small cases have fewer.
const CHECKED_ROWS: usize = 144;

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
    #[serde(skip_serializing_if = "Option::is_none")]
    head_dims: Option<(usize, usize)>,
    runs: usize,
    /// How often each run was made, with the same bits.
    repeats: usize,
    /// Whether each was also replayed from a CUDA graph, with the same bits.
    replayed: bool,
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
struct Trial<T: Element> {
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

/// A problem for a target: what a run is about.
trait Subject: Sync {
    /// The problem in words.
    fn name(&self) -> String;

    /// The target in words.
    fn target(&self) -> String;

    /// Runs over poisoned outputs, judges them, and runs again until there are `repeats` runs of the same bits. What
    /// speaks against the kernel is inside, or a simulator's error.
    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>>;
}

/// What the arguments select and the device can run.
#[derive(Default)]
struct Chosen {
    attention: Vec<Target>,
    decode: Vec<&'static Entry>,
    backward: Vec<backward::Target>,
    products: Vec<products::Target>,
    skipped: Vec<SkippedRecord>,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    let Chosen { attention, decode, backward, products, skipped } = chosen(&session, args)?;
    let sizes = args.sizes(session.kind());
    let cases = cases(sizes);
    session.header(&screen)?;
    let count = names(&attention).count() + decode.len() + backward.len() + products.len();
    let schedules = match session.kind() {
        BackendKind::Sim => format!(" in {} schedules", args.schedules),
        BackendKind::Cuda | BackendKind::Cpu => String::new(),
    };
    let (of_decode, of_products) = (decode::cases(sizes).len(), products::shapes(sizes).count());
    screen.line(format!(
        "{count} entries, each on those of {} cases that it takes (decode: {of_decode}, products: {of_products}){schedules}",
        cases.len()
    ))?;
    let start = Instant::now();
    let mut entries = Vec::new();
    let mut runs = 0;
    for group in groups(attention) {
        let records = with_element!(group[0].dtype, verify(&session, args, &group, &cases, &screen))?;
        runs += records.iter().map(|of_target| of_target[0].runs).sum::<usize>();
        entries.extend(records.into_iter().flatten());
    }
    runs += decode::verify(&session, args, &decode, &screen, &mut entries)?;
    runs += backward::verify(&session, args, &backward, &screen, &mut entries)?;
    for target in &products {
        let record = with_element!(target.dtype, verify_product(&session, args, target))?;
        print(&screen, &record)?;
        runs += record.runs;
        entries.push(record);
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

/// What the arguments select and the device can run, and the entries that it cannot.
fn chosen(session: &Session, args: &Args) -> Result<Chosen> {
    let available: Vec<_> = AnyKernel::of_backend(session.kind()).collect();
    if let Some(kernel) = args.kernel.filter(|kernel| !available.contains(&kernel.name())) {
        return Err(Error::KernelNotOnBackend {
            kernel: kernel.name(),
            backend: session.kind().name(),
            available: available.join(", "),
        }
        .into());
    }
    let (of_attention, of_products) = match args.kernel {
        None => (targets(session.kind(), None), products::targets(session.kind(), None)),
        Some(AnyKernel::Attention(kernel)) => (targets(session.kind(), Some(kernel)), Vec::new()),
        Some(AnyKernel::Gemm(kernel)) => (Vec::new(), products::targets(session.kind(), Some(kernel))),
    };
    let of_decode = decode::targets(session.kind()).filter(|_| args.kernel.is_none());
    let named = |name: &str| args.entry.as_ref().is_none_or(|text| name.contains(text));
    let of_backward = backward::targets(session.kind()).into_iter().filter(|_| args.kernel.is_none());
    let mut chosen = Chosen::default();
    // The limits of GPUs are no limits of the CPU's kernels, which have no entries.
    for target in of_attention.into_iter().filter(|target| target.names.iter().any(|name| named(name))) {
        match target.refused_by(session.device()) {
            None => chosen.attention.push(target),
            Some(reason) => chosen.skipped.extend(
                target.names.into_iter().map(|entry| SkippedRecord { entry, reason: reason.clone() }),
            ),
        }
    }
    for entry in of_decode.filter(|entry| named(entry.name)) {
        match refusal(entry, session.device()) {
            None => chosen.decode.push(entry),
            Some(reason) => chosen.skipped.push(SkippedRecord { entry: entry.name.to_owned(), reason }),
        }
    }
    for target in of_backward.filter(|target| named(&target.name)) {
        match target.entry.and_then(|entry| refusal(entry, session.device())) {
            None => chosen.backward.push(target),
            Some(reason) => chosen.skipped.push(SkippedRecord { entry: target.name, reason }),
        }
    }
    for target in of_products.into_iter().filter(|target| named(&target.name)) {
        match target.refused_by(session.device()) {
            None => chosen.products.push(target),
            Some(reason) => chosen.skipped.push(SkippedRecord { entry: target.name, reason }),
        }
    }
    let Chosen { attention, decode, backward, products, skipped } = &chosen;
    let nothing = attention.is_empty() && decode.is_empty() && backward.is_empty() && products.is_empty();
    if nothing && skipped.is_empty() {
        let text = args.entry.as_deref().unwrap_or_default();
        return Err(usage(format!("--entry {text}: no entry has this in its name")));
    }
    Ok(chosen)
}

/// Targets that share inputs and references: of one storage type and with the same head_dims.
fn groups(targets: Vec<Target>) -> Vec<Vec<Target>> {
    let mut groups: Vec<Vec<Target>> = Vec::new();
    for target in targets {
        let same = |group: &&mut Vec<Target>| {
            (group[0].dtype, &group[0].head_dims, group[0].step)
                == (target.dtype, &target.head_dims, target.step)
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
    let trials: Vec<Trial<T>> =
        seeds.map(|(seed, case)| Trial::new(case, &group[0], seed)).collect::<Result<_>>()?;
    let mut records = Vec::new();
    for target in group {
        let subjects: Vec<_> = trials
            .iter()
            .filter(|trial| target.takes(&trial.problem))
            .map(|trial| OnTarget { trial, target })
            .collect();
        let outcomes = outcomes(session, args, &subjects)?;
        let effort = Effort::new(session, args);
        let of_name =
            |name: &String| record(name, target.dtype, Some(&target.head_dims), effort, outcomes.iter());
        let of_target: Vec<_> = target.names.iter().map(of_name).collect();
        of_target.iter().try_for_each(|record| print(screen, record))?;
        records.push(of_target);
    }
    Ok(records)
}

impl<T: Element> Trial<T> {
    fn new(case: &Case, target: &Target, seed: u64) -> Result<Self> {
        let problem = case.problem(T::DTYPE, &target.head_dims, target.step)?;
        let inputs = Inputs::random(&problem, seed);
        let expected = Expected::new(&problem, &inputs, CHECKED_ROWS, seed);
        let name = describe(&problem, case.layout());
        Ok(Self { problem, inputs, expected, name })
    }
}

/// A case made concrete, for one target.
struct OnTarget<'a, T: Element> {
    trial: &'a Trial<T>,
    target: &'a Target,
}

impl<T: Element> Subject for OnTarget<'_, T> {
    fn name(&self) -> String {
        self.trial.name.clone()
    }

    fn target(&self) -> String {
        self.target.names.join(" + ")
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let Trial { problem, inputs, expected, .. } = self.trial;
        let plan = self.target.plan(problem, backend)?;
        if let Some(entry) = self.target.missing_from(&plan) {
            return Ok(Err(format!("the planner does not launch {entry}")));
        }
        let prepared = backend.prepare(problem, &plan, inputs.tensors())?;
        let scores = plan.score_dtype(problem);
        let judged = judged(prepared, |o, lse| expected.judge(problem, scores, o, lse))?;
        repeated(judged, repeats)
    }
}

/// How often each case runs.
#[derive(Clone, Copy)]
struct Effort {
    repeats: usize,
    replayed: bool,
}

impl Effort {
    fn new(session: &Session, args: &Args) -> Self {
        let repeats = args.repeats(session.kind());
        Self { repeats, replayed: repeats > 1 && session.kind() == BackendKind::Cuda }
    }
}

/// Runs each subject, on the simulator in each schedule.
///
/// # Errors
/// What speaks against the machine.
fn outcomes(session: &Session, args: &Args, subjects: &[impl Subject]) -> Result<Vec<Outcome>> {
    let repeats = args.repeats(session.kind());
    match session.kind() {
        BackendKind::Sim => subjects
            .par_iter()
            .flat_map(|subject| (0..args.schedules).into_par_iter().map(move |seed| (subject, seed)))
            .map(|(subject, seed)| {
                outcome(subject, &Backend::simulator(seed), repeats, &format!("schedule {seed}, "))
            })
            .collect(),
        BackendKind::Cuda | BackendKind::Cpu => {
            subjects.iter().map(|subject| outcome(subject, &session.backend, repeats, "")).collect()
        }
    }
}

/// One run and its repeats. What speaks against the kernel is part of the outcome.
fn outcome(subject: &impl Subject, backend: &Backend, repeats: usize, conditions: &str) -> Result<Outcome> {
    let what = format!("{conditions}{}", subject.name());
    let result = match subject.verdict(backend, repeats) {
        Ok(result) => result,
        Err(error @ (Error::Simulator(_) | Error::Jit { .. })) => Err(error.to_string()),
        Err(error) => return Err(error).with_context(|| format!("{}, {what}", subject.target())),
    };
    Ok(Outcome { what, result })
}

fn record<'a>(
    name: &str,
    dtype: DType,
    head_dims: Option<&RangeInclusive<usize>>,
    effort: Effort,
    outcomes: impl Iterator<Item = &'a Outcome> + Clone,
) -> EntryRecord {
    let share = |verdict: &&Verdict| verdict.output.max_error / verdict.output.bound.max(f64::MIN_POSITIVE);
    let worst = outcomes
        .clone()
        .filter_map(|outcome| outcome.result.as_ref().ok())
        .max_by(|a, b| share(a).total_cmp(&share(b)))
        .map(|verdict| verdict.output);
    let failures: Vec<_> = outcomes
        .clone()
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
        dtype: dtype.name(),
        head_dims: head_dims.map(|range| (*range.start(), *range.end())),
        runs: outcomes.count(),
        repeats: effort.repeats,
        replayed: effort.replayed,
        max_error: worst.map_or(0.0, |output| output.max_error),
        bound: worst.map_or(0.0, |output| output.bound),
        passed: failures.is_empty(),
        failures,
    }
}

fn print(screen: &Screen, record: &EntryRecord) -> std::io::Result<()> {
    let EntryRecord { entry, runs, repeats, replayed, max_error, bound, passed, head_dims, .. } = record;
    let verdict = if *passed { "pass" } else { "FAIL" };
    let head_dims = head_dims.map_or(String::new(), |(least, most)| format!("head_dim {least}-{most}, "));
    let runs = if *runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") };
    let graph = if *replayed { " and in a replayed graph" } else { "" };
    let again = if *repeats > 1 { format!(", each {repeats} times{graph}") } else { String::new() };
    screen.line(format!(
        "{verdict} {entry:32} {head_dims}{runs}{again}: max error {max_error:.2e}, bound {bound:.2e}"
    ))?;
    record.failures.iter().try_for_each(|failure| screen.line(format!("     {failure}")))
}
