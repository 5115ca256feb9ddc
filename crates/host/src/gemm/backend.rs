//! Matrix multiplication through [`Backend`].

use std::time::{Duration, Instant};

use super::{GemmPlan, GemmProblem, GemmRequest, cpu, gemm_plan};
use crate::backend::Driver;
use crate::{Backend, Element, Result, cuda};

impl Backend {
    /// [`gemm_plan`] for this backend's device.
    ///
    /// # Errors
    /// As [`gemm_plan`].
    pub fn plan_gemm(&self, problem: &GemmProblem, request: &GemmRequest) -> Result<GemmPlan> {
        gemm_plan(problem, self.device(), request)
    }

    /// Readies a multiplication to be run as often as one likes: on a GPU, its matrices go to the device.
    ///
    /// # Errors
    /// When a buffer is too small for its matrix, or the device's memory for the problem.
    pub fn prepare_gemm<'a, T: Element>(
        &'a self,
        problem: &GemmProblem,
        plan: &GemmPlan,
        inputs: (&'a [T], &'a [T]),
    ) -> Result<PreparedGemm<'a, T>> {
        let c_len = problem.matrices().c.span();
        problem.check_buffers::<T>(inputs.0.len(), inputs.1.len(), c_len)?;
        let state = match self.driver() {
            Driver::Cuda(cuda) => State::Cuda(Box::new(cuda.upload_gemm(problem, plan, inputs)?)),
            _ => State::Host { backend: self, inputs, c: self.device().allocate("c", c_len)? },
        };
        Ok(PreparedGemm { problem: *problem, plan: plan.clone(), state })
    }

    /// Computes C over host matrices: once, with copies where the device has a memory of its own.
    ///
    /// Elements of `c` outside the matrix keep their values.
    ///
    /// # Errors
    /// When a buffer is too small for its matrix, the device's memory for the problem, or the device fails.
    pub fn gemm<T: Element>(
        &self,
        problem: &GemmProblem,
        plan: &GemmPlan,
        inputs: (&[T], &[T]),
        c: &mut [T],
    ) -> Result<()> {
        problem.check_buffers::<T>(inputs.0.len(), inputs.1.len(), c.len())?;
        match self.driver() {
            Driver::Cpu(device) => cpu::run(problem, device, inputs, c),
            Driver::Sim(sim) => sim.gemm(problem, plan, inputs, c).map(drop),
            Driver::Cuda(cuda) => {
                let mut resident = cuda.upload_gemm(problem, plan, inputs)?;
                resident.run()?;
                let layout = problem.matrices().c;
                let mut span: Vec<T> = self.device().allocate("c", layout.span())?;
                resident.read(&mut span)?;
                for row in 0..layout.rows {
                    for column in 0..layout.columns {
                        c[layout.at(row, column)] = span[layout.at(row, column)];
                    }
                }
                Ok(())
            }
        }
    }
}

/// A multiplication readied by [`Backend::prepare_gemm`].
pub struct PreparedGemm<'a, T> {
    problem: GemmProblem,
    plan: GemmPlan,
    state: State<'a, T>,
}

enum State<'a, T> {
    Cuda(Box<cuda::ResidentGemm<T>>),
    Host { backend: &'a Backend, inputs: (&'a [T], &'a [T]), c: Vec<T> },
}

impl<T: Element> PreparedGemm<'_, T> {
    /// Fills C with NaN, so that what a kernel leaves unwritten shows.
    ///
    /// # Errors
    /// When the device fails.
    pub fn poison(&mut self) -> Result<()> {
        match &mut self.state {
            State::Cuda(resident) => resident.poison()?,
            State::Host { c, .. } => c.fill(T::from_f32(f32::NAN)),
        }
        Ok(())
    }

    /// Evicts the matrices from a GPU's L2 cache; does nothing elsewhere.
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
            State::Host { backend, inputs, c } => {
                let start = Instant::now();
                backend.gemm(&self.problem, &self.plan, *inputs, c)?;
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

    /// C (its whole span, what the matrix does not reach unspecified) of the last run.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn output(&self) -> Result<Vec<T>> {
        match &self.state {
            State::Cuda(resident) => {
                let mut c = vec![T::default(); self.problem.matrices().c.span()];
                resident.read(&mut c)?;
                Ok(c)
            }
            State::Host { c, .. } => Ok(c.clone()),
        }
    }
}
