//! Threads that draw, run and judge problems, each on a machine of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bench::Bench;
use super::case::{Case, Operation};
use super::draw::problem_seed;
use super::generate::{self, Scope};
use super::machine::Machine;
use super::outcome::{Failure, Kind, Stop};
use super::shrink::{Patience, shrink};
use crate::interrupt;

/// Failures after which a run ends: more of them say no more.
const MOST_FAILURES: usize = 20;

/// How long a failure is made smaller for.
const PATIENCE: Patience = Patience { attempts: 400, time: Duration::from_secs(20) };

/// How many problems, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) seed: u64,
    pub(super) runs: u64,
    pub(super) time: Option<Duration>,
}

/// What came of the problems of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Count {
    /// Right.
    pub(super) passed: u64,
    /// Refused in one line.
    pub(super) refused: u64,
    /// Planned, and too large to be run.
    pub(super) planned: u64,
    pub(super) failed: u64,
}

impl Count {
    pub(super) const fn all(&self) -> u64 {
        self.passed + self.refused + self.planned + self.failed
    }
}

/// A problem that failed, as small as it became.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) case: Case,
    pub(super) failure: Failure,
    /// Name of the problem that was drawn.
    pub(super) name: u64,
    pub(super) operation: Operation,
}

/// Everything that the threads share.
#[derive(Debug)]
pub(super) struct Crew {
    scope: Scope,
    extent: Extent,
    begin: Instant,
    next: AtomicU64,
    /// Because of failures.
    stop: AtomicBool,
    /// Because nobody listens.
    over: AtomicBool,
    counts: Mutex<[Count; Operation::ALL.len()]>,
    /// Not taken yet.
    found: Mutex<Vec<Found>>,
    /// All of them, taken or not.
    failures: AtomicUsize,
    /// What each thread is at, and since when.
    under_way: Vec<Mutex<Option<(Case, u64, Instant)>>>,
    /// Refusals that were not asked for, each once.
    refusals: Mutex<std::collections::BTreeMap<String, u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    pub(super) fn new(scope: Scope, extent: Extent, threads: usize) -> Self {
        Self {
            scope,
            extent,
            begin: Instant::now(),
            next: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            over: AtomicBool::new(false),
            counts: Mutex::default(),
            found: Mutex::default(),
            failures: AtomicUsize::new(0),
            under_way: (0..threads).map(|_| Mutex::default()).collect(),
            refusals: Mutex::default(),
        }
    }

    /// Works as thread `thread` until there is nothing left, time is up, or a fault took the device.
    pub(super) fn work(&self, thread: usize, bench: &mut Bench<impl Machine>) {
        while !self.is_over() {
            let index = self.next.fetch_add(1, Relaxed);
            if index >= self.extent.runs {
                return;
            }
            let name = problem_seed(self.extent.seed, index);
            let case = generate::case(name, self.scope);
            *lock(&self.under_way[thread]) = Some((case.clone(), name, Instant::now()));
            let result = bench.run(&case);
            self.note(bench, (case, name), result);
            *lock(&self.under_way[thread]) = None;
        }
    }

    fn is_over(&self) -> bool {
        let is_late = self.extent.time.is_some_and(|time| self.begin.elapsed() >= time);
        is_late || self.stop.load(Relaxed) || self.over.load(Relaxed) || interrupt::check().is_err()
    }

    /// Counts a result, and makes a failure smaller first.
    fn note(&self, bench: &mut Bench<impl Machine>, (case, name): (Case, u64), result: Result<(), Stop>) {
        let operation = case.operation();
        let count = |add: fn(&mut Count)| add(&mut lock(&self.counts)[operation as usize]);
        match result {
            Ok(()) => count(|count| count.passed += 1),
            Err(Stop::Large) => count(|count| count.planned += 1),
            Err(Stop::Refused(line)) => {
                count(|count| count.refused += 1);
                *lock(&self.refusals).entry(line).or_default() += 1;
            }
            Err(Stop::Failed(failure)) => {
                count(|count| count.failed += 1);
                let on_device = self.scope.backend == flash_attention::BackendKind::Cuda;
                if on_device && failure.kind == Kind::Fault {
                    // Nothing runs on the device any more.
                    self.stop.store(true, Relaxed);
                    lock(&self.found).push(Found { case, failure, name, operation });
                    return;
                }
                let found = smallest(bench, Found { case, failure, name, operation });
                lock(&self.found).push(found);
                if self.failures.fetch_add(1, Relaxed) + 1 >= MOST_FAILURES {
                    self.stop.store(true, Relaxed);
                }
            }
        }
    }

