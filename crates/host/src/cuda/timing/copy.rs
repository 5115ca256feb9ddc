//! A plain copy from device memory to device memory: what bandwidth the device has.

use std::time::Duration;

use super::clock::Clock;
use crate::Result;
use crate::cuda::Cuda;
use crate::cuda::buffer::Buffer;
use crate::cuda::driver::Driver;

/// Two buffers, and the copy of one to the other.
pub struct DeviceCopy {
    from: Buffer,
    to: Buffer,
    clock: Clock,
}

impl Cuda {
    /// A copy of `bytes` bytes.
    ///
    /// # Errors
    /// When the device's memory cannot be had.
    pub fn device_copy(&self, bytes: usize) -> Result<DeviceCopy> {
        let from = self.buffer("the source of a copy", bytes)?;
        from.fill(0, self.stream())?;
        let to = self.buffer("the target of a copy", bytes)?;
        Ok(DeviceCopy { from, to, clock: Clock::new(self)? })
    }
}

impl DeviceCopy {
    /// Bytes that one copy reads and writes.
    pub const fn traffic(&self) -> usize {
        2 * self.from.bytes()
    }

    /// Evicts both buffers from the L2 cache.
    ///
    /// # Errors
    /// When the device has no memory left for a buffer of twice its L2 cache.
    pub fn flush_cache(&mut self) -> Result<()> {
        self.clock.flush_cache()
    }

    /// Copies once between two device events and returns the time between them.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn time(&mut self) -> Result<Duration> {
        let (to, from, bytes) = (self.to.address(), self.from.address(), self.from.bytes());
        self.clock.time(|stream| {
            // SAFETY: both buffers are this object's own and as long; it outlives the copy, because `time`
            // waits for it.
            unsafe { Driver::get()?.cuMemcpyDtoDAsync_v2(to, from, bytes, stream) }?;
            Ok(())
        })
    }
}
