//! Kernels on one problem: each prepared and checked, all timed in turns, a row for each.

use std::ops::Range;
use std::rc::Rc;

use anyhow::Result;
use flash_attention::gemm::{GemmPlan, GemmProblem};
use flash_attention::{Element, Error, Kernel, Operation, Plan, Prepared, Problem, Request};

use super::case::{Case, Contender, Group};
use super::document::{CheckRecord, ProductRecord, Row};
use super::peers::Work;
use super::race::Entrant;
use super::run::Lab;
use super::timed::Timed;
use super::turns::interleave;
use crate::check::Verdict;
use crate::interrupt;
use crate::measure::{Subject, with_element};
use crate::nvtx;
use crate::peer::{Call, Form};
use crate::problem::Layout;
use crate::product::Product;
use crate::record::{PlanRecord, ProblemRecord, TimesRecord};
use crate::session::Session;

/// Whether an error says that a kernel does not take a problem here, rather than that something broke.
pub(crate) const fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::OutOfMemory { .. }
            | Error::UnsupportedDType { .. }
            | Error::KernelNeedsDevice { .. }
            | Error::KernelNotOnBackend { .. }
            | Error::UnfitKernel { .. }
            | Error::UnfitEntry { .. }
            | Error::NoSuchTile { .. }
            | Error::TileTooLarge { .. }
            | Error::GridTooLarge { .. }
    )
}

/// The reason, if that is what the error is.
fn refusal<T>(result: Result<T, Error>) -> Result<Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) if is_refusal(&error) => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

impl Lab {
    /// A kernel by name, or without one the planner's choice, whose series is the chosen kernel's name.
    pub(crate) fn contender(&self, problem: &Problem, kernel: Option<Kernel>) -> Contender<Plan> {
        let plan = self.session.backend.plan(problem, &Request { kernel, ..Request::default() });
        let name = |plan: &Plan| plan.kernel().name();
        let series = kernel.map_or_else(|| plan.as_ref().map_or("flash", name), Kernel::name).to_owned();
        Contender { series, plan }
    }

    /// The planner's choice and the unfused baseline.
    pub(crate) fn flash_and_standard(&self, problem: &Problem) -> Vec<Contender<Plan>> {
        vec![self.contender(problem, None), self.contender(problem, Some(Kernel::Standard))]
    }

    /// Runs kernels on a problem: each is checked, then all and the peer's are timed in turns. Rows of the
    /// library's kernels come first, in the order given; the first is what the peer's are compared with, and
    /// the baseline's time is what the speedups are of.
    ///
    /// # Errors
    /// When the device or a kernel fails, or Ctrl-C is pressed.
    pub(crate) fn contest(
        &mut self,
        case: &Case<Problem>,
        layout: Layout,
        contenders: Vec<Contender<Plan>>,
    ) -> Result<Range<usize>> {
        self.contest_of(vec![Group { case, layout, contenders }])
    }

    /// As [`Self::contest`], of cases of one storage type that are compared with one another: all are timed
    /// in turns.
    ///
    /// # Errors
    /// As [`Self::contest`].
    pub(crate) fn contest_of(&mut self, groups: Vec<Group<'_>>) -> Result<Range<usize>> {
        let dtype = groups.first().map(|group| group.case.problem.dtype());
        dtype.map_or(Ok(0..0), |dtype| with_element!(dtype, contest_in(self, groups)))
    }

