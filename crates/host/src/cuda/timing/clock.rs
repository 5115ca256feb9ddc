//! Timing on the device: between two of its events, with the caches evicted where that is asked for.

use std::time::Duration;

use super::read::Reader;
use crate::Result;
use crate::cuda::driver::{DeviceAttribute, Event};
use crate::cuda::{Cuda, Stream};

/// Two events of a backend's stream, and what evicts its caches.
pub(crate) struct Clock {
    cuda: Cuda,
    /// Larger than the L2 cache: reading it evicts everything else. Written, it would be written back under
    /// what is timed.
    eviction: Option<Reader>,
    events: [Event; 2],
}

impl Clock {
    pub(crate) fn new(cuda: &Cuda) -> Result<Self> {
        let events = [Event::new(&cuda.context)?, Event::new(&cuda.context)?];
        Ok(Self { cuda: cuda.clone(), eviction: None, events })
    }

    /// The time that what `enqueue` puts on the backend's stream takes; waits for it.
    pub(crate) fn time(&self, enqueue: impl FnOnce(Stream) -> Result<()>) -> Result<Duration> {
        self.record(0)?;
        enqueue(self.cuda.stream())?;
        self.record(1)?;
        self.events[0].time_until(&self.events[1])
    }

    /// The time of one replay of a graph that holds `count` times what `enqueue` puts on the backend's
    /// stream; waits for it.
    ///
    /// # Safety
    /// As [`Cuda::capture`], until this returns, and where it fails until the stream is done.
    pub(crate) unsafe fn time_replayed(
        &self,
        count: usize,
        enqueue: impl Fn() -> Result<()>,
    ) -> Result<Duration> {
        // SAFETY: the launches' memory stays alive, and nothing else touches it, while the graph is replayed.
        let graph = unsafe { self.cuda.capture(|_| (0..count).try_for_each(|_| enqueue())) }?;
        // The first replay also brings the graph to the device.
        graph.launch()?;
        self.time(|_| graph.launch())
    }

    /// When each of `count` pieces of work ended, from the moment before the first; `enqueue` puts the one of
    /// its number on the backend's stream. Waits for all of them.
    pub(crate) fn marks(&self, count: usize, enqueue: impl Fn(usize) -> Result<()>) -> Result<Vec<Duration>> {
        // Before the first launch, so that nothing is made between two of them.
        let ends = (0..count).map(|_| Event::new(&self.cuda.context)).collect::<Result<Vec<_>>>()?;
        self.record(0)?;
        for (index, end) in ends.iter().enumerate() {
            enqueue(index)?;
            end.record(self.cuda.stream())?;
        }
        ends.iter().map(|end| self.events[0].time_until(end)).collect()
    }

    /// Evicts the L2 cache.
    pub(crate) fn flush_cache(&mut self) -> Result<()> {
        if self.eviction.is_none() {
            let l2_bytes = self.cuda.context.attribute(DeviceAttribute::L2CacheSize)? as usize;
            self.eviction = Some(Reader::new(&self.cuda, (2 * l2_bytes).next_multiple_of(16))?);
        }
        let Some(eviction) = &self.eviction else { return Ok(()) };
        eviction.enqueue(self.cuda.stream())
    }

    fn record(&self, event: usize) -> Result<()> {
        self.events[event].record(self.cuda.stream())
    }
}
