//! The backward pass by recomputation: its speed, its gradients' error, and its memory beside what P would
//! take.

mod kernels;
mod passes;

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use flash_attention::backward::BackwardRequest;
use flash_attention::forward::Dropout;
use flash_attention::{Element, Error, Kernel, Options, Plan, Problem, Request};

pub(crate) use self::kernels::race_of_kernels;
use self::passes::{BothPasses, Passes, put, row_of};
use super::memory::{extra_bytes, note_of_extra_memory};
use super::published::{Attention, RIVALS};
use crate::args::{Grid, LabArgs, at_least_one, named};
use crate::lab::{self, Case, CheckRecord, Entrant, ITERATIONS, Lab, Recipe, Row, Shared, Unit, Work};
use crate::measure::{Subject, with_output_element};
use crate::peer::{Form, Implementation, Pass};
use crate::problem::{Layout, Shape, ShapeArgs};
use crate::record::{PlanRecord, ProblemRecord};

const RECIPE: Recipe = Recipe {
    name: "backward",
    what: "forward and backward pass by recomputation: speed, error of the gradients, and memory beside what P would take",
    reported_elsewhere: None,
    axis: Some("sequence length (rows)"),
    iterations: ITERATIONS,
    scaled: true,
};

/// A problem in one of the ways in which attention is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Training {
    Full,
    Causal,
    Dropout,
}

impl Training {
    const ALL: [Self; 3] = [Self::Full, Self::Causal, Self::Dropout];

    const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Causal => "causal",
            Self::Dropout => "dropout",
        }
    }
}

/// With which a weight is dropped, as in many a recipe of training.
const PROBABILITY: f32 = 0.1;

/// Whose backward pass is timed beside ours where it is timed alone: the fastest there are.
const RIVALS_ALONE: [Implementation; 4] = [
    Implementation::Cudnn,
    Implementation::Flash2,
    Implementation::Flash4,
    Implementation::Flash4Deterministic,
];

/// The figure of memory beside the tensors.
const EXTRA: &str = "extra memory";

/// Arguments of `backward`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The problems whose figures are published, the backward pass alone, in place of one; with --dim those
    /// of one head_dim [cpu, sim: smaller ones]
    #[arg(long, value_parser = named(&Grid::ALL, Grid::name))]
    #[arg(conflicts_with_all = ["batch", "heads", "kv_heads", "seq", "only", "layout"])]
    grid: Option<Grid>,
    /// The only case to run: no mask, a causal one, or none with dropout [default: all]
    #[arg(long, value_parser = named(&Training::ALL, Training::name))]
    only: Option<Training>,
    /// The backward pass alone, as over the published grid: no time of the forward pass, and no memory; of
    /// the peer the fastest alone
    #[arg(long)]
    alone: bool,
    /// The entry of a launch of the backward pass
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Bytes of dS, and of sums beside it, that may be stored [default: 536870912]
    #[arg(long, value_name = "BYTES")]
    workspace_limit: Option<u64>,
    /// Queries of a head of which dS is stored at a time, at most [default: what is estimated to be
    /// the fastest]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    unit_rows: Option<usize>,
    /// Multiprocessors that are left to other kernels
    #[arg(long, value_name = "N", default_value_t = 0)]
    sm_margin: u32,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Order of the axes in memory: batch, seqlen, heads, head_dim
    #[arg(long, default_value = "bhsd", value_parser = named(&Layout::ALL, Layout::name))]
    layout: Layout,
    /// Sequence length [default: 2048; cpu: 512; sim: 64]
    #[arg(long, value_parser = at_least_one)]
    seq: Option<usize>,
    /// Heads of K and V, which divide those of Q [default: as many]
    #[arg(long, value_name = "HEADS", value_parser = at_least_one)]
    kv_heads: Option<usize>,
    /// Sequences of these lengths, packed, in place of a batch of equal ones
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', requires = "alone")]
    #[arg(conflicts_with_all = ["batch", "seq", "grid"])]
    lengths: Vec<u32>,
    #[command(flatten)]
    lab: LabArgs,
}