    /// Times one kernel of ours that was judged, and, where `peers` says that it can be compared, the peer's
    /// in turns with it.
    ///
    /// # Errors
    /// As [`Self::contest`].
    pub(crate) fn judged<T: Element, O: Operation>(
        &mut self,
        row: Row,
        judged: (Prepared<'_, T, O>, Verdict),
        problem: &Problem,
        peers: bool,
    ) -> Result<Range<usize>> {
        let template = Row { plan: None, figures: Vec::new(), ..row.clone() };
        let mut entrants = vec![Entrant::judged(row, judged, problem.flops())];
        if peers {
            let work = Work::forward(problem, Layout::Bshd);
            entrants.extend(self.peer_attention(&template, work, Form::Strided)?);
            if problem.heads() > problem.kv_heads() && !problem.causal() {
                entrants.extend(self.peer_attention(&template, work, Form::HeadsAsRows)?);
            }
        }
        self.race(entrants, 1)
    }

    /// As [`Self::contest`], of matrix multiplications.
    ///
    /// # Errors
    /// As [`Self::contest`].
    pub(crate) fn products(
        &mut self,
        case: &Case<GemmProblem>,
        contenders: Vec<Contender<GemmPlan>>,
    ) -> Result<Range<usize>> {
        with_element!(case.problem.dtype(), products_in(self, case, contenders))
    }

    /// Times something of its own in the usual number of runs.
    ///
    /// # Errors
    /// When it fails, or Ctrl-C is pressed.
    pub(crate) fn time_alone(&self, what: &str, timed: &mut dyn Timed) -> Result<TimesRecord> {
        let mut times = self.time_together(what, vec![timed])?;
        times.pop().ok_or_else(|| anyhow::anyhow!("nothing was timed"))
    }

    /// As [`Self::time_alone`], of several things in turns.
    ///
    /// # Errors
    /// When one of them fails, or Ctrl-C is pressed.
    pub(crate) fn time_together<'a>(
        &self,
        what: &str,
        timed: Vec<&mut (dyn Timed + 'a)>,
    ) -> Result<Vec<TimesRecord>> {
        self.introduce()?;
        let runs = timed.len().saturating_mul(self.effort.runs());
        let progress = self.screen.progress(runs, what);
        let _range = nvtx::range(what);
        let results = interleave(&self.effort, timed, &|runs| progress.advance(runs));
        interrupt::check()?;
        results.into_iter().map(|result| Ok(TimesRecord::new(&result?))).collect()
    }
}

fn contest_in<T: Element>(lab: &mut Lab, groups: Vec<Group<'_>>) -> Result<Range<usize>> {
    let session = Rc::clone(&lab.session);
    let mut subjects = Vec::new();
    for Group { case, contenders, .. } in &groups {
        let runnable = contenders.iter().filter(|contender| contender.plan.is_ok()).count();
        session.check_patience(&case.problem, runnable, &lab.effort, &lab.measure)?;
        let fits = refusal(session.check_tensors(&case.problem))?;
        subjects.push(fits.map(|()| Subject::<T>::new(&case.problem, lab.seed)));
    }
    let (mut entrants, mut peers) = (Vec::new(), Vec::new());
    for (Group { case, layout, contenders }, subject) in groups.into_iter().zip(&subjects) {
        let Case { name, x, problem } = case;
        let record = ProblemRecord::new(problem, layout);
        let template = Row { case: name.clone(), x: *x, problem: Some(record), ..Row::default() };
        for Contender { series, plan } in contenders {
            let row = Row { series, ..template.clone() };
            entrants.push(match (refusal(plan)?, subject) {
                (Ok(plan), Ok(subject)) => ours(&session, subject, problem, row, &plan)?,
                (Err(reason), _) => Entrant::refused(row, reason),
                (_, Err(reason)) => Entrant::refused(row, reason.clone()),
            });
        }
        peers.extend(lab.peer_attention(&template, Work::forward(problem, layout), Form::Strided)?);
    }
    let ours = entrants.len();
    entrants.extend(peers);
    lab.race(entrants, ours)
}

/// A kernel of ours, run once and judged.
fn ours<'a, T: Element>(
    session: &'a Session,
    subject: &'a Subject<T>,
    problem: &Problem,
    row: Row,
    plan: &Plan,
) -> Result<Entrant<'a>> {
    let row = Row { plan: Some(PlanRecord::new(plan)), ..row };
    Ok(match refusal(subject.judge(session, plan))? {
        Ok(judged) => Entrant::judged(row, judged, problem.flops()),
        Err(reason) => Entrant::refused(row, reason),
    })
}

fn products_in<T: Element>(
    lab: &mut Lab,
    case: &Case<GemmProblem>,
    contenders: Vec<Contender<GemmPlan>>,
) -> Result<Range<usize>> {
    let Case { name, x, problem } = case;
    let product = Some(ProductRecord::new(problem));
    let template = Row { case: name.clone(), x: *x, product, ..Row::default() };
    let session = Rc::clone(&lab.session);
    session.check_flops(problem.flops(), contenders.len(), &lab.effort, &lab.measure)?;
    let rows = Product::<T>::rows_to_check(problem);
    let fits = refusal(session.check_matrices(problem))?;
    let product = fits.map(|()| Product::<T>::new(problem, lab.seed, rows));
    let mut entrants = Vec::new();
    for Contender { series, plan } in contenders {
        let mut row = Row { series, ..template.clone() };
        let judged = match (refusal(plan)?, &product) {
            (Ok(plan), Ok(product)) => {
                row.plan = Some(PlanRecord::of_product(&plan));
                refusal(product.judge(&session.backend, &plan))?
            }
            (Err(reason), _) => Err(reason),
            (_, Err(reason)) => Err(reason.clone()),
        };
        entrants.push(match judged {
            Ok((prepared, verdict)) => {
                let row = Row { check: Some(CheckRecord::new(&verdict)), ..row };
                Entrant::new(row, Box::new(prepared), problem.flops())
            }
            Err(reason) => Entrant::refused(row, reason),
        });
    }
    let ours = entrants.len();
    entrants.extend(lab.peer_entrants(&template, problem.flops(), vec![Call::Product { problem }])?);
    lab.race(entrants, ours)
}
