//! A problem whose tensors lie on the device: run it, time it, read it back.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::Cuda;
use super::buffer::Buffer;
use super::clock::Clock;
use super::driver::check;
use crate::launch::Addresses;
use crate::{DecodeAddresses, DecodeInputs, DecodePlan, DecodeProblem, Element, Plan, Problem, Result};

/// A problem with its inputs, outputs and workspace in device memory.
pub struct Resident<T> {
    cuda: Cuda,
    call: Call,
    /// Q, K and V.
    inputs: [Buffer; 3],
    o: Buffer,
    lse: Buffer,
    workspace: Buffer,
    clock: Clock,
    element: PhantomData<T>,
}

/// When a launch ran, from the start of the first of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSpan {
    /// Its entry.
    pub name: &'static str,
    /// Where the launch before it ended.
    pub begin: Duration,
    /// Where it ended.
    pub end: Duration,
}

/// What is computed.
enum Call {
    Forward { problem: Problem, plan: Plan, alibi_slopes: Buffer, cu_seqlens: [Buffer; 2] },
    Decode { problem: DecodeProblem, plan: DecodePlan, seqused_k: Option<Buffer>, page_table: Option<Buffer> },
}

impl<T: Element> Resident<T> {
    pub(super) fn forward(
        cuda: &Cuda,
        problem: &Problem,
        plan: &Plan,
        (q, k, v): (&[T], &[T], &[T]),
    ) -> Result<Self> {
        let o_len = problem.tensors().o.span();
        problem.check_buffers::<T>(q.len(), k.len(), v.len(), o_len, None)?;
        cuda.load(plan)?;
        let (cu_seqlens_q, cu_seqlens_k) = problem.cu_seqlens().unwrap_or_default();
        let call = Call::Forward {
            problem: problem.clone(),
            plan: plan.clone(),
            alibi_slopes: cuda.buffer_of("alibi_slopes", problem.alibi_slopes().unwrap_or_default())?,
            cu_seqlens: [
                cuda.buffer_of("cu_seqlens_q", cu_seqlens_q)?,
                cuda.buffer_of("cu_seqlens_k", cu_seqlens_k)?,
            ],
        };
        Self::new(cuda, problem, (q, k, v), (plan.workspace(), plan.workspace_bytes), call)
    }

    pub(super) fn decode(
        cuda: &Cuda,
        problem: &DecodeProblem,
        plan: &DecodePlan,
        inputs: &DecodeInputs<'_, T>,
    ) -> Result<Self> {
        let dense = problem.dense();
        problem.check(inputs, dense.tensors().o.span(), None)?;
        cuda.load_decode(plan)?;
        let numbers =
            |what, values: Option<&[i32]>| values.map(|values| cuda.buffer_of(what, values)).transpose();
        let call = Call::Decode {
            problem: problem.clone(),
            plan: plan.clone(),
            seqused_k: numbers("seqused_k", inputs.seqused_k)?,
            page_table: numbers("page_table", inputs.page_table)?,
        };
        let workspace = ("the splits' results", plan.workspace_bytes);
        Self::new(cuda, dense, (inputs.q, inputs.k, inputs.v), workspace, call)
    }

    /// Allocates and copies what every call has; `problem` says how large O and lse are.
    fn new(
        cuda: &Cuda,
        problem: &Problem,
        (q, k, v): (&[T], &[T], &[T]),
        (what, workspace_bytes): (&'static str, u64),
        call: Call,
    ) -> Result<Self> {
        Ok(Self {
            inputs: [cuda.buffer_of("q", q)?, cuda.buffer_of("k", k)?, cuda.buffer_of("v", v)?],
            o: cuda.buffer("o", problem.tensors().o.span() * T::DTYPE.output().bytes())?,
            lse: cuda.buffer("lse", 4 * problem.lse_len())?,
            workspace: cuda.buffer(what, workspace_bytes as usize)?,
            clock: Clock::new(cuda)?,
            cuda: cuda.clone(),
            call,
            element: PhantomData,
        })
    }

    /// Fills O, lse and workspace with NaN bits, so that what a kernel leaves unwritten shows.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn poison(&mut self) -> Result<()> {
        [&self.o, &self.lse, &self.workspace]
            .into_iter()
            .try_for_each(|buffer| buffer.fill(0xff, self.cuda.stream()))
    }

    /// Enqueues one run on the backend's stream.
    ///
    /// # Errors
    /// When the driver refuses a launch.
    pub fn run(&mut self) -> Result<()> {
        self.enqueue()
    }

    fn enqueue(&self) -> Result<()> {
        let stream = self.cuda.stream();
        match &self.call {
            Call::Forward { problem, plan, alibi_slopes, cu_seqlens } => {
                let addresses = self.forward_addresses(alibi_slopes, cu_seqlens);
                // SAFETY: the buffers are this object's own and as long as the views reach; it outlives the
                // stream's work because reading and dropping them synchronises.
                unsafe { self.cuda.forward(problem, plan, &addresses, stream) }
            }
            Call::Decode { problem, plan, seqused_k, page_table } => {
                let [q, k, v] = self.inputs.each_ref().map(Buffer::address);
                let (o, lse, workspace) =
                    (self.o.address(), Some(self.lse.address()), self.workspace.address());
                let [seqused_k, page_table] =
                    [seqused_k, page_table].map(|buffer| buffer.as_ref().map(Buffer::address));
                let addresses = DecodeAddresses { q, k, v, o, lse, seqused_k, page_table, workspace };
                // SAFETY: as above; lengths and pages were checked before they were copied.
                unsafe { self.cuda.decode(problem, plan, &addresses, stream) }
            }
        }
    }

