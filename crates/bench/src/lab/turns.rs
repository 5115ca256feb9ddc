//! Timing several kernels in turns, so that a drift of the clocks hits all of them alike, and each finds the
//! device in the same state.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::timed::{Probe, Timed};
use crate::interrupt;
use crate::timer::{Effort, Pace, Pacing, Times};

/// Runs of one kernel before the next one's turn.
const TURN: usize = 5;

/// Seconds of a run above which it is a turn by itself.
const LONG_TURN: Duration = Duration::from_millis(200);

/// Seconds that a run takes at least where the next one can be enqueued meanwhile.
const LONG: f64 = 150e-6;

/// What one kernel did so far.
struct Lane<'a, 'b> {
    timed: Option<&'a mut (dyn Timed + 'b)>,
    result: Result<Times>,
    spent: Duration,
    /// Of one run; 0 where it was not asked for.
    one: f64,
}

impl<'a, 'b> Lane<'a, 'b> {
    fn new(timed: &'a mut (dyn Timed + 'b)) -> Self {
        let result = Ok(Times { warmup_runs: 0, seconds: Vec::new() });
        Self { timed: Some(timed), result, spent: Duration::ZERO, one: 0.0 }
    }

    /// Does something with what is timed; an error ends the lane.
    fn with<R>(&mut self, work: impl FnOnce(&mut (dyn Timed + 'b)) -> Result<R>) -> Option<R> {
        match work(*self.timed.as_mut()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.result = Err(error);
                self.timed = None;
                None
            }
        }
    }

    /// Some runs that do not count, and then `wanted` runs that do.
    fn turn(&mut self, untimed: usize, wanted: usize, pace: Pace) {
        let start = Instant::now();
        let seconds = self.with(|timed| timed.time(untimed + wanted, pace));
        if let (Some(seconds), Ok(times)) = (seconds, &mut self.result) {
            let counted = untimed.min(seconds.len());
            times.warmup_runs += counted;
            times.seconds.extend(&seconds[counted..]);
        }
        self.spent += start.elapsed();
    }

    fn made(&self) -> usize {
        self.result.as_ref().map_or(usize::MAX, |times| times.seconds.len())
    }

    fn done(&self, effort: &Effort) -> bool {
        let least = effort.least.clamp(1, effort.iterations.max(1));
        self.made() >= effort.iterations.max(1) || (self.made() >= least && self.spent >= effort.budget)
    }
}

/// Warms up and times all of `timed` in turns; what fails has its error, and the others go on. Ctrl-C ends it
/// with what was timed so far, which may be no run at all: the caller asks [`interrupt::check`].
pub(crate) fn interleave<'b>(
    effort: &Effort,
    timed: Vec<&mut (dyn Timed + 'b)>,
    step: &dyn Fn(usize),
) -> Vec<Result<Times>> {
    let mut lanes: Vec<_> = timed.into_iter().map(Lane::new).collect();
    // An interrupt ends it early; it is no error of theirs.
    let _ = match (effort.pacing, pace(effort, &mut lanes)) {
        (Pacing::Device { warm }, Pace::Steady) if !warm.is_zero() => {
            there_and_back(effort, warm, &mut lanes, step)
        }
        (_, pace) => in_turns(effort, pace, &mut lanes, step),
    };
    lanes.into_iter().map(|lane| lane.result).collect()
}

/// One pace for all: steady where each run is long enough that the next one is enqueued meanwhile.
fn pace(effort: &Effort, lanes: &mut [Lane<'_, '_>]) -> Pace {
    let Pacing::Device { .. } = effort.pacing else { return Pace::Steady };
    let mut steady = true;
    for lane in lanes {
        if let Some(Probe { device, host }) = lane.with(|timed| timed.probe()) {
            lane.one = device;
            steady &= device > LONG.max(host);
        }
    }
    if steady { Pace::Steady } else { Pace::Rested }
}

/// Two turns of each with half of the runs, the second ones in reverse order. Each turn begins with `warm` of
/// the kernel's own runs, and no rest divides them from those that count.
fn there_and_back(
    effort: &Effort,
    warm: Duration,
    lanes: &mut [Lane<'_, '_>],
    step: &dyn Fn(usize),
) -> Result<(), interrupt::Interrupted> {
    let iterations = effort.iterations.max(1);
    let least = effort.least.clamp(1, iterations);
    let order: Vec<_> = (0..lanes.len()).chain((0..lanes.len()).rev()).collect();
    for index in order {
        interrupt::check()?;
        let lane = &mut lanes[index];
        let untimed = (warm.as_secs_f64() / lane.one).ceil() as usize;
        let affordable = (effort.budget.as_secs_f64() / 2.0 / lane.one) as usize;
        let half = iterations.div_ceil(2).min(affordable.max(least.div_ceil(2)));
        let wanted = half.min(iterations.saturating_sub(lane.made()));
        if wanted > 0 {
            lane.turn(untimed, wanted, Pace::Steady);
            step(wanted);
        }
    }
    Ok(())
}

