//! A forward and a backward pass of one problem: run, judged, and timed.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::Result;
use flash_attention::backward::{
    BackwardPlan, BackwardProblem, BackwardRequest, ExpectedGradients, GradientReport,
};
use flash_attention::forward::Results;
use flash_attention::{Backend, Element, Plan, Prepared, Problem, Request};

use crate::check::Verdict;
use crate::experiments::memory::allocated;
use crate::gradients::Gradients;
use crate::heap;
use crate::inputs::Inputs;
use crate::lab::{Case, CheckRecord, Many, Row, Timed, Unit};
use crate::measure::{ON_DEVICE, Subject};
use crate::problem::Layout;
use crate::record::{PlanRecord, ProblemRecord};
use crate::session::Session;
use crate::timer::Pace;

/// A forward pass that was run and judged, and the backward pass of its results.
pub(super) struct BothPasses<'a, T: Element> {
    pub(super) plan: Plan,
    pub(super) forward: Prepared<'a, T>,
    pub(super) verdict: Verdict,
    pub(super) backward: BackwardSubject<'a, T>,
}

impl<'a, T: Element> BothPasses<'a, T> {
    pub(super) fn new(
        session: &'a Session,
        subject: &'a Subject<T>,
        (problem, request): (&Problem, &BackwardRequest),
        seed: u64,
    ) -> Result<Self>
    where
        T: Element<Output = T>,
    {
        let plan = session.backend.plan(problem, &Request::default())?;
        let (mut forward, verdict) = subject.judge(session, &plan)?;
        let Results { o, lse } = forward.outputs()?.clone();
        let gradients = Gradients::new(problem.clone(), (o, lse), seed)?;
        let backward = BackwardSubject {
            plan: session.backend.plan(&gradients.problem, request)?,
            gradients,
            inputs: &subject.inputs,
        };
        Ok(Self { plan, forward, verdict, backward })
    }
}

/// A backward pass on one backend.
pub(super) struct BackwardSubject<'a, T> {
    pub(super) gradients: Gradients<T>,
    pub(super) plan: BackwardPlan,
    inputs: &'a Inputs<T>,
}

impl<T: Element> BackwardSubject<'_, T> {
    pub(super) fn prepare<'a>(
        &'a self,
        backend: &'a Backend,
    ) -> flash_attention::Result<Prepared<'a, T, BackwardProblem>> {
        backend.prepare(&self.plan, self.gradients.inputs(self.inputs))
    }

    /// The plan, and of a packed batch one that knows the longest sequences and no offsets, each with what
    /// follows the kernel's name.
    pub(super) fn plans(
        &self,
        backend: &Backend,
        request: &BackwardRequest,
    ) -> Result<Vec<(BackwardPlan, &'static str)>> {
        let mut plans = vec![(self.plan.clone(), "")];
        let problem = &self.gradients.problem;
        let forward = problem.forward();
        if let Some((q, k)) = forward.cu_seqlens() {
            let bounded = forward.on_device((forward.seqlen_q(), forward.seqlen_k()))?;
            let bounded = BackwardProblem::new(bounded, *problem.layouts())?;
            let plan = backend.plan(&bounded, request)?.with_cu_seqlens(q, k)?;
            plans.push((plan, ON_DEVICE));
        }
        Ok(plans)
    }

    /// Runs a plan once over poisoned gradients, and judges them.
    pub(super) fn judged<'a>(
        &'a self,
        backend: &'a Backend,
        plan: &BackwardPlan,
        expected: &ExpectedGradients<T>,
    ) -> Result<(Prepared<'a, T, BackwardProblem>, GradientReport, Verdict)> {
        Ok(self.gradients.judged(self.inputs, expected, backend, plan)?)
    }

    /// The reference's gradients.
    pub(super) fn expected(&self) -> ExpectedGradients<T> {
        self.gradients.expected(self.inputs)
    }

    /// What a run takes beside the tensors, by the allocator.
    pub(super) fn extra_bytes(&self, backend: &Backend) -> Result<u64> {
        let Some(cuda) = backend.as_cuda() else {
            let mut prepared = self.prepare(backend)?;
            // The first run may fill what stays, such as the threads' own memory.
            prepared.time()?;
            let (bytes, ran) = heap::peak_of(|| prepared.time());
            ran?;
            return Ok(bytes);
        };
        let ran = || {
            let mut prepared = self.prepare(backend)?;
            prepared.time()?;
            Ok(prepared)
        };
        // Loaded kernels stay.
        allocated(cuda, ran)?;
        let inputs = self.gradients.inputs(self.inputs);
        let tensors = allocated(cuda, || Ok(cuda.tensor_memory(&self.plan, inputs)?))?;
        Ok(allocated(cuda, ran)?.saturating_sub(tensors))
    }
}

/// The row of the backward pass of a case by a plan, without what is measured.
pub(super) fn row_of(
    (Case { name, x, problem }, layout): (&Case<Problem>, Layout),
    (plan, suffix): (&BackwardPlan, &str),
    (report, verdict): (&GradientReport, &Verdict),
) -> Row {
    let mut row = Row {
        case: format!("{name} backward"),
        x: *x,
        series: plan.kernel().name().to_owned() + suffix,
        problem: Some(ProblemRecord::new(problem, layout)),
        plan: Some(PlanRecord::of_backward(plan)),
        ..Row::default()
    };
    put(&mut row, report, verdict);
    row
}

/// Says in a row how near the gradients are to the reference.
pub(super) fn put(row: &mut Row, report: &GradientReport, verdict: &Verdict) {
    row.check = Some(CheckRecord::new(verdict));
    for (name, accuracy) in report.all() {
        row.put(format!("{name} max error"), Unit::Count, accuracy.max_error);
        row.put(format!("{name} bound"), Unit::Count, accuracy.bound);
    }
}

/// Passes that are timed one after the other, the first on cold caches.
pub(super) struct Passes<'a, 'b, T: Element> {
    pub(super) forward: Option<&'a RefCell<Prepared<'b, T>>>,
    pub(super) backward: Option<&'a RefCell<Prepared<'b, T, BackwardProblem>>>,
}

impl<T: Element> Passes<'_, '_, T> {
    fn run(&self, pace: Pace) -> flash_attention::Result<Duration> {
        for _ in 0..pace.evictions() {
            match (self.forward, self.backward) {
                (Some(forward), _) => forward.borrow_mut().flush_cache()?,
                (None, Some(backward)) => backward.borrow_mut().flush_cache()?,
                (None, None) => {}
            }
        }
        let mut sum = Duration::ZERO;
        if let Some(forward) = self.forward {
            sum += forward.borrow_mut().time()?;
        }
        if let Some(backward) = self.backward {
            sum += backward.borrow_mut().time()?;
        }
        Ok(sum)
    }
}

impl<T: Element> Timed for Passes<'_, '_, T> {
    fn time(&mut self, runs: usize, pace: Pace) -> Result<Vec<f64>> {
        (0..runs).map(|_| Ok(self.run(pace)?.as_secs_f64())).collect()
    }

    fn time_many(&mut self, runs: usize) -> Result<Many> {
        Ok(match (self.forward, self.backward) {
            (Some(forward), None) => forward.borrow_mut().time_many(runs)?,
            (None, Some(backward)) => backward.borrow_mut().time_many(runs)?,
            // One after the other, of which no graph is made.
            _ => Many::default(),
        })
    }
}