    /// Problems that have come to an end.
    fn done(&self) -> u64 {
        lock(&self.counts).iter().map(Count::all).sum()
    }

    pub(super) fn counts(&self) -> [Count; Operation::ALL.len()] {
        *lock(&self.counts)
    }

    /// Failures since this was last asked.
    pub(super) fn take_found(&self) -> Vec<Found> {
        std::mem::take(&mut lock(&self.found))
    }

    /// How often each refusal was seen.
    pub(super) fn refusals(&self) -> std::collections::BTreeMap<String, u64> {
        lock(&self.refusals).clone()
    }

    /// A problem that has been under way for longer than `limit`, which a kernel that hangs is.
    pub(super) fn endless(&self, limit: Duration) -> Option<Found> {
        self.under_way.iter().find_map(|at| {
            let at = lock(at);
            let (case, name, _) = at.as_ref().filter(|(_, _, since)| since.elapsed() > limit)?;
            let what = format!("it has not ended after {} s", limit.as_secs());
            let failure = Failure::new(Kind::Endless, what);
            Some(Found { case: case.clone(), failure, name: *name, operation: case.operation() })
        })
    }

    /// Steps of the whole run: problems, or seconds where there is no limit to problems.
    pub(super) fn length(&self) -> usize {
        match self.extent {
            Extent { runs: u64::MAX, time, .. } => time.map_or(0, |time| time.as_secs() as usize),
            Extent { runs, .. } => runs as usize,
        }
    }

    /// Those that are done.
    pub(super) fn progress(&self) -> usize {
        if self.extent.runs == u64::MAX { self.seconds() as usize } else { self.done() as usize }
    }

    /// Has no problem begin any more.
    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Why it ended, if that was because of its failures.
    pub(super) fn gave_up(&self) -> Option<&'static str> {
        let is_many = self.failures.load(Relaxed) >= MOST_FAILURES;
        let why = if is_many { "too many failed" } else { "a fault took the device" };
        self.stop.load(Relaxed).then_some(why)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }
}

/// A smaller problem that fails in the same way.
fn smallest(bench: &mut Bench<impl Machine>, found: Found) -> Found {
    let kind = found.failure.kind;
    let mut last = found.failure.clone();
    let (case, _) = shrink(&found.case, PATIENCE, |case| {
        let result = if interrupt::check().is_ok() { bench.run(case) } else { Ok(()) };
        match result {
            Err(Stop::Failed(failure)) if failure.kind == kind => {
                last = failure;
                true
            }
            _ => false,
        }
    });
    Found { case, failure: last, ..found }
}

#[cfg(test)]
mod tests {
    use super::super::image::Slot;
    use super::super::machine::{BackwardCall, DecodeCall, ForwardCall, GemmCall, Memory, OnHost};
    use super::*;
    use flash_attention::{Backend, BackendKind, Device, Element};

    /// The CPU, but for what is done to its outputs.
    struct Careless {
        cpu: OnHost,
        harm: fn(&mut [u8], usize),
    }

    impl Careless {
        fn bench(harm: fn(&mut [u8], usize)) -> Bench<Self> {
            Bench::new(Self { cpu: OnHost::Cpu(Backend::open(Some(BackendKind::Cpu)).unwrap()), harm })
        }

        fn harm<T>(&self, memory: &mut Memory, slot: Slot) {
            (self.harm)(&mut memory.outputs.bytes_mut()[slot.start..], size_of::<T>());
        }
    }

