//! Device memory that is freed when it goes out of scope.

use std::sync::Arc;

use super::driver::{Context, Stream};
use crate::{Error, Result};

/// Bytes that the end of an allocation is rounded up to, NaN behind what was written: compute-sanitizer takes
/// the copy of a part of the last chunk (`cp.async` with fewer source bytes) for one of all of it.
const CHUNK: usize = 16;

/// A plain allocation of device memory.
pub(super) struct Buffer {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` bytes for `what`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the bytes needed and free, when the device has not enough.
    pub(super) fn new(
        context: &Arc<Context>,
        device: &str,
        what: &'static str,
        bytes: usize,
    ) -> Result<Self> {
        context.make_current()?;
        let mut address = 0;
        // The driver refuses a size of 0.
        let allocated = bytes.max(1).next_multiple_of(CHUNK);
        // SAFETY: the driver writes one address; a context is current.
        if let Err(failure) = unsafe { context.driver().cuMemAlloc_v2(&raw mut address, allocated) } {
            if !failure.is_out_of_memory() {
                return Err(failure.of(format_args!("{bytes} bytes for {what}")));
            }
            return Err(Error::OutOfMemory {
                what,
                needed: bytes as u128,
                available: u128::from(context.free_bytes()?),
                device: device.to_owned(),
            });
        }
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
    pub(super) fn fill(&self, byte: u8, stream: Stream) -> Result<()> {
        // SAFETY: the allocation is live and as long as said.
        unsafe { self.context.driver().cuMemsetD8Async(self.address, byte, self.bytes, stream) }?;
        Ok(())
    }

    /// Copies host values to the start of the buffer, which is at least as long, before what comes next on
    /// `stream`.
    ///
    /// `cuMemcpyHtoD` would return once small values are staged, and no stream but the default one would wait
    /// for the rest of the way (CUDA driver API, "API synchronization behavior").
    pub(super) fn write<T: Copy>(&self, values: &[T], stream: Stream) -> Result<()> {
        debug_assert!(size_of_val(values) <= self.bytes);
        let (end, driver) = (size_of_val(values), self.context.driver());
        // SAFETY: the allocation is live and long enough. The driver has read pageable host memory when the
        // call returns.
        unsafe { driver.cuMemcpyHtoDAsync_v2(self.address, values.as_ptr().cast(), end, stream) }?;
        let rest = end.next_multiple_of(CHUNK) - end;
        if rest == 0 {
            return Ok(());
        }
        // SAFETY: the allocation has whole chunks.
        unsafe { driver.cuMemsetD8Async(self.address + end as u64, 0xff, rest, stream) }?;
        Ok(())
    }

    /// Copies the start of the buffer, which is at least as long, to host values.
    pub(super) fn read<T: Copy>(&self, values: &mut [T]) -> Result<()> {
        debug_assert!(size_of_val(values) <= self.bytes);
        let (to, bytes) = (values.as_mut_ptr().cast(), size_of_val(values));
        // SAFETY: the allocation is live and long enough, and any bits are a valid T (f32, f16, bf16, e4m3).
        unsafe { self.context.driver().cuMemcpyDtoH_v2(to, self.address, bytes) }?;
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A free that fails leaves nothing to be done here; the next call on the context reports its fault.
        let _ = self.context.make_current();
        // SAFETY: allocated by `new`, freed once.
        let _ = unsafe { self.context.driver().cuMemFree_v2(self.address) };
    }
}
