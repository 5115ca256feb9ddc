//! How often to run, and what the times say.

use std::time::{Duration, Instant};

/// How much measuring is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Runs before the timed ones, fewer if they take a quarter of the budget.
    pub(crate) warmup: usize,
    /// Timed runs, fewer if they take the budget.
    pub(crate) iterations: usize,
    /// Timed runs that are made whatever they take.
    pub(crate) least: usize,
    /// Wall-clock time of the timed runs, with what happens between them.
    pub(crate) budget: Duration,
    /// What comes before timed runs where several kernels take turns.
    pub(crate) pacing: Pacing,
}

/// What comes before timed runs, so that all that are compared find the device in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pacing {
    /// Nothing: in the simulator, whose times mean nothing.
    Simulated,
    /// On the CPU: a run that does not count begins each turn, since the kernel before left its own data in
    /// the caches.
    Caches,
    /// On a GPU: its L2 cache is overwritten before each run. Where all runs are long, each turn begins with
    /// runs of this time in all, which bring the card to rest at its power limit.
    Device {
        /// 0 where speeds at the power limit are not what is compared.
        warm: Duration,
    },
}

/// What a GPU does before each run. A rest lets the card's clocks rise, so that all that are compared rest
/// alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// It overwrites the L2 cache so often that even PyTorch enqueues a call meanwhile: no time of the host
    /// is part of a short run's.
    Rested,
    /// It overwrites the L2 cache once. Each run is enqueued while the one before it runs, so that the card
    /// stays at its power limit.
    Steady,
}

impl Pace {
    /// How often the L2 cache is overwritten before a run.
    pub(crate) const fn evictions(self) -> usize {
        match self {
            Self::Rested => 16,
            Self::Steady => 1,
        }
    }
}

/// Times of the runs of one kernel.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(crate) warmup_runs: usize,
    /// Seconds of each timed run, in the order of the runs; at least one.
    pub(crate) seconds: Vec<f64>,
}

impl Effort {
    /// Runs at most, those that warm up too.
    pub(crate) const fn runs(&self) -> usize {
        self.warmup.saturating_add(self.iterations)
    }

    /// Warms up and times `run`, which returns the time that it took; `step` hears of each run.
    pub(crate) fn time<E>(
        &self,
        mut run: impl FnMut() -> Result<Duration, E>,
        step: impl Fn(),
    ) -> Result<Times, E> {
        let mut warmup_runs = 0;
        let start = Instant::now();
        while warmup_runs < self.warmup && start.elapsed() <= self.budget / 4 {
            run()?;
            warmup_runs += 1;
            step();
        }
        let mut seconds = Vec::new();
        let start = Instant::now();
        let least = self.least.clamp(1, self.iterations.max(1));
        while seconds.len() < least || (seconds.len() < self.iterations && start.elapsed() < self.budget) {
            seconds.push(run()?.as_secs_f64());
            step();
        }
        Ok(Times { warmup_runs, seconds })
    }
}

impl Times {
    /// The time that half of the runs stay below.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The time that a fraction of the runs stays below, interpolated between the two nearest runs.
    pub(crate) fn quantile(&self, fraction: f64) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let position = fraction * (sorted.len() - 1) as f64;
        let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
        below + (above - below) * position.fract()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::convert::Infallible;

    fn times(effort: Effort) -> (Times, usize) {
        let steps = Cell::new(0);
        let run = || Ok::<_, Infallible>(Duration::from_millis(1));
        let Ok(times) = effort.time(run, || steps.set(steps.get() + 1));
        (times, steps.get())
    }

    #[test]
    fn quantiles_interpolate() {
        let times = Times { warmup_runs: 0, seconds: vec![5.0, 1.0, 4.0, 2.0, 3.0] };
        assert_eq!(times.median(), 3.0);
        assert_eq!(
            [0.0, 0.2, 0.8, 1.0].map(|q| (times.quantile(q) * 1e6).round() / 1e6),
            [1.0, 1.8, 4.2, 5.0]
        );
        assert_eq!(Times { warmup_runs: 0, seconds: vec![2.0] }.quantile(0.8), 2.0);
        assert_eq!(Times { warmup_runs: 0, seconds: vec![2.0, 1.0] }.median(), 1.5);
    }

    #[test]
    fn all_runs_are_made_within_the_budget() {
        let effort = Effort {
            warmup: 4,
            iterations: 20,
            least: 3,
            budget: Duration::from_secs(1000),
            pacing: Pacing::Caches,
        };
        let (times, steps) = times(effort);
        assert_eq!((times.warmup_runs, times.seconds.len(), steps), (4, 20, 24));
        assert_eq!(times.seconds[7], 1e-3);
    }

    #[test]
    fn past_the_budget_the_least_runs_are_made() {
        let effort =
            Effort { warmup: 1, iterations: 20, least: 3, budget: Duration::ZERO, pacing: Pacing::Caches };
        assert_eq!(times(effort).0.seconds.len(), 3);
        assert_eq!(times(Effort { iterations: 2, ..effort }).0.seconds.len(), 2);
    }

    #[test]
    fn a_failed_run_ends_it() {
        let effort = Effort {
            warmup: 0,
            iterations: 20,
            least: 3,
            budget: Duration::from_secs(1000),
            pacing: Pacing::Caches,
        };
        assert_eq!(effort.time(|| Err("stop"), || ()).unwrap_err(), "stop");
    }
}
