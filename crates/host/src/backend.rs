//! One way in for all backends.

use std::time::{Duration, Instant};

use fa_kernels::entries::HAS_NATIVE;

use crate::cuda::{self, Cuda};
use crate::sim::Sim;
use crate::{
    BackendKind, DecodeInputs, DecodePlan, DecodeProblem, DecodeRequest, Device, Element, Error, Plan,
    Problem, Request, Result, cpu, decode,
};

/// Where attention runs, opened and ready.
pub struct Backend {
    driver: Driver,
    reason: String,
}

pub(crate) enum Driver {
    Cuda(Cuda),
    Cpu(Device),
    Sim(Sim),
}

impl Backend {
    /// Opens the backend asked for, or without one a CUDA device if there is a usable one, else the CPU.
    ///
    /// # Errors
    /// When the backend asked for cannot be used.
    pub fn open(kind: Option<BackendKind>) -> Result<Self> {
        let asked = |driver| Ok(Self { driver, reason: "asked for".to_owned() });
        match kind {
            Some(BackendKind::Cuda) => asked(Driver::Cuda(Cuda::new(0)?)),
            Some(BackendKind::Cpu) => asked(Driver::Cpu(cpu::backend::device())),
            Some(BackendKind::Sim) if !HAS_NATIVE => Err(Error::NoSimulator),
            Some(BackendKind::Sim) => Ok(Self::simulator(0)),
            None => Ok(match Cuda::new(0) {
                Ok(cuda) => {
                    Self { driver: Driver::Cuda(cuda), reason: "a usable CUDA device is there".to_owned() }
                }
                Err(error) => Self { driver: Driver::Cpu(cpu::backend::device()), reason: error.to_string() },
            }),
        }
    }

    /// The simulator with the thread order that `seed` gives. It plans always; without the feature `simulator`
    /// its runs are [`Error::NoSimulator`].
    pub fn simulator(seed: u64) -> Self {
        Self { driver: Driver::Sim(Sim::new(seed)), reason: "asked for".to_owned() }
    }

    /// A CUDA device opened by the caller.
    pub fn cuda(cuda: Cuda) -> Self {
        Self { driver: Driver::Cuda(cuda), reason: "asked for".to_owned() }
    }

    pub(crate) const fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The GPU, where this backend drives one.
    pub const fn as_cuda(&self) -> Option<&Cuda> {
        match &self.driver {
            Driver::Cuda(cuda) => Some(cuda),
            Driver::Cpu(_) | Driver::Sim(_) => None,
        }
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        match &self.driver {
            Driver::Cuda(cuda) => cuda.device(),
            Driver::Cpu(device) => device,
            Driver::Sim(sim) => sim.device(),
        }
    }

    /// Why this backend: it was asked for, or what decided.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// [`crate::plan`] for this backend's device.
    ///
    /// # Errors
    /// As [`crate::plan`].
    pub fn plan(&self, problem: &Problem, request: &Request) -> Result<Plan> {
        crate::plan(problem, self.device(), request)
    }

