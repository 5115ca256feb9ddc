//! Events: points of a stream, and the time between two of them.

use std::sync::Arc;
#[cfg(feature = "testing")]
use std::time::Duration;

#[cfg(feature = "testing")]
use super::EVENT_DEFAULT;
use super::{Context, CuEvent, EVENT_DISABLE_TIMING, Stream};
use crate::Result;

/// An event, destroyed when it is dropped.
pub(in crate::cuda) struct Event {
    context: Arc<Context>,
    handle: CuEvent,
}

// SAFETY: the handle is an address that is only given to the driver, whose functions every thread may call,
// with the events of the process. It stays valid until `drop`.
unsafe impl Send for Event {}
// SAFETY: as above; the driver orders calls that take the same event.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has a time.
    #[cfg(feature = "testing")]
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, EVENT_DEFAULT)
    }

    /// An event that orders streams, and has no time.
    pub(in crate::cuda) fn untimed(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, EVENT_DISABLE_TIMING)
    }

    fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Self> {
        context.make_current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver writes one handle; a context is current.
        unsafe { context.driver().cuEventCreate(&raw mut handle, flags) }?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Marks the end of what is on the stream so far.
    pub(in crate::cuda) fn record(&self, stream: Stream) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: event and stream live; of different contexts the driver refuses them.
        unsafe { self.context.driver().cuEventRecord(self.handle, stream) }?;
        Ok(())
    }

    /// Holds back what comes next on a stream, of any context, until the event as it was last recorded; one
    /// that was not holds back nothing.
    pub(in crate::cuda) fn hold_back(&self, stream: Stream) -> Result<()> {
        // SAFETY: event and stream live.
        unsafe { self.context.driver().cuStreamWaitEvent(stream, self.handle, 0) }?;
        Ok(())
    }

    /// Whether the event as it was last recorded has come.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub(in crate::cuda) fn has_come(&self) -> Result<bool> {
        self.context.make_current()?;
        // SAFETY: the event lives.
        match unsafe { self.context.driver().cuEventQuery(self.handle) } {
            Ok(()) => Ok(true),
            Err(failure) if failure.is_not_ready() => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Waits for the event as it was last recorded.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub(in crate::cuda) fn synchronize(&self) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: the event lives.
        unsafe { self.context.driver().cuEventSynchronize(self.handle) }?;
        Ok(())
    }

    /// The time from this event to a later one; waits for both.
    ///
    /// # Errors
    /// When one was not recorded, or a kernel faulted.
    #[cfg(feature = "testing")]
    pub(in crate::cuda) fn time_until(&self, end: &Self) -> Result<Duration> {
        self.synchronize()?;
        end.synchronize()?;
        let driver = self.context.driver();
        let mut milliseconds = 0.0;
        // SAFETY: the driver writes one number; both events live.
        unsafe { driver.cuEventElapsedTime(&raw mut milliseconds, self.handle, end.handle) }?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // A failure leaves nothing to be done.
        let _ = self.context.make_current();
        // SAFETY: created by `new`, destroyed once.
        let _ = unsafe { self.context.driver().cuEventDestroy_v2(self.handle) };
    }
}
