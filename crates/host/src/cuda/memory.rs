//! Device memory for a caller who places tensors in it, with a stream that orders copies and launches.

use std::sync::Arc;

use cudarc::driver::{CudaStream, result};

use super::buffer::Buffer;
use super::driver::check;
use super::{CUstream, Cuda};
use crate::{Error, Result};

/// An allocation and a stream. Launches that [`Cuda::enqueue`] puts on the stream find what was
/// copied before.
pub struct DeviceMemory {
    cuda: Cuda,
    stream: Arc<CudaStream>,
    buffer: Buffer,
}

impl Cuda {
    /// `bytes` bytes of device memory, at a multiple of 256, and a stream that waits for no other.
    ///
    /// # Errors
    /// When the device has not so much memory left, or the driver fails.
    pub fn device_memory(&self, bytes: usize) -> Result<DeviceMemory> {
        let buffer = self.buffer("a piece of device memory", bytes)?;
        let stream = check("cuStreamCreate", self.context.new_stream())?;
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
    pub fn stream(&self) -> CUstream {
        self.stream.cu_stream()
    }

    /// Copies host bytes to those from `offset` on.
    ///
    /// # Errors
    /// When they reach past the end, or the driver fails.
    pub fn write(&mut self, offset: usize, values: &[u8]) -> Result<()> {
        let address = self.at(offset, values.len())?;
        // SAFETY: the range is this object's own. The driver has read pageable host memory when the call
        // returns.
        let copied = unsafe { result::memcpy_htod_async(address, values, self.stream()) };
        check("cuMemcpyHtoDAsync", copied)
    }

    /// Sets `len` bytes from `offset` on.
    ///
    /// # Errors
    /// When they reach past the end, or the driver fails.
    pub fn fill(&mut self, offset: usize, len: usize, byte: u8) -> Result<()> {
        let address = self.at(offset, len)?;
        // SAFETY: the range is this object's own.
        check("cuMemsetD8Async", unsafe { result::memset_d8_async(address, byte, len, self.stream()) })
    }

    /// Waits for everything on the stream and copies the bytes from `offset` on to the host.
    ///
    /// # Errors
    /// When they reach past the end, the driver fails, or a kernel faulted.
    pub fn read(&self, offset: usize, values: &mut [u8]) -> Result<()> {
        let address = self.at(offset, values.len())?;
        // SAFETY: the range is this object's own, and the copy is over before the borrow ends.
        check("cuMemcpyDtoHAsync", unsafe { result::memcpy_dtoh_async(values, address, self.stream()) })?;
        check("cuStreamSynchronize", self.stream.synchronize())
    }

    /// The address of `len` bytes from `offset` on, with the context made current.
    fn at(&self, offset: usize, len: usize) -> Result<u64> {
        let needed = offset.saturating_add(len);
        if needed > self.bytes() {
            return Err(Error::BufferTooSmall { tensor: "device memory", len: self.bytes(), needed });
        }
        check("cuCtxSetCurrent", self.cuda.context.bind_to_thread())?;
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
