use super::*;
use crate::args::BackendArgs;
use crate::decode;
use crate::sweep::fixture;
use crate::timer::Pacing;
use fa_kernels::entries::variants;
use flash_attention::backward::BackwardProblem;
use flash_attention::gemm::{GemmProblem, Matrices, MatrixLayout};
use flash_attention::{BackendKind, DType, Options, Problem, TensorLayout, Tensors};
use half::f16;
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
        point: usize,
        variant: &Variant,
        module: &Module,
    ) -> Result<MeasurementRecord, Failure> {
        assert!(module.ptx.contains(&variant.name()));
        let id = variant.id();
        self.ran.push(format!("{id} {}", fixture::space().points()[point]));
        let failure = |reason: &str, device_lost| Failure { reason: reason.to_owned(), device_lost };
        if self.faulting == Some(&*id) {
            return Err(failure("cuEventElapsedTime failed", true));
        }
        if self.wrong == Some(&*id) {
            return Err(failure("FAIL (O)", false));
        }
        Ok(fixture::measurement(Duration::from_micros(variant.tile().block_m.into())))
    }
}

struct Sweep {
    folder: tempfile::TempDir,
    candidates: Vec<Candidate>,
    built: Built,
}

impl Sweep {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, candidates: fixture::candidates(), built: fixture::built() }
    }

    /// One run of the program: it takes over what the file has.
    fn run(&self, runner: &mut Fake, skip_failed: bool) -> (Outcome, Document) {
        let mut document = fixture::document();
        let path = document.path(self.folder.path());
        if path.exists() {
            assert_eq!(document.keep(Document::read(&path).unwrap()), None);
        }
        let jobs = jobs(&self.candidates, &fixture::space().points());
        let progress = Screen::stdout().progress(jobs.len(), "");
        let outcome = run(&mut document, &path, &jobs, &self.built, skip_failed, runner, &progress).unwrap();
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
    assert_eq!(again.ran, [format!("{} 60", fixture::WRONG), format!("{} 64", fixture::WRONG)]);
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
    assert_eq!(again.ran, [format!("{} 60", fixture::FASTEST), format!("{} 64", fixture::FASTEST)]);
    assert_eq!(document.rows.len(), 6);
}

/// Runs a variant of the list on a problem in the simulator, which has its code.
fn simulated<T: Element, O: Swept<T>>(problem: O, variant: &Variant) -> Result<MeasurementRecord, Failure> {
    let sim = BackendArgs { backend: Some(BackendKind::Sim), device: None };
    let (session, screen) = (Session::open(&sim).unwrap(), Screen::stdout());
    let budget = Duration::from_secs(100);
    let effort = Effort { warmup: 0, iterations: 2, least: 1, budget, pacing: Pacing::Caches };
    let problems = &[problem];
    let mut runner =
        Gpu::<T, O> { session: &session, effort, seed: 0, screen: &screen, problems, subject: None };
    let built = fixture::built();
    let module = built.variants[fixture::FASTEST].as_ref().unwrap();
    runner.run(0, variant, module)
}

#[track_caller]
fn verified<T: Element, O: Swept<T>>(problem: O, id: &str, launches: usize) {
    let variant = variants().find(|variant| variant.id() == id).unwrap();
    let measurement = simulated::<T, O>(problem, &variant).unwrap();
    assert_eq!(measurement.counts(), (2, launches));
}

#[test]
fn the_runner_verifies_and_times_what_a_backend_can_run() {
    for problem in fixture::problems() {
        verified::<f32, _>(problem, fixture::FASTEST, 1);
    }
    // A variant is PTX alone, which the simulator cannot run.
    let unlisted = fixture::candidates().into_iter().find(|one| one.variant.id() == fixture::WRONG);
    let problem = fixture::problems().remove(0);
    let failure = simulated::<f32, _>(problem, &unlisted.unwrap().variant).unwrap_err();
    assert!(!failure.device_lost && failure.reason.contains("exists as PTX alone"), "{failure:?}");
}

#[test]
fn every_operation_has_its_inputs_and_its_verdict() {
    let shape = decode::Shape {
        batch: 2,
        heads: 4,
        kv_heads: 1,
        head_dim: 64,
        seq_q: 1,
        seq_k: 70,
        page_size: None,
        row_multiple: 1,
        tree_mask: false,
        latent: false,
        dtype: DType::F16,
        causal: false,
        softmax_scale: None,
    };
    verified::<f16, _>(shape.problem().unwrap(), "decode_f16_m16_d64_w4_s5_b2", 1);
    let layout = TensorLayout::bshd(1, 40, 1, 64);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let forward = Problem::new(tensors, DType::F16, Options::default()).unwrap();
    let backward = BackwardProblem::like(forward).unwrap();
    verified::<f16, _>(backward.clone(), "backward_keys_sm80_f16_m32_n128_d64_w4_b2", 3);
    verified::<f16, _>(backward.clone(), "backward_queries_sm80_f16_m128_n32_d64_w4_b2", 3);
    verified::<f16, _>(backward, "backward_keys_sm90_f16_m64_n128_d64_b1", 3);
    let (a, b) = (MatrixLayout::row_major(130, 64), MatrixLayout::column_major(64, 72));
    let matrices = Matrices { a, b, c: MatrixLayout::row_major(130, 72) };
    let product = GemmProblem::new(matrices, DType::F16).unwrap();
    verified::<f16, _>(product, "gemm_sm90_f16_m128_n128_k64_row_col_b1_s6", 1);
    // Of other operands than the problem's.
    let other = variants().find(|one| one.name() == "gemm_sm90_f16_m128_n128_k64_row_row").unwrap();
    let failure = simulated::<f16, _>(product, &other).unwrap_err();
    assert!(failure.reason.ends_with("it is for operands in other orders"), "{failure:?}");
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
    assert!(!fake.ran.contains(&format!("{} 60", fixture::FASTEST)));
    let (outcome, document) = sweep.run(&mut fake, true);
    assert_eq!((outcome, document.rows.len()), (Outcome::Done, 6));
}
