//! The backward pass by recomputation: its speed, its gradients' error, and its memory beside what P would
//! take.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use flash_attention::backward::{BackwardPlan, BackwardProblem, BackwardRequest, GradientReport};
use flash_attention::forward::{Dropout, Results};
use flash_attention::{Backend, Element, Error, Kernel, Options, Plan, Prepared, Problem, Request};

use super::memory::{allocated, extra_bytes, note_of_extra_memory};
use crate::check::Verdict;
use crate::cli::{LabArgs, ShapeArgs, at_least_one};
use crate::gradients::Gradients;
use crate::heap;
use crate::inputs::Inputs;
use crate::lab::{self, CheckRecord, Each, Entrant, ITERATIONS, Lab, Recipe, Row, Shared, Unit};
use crate::measure::{Subject, cold, with_output_element};
use crate::peer::Pass;
use crate::problem::{Layout, Shape};
use crate::record::{PlanRecord, ProblemRecord};

const RECIPE: Recipe = Recipe {
    name: "backward",
    what: "forward and backward pass by recomputation: speed, error of the gradients, and memory beside what P would take",
    reported_elsewhere: None,
    axis: None,
    iterations: ITERATIONS,
    scaled: true,
};

/// Names of the cases, and whether they have a causal mask, and dropout.
const CASES: [(&str, bool, bool); 3] =
    [("full", false, false), ("causal", true, false), ("dropout", false, true)];

/// With which a weight is dropped, as in many a recipe of training.
const PROBABILITY: f32 = 0.1;

/// The figure of memory beside the tensors.
const EXTRA: &str = "extra memory";

/// Arguments of `backward`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence length [default: 2048; cpu: 512; sim: 64]
    #[arg(long, value_parser = at_least_one)]
    seq: Option<usize>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let seq = args.seq.unwrap_or(lab.pick(2048, 512, 64));
        let head_dims = args.shape.dim.map_or(vec![64, 128], |dim| vec![dim]);
        for (head_dim, (mask, causal, dropout)) in
            head_dims.into_iter().flat_map(|dim| CASES.map(|case| (dim, case)))
        {
            let sizes = lab.pick((4, 32, head_dim), (1, 4, head_dim), (1, 1, head_dim));
            let shape = Shape { causal, ..args.shape.shape(sizes, seq) };
            let dropout = dropout.then_some(Dropout { probability: PROBABILITY, seed: lab.seed, offset: 0 });
            let options = Options { causal, dropout, ..Options::default() };
            let tensors = *shape.problem(Layout::Bhsd)?.tensors();
            let problem = Problem::new(tensors, shape.dtype, options)?;
            // Both passes, of which the backward one recomputes: about as much as five forward ones.
            lab.session.check_patience(&problem, 5, &lab.effort, &args.lab.measure)?;
            lab.session.check_tensors(&problem)?;
            let case = format!("D={head_dim} {mask}");
            with_output_element!(problem.dtype(), measure(lab, &case, &problem))?;
        }
        lab.note("TFLOP/s of a backward pass counts 2.5 times the forward pass's operations: five products for two");
        lab.note(
            "the forward and backward row is the time of both on cold caches, the second after the first",
        );
        note_of_extra_memory(lab);
        Ok(())
    })
}

/// A backward pass on one backend.
struct BackwardSubject<'a, T> {
    gradients: Gradients<T>,
    plan: BackwardPlan,
    inputs: &'a Inputs<T>,
}

impl<T: Element> BackwardSubject<'_, T> {
    fn prepare<'a>(
        &'a self,
        backend: &'a Backend,
    ) -> flash_attention::Result<Prepared<'a, T, BackwardProblem>> {
        backend.prepare(&self.plan, self.gradients.inputs(self.inputs))
    }

    /// Runs once over poisoned gradients, and judges them.
    fn judged<'a>(
        &'a self,
        backend: &'a Backend,
    ) -> Result<(Prepared<'a, T, BackwardProblem>, GradientReport, Verdict)> {
        let mut prepared = self.prepare(backend)?;
        prepared.poison()?;
        prepared.run()?;
        let expected = self.gradients.expected(self.inputs);
        let (report, verdict) = self.gradients.judge(&expected, prepared.outputs()?);
        Ok((prepared, report, verdict))
    }

    /// What a run takes beside the tensors, by the allocator.
    fn extra_bytes(&self, backend: &Backend) -> Result<u64> {
        let Some(cuda) = backend.as_cuda() else {
            let mut prepared = self.prepare(backend)?;
            // The first run may fill what stays, such as the threads' own memory.
            prepared.time()?;
            let (bytes, ran) = heap::peak_of(|| prepared.time());
            ran?;
            return Ok(bytes);
        };
        let ran = || {
            let mut prepared = self.prepare(backend)?;
            prepared.time()?;
            Ok(prepared)
        };
        // Loaded kernels stay.
        allocated(cuda, ran)?;
        let inputs = self.gradients.inputs(self.inputs);
        let tensors = allocated(cuda, || Ok(cuda.tensor_memory(&self.plan, inputs)?))?;
        Ok(allocated(cuda, ran)?.saturating_sub(tensors))
    }
}

