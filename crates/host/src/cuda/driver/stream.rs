//! Streams: handles of any library's, and streams that this library owns.

use std::ffi::c_void;
use std::sync::Arc;

use super::{CaptureMode, Context, Driver, RecordedGraph, STREAM_NON_BLOCKING};
use crate::Result;

/// A stream of the CUDA driver, whichever library made it: a `CUstream`, which the CUDA runtime calls
/// `cudaStream_t`.
///
/// It is copied like an address, and says nothing about how long the stream lives.
///
/// | library | handle |
/// |---|---|
/// | candle, cudarc | `stream.cu_stream().cast()` |
/// | cust | `stream.as_inner().cast()` |
/// | PyTorch | `torch.cuda.current_stream().cuda_stream`, an integer |
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(*mut c_void);

// SAFETY: the handle is an address that is only given to the driver, whose functions every thread may call,
// with the streams of the process.
unsafe impl Send for Stream {}
// SAFETY: as above; no method changes anything.
unsafe impl Sync for Stream {}

impl Stream {
    /// The stream of a handle.
    ///
    /// 0 is the legacy default stream; 1 and 2 are `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`, the default
    /// stream of the thread that enqueues (CUDA driver API, "Stream synchronization behavior").
    ///
    /// # Safety
    /// The handle is one of these, or that of a stream which stays alive as long as this value or a copy of
    /// it is used.
    pub const unsafe fn from_raw(handle: *mut c_void) -> Self {
        Self(handle)
    }

    /// The handle.
    pub const fn as_raw(self) -> *mut c_void {
        self.0
    }
}

/// A stream that waits for no other, not even the legacy default stream; destroyed when it is dropped.
pub(in crate::cuda) struct OwnedStream {
    context: Arc<Context>,
    handle: Stream,
}

impl OwnedStream {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self> {
        context.make_current()?;
        let mut handle = Stream(std::ptr::null_mut());
        // SAFETY: the driver writes one handle; a context is current.
        unsafe { context.driver().cuStreamCreate(&raw mut handle, STREAM_NON_BLOCKING) }?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// A stream whose blocks come before those of streams of fewer steps, wherever there is room; one of
    /// [`Self::new`] is of none. The driver has a highest step, and takes higher ones as that.
    pub(in crate::cuda) fn before_others(context: &Arc<Context>, steps: i32) -> Result<Self> {
        context.make_current()?;
        let mut handle = Stream(std::ptr::null_mut());
        // SAFETY: the driver writes one handle, and takes any priority; a context is current.
        unsafe { context.driver().cuStreamCreateWithPriority(&raw mut handle, STREAM_NON_BLOCKING, -steps) }?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.context.driver()
    }

    /// Makes the stream's context the calling thread's.
    pub(super) fn make_current(&self) -> Result<()> {
        self.context.make_current()
    }

    pub(in crate::cuda) const fn handle(&self) -> Stream {
        self.handle
    }

    /// Waits for everything on the stream.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub(in crate::cuda) fn synchronize(&self) -> Result<()> {
        self.make_current()?;
        // SAFETY: the stream lives until `drop`.
        unsafe { self.driver().cuStreamSynchronize(self.handle) }?;
        Ok(())
    }

    /// Records what this thread puts on the stream from now on, in place of running it.
    pub(in crate::cuda) fn begin_capture(&self) -> Result<()> {
        self.make_current()?;
        // SAFETY: the stream lives until `drop`.
        unsafe { self.driver().cuStreamBeginCapture_v2(self.handle, CaptureMode::ThreadLocal) }?;
        Ok(())
    }

    /// Ends the recording and gives what was recorded.
    pub(in crate::cuda) fn end_capture(self: &Arc<Self>) -> Result<RecordedGraph> {
        self.make_current()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the driver writes one handle; the stream lives until `drop`.
        unsafe { self.driver().cuStreamEndCapture(self.handle, &raw mut graph) }?;
        Ok(RecordedGraph::new(graph, Arc::clone(self)))
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // A kernel's fault fails each later call on the context; other failures leave nothing to be done.
        let _ = self.make_current();
        // SAFETY: created by `new`, destroyed once; what is on it runs to its end.
        let _ = unsafe { self.driver().cuStreamDestroy_v2(self.handle) };
    }
}
