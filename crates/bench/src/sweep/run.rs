//! Running the variants that built: each is verified and timed, and its row kept as soon as it is there.

use std::path::Path;

use anyhow::Result;
use fa_kernels::variant::Variant;
use flash_attention::{Element, Error, Plan};

use super::built::{Built, Module};
use super::document::{Document, Row};
use super::operation::Swept;
use super::space::{Candidate, Point};
use crate::measure;
use crate::output::{Progress, Screen};
use crate::record::MeasurementRecord;
use crate::session::Session;
use crate::table;
use crate::timer::Effort;

/// Why there is no measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// After this, nothing runs in this process any more.
    pub(super) device_lost: bool,
}

/// What runs variants.
pub(super) trait Runner {
    /// Verifies and times one variant on the problem of a point, by its place.
    fn run(&mut self, point: usize, variant: &Variant, module: &Module)
    -> Result<MeasurementRecord, Failure>;
}

/// How a run over all rows ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every row is there.
    Done,
    /// A variant faulted; what is left needs a new process.
    DeviceLost,
}

/// A row that is wanted: a feasible candidate with one of its problems.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) variant: &'a Variant,
    pub(super) point: Point,
    /// Its place among all.
    pub(super) place: usize,
}

/// The jobs of `candidates` at `points`, problem by problem, so that each has its inputs made once.
pub(super) fn jobs<'a>(candidates: &'a [Candidate], points: &[Point]) -> Vec<Job<'a>> {
    let of_point = |(place, &point): (usize, &Point)| {
        let held =
            move |candidate: &&Candidate| candidate.verdict.is_ok() && candidate.points.contains(&point);
        candidates.iter().filter(held).map(move |candidate| Job { variant: &candidate.variant, point, place })
    };
    points.iter().enumerate().flat_map(of_point).collect()
}

/// Fills `document`, which is written to `path` after each row. Rows that it has are left as they are; with
/// `skip_failed`, also those that failed.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn run(
    document: &mut Document,
    path: &Path,
    jobs: &[Job<'_>],
    built: &Built,
    skip_failed: bool,
    runner: &mut dyn Runner,
    progress: &Progress,
) -> Result<Outcome> {
    document.write(path)?;
    for Job { variant, point, place } in jobs {
        let result = built.variants.get(&variant.id());
        let module = result.and_then(|result| result.as_ref().ok());
        let mut row = Row::new(variant, *point, &built.tools, module);
        if document.has(&row, skip_failed) {
            progress.step();
            continue;
        }
        let mut outcome = Outcome::Done;
        match (module, result) {
            (Some(module), _) => match runner.run(*place, variant, module) {
                Ok(measurement) => row.measurement = Some(measurement),
                Err(failure) => {
                    row.error = Some(failure.reason);
                    if failure.device_lost {
                        outcome = Outcome::DeviceLost;
                    }
                }
            },
            (None, Some(Err(reason))) => row.error = Some(format!("not built: {reason}")),
            (None, _) => row.error = Some("not built: it is not among what was built".to_owned()),
        }
        document.put(row);
        document.write(path)?;
        progress.step();
        if outcome == Outcome::DeviceLost {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Done)
}

/// Runs variants on a GPU.
pub(super) struct Gpu<'a, T: Element, O: Swept<T>> {
    pub(super) session: &'a Session,
    pub(super) effort: Effort,
    pub(super) seed: u64,
    pub(super) screen: &'a Screen,
    pub(super) problems: &'a [O],
    /// The inputs of the problem that ran last, by its place.
    pub(super) subject: Option<(usize, O::Subject)>,
}

impl<T: Element, O: Swept<T>> Runner for Gpu<'_, T, O> {
    fn run(
        &mut self,
        point: usize,
        variant: &Variant,
        module: &Module,
    ) -> Result<MeasurementRecord, Failure> {
        let failure = |error: &Error| Failure {
            // A fault stays with the process; a call that failed for another reason costs just a restart.
            device_lost: matches!(error, Error::Cuda { .. }),
            reason: error.to_string().lines().collect::<Vec<_>>().join(" "),
        };
        let problem = &self.problems[point];
        let subject = match self.subject.take() {
            Some((made_for, subject)) if made_for == point => subject,
            _ => problem.subject(self.session, self.seed).map_err(|error| failure(&error))?,
        };
        let measured = self.measure(problem, &subject, variant, module);
        self.subject = Some((point, subject));
        let measurement = measured.map_err(|error| failure(&error))?;
        if measurement.verdict.passed() {
            return Ok(MeasurementRecord::new(problem.work(), &measurement));
        }
        Err(Failure { reason: table::judgement(&measurement.verdict), device_lost: false })
    }
}

impl<T: Element, O: Swept<T>> Gpu<'_, T, O> {
    fn measure(
        &self,
        problem: &O,
        subject: &O::Subject,
        variant: &Variant,
        module: &Module,
    ) -> flash_attention::Result<measure::Measurement> {
        let Self { session, effort, .. } = self;
        // A space's variants are of the kernels of its family, and those of the family's operation.
        let entry = O::entry(variant).expect("the variant is of the operation");
        let plan = Plan::of_entry(problem, session.device(), entry)?;
        if let Some(cuda) = session.backend.as_cuda() {
            // SAFETY: the device build made this module of this variant, and its gates found the one entry.
            unsafe { cuda.load_ptx(entry, &module.ptx)? };
        }
        let progress = self.screen.progress(effort.runs(), entry.name);
        measure::measure(O::judge(subject, session, &plan)?, effort, &progress)
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
