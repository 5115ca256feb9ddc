//! Device memory that is freed when it goes out of scope.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::driver::check;
use crate::{Error, Result};

/// Bytes that the end of an allocation is rounded up to, NaN behind what was written: compute-sanitizer takes
/// the copy of a part of the last chunk (`cp.async` with fewer source bytes) for one of all of it.
const CHUNK: usize = 16;

/// A plain allocation of device memory.
pub(super) struct Buffer {
    context: Arc<CudaContext>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` bytes for `what`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the bytes needed and free, when the device has not enough.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        device: &str,
        what: &'static str,
        bytes: usize,
    ) -> Result<Self> {
        check("cuCtxSetCurrent", context.bind_to_thread())?;
        // The driver refuses a size of 0.
        // SAFETY: a context is current.
        let allocated = unsafe { result::malloc_sync(bytes.max(1).next_multiple_of(CHUNK)) };
        if let Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) = allocated {
            let (free, _) = check("cuMemGetInfo", context.mem_get_info())?;
            return Err(Error::OutOfMemory {
                what,
                needed: bytes as u128,
                available: free as u128,
                device: device.to_owned(),
            });
        }
        let address = check(format_args!("cuMemAlloc({bytes} bytes for {what})"), allocated)?;
        Ok(Self { context: Arc::clone(context), address, bytes })
    }

    pub(super) const fn address(&self) -> u64 {
        self.address
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets every byte on `stream`.
    #[cfg(feature = "testing")]
    pub(super) fn fill(&self, byte: u8, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the allocation is live and as long as said.
        check("cuMemsetD8Async", unsafe { result::memset_d8_async(self.address, byte, self.bytes, stream) })
    }

    /// Copies host values to the start of the buffer, which is at least as long, before what comes next on
    /// `stream`.
    ///
    /// `cuMemcpyHtoD` would return once small values are staged, and no stream but the default one would wait
    /// for the rest of the way (CUDA driver API, "API synchronization behavior").
    pub(super) fn write<T: Copy>(&self, values: &[T], stream: sys::CUstream) -> Result<()> {
        debug_assert!(size_of_val(values) <= self.bytes);
        let end = size_of_val(values);
        // SAFETY: the allocation is live and long enough. The driver has read pageable host memory when the
        // call returns.
        check("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(self.address, values, stream) })?;
        let rest = end.next_multiple_of(CHUNK) - end;
        if rest == 0 {
            return Ok(());
        }
        // SAFETY: the allocation has whole chunks.
        let filled = unsafe { result::memset_d8_async(self.address + end as u64, 0xff, rest, stream) };
        check("cuMemsetD8Async", filled)
    }

    /// Copies the start of the buffer, which is at least as long, to host values.
    pub(super) fn read<T: Copy>(&self, values: &mut [T]) -> Result<()> {
        debug_assert!(size_of_val(values) <= self.bytes);
        // SAFETY: the allocation is live and long enough, and any bits are a valid T (f32, f16, bf16, e4m3).
        check("cuMemcpyDtoH", unsafe { result::memcpy_dtoh_sync(values, self.address) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A free that fails leaves nothing to be done here; the next call on the context reports its fault.
        let _ = self.context.bind_to_thread();
        // SAFETY: allocated by `new`, freed once.
        let _ = unsafe { result::free_sync(self.address) };
    }
}
