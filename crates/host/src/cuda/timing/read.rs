//! Reads of device memory and nothing else: what bandwidth they have, and what evicts caches.

use std::time::Duration;

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, Params, Target, gemm_entries};
use fa_kernels::params::GemmParams;

use super::clock::Clock;
use crate::cuda::buffer::Buffer;
use crate::cuda::{Cuda, Stream};
use crate::gemm::GemmProblem;
use crate::operation::Launch;
use crate::{Error, Result};

/// A buffer that is read whole; on devices older than sm_80, which have no kernel for it, written.
pub(crate) struct Reader {
    cuda: Cuda,
    entry: Option<&'static GemmEntry>,
    buffer: Buffer,
}

impl Reader {
    /// Bytes behind the buffer that the kernel may write.
    const SINK: usize = 16;

    /// Of `bytes` bytes, a multiple of 16.
    pub(crate) fn new(cuda: &Cuda, bytes: usize) -> Result<Self> {
        let entry = gemm_entries().find(|entry| entry.algorithm == GemmAlgorithm::ReadPeak);
        let entry = entry.filter(|entry| entry.target.runs_on(cuda.device.compute_capability));
        let buffer = cuda.buffer("memory that is read", bytes + Self::SINK)?;
        buffer.fill(0, cuda.stream())?;
        Ok(Self { cuda: cuda.clone(), entry, buffer })
    }

    /// Bytes that one read reads.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.bytes() - Self::SINK
    }

    /// Reads it once.
    pub(crate) fn enqueue(&self, stream: Stream) -> Result<()> {
        let Some(entry) = self.entry else { return self.buffer.fill(0, stream) };
        let (a, bytes) = (self.buffer.address(), self.bytes());
        let params = GemmParams { a, c: a + bytes as u64, k: (bytes / 16) as u32, ..GemmParams::default() };
        let grid = entry.min_blocks * self.cuda.device.multiprocessors;
        // SAFETY: the buffer is as long as K says, with a word behind it, and outlives the launch, which the
        // clock waits for.
        unsafe {
            self.cuda.enqueue_launch(&Launch::<GemmProblem>::new(entry, grid), &Params::Gemm(params), stream)
        }
    }
}

/// Reads of a buffer.
pub struct DeviceRead {
    reader: Reader,
    clock: Clock,
}

impl Cuda {
    /// A read of `bytes` bytes, a multiple of 16.
    ///
    /// # Errors
    /// When the device is older than sm_80, or its memory cannot be had.
    pub fn device_read(&self, bytes: usize) -> Result<DeviceRead> {
        let reader = Reader::new(self, bytes)?;
        if reader.entry.is_none() {
            return Err(Error::KernelNeedsDevice {
                kernel: "read_peak",
                needed: Target::Sm80,
                device: self.device.name.clone(),
                found: self.device.compute_capability,
            });
        }
        Ok(DeviceRead { reader, clock: Clock::new(self)? })
    }
}

impl DeviceRead {
    /// Bytes that one read reads.
    pub fn traffic(&self) -> usize {
        self.reader.bytes()
    }

    /// Evicts the buffer from the L2 cache.
    ///
    /// # Errors
    /// When the device has no memory left for a buffer of twice its L2 cache.
    pub fn flush_cache(&mut self) -> Result<()> {
        self.clock.flush_cache()
    }

    /// Reads once between two device events and returns the time between them.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn time(&mut self) -> Result<Duration> {
        self.clock.time(|stream| self.reader.enqueue(stream))
    }
}