fn in_turns(
    effort: &Effort,
    pace: Pace,
    lanes: &mut [Lane<'_, '_>],
    step: &dyn Fn(usize),
) -> Result<(), interrupt::Interrupted> {
    for lane in lanes.iter_mut() {
        let mut made = 0;
        while made < effort.warmup && lane.spent <= effort.budget / 4 {
            interrupt::check()?;
            lane.turn(1, 0, pace);
            step(1);
            made += 1;
        }
        lane.spent = Duration::ZERO;
    }
    let rivals = lanes.len() > 1;
    while lanes.iter().any(|lane| !lane.done(effort)) {
        for lane in lanes.iter_mut().filter(|lane| !lane.done(effort)) {
            interrupt::check()?;
            let made = lane.made();
            let runs = TURN.min(effort.iterations.max(1) - made);
            // A long run is a turn by itself, so that no budget is passed by far.
            let long = lane.spent > LONG_TURN * made.max(1) as u32;
            // Where a run is long, what the caches held before it is nothing.
            let untimed = usize::from(effort.pacing == Pacing::Caches && rivals && !long);
            lane.turn(untimed, if long || made == 0 { 1 } else { runs }, pace);
            step(runs);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::timed::Each;
    use std::cell::RefCell;

    fn effort(warmup: usize, iterations: usize, budget: Duration) -> Effort {
        Effort { warmup, iterations, least: 3, budget, pacing: Pacing::Simulated }
    }

    const ENDLESS: Duration = Duration::from_secs(1000);

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
        let results = interleave(&effort(2, 12, ENDLESS), vec![&mut a, &mut b], &|_| ());
        assert_eq!(*order.borrow(), "aabb".to_owned() + "ab" + "aaaaabbbbb" + "aaaaabbbbb" + "ab");
        for (result, name) in results.into_iter().zip(['a', 'b']) {
            let times = result.unwrap();
            assert_eq!((times.warmup_runs, times.seconds.len()), (2, 12));
            assert_eq!(times.median(), f64::from(name as u32) * 1e-6);
        }
        order.borrow_mut().clear();
        let of_caches = Effort { pacing: Pacing::Caches, ..effort(0, 3, ENDLESS) };
        let results = interleave(&of_caches, vec![&mut a, &mut b], &|_| ());
        assert_eq!(*order.borrow(), "aabb".to_owned() + "aaabbb", "a run that does not count begins a turn");
        assert_eq!(results[0].as_ref().unwrap().warmup_runs, 2);
    }

    /// Says at which pace it ran, and how often.
    struct OnGpu<'a> {
        name: char,
        probe: Probe,
        heard: &'a RefCell<Vec<(char, usize, Pace)>>,
    }

    impl Timed for OnGpu<'_> {
        fn time(&mut self, runs: usize, pace: Pace) -> Result<Vec<f64>> {
            self.heard.borrow_mut().push((self.name, runs, pace));
            Ok((0..runs).map(|run| run as f64).collect())
        }

        fn probe(&mut self) -> Result<Probe> {
            Ok(self.probe)
        }
    }

    /// Two kernels of which the second has this probe, on a GPU with 0.3 s of runs before each turn.
    fn on_gpu(second: Probe, effort: Effort) -> (Vec<(char, usize, Pace)>, Vec<Times>) {
        let heard = RefCell::new(Vec::new());
        let first = Probe { device: 1e-3, host: 0.0 };
        let mut a = OnGpu { name: 'a', probe: first, heard: &heard };
        let mut b = OnGpu { name: 'b', probe: second, heard: &heard };
        let pacing = Pacing::Device { warm: Duration::from_millis(300) };
        let results = interleave(&Effort { pacing, ..effort }, vec![&mut a, &mut b], &|_| ());
        (heard.into_inner(), results.into_iter().map(Result::unwrap).collect())
    }

    #[test]
    fn long_runs_are_warm_and_their_turns_are_there_and_back() {
        let (heard, times) = on_gpu(Probe { device: 2e-3, host: 1e-3 }, effort(2, 31, ENDLESS));
        let steady = |name, runs| (name, runs, Pace::Steady);
        assert_eq!(heard, [steady('a', 316), steady('b', 166), steady('b', 150 + 15), steady('a', 300 + 15)]);
        assert_eq!((times[0].warmup_runs, times[0].seconds.len()), (600, 31));
        // Those that count are the last of each turn.
        assert_eq!((times[0].seconds[0], times[0].seconds[16]), (300.0, 300.0));
        let (heard, times) = on_gpu(Probe { device: 2e-3, host: 0.0 }, effort(2, 31, Duration::ZERO));
        assert_eq!((heard[0], times[0].seconds.len()), (steady('a', 302), 4), "the least number of runs");
    }

    #[test]
    fn where_one_run_is_short_or_slow_to_enqueue_all_rest() {
        for second in [Probe { device: 1e-4, host: 0.0 }, Probe { device: 1e-3, host: 2e-3 }] {
            let (heard, times) = on_gpu(second, effort(1, 3, ENDLESS));
            assert!(heard.iter().all(|(.., pace)| *pace == Pace::Rested), "{heard:?}");
            assert_eq!((times[1].warmup_runs, times[1].seconds.len()), (1, 3));
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
        let results = interleave(&effort(1, 7, ENDLESS), vec![&mut bad, &mut good], &|_| ());
        assert_eq!(results[0].as_ref().unwrap_err().to_string(), "no such backend");
        assert_eq!(results[1].as_ref().unwrap().seconds.len(), 7);
    }
}
