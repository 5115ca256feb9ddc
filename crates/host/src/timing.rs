//! How long runs take, for benchmarks: the clock, cold caches, and outputs that show what was not written.

use std::time::{Duration, Instant};

use crate::operation::{Data, Tensor};
use crate::prepared::State;
use crate::{Backend, Element, Operation, Prepared, Result};

pub use crate::cuda::timing::{DeviceCopy, DeviceRead, MmaPeak};

/// When a launch ran, from the start of the first of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSpan {
    /// Its entry; `run` where a run launches nothing that can be told apart.
    pub name: &'static str,
    /// Where the launch before it ended.
    pub begin: Duration,
    /// Where it ended.
    pub end: Duration,
}

impl Backend {
    /// A copy of `bytes` bytes within the device's memory, where it has one of its own: `None` on the CPU and
    /// in the simulator.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn device_copy(&self, bytes: usize) -> Result<Option<DeviceCopy>> {
        self.as_cuda().map(|cuda| cuda.device_copy(bytes)).transpose()
    }

    /// A read of `bytes` bytes of the device's memory, a multiple of 16; `None` but on CUDA.
    ///
    /// # Errors
    /// As [`Cuda::device_read`](crate::cuda::Cuda::device_read).
    pub fn device_read(&self, bytes: usize) -> Result<Option<DeviceRead>> {
        self.as_cuda().map(|cuda| cuda.device_read(bytes)).transpose()
    }
}

impl<T: Element, O: Operation> Prepared<'_, T, O> {
    /// Fills outputs, and on a GPU the workspace, with NaN bits, so that what a kernel leaves unwritten
    /// shows.
    ///
    /// # Errors
    /// When the device fails.
    pub fn poison(&mut self) -> Result<()> {
        match &mut self.state {
            State::Device(resident) => resident.poison(),
            State::Host { plan, .. } => {
                let mut outputs = O::outputs(&mut self.results);
                let poison = &mut |tensor: Tensor<'_>| {
                    if let Data::Output(data) | Data::Updated(data) = tensor.data {
                        data.fill(0xff);
                    }
                    Ok(0)
                };
                O::tensors(plan, self.inputs, &mut outputs, poison).map(drop)
            }
        }
    }

    /// Evicts the tensors from a GPU's L2 cache; does nothing elsewhere.
    ///
    /// # Errors
    /// When the device has no memory left for a buffer of twice its L2 cache.
    pub fn flush_cache(&mut self) -> Result<()> {
        match &mut self.state {
            State::Device(resident) => resident.clock.flush_cache(),
            State::Host { .. } => Ok(()),
        }
    }

    /// Runs once and returns the time that it took: between device events on a GPU, by a monotonic clock
    /// elsewhere.
    ///
    /// # Errors
    /// When the device fails, or the simulator finds a fault in a kernel.
    pub fn time(&mut self) -> Result<Duration> {
        self.time_runs(1)
    }

    /// Runs `count` times without waiting in between, and returns the time from the start of the first to the
    /// end of the last.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub fn time_runs(&mut self, count: usize) -> Result<Duration> {
        if let State::Device(resident) = &self.state {
            return resident.clock.time(|_| (0..count).try_for_each(|_| resident.run()));
        }
        let start = Instant::now();
        (0..count).try_for_each(|_| self.run())?;
        Ok(start.elapsed())
    }

    /// As [`Self::time_runs`], of a replayed CUDA graph that holds the runs; `None` where there are no
    /// graphs, on the CPU and in the simulator.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub fn time_replayed(&mut self, count: usize) -> Result<Option<Duration>> {
        let State::Device(resident) = &self.state else { return Ok(None) };
        // SAFETY: the buffers are the resident's; it outlives the stream's work, because reading and dropping
        // it synchronise.
        unsafe { resident.clock.time_replayed(count, || resident.run()) }.map(Some)
    }

    /// Runs `count` times and returns the time that the host spends on enqueueing them, on a stream that is
    /// idle at first, without the wait for them; `None` where there is no queue, on the CPU and in the
    /// simulator.
    ///
    /// The driver lets a stream fall about a thousand launches behind; with more, the host waits for the
    /// device, and that counts too.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub fn time_enqueued(&mut self, count: usize) -> Result<Option<Duration>> {
        let State::Device(resident) = &self.state else { return Ok(None) };
        resident.wait()?;
        let start = Instant::now();
        (0..count).try_for_each(|_| resident.run())?;
        let spent = start.elapsed();
        resident.wait()?;
        Ok(Some(spent))
    }

    /// Runs once and says when each launch ran; on the CPU and in the simulator the run is one span.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub fn trace(&mut self) -> Result<Vec<LaunchSpan>> {
        let State::Device(resident) = &self.state else {
            return Ok(vec![LaunchSpan { name: "run", begin: Duration::ZERO, end: self.time()? }]);
        };
        let launches = resident.launches();
        let ends = resident.clock.marks(launches.len(), |index| resident.launch(&launches[index]))?;
        let begins = std::iter::once(Duration::ZERO).chain(ends.iter().copied());
        let spans = launches.iter().zip(begins).zip(&ends);
        Ok(spans.map(|((launch, begin), &end)| LaunchSpan { name: launch.entry.name, begin, end }).collect())
    }
}
