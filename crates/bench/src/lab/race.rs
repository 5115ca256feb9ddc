//! The race of what was prepared: all are timed in turns, and each becomes a row with what follows from its
//! rivals.

use std::ops::Range;

use anyhow::Result;
use flash_attention::{BackendKind, Element, Kernel, Operation, Prepared};

use super::document::{CheckRecord, Row, RunRecord, Unit};
use super::run::Lab;
use super::timed::{Many, Probe, Timed};
use super::turns::interleave;
use crate::check::Verdict;
use crate::interrupt::{self, Interrupted};
use crate::nvtx;
use crate::record::TimesRecord;
use crate::timer::{Pace, Times};

/// The row of a contender, and what times it.
pub(crate) struct Entrant<'a> {
    pub(super) row: Row,
    timed: Option<Box<dyn Timed + 'a>>,
    flops: f64,
    extra_bytes: Option<u64>,
    launches: Option<usize>,
}

/// Seconds below which the launch is a good part of what two events measure.
const SHORT: f64 = 20e-6;

/// Runs without a wait in between that show what a kernel takes without its launch.
pub(crate) const MANY: usize = 100;

/// How often they are timed: the median counts.
const REPEATS: usize = 5;

/// A kernel of ours, whose runs are a range that a profiler shows by its entries.
struct Ranged<'a> {
    entries: String,
    timed: Box<dyn Timed + 'a>,
}

impl Timed for Ranged<'_> {
    fn time(&mut self, runs: usize, pace: Pace) -> Result<Vec<f64>> {
        let _range = nvtx::range(&self.entries);
        self.timed.time(runs, pace)
    }

    fn probe(&mut self) -> Result<Probe> {
        let _range = nvtx::range(&self.entries);
        self.timed.probe()
    }

    fn time_many(&mut self, runs: usize) -> Result<Many> {
        let _range = nvtx::range(&self.entries);
        self.timed.time_many(runs)
    }
}

impl<'a> Entrant<'a> {
    /// What is ready, with its operations.
    pub(crate) fn new(row: Row, timed: Box<dyn Timed + 'a>, flops: f64) -> Self {
        let timed = match &row.plan {
            Some(plan) => Box::new(Ranged { entries: plan.entries(), timed }),
            None => timed,
        };
        Self { row, timed: Some(timed), flops, extra_bytes: None, launches: None }
    }

    /// The same with its number of launches.
    pub(crate) fn launching(self, launches: usize) -> Self {
        Self { launches: Some(launches), ..self }
    }

