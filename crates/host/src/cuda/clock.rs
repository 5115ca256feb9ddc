//! Timing on the device: between two of its events, with the caches evicted where that is asked for.

use std::time::Duration;

use cudarc::driver::{CudaEvent, sys};

use super::Cuda;
use super::buffer::Buffer;
use super::driver::check;
use crate::Result;

/// Two events of a backend's stream, and what evicts its caches.
pub(super) struct Clock {
    cuda: Cuda,
    /// Larger than the L2 cache: writing it evicts everything else.
    eviction: Option<Buffer>,
    events: [CudaEvent; 2],
}

impl Clock {
    pub(super) fn new(cuda: &Cuda) -> Result<Self> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || check("cuEventCreate", cuda.context.new_event(flags));
        Ok(Self { cuda: cuda.clone(), eviction: None, events: [event()?, event()?] })
    }

    /// The time that what `enqueue` puts on the stream takes; waits for it.
    pub(super) fn time(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<Duration> {
        self.record(0)?;
        enqueue()?;
        self.record(1)?;
        let milliseconds = check("cuEventElapsedTime", self.events[0].elapsed_ms(&self.events[1]))?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }

    /// Evicts the L2 cache.
    pub(super) fn flush_cache(&mut self) -> Result<()> {
        if self.eviction.is_none() {
            let (cuda, bytes) = (&self.cuda, 2 * self.cuda.l2_bytes);
            self.eviction = Some(Buffer::new(&cuda.context, &cuda.device.name, "the L2 flush", bytes)?);
        }
        let Some(eviction) = &self.eviction else { return Ok(()) };
        eviction.fill(0, self.cuda.stream())
    }

    fn record(&self, event: usize) -> Result<()> {
        check("cuEventRecord", self.events[event].record(&self.cuda.stream))
    }
}