    impl Machine for Careless {
        fn device(&self) -> &Device {
            self.cpu.device()
        }

        fn forward<T: Element>(
            &mut self,
            call: &ForwardCall<'_>,
            memory: &mut Memory,
        ) -> Result<(), Failure> {
            self.cpu.forward::<T>(call, memory)?;
            self.harm::<T::Output>(memory, call.o);
            Ok(())
        }

        fn backward<T: Element>(
            &mut self,
            call: &BackwardCall<'_>,
            memory: &mut Memory,
        ) -> Result<(), Failure> {
            self.cpu.backward::<T>(call, memory)?;
            self.harm::<T>(memory, call.gradients[1]);
            Ok(())
        }

        fn decode<T: Element>(&mut self, call: &DecodeCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
            self.cpu.decode::<T>(call, memory)?;
            self.harm::<T::Output>(memory, call.o);
            Ok(())
        }

        fn gemm<T: Element>(&mut self, call: &GemmCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
            self.cpu.gemm::<T>(call, memory)?;
            self.harm::<T>(memory, call.c);
            Ok(())
        }
    }

    /// The first failure of an operation.
    fn found(operation: Operation, harm: fn(&mut [u8], usize)) -> Found {
        let scope = Scope { backend: BackendKind::Cpu, operation: Some(operation) };
        let crew = Crew::new(scope, Extent { seed: 3, runs: 6, time: None }, 1);
        let mut bench = Careless::bench(harm);
        crew.work(0, &mut bench);
        let found = crew.take_found().remove(0);
        // What is printed fails when it is read again.
        let again = Case::parse(&found.case.text()).unwrap();
        assert!(
            matches!(bench.run(&again), Err(Stop::Failed(failure)) if failure.kind == found.failure.kind)
        );
        found
    }

    #[test]
    fn a_wrong_element_is_found_in_every_operation() {
        for operation in Operation::ALL {
            // The sign of the first element, and a bit of its exponent.
            let found = found(operation, |bytes, size| bytes[size - 1] ^= 0xa0);
            assert_eq!(found.failure.kind, Kind::Inexact, "{}", found.failure);
        }
    }

    #[test]
    fn an_element_left_out_and_one_too_many_are_found() {
        let left_out = found(Operation::Gemm, |bytes, size| bytes[..size].fill(0xff));
        assert_eq!(left_out.failure.kind, Kind::Unwritten, "{}", left_out.failure);
        let too_many = found(Operation::Forward, |bytes, size| {
            // The first canary: what follows a row, or the tensor.
            let canary = bytes.chunks(2).position(|pair| pair == super::super::image::OUTPUT_CANARY).unwrap();
            bytes[2 * canary..][..size].fill(0);
        });
        assert_eq!(too_many.failure.kind, Kind::Overwritten, "{}", too_many.failure);
        assert!(too_many.case.text().len() < 60, "{}", too_many.case.text());
    }

    #[test]
    fn panics_are_failures() {
        let found = found(Operation::Gemm, |_, _| panic!("as asked"));
        assert_eq!(found.failure.kind, Kind::Panicked);
        assert!(found.failure.to_string().ends_with("as asked"), "{}", found.failure);
        assert_eq!(found.case.text(), r#"{"gemm":{}}"#);
    }

    #[test]
    fn what_takes_too_long_is_named() {
        let scope = Scope { backend: BackendKind::Cpu, operation: None };
        let crew = Crew::new(scope, Extent { seed: 0, runs: 1, time: None }, 2);
        assert!(crew.endless(Duration::ZERO).is_none());
        let case = generate::case(7, scope);
        *crew.under_way[1].lock().unwrap() = Some((case.clone(), 7, Instant::now()));
        std::thread::sleep(Duration::from_millis(2));
        let found = crew.endless(Duration::from_millis(1)).unwrap();
        assert_eq!((found.case, found.name), (case, 7));
    }
}
