//! A problem whose tensors lie on the device: run it, time it, read it back.

use std::marker::PhantomData;
use std::time::Duration;

use cudarc::driver::{CudaEvent, sys};

use super::Cuda;
use super::buffer::Buffer;
use super::driver::check;
use crate::launch::Addresses;
use crate::{Element, Plan, Problem, Result};

/// A problem with its inputs, outputs and workspace in device memory.
pub struct Resident<T> {
    cuda: Cuda,
    problem: Problem,
    plan: Plan,
    inputs: [Buffer; 3],
    o: Buffer,
    lse: Buffer,
    workspace: Buffer,
    alibi_slopes: Buffer,
    cu_seqlens: [Buffer; 2],
    /// Larger than the L2 cache: writing it evicts the tensors.
    eviction: Option<Buffer>,
    events: [CudaEvent; 2],
    element: PhantomData<T>,
}

impl<T: Element> Resident<T> {
    pub(super) fn new(
        cuda: &Cuda,
        problem: &Problem,
        plan: &Plan,
        (q, k, v): (&[T], &[T], &[T]),
    ) -> Result<Self> {
        let o_len = problem.tensors().o.span();
        problem.check_buffers::<T>(q.len(), k.len(), v.len(), o_len, None)?;
        cuda.load(plan)?;
        let allocate = |what, bytes| Buffer::new(&cuda.context, &cuda.device.name, what, bytes);
        let (cu_seqlens_q, cu_seqlens_k) = problem.cu_seqlens().unwrap_or_default();
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || check("cuEventCreate", cuda.context.new_event(flags));
        Ok(Self {
            inputs: [upload(cuda, "q", q)?, upload(cuda, "k", k)?, upload(cuda, "v", v)?],
            o: allocate("o", o_len * T::DTYPE.bytes())?,
            lse: allocate("lse", 4 * problem.lse_len())?,
            workspace: allocate("the score matrix", plan.workspace_bytes as usize)?,
            alibi_slopes: upload(cuda, "alibi_slopes", problem.alibi_slopes().unwrap_or_default())?,
            cu_seqlens: [
                upload(cuda, "cu_seqlens_q", cu_seqlens_q)?,
                upload(cuda, "cu_seqlens_k", cu_seqlens_k)?,
            ],
            eviction: None,
            events: [event()?, event()?],
            cuda: cuda.clone(),
            problem: problem.clone(),
            plan: plan.clone(),
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
        let [q, k, v] = self.inputs.each_ref().map(Buffer::address);
        let (o, lse, workspace) = (self.o.address(), Some(self.lse.address()), self.workspace.address());
        let alibi_slopes = Some(self.alibi_slopes.address());
        let [cu_seqlens_q, cu_seqlens_k] = self.cu_seqlens.each_ref().map(Buffer::address);
        let cu_seqlens = Some((cu_seqlens_q, cu_seqlens_k));
        let addresses = Addresses { q, k, v, o, lse, workspace, alibi_slopes, cu_seqlens };
        // SAFETY: the buffers are this object's own and as long as the views reach; it outlives the
        // stream's work because reading and dropping them synchronises.
        unsafe { self.cuda.forward(&self.problem, &self.plan, &addresses, self.cuda.stream()) }
    }

    /// Runs once between two device events and returns the time between them.
    ///
    /// # Errors
    /// When the driver refuses a launch, or a kernel faults.
    pub fn time(&mut self) -> Result<Duration> {
        self.record(0)?;
        self.run()?;
        self.record(1)?;
        let milliseconds = check("cuEventElapsedTime", self.events[0].elapsed_ms(&self.events[1]))?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }

    /// Evicts the tensors from the L2 cache.
    ///
    /// # Errors
    /// When the device has no memory left for a buffer of twice its L2 cache.
    pub fn flush_cache(&mut self) -> Result<()> {
        if self.eviction.is_none() {
            let (cuda, bytes) = (&self.cuda, 2 * self.cuda.l2_bytes);
            self.eviction = Some(Buffer::new(&cuda.context, &cuda.device.name, "the L2 flush", bytes)?);
        }
        let Some(eviction) = &self.eviction else { return Ok(()) };
        eviction.fill(0, self.cuda.stream())
    }

    /// Waits for the runs so far and copies O (its whole span) and lse back.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn read(&self, o: &mut [T], lse: &mut [f32]) -> Result<()> {
        check("cuStreamSynchronize", self.cuda.stream.synchronize())?;
        self.o.read(o)?;
        self.lse.read(lse)
    }

    /// Bytes of device memory beside Q, K, V, O and lse, as allocated.
    pub fn extra_bytes(&self) -> u64 {
        // An empty workspace is one byte to the driver, and none to the caller.
        self.workspace.bytes() as u64
    }

    fn record(&self, event: usize) -> Result<()> {
        check("cuEventRecord", self.events[event].record(&self.cuda.stream))
    }
}

/// Copies `values` into device memory.
fn upload<V: Copy>(cuda: &Cuda, what: &'static str, values: &[V]) -> Result<Buffer> {
    let buffer = Buffer::new(&cuda.context, &cuda.device.name, what, size_of_val(values))?;
    buffer.write(values)?;
    Ok(buffer)
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        // The buffers are freed next; the device must be done with them. A fault was reported by
        // the call that saw it, or will be by the next.
        let _ = self.cuda.stream.synchronize();
    }
}
