//! Running the variants that built: each is verified and timed, and its row kept as soon as it is there.

use std::path::Path;

use anyhow::Result;
use fa_kernels::entries::Entry;
use fa_kernels::variant::Variant;
use flash_attention::{Element, Error, Plan, Problem};

use super::built::{Built, Module};
use super::document::{Document, Row};
use super::space::Candidate;
use crate::measure::{Measurement, Subject};
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
    /// Verifies and times one variant on one problem.
    fn run(
        &mut self,
        problem: &Problem,
        entry: &'static Entry,
        module: &Module,
    ) -> Result<Measurement, Failure>;
}

/// How a run over all rows ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every row is there.
    Done,
    /// A variant faulted; what is left needs a new process.
    DeviceLost,
}

/// A row that is wanted: a feasible candidate with one of its head_dims.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) variant: &'a Variant,
    pub(super) problem: &'a Problem,
}

/// The jobs of `candidates` on `problems`, problem by problem, so that each has its inputs made once.
pub(super) fn jobs<'a>(candidates: &'a [Candidate], problems: &'a [Problem]) -> Vec<Job<'a>> {
    let of_problem = |problem: &'a Problem| {
        let held = move |candidate: &&Candidate| {
            candidate.verdict.is_ok() && candidate.head_dims.contains(&problem.head_dim())
        };
        candidates.iter().filter(held).map(move |candidate| Job { variant: &candidate.variant, problem })
    };
    problems.iter().flat_map(of_problem).collect()
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
    for Job { variant, problem } in jobs {
        let result = built.variants.get(&variant.id());
        let module = result.and_then(|result| result.as_ref().ok());
        let mut row = Row::new(variant, problem.head_dim(), &built.tools, module);
        if document.has(&row, skip_failed) {
            progress.step();
            continue;
        }
        let mut outcome = Outcome::Done;
        match (module, result) {
            (Some(module), _) => match runner.run(problem, leak(variant), module) {
                Ok(measurement) => row.measurement = Some(MeasurementRecord::new(problem, &measurement)),
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

/// A variant's entry for as long as the program: plans and loaded kernels name it by reference.
fn leak(variant: &Variant) -> &'static Entry {
    let entry = variant.entry(variant.name().leak());
    // A space is of one of attention's kernels.
    Box::leak(Box::new(entry.expect("the variant is of attention")))
}

/// Runs variants on a GPU.
pub(super) struct Gpu<'a, T: Element> {
    pub(super) session: &'a Session,
    pub(super) effort: Effort,
    pub(super) seed: u64,
    pub(super) screen: &'a Screen,
    /// The inputs of the problem that ran last.
    pub(super) subject: Option<(Problem, Subject<T>)>,
}

impl<T: Element> Runner for Gpu<'_, T> {
    fn run(
        &mut self,
        problem: &Problem,
        entry: &'static Entry,
        module: &Module,
    ) -> Result<Measurement, Failure> {
        let subject = match self.subject.take() {
            Some((made_for, subject)) if made_for == *problem => subject,
            _ => Subject::new(problem, self.seed),
        };
        let (_, subject) = self.subject.insert((problem.clone(), subject));
        let measurement = measure(self.session, subject, problem, entry, module, &self.effort, self.screen)
            .map_err(|error| Failure {
            // A fault stays with the process; a call that failed for another reason costs just a restart.
            device_lost: matches!(error, Error::Cuda { .. }),
            reason: error.to_string().lines().collect::<Vec<_>>().join(" "),
        })?;
        if measurement.verdict.passed() {
            return Ok(measurement);
        }
        Err(Failure { reason: table::judgement(&measurement.verdict), device_lost: false })
    }
}

