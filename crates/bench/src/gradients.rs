//! What a backward pass reads beside Q, K and V, and whether what it writes is right.

use flash_attention::backward::{
    BackwardInputs, BackwardPlan, BackwardProblem, BackwardResults, ExpectedGradients, GradientInputs,
    GradientReport,
};
use flash_attention::{Backend, Element, Prepared, Problem, Result, TensorLayout};

use crate::check::Verdict;
use crate::inputs::{Inputs, normal, used_elements};

/// Key/value heads whose gradients are compared with the f64 reference: the first and the last.
const CHECKED_HEADS: usize = 2;

/// A backward problem after its forward pass.
pub(crate) struct Gradients<T> {
    pub(crate) problem: BackwardProblem,
    /// Of the forward pass.
    o: Vec<T>,
    lse: Vec<f32>,
    /// Random.
    dout: Vec<T>,
    dlse: Option<Vec<f32>>,
}

impl<T: Element> Gradients<T> {
    /// After a forward pass that gave O and lse; gradients lie as what they are of.
    ///
    /// # Errors
    /// As [`BackwardProblem::like`].
    pub(crate) fn new(forward: Problem, (o, lse): (Vec<T>, Vec<f32>), seed: u64) -> Result<Self> {
        let problem = BackwardProblem::like(forward)?;
        let dout = normal(seed, 4, problem.layouts().dout.span());
        Ok(Self { problem, o, lse, dout, dlse: None })
    }

    /// With a random gradient of lse, NaN where a row sees neither a key nor a sink.
    pub(crate) fn with_dlse(self, seed: u64) -> Self {
        let values = normal::<f32>(seed, 5, self.lse.len());
        let of_row = |(&lse, value)| if lse == f32::NEG_INFINITY { f32::NAN } else { value };
        Self { dlse: Some(self.lse.iter().zip(values).map(of_row).collect()), ..self }
    }

    pub(crate) fn inputs<'a>(&'a self, inputs: &'a Inputs<T>) -> BackwardInputs<'a, T> {
        let (q, k, v) = inputs.tensors();
        BackwardInputs {
            q,
            k,
            v,
            o: &self.o,
            lse: &self.lse,
            dout: &self.dout,
            dlse: self.dlse.as_deref(),
            delta: None,
        }
    }

    /// The reference's gradients of the heads that are checked.
    pub(crate) fn expected(&self, inputs: &Inputs<T>) -> ExpectedGradients<T> {
        let (q, k, v) = inputs.tensors();
        let inputs = GradientInputs { q, k, v, dout: &self.dout, dlse: self.dlse.as_deref() };
        self.problem.expected(inputs, &self.problem.sample(CHECKED_HEADS))
    }

    /// How near a run's gradients are, and whether that is near enough.
    pub(crate) fn judge(
        &self,
        expected: &ExpectedGradients<T>,
        found: &BackwardResults<T>,
    ) -> (GradientReport, Verdict) {
        let BackwardResults { dq, dk, dv, dsinks } = found;
        let written = dq.iter().map(|value| value.to_f32()).chain(dsinks.iter().flatten().copied());
        let unwritten = written.filter(|value| !value.is_finite()).count() + self.wrong_rows([dk, dv]);
        let report = expected.judge(&self.problem, [dq, dk, dv], dsinks.as_deref());
        let verdict = Verdict::of_product(report.worst(), unwritten, expected.query_rows(&self.problem));
        (report, verdict)
    }

    /// Elements of dK and dV that are unwritten or not finite, or are written behind the keys that a sequence
    /// uses, where their poison stays.
    fn wrong_rows(&self, gradients: [&[T]; 2]) -> usize {
        let (forward, layouts) = (self.problem.forward(), self.problem.layouts());
        let wrong = |(values, layout): (&[T], &TensorLayout)| {
            let used = forward.has_seqused_k().then(|| used_elements(forward, layout));
            let is_used = |at: usize| used.as_ref().is_none_or(|used| used[at]);
            values.iter().enumerate().filter(|&(at, value)| value.to_f32().is_finite() != is_used(at)).count()
        };
        gradients.into_iter().zip([&layouts.dk, &layouts.dv]).map(wrong).sum()
    }

    /// Runs `plan` once over poisoned gradients, and judges them.
    ///
    /// # Errors
    /// When the memory cannot be had, or the device or a kernel fails.
    pub(crate) fn judged<'a>(
        &'a self,
        inputs: &'a Inputs<T>,
        expected: &ExpectedGradients<T>,
        backend: &'a Backend,
        plan: &BackwardPlan,
    ) -> Result<(Prepared<'a, T, BackwardProblem>, GradientReport, Verdict)> {
        let mut prepared = backend.prepare(plan, self.inputs(inputs))?;
        prepared.poison()?;
        prepared.run()?;
        let (report, verdict) = self.judge(expected, prepared.outputs()?);
        Ok((prepared, report, verdict))
    }
}
