//! One kernel on one problem: run, checked, timed.

use std::time::Duration;

use flash_attention::forward::Results;
use flash_attention::{Element, Operation, Plan, Prepared, Problem, Result};

use crate::check::{Expected, Verdict};
use crate::inputs::Inputs;
use crate::output::Progress;
use crate::session::Session;
use crate::timer::{Effort, Times};

/// Rows that are compared with the f64 reference.
pub(crate) const CHECKED_ROWS: usize = 64;

/// What follows a kernel's name in the series of a plan that knows no lengths, beside the one that does.
pub(crate) const ON_DEVICE: &str = ", lengths on the device";

/// A problem with its inputs and what must come out.
pub(crate) struct Subject<T: Element> {
    problem: Problem,
    pub(crate) inputs: Inputs<T>,
    expected: Expected<T>,
}

/// What one kernel did.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    pub(crate) times: Times,
    pub(crate) verdict: Verdict,
    pub(crate) extra_bytes: u64,
    pub(crate) launches: usize,
}

impl<T: Element> Subject<T> {
    /// Random inputs for `problem`, and the reference of some rows.
    pub(crate) fn new(problem: &Problem, seed: u64) -> Self {
        let inputs = Inputs::random(problem, seed);
        let expected = Expected::new(problem, &inputs, CHECKED_ROWS, seed);
        Self { problem: problem.clone(), inputs, expected }
    }

    /// Runs `plan` once over poisoned outputs, and judges them.
    ///
    /// # Errors
    /// When the memory cannot be had, or the device or a kernel fails.
    pub(crate) fn judge<'a>(
        &'a self,
        session: &'a Session,
        plan: &Plan,
    ) -> Result<(Prepared<'a, T>, Verdict)> {
        session.check_workspace(&self.problem, plan)?;
        let prepared = session.backend.prepare(plan, self.inputs.tensors())?;
        let scores = plan.score_roundoff();
        judged(prepared, |o, lse| self.expected.judge(&self.problem, scores, o, lse))
    }
}

/// Runs what is prepared once over poisoned outputs, and judges them.
///
/// # Errors
/// When the device or a kernel fails.
pub(crate) fn judged<T: Element, O: Operation<Results<T> = Results<T>>>(
    mut prepared: Prepared<'_, T, O>,
    judge: impl FnOnce(&[T::Output], &[f32]) -> Verdict,
) -> Result<(Prepared<'_, T, O>, Verdict)> {
    prepared.poison()?;
    prepared.run()?;
    let Results { o, lse } = prepared.outputs()?;
    let verdict = judge(o, lse);
    Ok((prepared, verdict))
}

/// Times what was judged.
///
/// # Errors
/// When the device or a kernel fails.
pub(crate) fn measure<T: Element, O: Operation>(
    (mut prepared, verdict): (Prepared<'_, T, O>, Verdict),
    effort: &Effort,
    progress: &Progress,
) -> Result<Measurement> {
    let times = effort.time(|| cold(&mut prepared), || progress.step())?;
    Ok(Measurement { times, verdict, extra_bytes: prepared.extra_bytes(), launches: prepared.launches() })
}

/// One run on cold caches.
///
/// # Errors
/// When the device or a kernel fails.
pub(crate) fn cold<T: Element, O: Operation>(prepared: &mut Prepared<'_, T, O>) -> Result<Duration> {
    prepared.flush_cache()?;
    prepared.time()
}

/// Calls a function that is generic over the storage type with the type that `dtype` names.
macro_rules! with_element {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            flash_attention::DType::F32 => $function::<f32>($($argument),*),
            flash_attention::DType::F16 => $function::<half::f16>($($argument),*),
            flash_attention::DType::Bf16 => $function::<half::bf16>($($argument),*),
            flash_attention::DType::E4m3 => $function::<float8::F8E4M3>($($argument),*),
        }
    };
}
pub(crate) use with_element;

/// As [`with_element`], with a function that takes types alone that O has where Q, K and V have them.
macro_rules! with_output_element {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            flash_attention::DType::F32 => $function::<f32>($($argument),*),
            flash_attention::DType::F16 => $function::<half::f16>($($argument),*),
            flash_attention::DType::Bf16 => $function::<half::bf16>($($argument),*),
            dtype @ flash_attention::DType::E4m3 => Err(flash_attention::Error::UnsupportedDType {
                kernel: "backward",
                dtype,
                available: flash_attention::DType::RESULTS.map(flash_attention::DType::name).join(", "),
            }
            .into()),
        }
    };
}
pub(crate) use with_output_element;