    /// What ran once and was judged.
    pub(super) fn judged<T: Element, O: Operation>(
        row: Row,
        (prepared, verdict): (Prepared<'a, T, O>, Verdict),
        flops: f64,
    ) -> Self {
        let row = Row { check: Some(CheckRecord::new(&verdict)), ..row };
        let (extra_bytes, launches) = (Some(prepared.extra_bytes()), Some(prepared.launches()));
        Self { extra_bytes, launches, ..Self::new(row, Box::new(prepared), flops) }
    }

    pub(super) fn refused(row: Row, reason: String) -> Self {
        let row = Row { not_run: Some(reason), ..row };
        Self { row, timed: None, flops: 0.0, extra_bytes: None, launches: None }
    }

    /// What a run takes where the next one's launch is hidden behind it, and in a graph where there is none.
    fn add_many(&mut self) -> Result<()> {
        let Some(timed) = &mut self.timed else { return Ok(()) };
        let many = (0..REPEATS).map(|_| timed.time_many(MANY)).collect::<Result<Vec<_>>>()?;
        let queued = many.iter().filter_map(|many| many.queued).collect::<Vec<_>>();
        let replayed = many.iter().filter_map(|many| many.replayed).collect();
        for (way, seconds) in [("queued", queued), ("in a replayed graph", replayed)] {
            if !seconds.is_empty() {
                let median = Times { warmup_runs: 0, seconds }.median();
                self.row.put(format!("one of {MANY} {way}"), Unit::Seconds, median);
            }
        }
        Ok(())
    }

    fn finish(&mut self, times: &Times) {
        self.row.measurement = Some(RunRecord {
            times: TimesRecord::new(times),
            tflops: Some(self.flops / times.median() / 1e12),
            extra_bytes: self.extra_bytes,
            launches: self.launches,
        });
    }
}

impl Lab {
    /// Times what is ready in turns, and adds all rows. The first `ours` are the library's.
    ///
    /// # Errors
    /// When one of the library's fails, or Ctrl-C is pressed.
    pub(crate) fn race(&mut self, mut entrants: Vec<Entrant<'_>>, ours: usize) -> Result<Range<usize>> {
        self.introduce()?;
        let first = self.rows().len();
        let runs = entrants.iter().filter(|entrant| entrant.timed.is_some()).count();
        let progress =
            self.screen.progress(runs.saturating_mul(self.effort.runs()), entrants[0].row.case.clone());
        let timed = entrants.iter_mut().filter_map(|entrant| Some(&mut **entrant.timed.as_mut()?));
        let results = interleave(&self.effort, timed.collect(), &|runs| progress.advance(runs));
        let interrupted = interrupt::check();
        drop(progress);
        let short = |times: &Times| !times.seconds.is_empty() && times.median() < SHORT;
        let of_ours = entrants.iter().take(ours).filter(|entrant| entrant.timed.is_some()).count();
        let any_short = results.iter().take(of_ours).flatten().any(short);
        // Both sides or neither: what a run takes without its launch is compared too.
        let with_many = any_short && self.kind() == BackendKind::Cuda && interrupted.is_ok();
        let mut results = results.into_iter();
        for (index, entrant) in entrants.iter_mut().enumerate() {
            let Some(result) = entrant.timed.as_ref().and_then(|_| results.next()) else { continue };
            match result {
                Ok(times) if times.seconds.is_empty() => entrant.row.not_run = Some(Interrupted.to_string()),
                Ok(times) => {
                    entrant.finish(&times);
                    if with_many {
                        entrant.add_many()?;
                    }
                }
                // A peer may refuse late; our own kernels may not.
                Err(error) if index >= ours => entrant.row.not_run = Some(format!("{error:#}")),
                Err(error) => return Err(error),
            }
        }
        let rows: Vec<_> = entrants.into_iter().map(|entrant| entrant.row).collect();
        self.forget_peer_inputs()?;
        let compared: Vec<_> =
            rows.iter().take(ours).map(|row| (row.case.clone(), row.series.clone(), row.median())).collect();
        for (index, mut row) in rows.into_iter().enumerate() {
            let in_case = || compared.iter().filter(|(case, ..)| *case == row.case);
            let standard = in_case().find(|(_, series, _)| series == Kernel::Standard.name());
            let leader = in_case().next().filter(|_| index >= ours);
            let Some(median) = row.median() else {
                self.document.rows.push(row);
                continue;
            };
            if let Some((.., Some(standard))) = standard
                && row.series != Kernel::Standard.name()
            {
                row.put("speedup over standard", Unit::Times, standard / median);
            }
            if let Some((_, leader, Some(reference))) = leader {
                row.put(format!("its time over {leader}'s"), Unit::Times, median / reference);
            }
            self.document.rows.push(row);
        }
        self.save()?;
        interrupted?;
        Ok(first..self.rows().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::BackendArgs;
    use crate::measure::Subject;
    use crate::problem::{Layout, Shape};
    use crate::session::Session;
    use flash_attention::{DType, Request};

    #[test]
    fn a_kernel_is_timed_alone_and_among_many() {
        let session = Session::open(&BackendArgs { backend: Some(BackendKind::Cpu), device: None }).unwrap();
        let shape = Shape { batch: 1, heads: 1, seq: 8, head_dim: 8, dtype: DType::F32, causal: false };
        let problem = shape.problem(Layout::Bhsd).unwrap();
        let plan = session.backend.plan(&problem, &Request::default()).unwrap();
        let subject = Subject::<f32>::new(&problem, 0);
        let judged = subject.judge(&session, &plan).unwrap();
        let mut entrant = Entrant::judged(Row::default(), judged, problem.flops());
        assert_eq!(entrant.timed.as_mut().unwrap().time(3, Pace::Rested).unwrap().len(), 3);
        entrant.add_many().unwrap();
        assert!(entrant.row.figure("one of 100 queued").unwrap() > 0.0);
        assert_eq!(entrant.row.figure("one of 100 in a replayed graph"), None, "the CPU has no graphs");
        assert!(entrant.row.check.unwrap().passed);
    }
}