    fn forward_addresses(&self, alibi_slopes: &Buffer, cu_seqlens: &[Buffer; 2]) -> Addresses {
        let [q, k, v] = self.inputs.each_ref().map(Buffer::address);
        let [cu_seqlens_q, cu_seqlens_k] = cu_seqlens.each_ref().map(Buffer::address);
        Addresses {
            q,
            k,
            v,
            o: self.o.address(),
            lse: Some(self.lse.address()),
            workspace: self.workspace.address(),
            alibi_slopes: Some(alibi_slopes.address()),
            cu_seqlens: Some((cu_seqlens_q, cu_seqlens_k)),
        }
    }

    /// Runs `count` times behind one another, and returns the time from the start of the first to the end of
    /// the last.
    ///
    /// # Errors
    /// When the driver refuses a launch, or a kernel faults.
    pub fn time_runs(&mut self, count: usize) -> Result<Duration> {
        self.clock.time(|_| (0..count).try_for_each(|_| self.enqueue()))
    }

    /// The time that the host spends on `count` calls of [`Cuda::forward`] or [`Cuda::decode`] behind one
    /// another, on a stream that is idle at first; waits for their launches afterwards.
    ///
    /// The driver lets a stream fall about a thousand launches behind; with more, the host waits for the
    /// device, and that counts too.
    ///
    /// # Errors
    /// When the driver refuses a launch, or a kernel faults.
    pub fn time_enqueued(&mut self, count: usize) -> Result<Duration> {
        let wait = || check("cuStreamSynchronize", self.cuda.stream.synchronize());
        wait()?;
        let start = Instant::now();
        (0..count).try_for_each(|_| self.enqueue())?;
        let spent = start.elapsed();
        wait().map(|()| spent)
    }

    /// Records `count` runs in a CUDA graph, replays it, and returns the time from the start of the first run
    /// to the end of the last.
    ///
    /// # Errors
    /// When the driver refuses to record a launch, or a kernel faults.
    pub fn time_replayed(&mut self, count: usize) -> Result<Duration> {
        // SAFETY: the buffers are this object's own; it outlives the stream's work, as `enqueue` says.
        unsafe { self.clock.time_replayed(count, || self.enqueue()) }
    }

    /// Runs once with an event behind each launch, and says when each one ran.
    ///
    /// # Errors
    /// When the driver refuses a launch, or a kernel faults.
    pub fn trace(&mut self) -> Result<Vec<LaunchSpan>> {
        let (names, ends) = match &self.call {
            Call::Forward { problem, plan, alibi_slopes, cu_seqlens } => {
                let addresses = self.forward_addresses(alibi_slopes, cu_seqlens);
                let steps = plan.steps_at(&addresses);
                let names: Vec<_> = steps.iter().map(|step| step.entry.name).collect();
                let stream = self.cuda.stream();
                // SAFETY: as in `enqueue`.
                let enqueue = |index: usize| unsafe {
                    self.cuda.forward_step(problem, &steps[index], &addresses, stream)
                };
                (names, self.clock.marks(steps.len(), enqueue)?)
            }
            Call::Decode { .. } => (vec!["decode"], self.clock.marks(1, |_| self.enqueue())?),
        };
        let begins = std::iter::once(Duration::ZERO).chain(ends.iter().copied());
        let spans = names.into_iter().zip(begins).zip(&ends);
        Ok(spans.map(|((name, begin), &end)| LaunchSpan { name, begin, end }).collect())
    }

    /// Runs once between two device events and returns the time between them.
    ///
    /// # Errors
    /// When the driver refuses a launch, or a kernel faults.
    pub fn time(&mut self) -> Result<Duration> {
        self.clock.time(|_| self.enqueue())
    }

    /// Evicts the tensors from the L2 cache.
    ///
    /// # Errors
    /// When the device has no memory left for a buffer of twice its L2 cache.
    pub fn flush_cache(&mut self) -> Result<()> {
        self.clock.flush_cache()
    }

    /// Waits for the runs so far and copies O (its whole span) and lse back.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn read(&self, o: &mut [T::Output], lse: &mut [f32]) -> Result<()> {
        check("cuStreamSynchronize", self.cuda.stream.synchronize())?;
        self.o.read(o)?;
        self.lse.read(lse)
    }

    /// Bytes of device memory beside Q, K, V, O and lse, as allocated.
    pub fn extra_bytes(&self) -> u64 {
        // An empty workspace is one byte to the driver, and none to the caller.
        self.workspace.bytes() as u64
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        // The buffers are freed next; the device must be done with them. A fault was reported by
        // the call that saw it, or will be by the next.
        let _ = self.cuda.stream.synchronize();
    }
}
