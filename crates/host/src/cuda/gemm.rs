//! Matrix multiplication on the device, and the ceiling of its tensor cores.

use std::marker::PhantomData;
use std::time::Duration;

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, Params, gemm_entries};
use fa_kernels::gemm::peak;
use fa_kernels::params::GemmParams;

use super::buffer::Buffer;
use super::clock::Clock;
use super::driver::check;
use super::{CUstream, Cuda};
use crate::gemm::{GemmAddresses, GemmPlan, GemmProblem, params};
use crate::{DType, Element, Error, Result};

impl Cuda {
    /// As [`Self::load`], for [`Self::gemm`].
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_gemm(&self, plan: &GemmPlan) -> Result<()> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        let mut steps = plan.step.iter().chain(&plan.unaligned);
        steps.try_for_each(|step| self.modules.function(step.entry).map(drop))
    }

    /// Enqueues a plan's launch on `stream` and returns; C is there once the stream gets so far.
    ///
    /// Allocates nothing on the device and synchronises nothing, and tensor maps go by value with the launch;
    /// after [`Self::load_gemm`] it can be recorded in a CUDA graph ([`Self::capture`]).
    ///
    /// # Errors
    /// When the driver refuses a kernel or a launch.
    ///
    /// # Safety
    /// `plan` was made for `problem` and this device. The addresses are device memory of this context that
    /// the matrices stay inside of, aligned to their element type; they and `stream` stay alive until the
    /// launch is over, nothing else writes the matrices meanwhile, and C does not overlap A and B.
    pub unsafe fn gemm(
        &self,
        problem: &GemmProblem,
        plan: &GemmPlan,
        addresses: &GemmAddresses,
        stream: CUstream,
    ) -> Result<()> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        let Some(step) = plan.step_at(addresses) else { return Ok(()) };
        let params = params(problem, step.entry, addresses, |map| self.tensor_map(map))?;
        // SAFETY: the caller's contract; the entry takes these parameters.
        unsafe { self.enqueue(step.entry, step.grid, &params, stream) }
    }

    /// Copies host matrices to the device, where the product can be computed as often as one likes.
    ///
    /// # Errors
    /// When a buffer is too small for its matrix, or the device's memory for the problem.
    pub fn upload_gemm<T: Element>(
        &self,
        problem: &GemmProblem,
        plan: &GemmPlan,
        inputs: (&[T], &[T]),
    ) -> Result<ResidentGemm<T>> {
        ResidentGemm::new(self, problem, plan, inputs)
    }
}

/// A multiplication with its matrices in device memory.
pub struct ResidentGemm<T> {
    cuda: Cuda,
    problem: GemmProblem,
    plan: GemmPlan,
    matrices: [Buffer; 3],
    clock: Clock,
    element: PhantomData<T>,
}

impl<T: Element> ResidentGemm<T> {
    fn new(cuda: &Cuda, problem: &GemmProblem, plan: &GemmPlan, (a, b): (&[T], &[T])) -> Result<Self> {
        let c_len = problem.matrices().c.span();
        problem.check_buffers::<T>(a.len(), b.len(), c_len)?;
        cuda.load_gemm(plan)?;
        let matrices =
            [cuda.buffer_of("a", a)?, cuda.buffer_of("b", b)?, cuda.buffer("c", c_len * T::DTYPE.bytes())?];
        let (problem, plan) = (*problem, plan.clone());
        Ok(Self {
            clock: Clock::new(cuda)?,
            cuda: cuda.clone(),
            problem,
            plan,
            matrices,
            element: PhantomData,
        })
    }