fn measure<T: Element>(
    session: &Session,
    subject: &Subject<T>,
    problem: &Problem,
    entry: &'static Entry,
    module: &Module,
    effort: &Effort,
    screen: &Screen,
) -> flash_attention::Result<Measurement> {
    let plan = Plan::of_entry(problem, session.device(), entry)?;
    if let Some(cuda) = session.backend.as_cuda() {
        // SAFETY: the device build made this module of this variant, and its gates found the one entry.
        unsafe { cuda.load_ptx(entry, &module.ptx)? };
    }
    let progress = screen.progress(effort.warmup + effort.iterations, entry.name);
    subject.measure(session, &plan, effort, &progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::BackendArgs;
    use crate::sweep::fixture;
    use crate::timer::Pacing;
    use fa_kernels::entries::entries;
    use flash_attention::BackendKind;
    use std::time::Duration;

    /// A device in memory: it records what ran, and fails where it is told to.
    #[derive(Default)]
    struct Fake {
        ran: Vec<String>,
        wrong: Option<&'static str>,
        faulting: Option<&'static str>,
    }

    impl Runner for Fake {
        fn run(
            &mut self,
            problem: &Problem,
            entry: &'static Entry,
            module: &Module,
        ) -> Result<Measurement, Failure> {
            assert!(module.ptx.contains(entry.name));
            let id = format!("{}_b{}", entry.name, entry.min_blocks);
            self.ran.push(format!("{id} {}", problem.head_dim()));
            let failure = |reason: &str, device_lost| Failure { reason: reason.to_owned(), device_lost };
            if self.faulting == Some(&*id) {
                return Err(failure("cuEventElapsedTime failed", true));
            }
            if self.wrong == Some(&*id) {
                return Err(failure("FAIL (O)", false));
            }
            Ok(fixture::measurement(Duration::from_micros(entry.tile.block_m.into())))
        }
    }

    struct Sweep {
        folder: tempfile::TempDir,
        candidates: Vec<Candidate>,
        problems: Vec<Problem>,
        built: Built,
    }

    impl Sweep {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (candidates, problems) = (fixture::candidates(), fixture::problems());
            Self { folder, candidates, problems, built: fixture::built() }
        }

        /// One run of the program: it takes over what the file has.
        fn run(&self, runner: &mut Fake, skip_failed: bool) -> (Outcome, Document) {
            let mut document = fixture::document();
            let path = document.path(self.folder.path());
            if path.exists() {
                assert_eq!(document.keep(Document::read(&path).unwrap()), None);
            }
            let jobs = jobs(&self.candidates, &self.problems);
            let progress = Screen::stdout().progress(jobs.len(), "");
            let outcome =
                run(&mut document, &path, &jobs, &self.built, skip_failed, runner, &progress).unwrap();
            (outcome, Document::read(&path).unwrap())
        }
    }

    #[test]
    fn every_row_is_there_whatever_became_of_it() {
        let sweep = Sweep::new();
        let mut fake = Fake { wrong: Some(fixture::WRONG), ..Fake::default() };
        let (outcome, document) = sweep.run(&mut fake, false);
        assert_eq!(outcome, Outcome::Done);
        let errors: Vec<_> = document.rows.iter().map(|row| row.error.as_deref()).collect();
        // Three tiles on each of two problems.
        let of_problem = [None, Some("FAIL (O)"), Some("not built: the gates refuse it: spill")];
        assert_eq!(errors, [of_problem, of_problem].concat());
        assert!(document.rows.iter().all(|row| row.error.is_none() == row.median_s().is_some()));
        assert_eq!(fake.ran.len(), 4, "what did not build does not run");
        assert_eq!(document.rows.iter().filter(|row| row.is_faulty()).count(), 2);
    }

    #[test]
    fn what_is_finished_is_skipped_and_what_failed_is_tried_again() {
        let sweep = Sweep::new();
        sweep.run(&mut Fake { wrong: Some(fixture::WRONG), ..Fake::default() }, false);
        let mut again = Fake::default();
        let (_, document) = sweep.run(&mut again, false);
        assert_eq!(again.ran, [format!("{} 64", fixture::WRONG), format!("{} 60", fixture::WRONG)]);
        assert_eq!(document.rows.iter().filter(|row| row.median_s().is_some()).count(), 4);
        let mut third = Fake::default();
        sweep.run(&mut third, false);
        assert!(third.ran.is_empty());
    }

    #[test]
    fn a_row_of_other_ptx_is_measured_again() {
        let mut sweep = Sweep::new();
        sweep.run(&mut Fake::default(), false);
        let module = sweep.built.variants.get_mut(fixture::FASTEST).unwrap().as_mut().unwrap();
        module.sha256.push('0');
        let mut again = Fake::default();
        let (_, document) = sweep.run(&mut again, false);
        assert_eq!(again.ran, [format!("{} 64", fixture::FASTEST), format!("{} 60", fixture::FASTEST)]);
        assert_eq!(document.rows.len(), 6);
    }

    #[test]
    fn the_runner_verifies_and_times_what_a_backend_can_run() {
        let sim = BackendArgs { backend: Some(BackendKind::Sim), device: None };
        let (session, screen) = (Session::open(&sim).unwrap(), Screen::stdout());
        let budget = Duration::from_secs(100);
        let effort = Effort { warmup: 0, iterations: 2, least: 1, budget, pacing: Pacing::Caches };
        let mut runner = Gpu::<f32> { session: &session, effort, seed: 0, screen: &screen, subject: None };
        let built = fixture::built();
        let module = built.variants[fixture::FASTEST].as_ref().unwrap();
        let listed = entries().find(|entry| entry.name == "forward_simt_f32_m32_n32_d64").unwrap();
        for problem in fixture::problems() {
            let measurement = runner.run(&problem, listed, module).unwrap();
            assert!(measurement.verdict.passed() && measurement.verdict.rows == 32);
            assert_eq!((measurement.times.seconds.len(), measurement.launches), (2, 1));
        }
        // A variant is PTX alone, which the simulator cannot run.
        let variant = fixture::candidates()[0].variant;
        let failure = runner.run(&fixture::problems()[0], leak(&variant), module).unwrap_err();
        assert!(!failure.device_lost && failure.reason.contains("exists as PTX alone"), "{failure:?}");
    }

    #[test]
    fn a_fault_ends_the_process_and_the_next_one_goes_on_behind_it() {
        let sweep = Sweep::new();
        let mut fake = Fake { faulting: Some(fixture::FASTEST), ..Fake::default() };
        let (outcome, document) = sweep.run(&mut fake, false);
        assert_eq!(outcome, Outcome::DeviceLost);
        assert_eq!(document.rows.len(), 1);
        assert_eq!(document.rows[0].error.as_deref(), Some("cuEventElapsedTime failed"));
        fake.ran.clear();
        let (outcome, _) = sweep.run(&mut fake, true);
        assert_eq!(outcome, Outcome::DeviceLost, "on the other problem it faults too");
        assert!(!fake.ran.contains(&format!("{} 64", fixture::FASTEST)));
        let (outcome, document) = sweep.run(&mut fake, true);
        assert_eq!((outcome, document.rows.len()), (Outcome::Done, 6));
    }
}