    /// Readies a problem to be run as often as one likes: on a GPU, its tensors go to the device.
    ///
    /// # Errors
    /// When a buffer is too small for its view, or the device's memory for the problem.
    pub fn prepare<'a, T: Element>(
        &'a self,
        problem: &Problem,
        plan: &Plan,
        inputs: (&'a [T], &'a [T], &'a [T]),
    ) -> Result<Prepared<'a, T>> {
        let (q, k, v) = inputs;
        let o_len = problem.tensors().o.span();
        problem.check_buffers::<T>(q.len(), k.len(), v.len(), o_len, None)?;
        let state = match &self.driver {
            Driver::Cuda(cuda) => State::Cuda(Box::new(cuda.upload(problem, plan, inputs)?)),
            driver => {
                self.on_host(driver, HostCall::Forward(problem.clone(), plan.clone(), inputs), problem)?
            }
        };
        Ok(Prepared { o_len, lse_len: problem.lse_len(), launches: plan.steps.len(), state })
    }

    /// Outputs in host memory for a call on `driver`; `problem` says how large they are.
    fn on_host<'a, T: Element>(
        &'a self,
        driver: &'a Driver,
        call: HostCall<'a, T>,
        problem: &Problem,
    ) -> Result<State<'a, T>> {
        let o = self.device().allocate("o", problem.tensors().o.span())?;
        let lse = self.device().allocate("lse", problem.lse_len())?;
        Ok(State::Host { driver, call: Box::new(call), o, lse, extra_bytes: 0 })
    }

    /// A copy of `bytes` bytes within the device's memory, where it has one of its own: `None` on the CPU and
    /// in the simulator.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn device_copy(&self, bytes: usize) -> Result<Option<cuda::DeviceCopy>> {
        match &self.driver {
            Driver::Cuda(cuda) => cuda.device_copy(bytes).map(Some),
            Driver::Cpu(_) | Driver::Sim(_) => Ok(None),
        }
    }

    /// [`crate::plan_decode`] for this backend's device.
    ///
    /// # Errors
    /// As [`crate::plan_decode`].
    pub fn plan_decode(&self, problem: &DecodeProblem, request: &DecodeRequest) -> Result<DecodePlan> {
        crate::plan_decode(problem, self.device(), request)
    }

    /// [`Self::prepare`] for a decode problem.
    ///
    /// # Errors
    /// When a buffer is too small, an input out of range, or the device's memory too small.
    pub fn prepare_decode<'a, T: Element>(
        &'a self,
        problem: &DecodeProblem,
        plan: &DecodePlan,
        inputs: DecodeInputs<'a, T>,
    ) -> Result<Prepared<'a, T>> {
        let dense = problem.dense();
        let (o_len, lse_len) = (dense.tensors().o.span(), dense.lse_len());
        problem.check(&inputs, o_len, None)?;
        let state = match &self.driver {
            Driver::Cuda(cuda) => State::Cuda(Box::new(cuda.upload_decode(problem, plan, &inputs)?)),
            driver => self.on_host(driver, HostCall::Decode(problem.clone(), plan.clone(), inputs), dense)?,
        };
        Ok(Prepared { o_len, lse_len, launches: plan.steps.len(), state })
    }

    /// [`Self::forward`] of a decode problem.
    ///
    /// # Errors
    /// When a buffer is too small, an input out of range, the device's memory too small, or the device fails.
    pub fn decode<T: Element>(
        &self,
        problem: &DecodeProblem,
        plan: &DecodePlan,
        inputs: DecodeInputs<'_, T>,
        o: &mut [T::Output],
        lse: Option<&mut [f32]>,
    ) -> Result<()> {
        problem.check(&inputs, o.len(), lse.as_ref().map(|lse| lse.len()))?;
        let mut prepared = self.prepare_decode(problem, plan, inputs)?;
        prepared.time()?;
        let (span, all_lse) = prepared.outputs()?;
        copy_view(&problem.dense().tensors().o, &span, o);
        if let Some(lse) = lse {
            lse[..all_lse.len()].copy_from_slice(&all_lse);
        }
        Ok(())
    }

    /// Computes O, and lse where it is wanted, over host tensors: once, with copies where the
    /// device has a memory of its own.
    ///
    /// Elements of `o` that its view does not reach keep their values.
    ///
    /// # Errors
    /// When a buffer is too small for its view, the device's memory for the problem, or the device fails.
    pub fn forward<T: Element>(
        &self,
        problem: &Problem,
        plan: &Plan,
        inputs: (&[T], &[T], &[T]),
        o: &mut [T::Output],
        lse: Option<&mut [f32]>,
    ) -> Result<()> {
        let (q, k, v) = inputs;
        problem.check_buffers::<T>(q.len(), k.len(), v.len(), o.len(), lse.as_ref().map(|lse| lse.len()))?;
        match &self.driver {
            Driver::Cuda(cuda) => {
                let mut resident = cuda.upload(problem, plan, inputs)?;
                resident.run()?;
                let mut span: Vec<T::Output> = self.device().allocate("o", problem.tensors().o.span())?;
                let mut all_lse: Vec<f32> = self.device().allocate("lse", problem.lse_len())?;
                resident.read(&mut span, &mut all_lse)?;
                copy_view(&problem.tensors().o, &span, o);
                if let Some(lse) = lse {
                    lse[..all_lse.len()].copy_from_slice(&all_lse);
                }
            }
            Driver::Cpu(_) => {
                cpu::backend::run(problem, plan, inputs, o, lse)?;
            }
            Driver::Sim(sim) => {
                sim.forward(problem, plan, inputs, o, lse)?;
            }
        }
        Ok(())
    }
}

/// A problem readied by [`Backend::prepare`] or [`Backend::prepare_decode`].
pub struct Prepared<'a, T: Element> {
    o_len: usize,
    lse_len: usize,
    launches: usize,
    state: State<'a, T>,
}

enum State<'a, T: Element> {
    Cuda(Box<cuda::Resident<T>>),
    Host {
        driver: &'a Driver,
        call: Box<HostCall<'a, T>>,
        o: Vec<T::Output>,
        lse: Vec<f32>,
        extra_bytes: u64,
    },
}

