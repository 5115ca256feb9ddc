//! The backward pass through [`Backend`].

use std::time::{Duration, Instant};

use super::{
    BackwardInputs, BackwardOutputs, BackwardPlan, BackwardProblem, BackwardRequest, GradientLayouts,
    plan_backward,
};
use crate::backend::{Driver, copy_view};
use crate::{Backend, Element, Result, cpu, cuda};

impl Backend {
    /// [`plan_backward`] for this backend's device.
    ///
    /// # Errors
    /// As [`plan_backward`].
    pub fn plan_backward(
        &self,
        problem: &BackwardProblem,
        request: &BackwardRequest,
    ) -> Result<BackwardPlan> {
        plan_backward(problem, self.device(), request)
    }

    /// Readies a backward pass to be run as often as one likes: on a GPU, its tensors go to the device.
    ///
    /// # Errors
    /// When a buffer is too small for its view, or the device's memory for the problem.
    pub fn prepare_backward<'a, T: Element>(
        &'a self,
        problem: &BackwardProblem,
        plan: &BackwardPlan,
        inputs: BackwardInputs<'a, T>,
    ) -> Result<PreparedBackward<'a, T>> {
        problem.check_inputs(&inputs)?;
        let state = match self.driver() {
            Driver::Cuda(cuda) => State::Cuda(Box::new(cuda.upload_backward(problem, plan, &inputs)?)),
            _ => State::Host { backend: self, inputs, gradients: self.gradients(problem)?, extra_bytes: 0 },
        };
        Ok(PreparedBackward { problem: problem.clone(), plan: plan.clone(), state })
    }

    /// Buffers of the gradients' spans, in host memory.
    fn gradients<T: Element>(&self, problem: &BackwardProblem) -> Result<[Vec<T>; 3]> {
        let GradientLayouts { dq, dk, dv, .. } = problem.layouts();
        let allocate = |what, len| self.device().allocate(what, len);
        Ok([allocate("dq", dq.span())?, allocate("dk", dk.span())?, allocate("dv", dv.span())?])
    }

    /// Computes dQ, dK and dV over host tensors: once, with copies where the device has a memory of its own.
    /// O and lse are those of [`Self::forward`].
    ///
    /// Elements of the gradients that their views do not reach keep their values.
    ///
    /// # Errors
    /// When a buffer is too small for its view, the device's memory for the problem, or the device fails.
    pub fn backward<T: Element>(
        &self,
        problem: &BackwardProblem,
        plan: &BackwardPlan,
        inputs: BackwardInputs<'_, T>,
        mut outputs: BackwardOutputs<'_, T>,
    ) -> Result<()> {
        problem.check(&inputs, &outputs)?;
        let Driver::Cuda(cuda) = self.driver() else {
            return self.run_backward(problem, plan, &inputs, &mut outputs).map(drop);
        };
        let mut resident = cuda.upload_backward(problem, plan, &inputs)?;
        resident.run()?;
        let mut spans = self.gradients(problem)?;
        resident.read(&mut spans)?;
        let GradientLayouts { dq, dk, dv, .. } = problem.layouts();
        copy_view(dq, &spans[0], outputs.dq);
        copy_view(dk, &spans[1], outputs.dk);
        copy_view(dv, &spans[2], outputs.dv);
        Ok(())
    }

    /// Runs once in host memory and returns the bytes of memory taken beside inputs and outputs.
    fn run_backward<T: Element>(
        &self,
        problem: &BackwardProblem,
        plan: &BackwardPlan,
        inputs: &BackwardInputs<'_, T>,
        outputs: &mut BackwardOutputs<'_, T>,
    ) -> Result<u64> {
        match self.driver() {
            Driver::Sim(sim) => {
                sim.backward(problem, plan, inputs, outputs)?;
                Ok(plan.workspace_bytes)
            }
            Driver::Cpu(_) | Driver::Cuda(_) => {
                cpu::backward(problem, inputs, outputs).map(|stats| stats.extra_bytes as u64)
            }
        }
    }
}

/// A backward pass readied by [`Backend::prepare_backward`].
pub struct PreparedBackward<'a, T> {
    problem: BackwardProblem,
    plan: BackwardPlan,
    state: State<'a, T>,
}

enum State<'a, T> {
    Cuda(Box<cuda::ResidentBackward<T>>),
    Host { backend: &'a Backend, inputs: BackwardInputs<'a, T>, gradients: [Vec<T>; 3], extra_bytes: u64 },
}

impl<T: Element> PreparedBackward<'_, T> {
    /// Fills the gradients with NaN, so that what a kernel leaves unwritten shows.
    ///
    /// # Errors
    /// When the device fails.
    pub fn poison(&mut self) -> Result<()> {
        match &mut self.state {
            State::Cuda(resident) => resident.poison()?,
            State::Host { gradients, .. } => {
                gradients.iter_mut().for_each(|gradient| gradient.fill(T::from_f32(f32::NAN)));
            }
        }
        Ok(())
    }

    /// Evicts the tensors from a GPU's L2 cache; does nothing elsewhere.
    ///
    /// # Errors
    /// When the device fails.
    pub fn flush_cache(&mut self) -> Result<()> {
        match &mut self.state {
            State::Cuda(resident) => resident.flush_cache(),
            State::Host { .. } => Ok(()),
        }
    }

    /// Runs once and returns the time that it took: between device events on a GPU, by a monotonic clock
    /// elsewhere.
    ///
    /// # Errors
    /// When the device fails, or the simulator finds a fault in a kernel.
    pub fn time(&mut self) -> Result<Duration> {
        match &mut self.state {
            State::Cuda(resident) => resident.time(),
            State::Host { backend, inputs, gradients: [dq, dk, dv], extra_bytes } => {
                let start = Instant::now();
                let mut outputs = BackwardOutputs { dq, dk, dv };
                *extra_bytes = backend.run_backward(&self.problem, &self.plan, inputs, &mut outputs)?;
                Ok(start.elapsed())
            }
        }
    }

    /// Runs `count` times behind one another without waiting in between, and returns the time of all.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub fn time_runs(&mut self, count: usize) -> Result<Duration> {
        if let State::Cuda(resident) = &mut self.state {
            return resident.time_runs(count);
        }
        (0..count).map(|_| self.time()).sum()
    }

    /// As [`Self::time_runs`], of a replayed CUDA graph that holds the runs; `None` where there are no
    /// graphs, on the CPU and in the simulator.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub fn time_replayed(&mut self, count: usize) -> Result<Option<Duration>> {
        match &mut self.state {
            State::Cuda(resident) => resident.time_replayed(count).map(Some),
            State::Host { .. } => Ok(None),
        }
    }

    /// dQ, dK and dV (their whole spans, what the views do not reach unspecified) of the last run.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn outputs(&self) -> Result<[Vec<T>; 3]> {
        match &self.state {
            State::Cuda(resident) => {
                let GradientLayouts { dq, dk, dv, .. } = self.problem.layouts();
                let mut spans = [dq, dk, dv].map(|layout| vec![T::default(); layout.span()]);
                resident.read(&mut spans)?;
                Ok(spans)
            }
            State::Host { gradients, .. } => Ok(gradients.clone()),
        }
    }

    /// Bytes of memory that the last run took beside the tensors.
    pub const fn extra_bytes(&self) -> u64 {
        match &self.state {
            State::Cuda(_) => self.plan.workspace_bytes,
            State::Host { extra_bytes, .. } => *extra_bytes,
        }
    }

    /// GPU kernels that one run launches; on the CPU, 0.
    pub const fn launches(&self) -> usize {
        self.plan.steps.len()
    }
}
