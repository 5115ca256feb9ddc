//! What can be timed: the library's operations, functions, and through their own `Timed` the peer's calls.

use std::time::Duration;

use anyhow::Result;
use flash_attention::{Element, Operation, Prepared};

use crate::timer::Pace;

/// Seconds of one run on a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Between events of the device.
    pub(crate) device: f64,
    /// That the host takes to enqueue it.
    pub(crate) host: f64,
}

/// Something whose runs can be timed.
pub(crate) trait Timed {
    /// The seconds of `runs` runs, each on caches as cold as the device lets them be made.
    fn time(&mut self, runs: usize, pace: Pace) -> Result<Vec<f64>>;

    /// How long a run takes on a GPU, roughly.
    fn probe(&mut self) -> Result<Probe> {
        // The first may load what later ones find.
        let device = self.time(2, Pace::Rested)?.into_iter().fold(f64::INFINITY, f64::min);
        Ok(Probe { device, host: 0.0 })
    }

    /// Seconds of one of `runs` runs that follow each other, where that is known.
    fn time_many(&mut self, runs: usize) -> Result<Many> {
        let _ = runs;
        Ok(Many::default())
    }
}

/// Seconds of one run among many, on warm caches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Many {
    /// Launched without a wait in between.
    pub(crate) queued: Option<f64>,
    /// In a CUDA graph that is replayed.
    pub(crate) replayed: Option<f64>,
}

impl Many {
    /// From the time of `runs` runs in each of the ways.
    pub(crate) fn new(runs: usize, queued: Duration, replayed: Option<Duration>) -> Self {
        let one = |all: Duration| all.as_secs_f64() / runs as f64;
        Self { queued: Some(one(queued)), replayed: replayed.map(one) }
    }
}

impl<T: Element, O: Operation> Timed for Prepared<'_, T, O> {
    fn time(&mut self, runs: usize, pace: Pace) -> Result<Vec<f64>> {
        let mut run = || {
            (0..pace.evictions()).try_for_each(|_| self.flush_cache())?;
            Ok(Prepared::time(self)?.as_secs_f64())
        };
        (0..runs).map(|_| run()).collect()
    }

    fn time_many(&mut self, runs: usize) -> Result<Many> {
        Ok(Many::new(runs, self.time_runs(runs)?, self.time_replayed(runs)?))
    }
}

/// [`Timed`] from a function that runs once, for what is not compared with a peer.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: FnMut() -> Result<Duration>> Timed for Each<F> {
    fn time(&mut self, runs: usize, _: Pace) -> Result<Vec<f64>> {
        (0..runs).map(|_| Ok((self.0)()?.as_secs_f64())).collect()
    }
}