/// What runs in host memory.
enum HostCall<'a, T> {
    Forward(Problem, Plan, (&'a [T], &'a [T], &'a [T])),
    Decode(DecodeProblem, DecodePlan, DecodeInputs<'a, T>),
}

impl<T: Element> HostCall<'_, T> {
    /// Runs once and returns the bytes of memory taken beside inputs and outputs.
    fn run(&self, driver: &Driver, o: &mut [T::Output], lse: &mut [f32]) -> Result<u64> {
        match (self, driver) {
            (Self::Forward(problem, plan, inputs), Driver::Sim(sim)) => {
                sim.forward(problem, plan, *inputs, o, Some(lse))?;
                Ok(plan.workspace_bytes)
            }
            (Self::Forward(problem, plan, inputs), Driver::Cpu(_) | Driver::Cuda(_)) => {
                Ok(cpu::backend::run(problem, plan, *inputs, o, Some(lse))?.extra_bytes as u64)
            }
            (Self::Decode(problem, plan, inputs), Driver::Sim(sim)) => {
                sim.decode(problem, plan, inputs, o, Some(lse))?;
                Ok(plan.workspace_bytes)
            }
            (Self::Decode(problem, _, inputs), Driver::Cpu(_) | Driver::Cuda(_)) => {
                decode::run_on_cpu(problem, inputs, o, lse)
            }
        }
    }
}

impl<T: Element> Prepared<'_, T> {
    /// Fills O and lse with NaN, so that what a kernel leaves unwritten shows.
    ///
    /// # Errors
    /// When the device fails.
    pub fn poison(&mut self) -> Result<()> {
        match &mut self.state {
            State::Cuda(resident) => resident.poison()?,
            State::Host { o, lse, .. } => {
                o.fill(T::Output::from_f32(f32::NAN));
                lse.fill(f32::NAN);
            }
        }
        Ok(())
    }

    /// Evicts the tensors from the device's last-level cache; on the CPU they are left where they are.
    ///
    /// # Errors
    /// When the device has no memory left for the buffer that does it.
    pub fn flush_cache(&mut self) -> Result<()> {
        match &mut self.state {
            State::Cuda(resident) => resident.flush_cache(),
            State::Host { .. } => Ok(()),
        }
    }

    /// Runs once and returns the time that it took: between device events on a GPU, by a monotonic
    /// clock elsewhere.
    ///
    /// # Errors
    /// When the device fails, or the simulator finds a fault in a kernel.
    pub fn time(&mut self) -> Result<Duration> {
        match &mut self.state {
            State::Cuda(resident) => resident.time(),
            State::Host { driver, call, o, lse, extra_bytes } => {
                let start = Instant::now();
                *extra_bytes = call.run(driver, o, lse)?;
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
        let start = Instant::now();
        for _ in 0..count {
            self.time()?;
        }
        Ok(start.elapsed())
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

    /// Runs `count` times and returns the time that the host spends on enqueueing them, without the wait for
    /// them; `None` where there is no queue, on the CPU and in the simulator.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub fn time_enqueued(&mut self, count: usize) -> Result<Option<Duration>> {
        match &mut self.state {
            State::Cuda(resident) => resident.time_enqueued(count).map(Some),
            State::Host { .. } => Ok(None),
        }
    }

    /// Runs once and says when each launch ran; on the CPU and in the simulator the run is one span.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub fn trace(&mut self) -> Result<Vec<cuda::LaunchSpan>> {
        if let State::Cuda(resident) = &mut self.state {
            return resident.trace();
        }
        let end = self.time()?;
        Ok(vec![cuda::LaunchSpan { name: "run", begin: Duration::ZERO, end }])
    }

    /// O (its whole span, what the view does not reach unspecified) and lse of the last run.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn outputs(&self) -> Result<(Vec<T::Output>, Vec<f32>)> {
        match &self.state {
            State::Cuda(resident) => {
                let mut o = vec![T::Output::default(); self.o_len];
                let mut lse = vec![0.0; self.lse_len];
                resident.read(&mut o, &mut lse)?;
                Ok((o, lse))
            }
            State::Host { o, lse, .. } => Ok((o.clone(), lse.clone())),
        }
    }

    /// Bytes of memory that the last run took beside Q, K, V, O and lse.
    pub fn extra_bytes(&self) -> u64 {
        match &self.state {
            State::Cuda(resident) => resident.extra_bytes(),
            State::Host { extra_bytes, .. } => *extra_bytes,
        }
    }

    /// GPU kernels that one run launches; on the CPU, 0.
    pub const fn launches(&self) -> usize {
        self.launches
    }
}

/// Copies what `layout` reaches, row by row.
pub(crate) fn copy_view<T: Copy>(layout: &crate::TensorLayout, from: &[T], to: &mut [T]) {
    for batch in 0..layout.batch {
        for seq in 0..layout.seqlen {
            for head in 0..layout.heads {
                let row = layout.row(batch, seq, head);
                to[row..row + layout.head_dim].copy_from_slice(&from[row..row + layout.head_dim]);
            }
        }
    }
}
