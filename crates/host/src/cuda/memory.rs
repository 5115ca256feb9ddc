//! Device memory for a caller who places tensors in it, with a stream that orders copies and launches.

#[cfg(feature = "testing")]
use std::time::Duration;

use super::buffer::Buffer;
#[cfg(feature = "testing")]
use super::driver::Event;
use super::driver::OwnedStream;
use super::{Cuda, Stream};
use crate::{Error, Result};

/// An allocation and a stream. Launches that [`Cuda::enqueue`] puts on the stream find what was
/// copied before.
pub struct DeviceMemory {
    cuda: Cuda,
    stream: OwnedStream,
    buffer: Buffer,
}

impl Cuda {
    /// `bytes` bytes of device memory, at a multiple of 256, and a stream that waits for no other.
    ///
    /// # Errors
    /// When the device has not so much memory left, or the driver fails.
    pub fn device_memory(&self, bytes: usize) -> Result<DeviceMemory> {
        let buffer = self.buffer("a piece of device memory", bytes)?;
        let stream = OwnedStream::new(&self.context)?;
        Ok(DeviceMemory { cuda: self.clone(), stream, buffer })
    }
}

impl DeviceMemory {
    /// Address of the first byte.
    pub const fn address(&self) -> u64 {
        self.buffer.address()
    }

    /// Length in bytes.
    pub const fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// The stream, for launches.
    pub fn stream(&self) -> Stream {
        self.stream.handle()
    }

    /// Copies host bytes to those from `offset` on.
    ///
    /// # Errors
    /// When they reach past the end, or the driver fails.
    pub fn write(&mut self, offset: usize, values: &[u8]) -> Result<()> {
        let address = self.at(offset, values.len())?;
        // SAFETY: the range is this object's own. The driver has read pageable host memory when the call
        // returns.
        unsafe {
            let (from, bytes) = (values.as_ptr().cast(), values.len());
            self.cuda.context.driver().cuMemcpyHtoDAsync_v2(address, from, bytes, self.stream())
        }?;
        Ok(())
    }

    /// Sets `len` bytes from `offset` on.
    ///
    /// # Errors
    /// When they reach past the end, or the driver fails.
    pub fn fill(&mut self, offset: usize, len: usize, byte: u8) -> Result<()> {
        let address = self.at(offset, len)?;
        // SAFETY: the range is this object's own.
        unsafe { self.cuda.context.driver().cuMemsetD8Async(address, byte, len, self.stream()) }?;
        Ok(())
    }

    /// Waits for everything on the stream and copies the bytes from `offset` on to the host.
    ///
    /// # Errors
    /// When they reach past the end, the driver fails, or a kernel faulted.
    pub fn read(&self, offset: usize, values: &mut [u8]) -> Result<()> {
        let address = self.at(offset, values.len())?;
        // SAFETY: the range is this object's own, and the copy is over before the borrow ends.
        unsafe {
            let (to, bytes) = (values.as_mut_ptr().cast(), values.len());
            self.cuda.context.driver().cuMemcpyDtoHAsync_v2(to, address, bytes, self.stream())
        }?;
        self.stream.synchronize()
    }

    /// The time between two events of the device around what `enqueue` puts on the stream; waits for it.
    ///
    /// # Errors
    /// The error of `enqueue`, and when the driver fails or a kernel faulted.
    #[cfg(feature = "testing")]
    pub fn time(&self, enqueue: impl FnOnce(Stream) -> Result<()>) -> Result<Duration> {
        let [begin, end] = [Event::new(&self.cuda.context)?, Event::new(&self.cuda.context)?];
        begin.record(self.stream())?;
        enqueue(self.stream())?;
        end.record(self.stream())?;
        begin.time_until(&end)
    }

    /// The address of `len` bytes from `offset` on, with the context made current.
    fn at(&self, offset: usize, len: usize) -> Result<u64> {
        let needed = offset.saturating_add(len);
        if needed > self.bytes() {
            return Err(Error::BufferTooSmall { tensor: "device memory", len: self.bytes(), needed });
        }
        self.cuda.context.make_current()?;
        Ok(self.address() + offset as u64)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // The buffer is freed next; the device must be done with it. Whoever waited for a run has heard of
        // its fault.
        let _ = self.stream.synchronize();
    }
}
