//! What is known of an entry: its runs, their judgement, and the line and record that come of them.

use std::ops::RangeInclusive;

use anyhow::{Context as _, Result};
use flash_attention::{Backend, BackendKind, DType, Error};
use rayon::prelude::*;
use serde::Serialize;

use super::args::Args;
use crate::check::Verdict;
use crate::output::Screen;
use crate::session::Session;
use crate::table::judgement;

/// Rows of a case that are compared with the reference; small cases have fewer.
pub(super) const CHECKED_ROWS: usize = 144;

#[derive(Clone, Serialize)]
pub(super) struct EntryRecord {
    pub(super) entry: String,
    pub(super) dtype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) head_dims: Option<(usize, usize)>,
    pub(super) runs: usize,
    /// How often each run was made, with the same bits.
    pub(super) repeats: usize,
    /// Whether each was also replayed from a CUDA graph, with the same bits.
    pub(super) replayed: bool,
    /// Of the run with the largest error in terms of its bound.
    pub(super) max_error: f64,
    pub(super) bound: f64,
    pub(super) failures: Vec<String>,
    pub(super) passed: bool,
}

#[derive(Serialize)]
pub(super) struct SkippedRecord {
    pub(super) entry: String,
    pub(super) reason: String,
}

/// One run: a verdict, or what stopped the kernel.
pub(super) struct Outcome {
    pub(super) what: String,
    pub(super) result: Result<Verdict, String>,
}

/// A problem for a target: what a run is about.
pub(super) trait Subject: Sync {
    /// The problem in words.
    fn name(&self) -> String;

    /// The target in words.
    fn target(&self) -> String;

    /// The simulator that it runs on.
    fn simulator(&self, seed: u64) -> Backend {
        Backend::simulator(seed)
    }

    /// Runs over poisoned outputs, judges them, and runs again until there are `repeats` runs of the same
    /// bits. What speaks against the kernel is inside, or a simulator's error.
    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>>;
}

/// How often each case runs.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    pub(super) repeats: usize,
    pub(super) replayed: bool,
}

impl Effort {
    pub(super) fn new(session: &Session, args: &Args) -> Self {
        let repeats = args.repeats(session.kind());
        Self { repeats, replayed: repeats > 1 && session.kind() == BackendKind::Cuda }
    }
}

/// Runs each subject, on the simulator in each schedule.
///
/// # Errors
/// What speaks against the machine.
pub(super) fn outcomes(session: &Session, args: &Args, subjects: &[impl Subject]) -> Result<Vec<Outcome>> {
    let repeats = args.repeats(session.kind());
    match session.kind() {
        BackendKind::Sim => subjects
            .par_iter()
            .flat_map(|subject| (0..args.schedules).into_par_iter().map(move |seed| (subject, seed)))
            .map(|(subject, seed)| {
                outcome(subject, &subject.simulator(seed), repeats, &format!("schedule {seed}, "))
            })
            .collect(),
        BackendKind::Cuda | BackendKind::Cpu => {
            subjects.iter().map(|subject| outcome(subject, &session.backend, repeats, "")).collect()
        }
    }
}

/// One run and its repeats. What speaks against the kernel is part of the outcome.
pub(super) fn outcome(
    subject: &impl Subject,
    backend: &Backend,
    repeats: usize,
    conditions: &str,
) -> Result<Outcome> {
    let what = format!("{conditions}{}", subject.name());
    let result = match subject.verdict(backend, repeats) {
        Ok(result) => result,
        Err(error @ (Error::Simulator { .. } | Error::Jit { .. })) => Err(error.to_string()),
        Err(error) => return Err(error).with_context(|| format!("{}, {what}", subject.target())),
    };
    Ok(Outcome { what, result })
}

pub(super) fn record<'a>(
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

pub(super) fn print(screen: &Screen, record: &EntryRecord) -> std::io::Result<()> {
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