impl Args {
    /// A problem of this shape, but for what was asked for of heads and lengths.
    fn problem(&self, shape: Shape, options: Options) -> Result<Problem> {
        let mut offsets = vec![0_u32];
        let mut rows = 0_u32;
        for &length in &self.lengths {
            rows = rows.saturating_add(length);
            offsets.push(rows);
        }
        let is_packed = !self.lengths.is_empty();
        let (batch, seq) = if is_packed { (1, rows as usize) } else { (shape.batch, shape.seq) };
        let mut tensors = *Shape { batch, seq, ..shape }.problem(self.layout)?.tensors();
        if let Some(heads) = self.kv_heads {
            let layout = self.layout.tensor(batch, seq, heads, shape.head_dim);
            (tensors.k, tensors.v) = (layout, layout);
        }
        if !is_packed {
            return Ok(Problem::new(tensors, shape.dtype, options)?);
        }
        Ok(Problem::varlen(tensors, shape.dtype, options, &offsets, &offsets)?)
    }

    /// What the planner is asked for.
    fn request(&self) -> BackwardRequest {
        let Self { entry, workspace_limit, unit_rows, sm_margin, .. } = self;
        BackwardRequest {
            kernel: None,
            entry: entry.clone(),
            workspace_limit: *workspace_limit,
            unit_rows: *unit_rows,
            sm_margin: *sm_margin,
        }
    }
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        if args.grid.is_some() { grid(lab, args) } else { trainings(lab, args) }
    })
}

/// The backward pass alone over the published grid.
fn grid(lab: &mut Lab, args: &Args) -> Result<()> {
    lab.compare_with(&[&RIVALS[..], &[Implementation::Flash4Deterministic]].concat());
    lab.compare_at_power_limit();
    for case in Attention::of(lab).cases(args.shape.dtype, args.shape.dim)? {
        check(lab, args, &case.problem)?;
        with_output_element!(
            case.problem.dtype(),
            backward_alone(lab, &case, (args.layout, args.request()))
        )?;
    }
    lab.add_headline();
    note_of_flops(lab);
    Ok(())
}

/// Both passes, or the backward one alone, of a problem without a mask, with one, and with dropout.
fn trainings(lab: &mut Lab, args: &Args) -> Result<()> {
    if args.alone {
        lab.compare_with(&RIVALS_ALONE);
    } else {
        let flash4 = [Implementation::Flash4, Implementation::Flash4Deterministic];
        lab.compare_with(&[lab.implementations(), &flash4].concat());
    }
    let seq = args.seq.unwrap_or(lab.pick(2048, 512, 64));
    let head_dims = args.shape.dim.map_or(vec![64, 128], |dim| vec![dim]);
    let trainings = args.only.map_or(Training::ALL.to_vec(), |only| vec![only]);
    for (head_dim, &training) in
        head_dims.into_iter().flat_map(|dim| trainings.iter().map(move |of| (dim, of)))
    {
        let (causal, dropout) = (training == Training::Causal, training == Training::Dropout);
        let sizes = lab.pick((4, 32, head_dim), (1, 4, head_dim), (1, 1, head_dim));
        let shape = Shape { causal, ..args.shape.shape(sizes, seq) };
        let dropout = dropout.then_some(Dropout { probability: PROBABILITY, seed: lab.seed, offset: 0 });
        let options = Options { causal, dropout, ..Options::default() };
        let problem = args.problem(shape, options)?;
        check(lab, args, &problem)?;
        let name = format!("D={head_dim} {}", training.name());
        let case = Case { name, x: None, problem };
        if args.alone {
            with_output_element!(
                case.problem.dtype(),
                backward_alone(lab, &case, (args.layout, args.request()))
            )?;
        } else {
            with_output_element!(case.problem.dtype(), measure(lab, &case, (args.layout, args.request())))?;
        }
    }
    note_of_flops(lab);
    if args.alone {
        return Ok(());
    }
    lab.note("the forward and backward row is the time of both on cold caches, the second after the first");
    note_of_extra_memory(lab);
    Ok(())
}