/// Says in a row how near the gradients are to the reference.
fn put(row: &mut Row, report: &GradientReport, verdict: &Verdict) {
    row.check = Some(CheckRecord::new(verdict));
    for (name, accuracy) in ["dQ", "dK", "dV"].into_iter().zip(report.all()) {
        row.put(format!("{name} max error"), Unit::Count, accuracy.max_error);
        row.put(format!("{name} bound"), Unit::Count, accuracy.bound);
    }
}

/// Both passes of a problem: three rows, and the peer's.
fn measure<T: Element<Output = T>>(lab: &mut Lab, name: &str, problem: &Problem) -> Result<()> {
    let session = Rc::clone(&lab.session);
    let backend = &session.backend;
    let plan = backend.plan(problem, &Request::default())?;
    let subject = Subject::<T>::new(problem, lab.seed);
    let (mut forward, verdict) = subject.judge(&session, &plan)?;
    let Results { o, lse } = forward.outputs()?.clone();
    let gradients = Gradients::new(problem.clone(), (o, lse), lab.seed)?;
    let backward = BackwardSubject {
        plan: backend.plan(&gradients.problem, &BackwardRequest::default())?,
        gradients,
        inputs: &subject.inputs,
    };
    let extra = backward.extra_bytes(backend)?;
    let (prepared, report, judgement) = backward.judged(backend)?;
    let template = Row { problem: Some(ProblemRecord::new(problem, Layout::Bhsd)), ..Row::default() };
    let row = |pass: &str, series: String| Row { case: format!("{name} {pass}"), series, ..template.clone() };
    let names = [plan.kernel().name(), backward.plan.kernel().name()];
    let mut rows = [
        row("forward", names[0].to_owned()),
        row("backward", names[1].to_owned()),
        row("forward and backward", names.join(" + ")),
    ];
    rows[0].plan = Some(PlanRecord::new(&plan));
    rows[0].check = Some(CheckRecord::new(&verdict));
    rows[1].plan = Some(PlanRecord::of_backward(&backward.plan));
    rows[1..].iter_mut().for_each(|row| put(row, &report, &judgement));
    rows[1].put(EXTRA, Unit::Bytes, extra as f64);
    let launches = [forward.launches(), prepared.launches()];
    let flops = [problem.flops(), backward.gradients.problem.flops()];
    let flops = [flops[0], flops[1], flops[0] + flops[1]];
    let passes = [Pass::Forward, Pass::Backward, Pass::Both];
    let calls: Vec<_> =
        rows.iter().map(|row| Row { plan: None, check: None, figures: Vec::new(), ..row.clone() }).collect();
    let (forward, prepared) = (RefCell::new(forward), RefCell::new(prepared));
    let one = || Ok(cold(&mut forward.borrow_mut())?);
    let other = || {
        prepared.borrow_mut().flush_cache()?;
        Ok(prepared.borrow_mut().time()?)
    };
    let both = || Ok(cold(&mut forward.borrow_mut())? + prepared.borrow_mut().time()?);
    let [first, second, third] = rows;
    let mut entrants = vec![
        Entrant::new(first, Box::new(Each(one)), flops[0]).launching(launches[0]),
        Entrant::new(second, Box::new(Each(other)), flops[1]).launching(launches[1]),
        Entrant::new(third, Box::new(Each(both)), flops[2]).launching(launches[0] + launches[1]),
    ];
    let ours = entrants.len();
    for ((template, pass), flops) in calls.iter().zip(passes).zip(flops) {
        entrants.extend(lab.peer_attention(template, problem, Layout::Bhsd, (false, pass, flops))?);
    }
    let rows = lab.race(entrants, ours)?;
    stored_p::<T>(lab, problem, rows.start + 1)
}

/// Adds to a row what unfused attention takes to keep P, by the same allocator.
fn stored_p<T: Element>(lab: &mut Lab, problem: &Problem, row: usize) -> Result<()> {
    let request = Request { kernel: Some(Kernel::Standard), ..Request::default() };
    let plan: Plan = match lab.session.backend.plan(problem, &request) {
        // It drops no weights; P takes what it takes without.
        Err(Error::UnfitKernel { .. }) => return Ok(()),
        plan => plan?,
    };
    if let Err(reason) = lab.session.check_workspace(problem, &plan) {
        lab.note(format!("what P would take was not measured: {reason}"));
        return Ok(());
    }
    let p = extra_bytes::<T>(lab, problem, &plan)? as f64;
    let row = lab.row_mut(row);
    row.put("P, if it were stored", Unit::Bytes, p);
    if let Some(extra) = row.figure(EXTRA) {
        row.put("saved", Unit::Percent, 100.0 * (1.0 - extra / p));
    }
    Ok(())
}
