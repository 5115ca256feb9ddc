//! Timing several kernels in turns, so that a drift of the clocks hits all of them alike.

use std::time::{Duration, Instant};

use anyhow::Result;
use flash_attention::{Element, Operation, Prepared};

use crate::interrupt;
use crate::measure::cold;
use crate::timer::{Effort, Times};

/// Something whose runs can be timed.
pub(crate) trait Timed {
    /// The seconds of `runs` runs, each on caches as cold as the device lets them be made.
    fn time(&mut self, runs: usize) -> Result<Vec<f64>>;

    /// What one of `runs` runs behind one another takes, where that is known.
    fn time_many(&mut self, runs: usize) -> Result<Many> {
        let _ = runs;
        Ok(Many::default())
    }
}

/// Seconds of one run among many, on warm caches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Many {
    /// Launched one behind another, without a wait.
    pub(crate) queued: Option<f64>,
    /// In a CUDA graph that is replayed.
    pub(crate) replayed: Option<f64>,
}

impl Many {
    /// From the time of `runs` runs in each of the ways.
    fn new(runs: usize, queued: Duration, replayed: Option<Duration>) -> Self {
        let one = |all: Duration| all.as_secs_f64() / runs as f64;
        Self { queued: Some(one(queued)), replayed: replayed.map(one) }
    }
}

impl<T: Element, O: Operation> Timed for Prepared<'_, T, O> {
    fn time(&mut self, runs: usize) -> Result<Vec<f64>> {
        (0..runs).map(|_| Ok(cold(self)?.as_secs_f64())).collect()
    }

    fn time_many(&mut self, runs: usize) -> Result<Many> {
        Ok(Many::new(runs, self.time_runs(runs)?, self.time_replayed(runs)?))
    }
}

/// [`Timed`] from a function that runs once.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: FnMut() -> Result<Duration>> Timed for Each<F> {
    fn time(&mut self, runs: usize) -> Result<Vec<f64>> {
        (0..runs).map(|_| Ok((self.0)()?.as_secs_f64())).collect()
    }
}

/// Runs of one kernel before the next one's turn.
const TURN: usize = 5;

/// What one kernel did so far.
struct Lane<'a, 'b> {
    timed: Option<&'a mut (dyn Timed + 'b)>,
    result: Result<Times>,
    spent: Duration,
}

impl Lane<'_, '_> {
    /// One turn of at most `wanted` runs, within `limit` seconds if the first run shows that they are long.
    fn turn(&mut self, wanted: usize, keep: bool) {
        let Some(timed) = &mut self.timed else { return };
        let start = Instant::now();
        match (timed.time(wanted), &mut self.result) {
            (Ok(seconds), Ok(times)) if keep => times.seconds.extend(seconds),
            (Ok(seconds), Ok(times)) => times.warmup_runs += seconds.len(),
            (Err(error), result) => {
                *result = Err(error);
                self.timed = None;
            }
            (Ok(_), Err(_)) => {}
        }
        self.spent += start.elapsed();
    }

    fn done(&self, effort: &Effort) -> bool {
        let made = self.result.as_ref().map_or(usize::MAX, |times| times.seconds.len());
        let least = effort.least.clamp(1, effort.iterations.max(1));
        made >= effort.iterations.max(1) || (made >= least && self.spent >= effort.budget)
    }
}

/// Warms up and times all of `timed` in turns; what fails has its error, and the others go on. Ctrl-C ends it
/// with what was timed so far, which may be no run at all: the caller asks [`interrupt::check`].
pub(crate) fn interleave<'b>(
    effort: &Effort,
    timed: Vec<&mut (dyn Timed + 'b)>,
    step: &dyn Fn(usize),
) -> Vec<Result<Times>> {
    let empty = || Ok(Times { warmup_runs: 0, seconds: Vec::new() });
    let mut lanes: Vec<_> = timed
        .into_iter()
        .map(|timed| Lane { timed: Some(timed), result: empty(), spent: Duration::ZERO })
        .collect();
    // What ends it early is no error of these.
    let _ = in_turns(effort, &mut lanes, step);
    lanes.into_iter().map(|lane| lane.result).collect()
}

fn in_turns(
    effort: &Effort,
    lanes: &mut [Lane<'_, '_>],
    step: &dyn Fn(usize),
) -> Result<(), interrupt::Interrupted> {
    for lane in lanes.iter_mut() {
        let mut made = 0;
        while made < effort.warmup && lane.spent <= effort.budget / 4 {
            interrupt::check()?;
            lane.turn(1, false);
            step(1);
            made += 1;
        }
        lane.spent = Duration::ZERO;
    }
    while lanes.iter().any(|lane| !lane.done(effort)) {
        for lane in lanes.iter_mut().filter(|lane| !lane.done(effort)) {
            interrupt::check()?;
            let made = lane.result.as_ref().map_or(0, |times| times.seconds.len());
            let runs = TURN.min(effort.iterations.max(1) - made);
            // A long run is a turn of its own, so that no budget is passed by far.
            let long = lane.spent > Duration::from_millis(200) * made.max(1) as u32;
            lane.turn(if long || made == 0 { 1 } else { runs }, true);
            step(runs);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn effort(warmup: usize, iterations: usize, budget: Duration) -> Effort {
        Effort { warmup, iterations, least: 3, budget }
    }

    #[test]
    fn kernels_take_turns_and_all_have_their_runs() {
        let order = RefCell::new(String::new());
        let heard = &order;
        let timed = |name| {
            Each(move || {
                heard.borrow_mut().push(name);
                Ok(Duration::from_micros(name as u64))
            })
        };
        let (mut a, mut b) = (timed('a'), timed('b'));
        let effort = effort(2, 12, Duration::from_secs(1000));
        let results = interleave(&effort, vec![&mut a, &mut b], &|_| ());
        assert_eq!(*order.borrow(), "aabb".to_owned() + "ab" + "aaaaabbbbb" + "aaaaabbbbb" + "ab");
        for (result, name) in results.into_iter().zip(['a', 'b']) {
            let times = result.unwrap();
            assert_eq!((times.warmup_runs, times.seconds.len()), (2, 12));
            assert_eq!(times.median(), f64::from(name as u32) * 1e-6);
        }
    }

    #[test]
    fn past_the_budget_the_least_runs_are_made() {
        let mut one = Each(|| Ok(Duration::from_secs(1)));
        let results = interleave(&effort(5, 100, Duration::ZERO), vec![&mut one], &|_| ());
        // The second turn is whole: nothing says that a run is long.
        assert_eq!(results.into_iter().next().unwrap().unwrap().seconds.len(), 6);
    }

    #[test]
    fn what_fails_has_its_error_and_the_others_go_on() {
        let mut good = Each(|| Ok(Duration::from_secs(1)));
        let mut bad = Each(|| anyhow::bail!("no such backend"));
        let effort = effort(1, 7, Duration::from_secs(1000));
        let results = interleave(&effort, vec![&mut bad, &mut good], &|_| ());
        assert_eq!(results[0].as_ref().unwrap_err().to_string(), "no such backend");
        assert_eq!(results[1].as_ref().unwrap().seconds.len(), 7);
    }
}