/// Refuses what would take too long, or does not fit.
fn check(lab: &Lab, args: &Args, problem: &Problem) -> Result<()> {
    // Both passes, of which the backward one recomputes: about as much as five forward ones.
    lab.session.check_patience(problem, 5, &lab.effort, &args.lab.measure)?;
    Ok(lab.session.check_tensors(problem)?)
}

fn note_of_flops(lab: &mut Lab) {
    lab.note(
        "TFLOP/s of a backward pass counts 2.5 times the forward pass's operations: five products for two",
    );
}

/// The backward pass of a case: a row, and the peer's.
fn backward_alone<T: Element<Output = T>>(
    lab: &mut Lab,
    case: &Case<Problem>,
    (layout, request): (Layout, BackwardRequest),
) -> Result<()> {
    let session = Rc::clone(&lab.session);
    let problem = &case.problem;
    let subject = Subject::<T>::new(problem, lab.seed);
    let BothPasses { forward, backward, .. } =
        BothPasses::new(&session, &subject, (problem, &request), lab.seed)?;
    drop(forward);
    let flops = backward.gradients.problem.flops();
    let expected = backward.expected();
    let mut ours = Vec::new();
    for (plan, name) in backward.plans(&session.backend, &request)? {
        let (prepared, report, verdict) = backward.judged(&session.backend, &plan, &expected)?;
        let row = row_of((case, layout), (&plan, name), (&report, &verdict));
        ours.push((row, prepared.launches(), RefCell::new(prepared)));
    }
    let template =
        Row { series: String::new(), plan: None, check: None, figures: Vec::new(), ..ours[0].0.clone() };
    let entrant = |(row, launches, prepared)| {
        let passes = Passes { forward: None, backward: Some(prepared) };
        Entrant::new(row, Box::new(passes), flops).launching(launches)
    };
    let mut entrants: Vec<_> =
        ours.iter().map(|(row, launches, prepared)| entrant((row.clone(), *launches, prepared))).collect();
    let work = Work { problem, layout, pass: Pass::Backward, flops };
    entrants.extend(lab.peer_attention(&template, work, Form::Strided)?);
    lab.race(entrants, ours.len()).map(drop)
}

/// Both passes of a problem: three rows, and the peer's.
fn measure<T: Element<Output = T>>(
    lab: &mut Lab,
    Case { name, problem, .. }: &Case<Problem>,
    (layout, request): (Layout, BackwardRequest),
) -> Result<()> {
    let session = Rc::clone(&lab.session);
    let backend = &session.backend;
    let subject = Subject::<T>::new(problem, lab.seed);
    let BothPasses { plan, forward, verdict, backward } =
        BothPasses::new(&session, &subject, (problem, &request), lab.seed)?;
    let extra = backward.extra_bytes(backend)?;
    let (prepared, report, judgement) = backward.judged(backend, &backward.plan, &backward.expected())?;
    let template = Row { problem: Some(ProblemRecord::new(problem, layout)), ..Row::default() };
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
    let one = Passes { forward: Some(&forward), backward: None };
    let other = Passes { forward: None, backward: Some(&prepared) };
    let both = Passes { forward: Some(&forward), backward: Some(&prepared) };
    let [first, second, third] = rows;
    let mut entrants = vec![
        Entrant::new(first, Box::new(one), flops[0]).launching(launches[0]),
        Entrant::new(second, Box::new(other), flops[1]).launching(launches[1]),
        Entrant::new(third, Box::new(both), flops[2]).launching(launches[0] + launches[1]),
    ];
    let ours = entrants.len();
    for ((template, pass), flops) in calls.iter().zip(passes).zip(flops) {
        let work = Work { problem, layout, pass, flops };
        entrants.extend(lab.peer_attention(template, work, Form::Strided)?);
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