    /// Fills C with NaN bits, so that what a kernel leaves unwritten shows.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn poison(&mut self) -> Result<()> {
        self.matrices[2].fill(0xff, self.cuda.stream())
    }

    /// Enqueues one run on the backend's stream.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    pub fn run(&mut self) -> Result<()> {
        self.enqueue()
    }

    fn enqueue(&self) -> Result<()> {
        let [a, b, c] = self.matrices.each_ref().map(Buffer::address);
        // SAFETY: the buffers are this object's own and as long as the matrices reach; it outlives the
        // stream's work because reading and dropping them synchronises.
        unsafe { self.cuda.gemm(&self.problem, &self.plan, &GemmAddresses { a, b, c }, self.cuda.stream()) }
    }

    /// Runs once between two device events and returns the time between them.
    ///
    /// # Errors
    /// When the driver refuses the launch, or the kernel faults.
    pub fn time(&mut self) -> Result<Duration> {
        self.clock.time(|_| self.enqueue())
    }

    /// Runs `count` times behind one another, and returns the time from the start of the first to the end of
    /// the last.
    ///
    /// # Errors
    /// When the driver refuses a launch, or the kernel faults.
    pub fn time_runs(&mut self, count: usize) -> Result<Duration> {
        self.clock.time(|_| (0..count).try_for_each(|_| self.enqueue()))
    }

    /// As [`Self::time_runs`], of a replayed CUDA graph that holds the runs.
    ///
    /// # Errors
    /// When the driver refuses to record a launch, or the kernel faults.
    pub fn time_replayed(&mut self, count: usize) -> Result<Duration> {
        // SAFETY: the buffers are this object's own; it outlives the stream's work, as `enqueue` says.
        unsafe { self.clock.time_replayed(count, || self.enqueue()) }
    }

    /// Evicts the matrices from the L2 cache.
    ///
    /// # Errors
    /// When the device has no memory left for a buffer of twice its L2 cache.
    pub fn flush_cache(&mut self) -> Result<()> {
        self.clock.flush_cache()
    }

    /// Waits for the runs so far and copies C (its whole span) back.
    ///
    /// # Errors
    /// When the kernel faulted.
    pub fn read(&self, c: &mut [T]) -> Result<()> {
        check("cuStreamSynchronize", self.cuda.stream.synchronize())?;
        self.matrices[2].read(c)
    }
}

impl<T> Drop for ResidentGemm<T> {
    fn drop(&mut self) {
        // As in `Resident`: the buffers are freed next.
        let _ = self.cuda.stream.synchronize();
    }
}

/// What `mma.sync` reaches on this device with no memory in the way: the ceiling of every kernel that is
/// built on it.
pub struct MmaPeak {
    cuda: Cuda,
    entry: &'static GemmEntry,
    grid: u32,
    sums: Buffer,
    clock: Clock,
}

impl MmaPeak {
    /// K of each product: about two milliseconds of work for an H200.
    const K: u32 = 1 << 17;

    /// Readies the measurement in a 16-bit storage type.
    ///
    /// # Errors
    /// When the type or the device has no such tensor cores, or the device fails.
    pub fn new(cuda: &Cuda, dtype: DType) -> Result<Self> {
        let of_dtype =
            |entry: &&GemmEntry| entry.algorithm == GemmAlgorithm::MmaPeak && entry.dtype == dtype.name();
        let entry = gemm_entries().find(of_dtype).ok_or_else(|| Error::UnsupportedDType {
            kernel: "mma_peak",
            dtype,
            available: "f16, bf16".to_owned(),
        })?;
        if !entry.target.runs_on(cuda.device.compute_capability) {
            return Err(Error::KernelNeedsDevice {
                kernel: "mma_peak",
                needed: entry.target,
                device: cuda.device.name.clone(),
                found: cuda.device.compute_capability,
            });
        }
        let grid = entry.min_blocks * cuda.device.multiprocessors;
        let bytes = 4 * grid as usize * entry.threads as usize;
        let sums = cuda.buffer("the sums of mma_peak", bytes)?;
        Ok(Self { cuda: cuda.clone(), entry, grid, sums, clock: Clock::new(cuda)? })
    }

    /// Runs once between two device events and returns the time between them.
    ///
    /// # Errors
    /// When the driver refuses the launch, or the kernel faults.
    pub fn time(&mut self) -> Result<Duration> {
        let params = Params::Gemm(GemmParams { c: self.sums.address(), k: Self::K, ..GemmParams::default() });
        self.clock.time(|stream| {
            // SAFETY: the buffer holds one fp32 for each thread, and this object outlives the launch, which
            // `time` waits for.
            unsafe { self.cuda.enqueue(self.entry, self.grid, &params, stream) }
        })
    }

    /// Multiplications and additions of one run.
    pub fn flops(&self) -> f64 {
        let warps = f64::from(self.grid) * f64::from(self.entry.threads / 32);
        warps * 2.0 * 16.0 * f64::from(8 * peak::PRODUCTS) * f64::from(Self::K)
    }
}
