//! The backward pass on the device.

use std::marker::PhantomData;
use std::time::Duration;

use super::buffer::Buffer;
use super::clock::Clock;
use super::driver::check;
use super::{CUstream, Cuda};
use crate::backward::{BackwardAddresses, BackwardInputs, BackwardPlan, BackwardProblem, params};
use crate::{Addresses, Element, Result};

impl Cuda {
    /// As [`Self::load`], for [`Self::backward`].
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_backward(&self, plan: &BackwardPlan) -> Result<()> {
        self.load_steps(&plan.steps)
    }

    /// Enqueues a plan's launches on `stream` and returns; dQ, dK and dV are there once the stream gets so
    /// far.
    ///
    /// Allocates nothing and synchronises nothing; after [`Self::load_backward`] it can be recorded in a CUDA
    /// graph ([`Self::capture`]).
    ///
    /// # Errors
    /// When lse, or another address that the problem needs, was left out, and when the driver refuses a
    /// kernel or a launch.
    ///
    /// # Safety
    /// As [`Self::forward`], with the gradients, and with what the forward pass wrote to O and lse; dQ, dK,
    /// dV and the workspace overlap no input and one another neither.
    pub unsafe fn backward(
        &self,
        problem: &BackwardProblem,
        plan: &BackwardPlan,
        addresses: &BackwardAddresses,
        stream: CUstream,
    ) -> Result<()> {
        let params = params(problem, addresses)?;
        // SAFETY: the caller's contract; a backward plan's entries take these parameters.
        unsafe { self.launch(&plan.steps, &params, stream) }
    }

    /// Copies host tensors to the device, where the backward pass can be run as often as one likes.
    ///
    /// # Errors
    /// When a buffer is too small for its view, or the device's memory for the problem.
    pub fn upload_backward<T: Element>(
        &self,
        problem: &BackwardProblem,
        plan: &BackwardPlan,
        inputs: &BackwardInputs<'_, T>,
    ) -> Result<ResidentBackward<T>> {
        ResidentBackward::new(self, problem, plan, inputs)
    }
}

/// A backward pass with its tensors in device memory.
pub struct ResidentBackward<T> {
    cuda: Cuda,
    problem: BackwardProblem,
    plan: BackwardPlan,
    addresses: BackwardAddresses,
    /// What the launches read; kept alive for the addresses.
    _inputs: Vec<Buffer>,
    /// dQ, dK and dV.
    gradients: [Buffer; 3],
    workspace: Buffer,
    clock: Clock,
    element: PhantomData<T>,
}

impl<T: Element> ResidentBackward<T> {
    fn new(
        cuda: &Cuda,
        problem: &BackwardProblem,
        plan: &BackwardPlan,
        inputs: &BackwardInputs<'_, T>,
    ) -> Result<Self> {
        problem.check_inputs(inputs)?;
        cuda.load_backward(plan)?;
        let (forward, layouts) = (problem.forward(), problem.layouts());
        let (cu_seqlens_q, cu_seqlens_k) = forward.cu_seqlens().unwrap_or_default();
        let buffers = [
            cuda.buffer_of("q", inputs.q)?,
            cuda.buffer_of("k", inputs.k)?,
            cuda.buffer_of("v", inputs.v)?,
            cuda.buffer_of("o", inputs.o)?,
            cuda.buffer_of("lse", inputs.lse)?,
            cuda.buffer_of("dout", inputs.dout)?,
            cuda.buffer_of("alibi_slopes", forward.alibi_slopes().unwrap_or_default())?,
            cuda.buffer_of("cu_seqlens_q", cu_seqlens_q)?,
            cuda.buffer_of("cu_seqlens_k", cu_seqlens_k)?,
        ];
        let gradient = |what, span: usize| cuda.buffer(what, span * T::DTYPE.bytes());
        let gradients = [
            gradient("dq", layouts.dq.span())?,
            gradient("dk", layouts.dk.span())?,
            gradient("dv", layouts.dv.span())?,
        ];
        let workspace = cuda.buffer("delta", plan.workspace_bytes as usize)?;
        let [q, k, v, o, lse, dout, alibi_slopes, cu_seqlens_q, cu_seqlens_k] =
            buffers.each_ref().map(Buffer::address);
        let [dq, dk, dv] = gradients.each_ref().map(Buffer::address);
        let forward = Addresses {
            q,
            k,
            v,
            o,
            lse: Some(lse),
            workspace: workspace.address(),
            alibi_slopes: Some(alibi_slopes),
            cu_seqlens: Some((cu_seqlens_q, cu_seqlens_k)),
        };
        Ok(Self {
            clock: Clock::new(cuda)?,
            cuda: cuda.clone(),
            problem: problem.clone(),
            plan: plan.clone(),
            addresses: BackwardAddresses { forward, dout, dq, dk, dv },
            _inputs: buffers.into(),
            gradients,
            workspace,
            element: PhantomData,
        })
    }

    /// Fills gradients and workspace with NaN bits, so that what a kernel leaves unwritten shows.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn poison(&mut self) -> Result<()> {
        let mut written = self.gradients.iter().chain([&self.workspace]);
        written.try_for_each(|buffer| buffer.fill(0xff, self.cuda.stream()))
    }

    /// Enqueues one run on the backend's stream.
    ///
    /// # Errors
    /// When the driver refuses a launch.
    pub fn run(&mut self) -> Result<()> {
        self.enqueue()
    }

    fn enqueue(&self) -> Result<()> {
        // SAFETY: the buffers are this object's own and as long as the views reach; it outlives the stream's
        // work because reading and dropping them synchronises.
        unsafe { self.cuda.backward(&self.problem, &self.plan, &self.addresses, self.cuda.stream()) }
    }

    /// Runs once between two device events and returns the time between them.
    ///
    /// # Errors
    /// When the driver refuses a launch, or a kernel faults.
    pub fn time(&mut self) -> Result<Duration> {
        self.clock.time(|_| self.enqueue())
    }

    /// Runs `count` times behind one another, and returns the time from the start of the first to the end of
    /// the last.
    ///
    /// # Errors
    /// When the driver refuses a launch, or a kernel faults.
    pub fn time_runs(&mut self, count: usize) -> Result<Duration> {
        self.clock.time(|_| (0..count).try_for_each(|_| self.enqueue()))
    }

    /// As [`Self::time_runs`], of a replayed CUDA graph that holds the runs.
    ///
    /// # Errors
    /// When the driver refuses to record a launch, or a kernel faults.
    pub fn time_replayed(&mut self, count: usize) -> Result<Duration> {
        // SAFETY: the buffers are this object's own; it outlives the stream's work, as `enqueue` says.
        unsafe { self.clock.time_replayed(count, || self.enqueue()) }
    }

    /// Evicts the tensors from the L2 cache.
    ///
    /// # Errors
    /// When the device has no memory left for a buffer of twice its L2 cache.
    pub fn flush_cache(&mut self) -> Result<()> {
        self.clock.flush_cache()
    }

    /// Waits for the runs so far and copies dQ, dK and dV (their whole spans) back.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn read(&self, gradients: &mut [Vec<T>; 3]) -> Result<()> {
        check("cuStreamSynchronize", self.cuda.stream.synchronize())?;
        self.gradients.iter().zip(gradients).try_for_each(|(buffer, gradient)| buffer.read(gradient))
    }
}

impl<T> Drop for ResidentBackward<T> {
    fn drop(&mut self) {
        // As in `Resident`: the buffers are freed next.
        let _ = self.cuda.stream.synchronize();
    }
}
