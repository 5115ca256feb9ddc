//! The ceiling of the device's tensor cores.

use std::time::Duration;

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, Params, gemm_entries};
use fa_kernels::gemm::peak;
use fa_kernels::params::GemmParams;

use super::clock::Clock;
use crate::cuda::Cuda;
use crate::cuda::buffer::Buffer;
use crate::gemm::GemmProblem;
use crate::operation::Launch;
use crate::{DType, Error, Result};

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
            unsafe {
                self.cuda.enqueue_launch(&Launch::<GemmProblem>::new(self.entry, self.grid), &params, stream)
            }
        })
    }

    /// Multiplications and additions of one run.
    pub fn flops(&self) -> f64 {
        let warps = f64::from(self.grid) * f64::from(self.entry.threads / 32);
        warps * 2.0 * 16.0 * f64::from(8 * peak::PRODUCTS) * f64::from(Self::K)
    }
}
