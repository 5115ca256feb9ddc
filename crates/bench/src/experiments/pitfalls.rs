//! What a careless caller loses: each habit beside the way that it should be done.

use std::time::{Duration, Instant};

use anyhow::Result;
use flash_attention::forward::Outputs;
use flash_attention::{Backend, BackendKind, Element, Prepared, Problem, Request};

use crate::args::{LabArgs, at_least_one};
use crate::inputs::Inputs;
use crate::lab::{self, CheckRecord, Each, Lab, MANY, Recipe, Row, RunRecord, Shared, Timed, Unit};
use crate::measure::{Subject, with_element};
use crate::problem::{Layout, Shape, ShapeArgs};
use crate::record::{PlanRecord, ProblemRecord, TimesRecord};

const RECIPE: Recipe = Recipe {
    name: "pitfalls",
    what: "what a caller loses by waiting after each call, by copies in the loop, by small batches and on the first call, and what a \
           call costs the host",
    reported_elsewhere: None,
    axis: None,
    iterations: 20,
    scaled: true,
};

/// Calls that stand behind one another in a measurement.
const CALLS: usize = 10;

/// Calls that the host enqueues in a measurement of what it spends on one: fewer than a stream may fall
/// behind.
const ENQUEUED: usize = 200;

/// Arguments of `pitfalls`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence length [default: 512; cpu: 128; sim: 32]
    #[arg(long, value_parser = at_least_one)]
    seq: Option<usize>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let sizes = lab.pick((1, 8, 64), (1, 4, 64), (1, 1, 64));
        let shape = args.shape.shape(sizes, args.seq.unwrap_or(lab.pick(512, 128, 32)));
        with_element!(args.shape.dtype, all(lab, &args.lab, shape))
    })
}

fn all<T: Element>(lab: &mut Lab, args: &LabArgs, shape: Shape) -> Result<()> {
    let session = std::rc::Rc::clone(&lab.session);
    let backend = &session.backend;
    let problem = shape.problem(Layout::Bhsd)?;
    session.check_tensors(&problem)?;
    let plan = backend.plan(&problem, &Request::default())?;
    let subject = Subject::<T>::new(&problem, lab.seed);
    let (mut one, verdict) = subject.judge(&session, &plan)?;
    let check = CheckRecord::new(&verdict);
    let record = ProblemRecord::new(&problem, Layout::Bhsd);
    let base = Row { problem: Some(record), check: Some(check), ..Row::default() };

    let mut waiting = Each(|| wall(|| (0..CALLS).try_for_each(|_| one.time().map(drop))));
    let waiting = lab.time_alone("a wait after each call", &mut waiting)?;
    let mut queued = Each(|| wall(|| one.time_runs(CALLS).map(drop)));
    let queued = lab.time_alone("one wait", &mut queued)?;
    match lab.kind() {
        BackendKind::Cuda => {
            let names = [format!("a wait after each of {CALLS} calls"), "one wait at the end".to_owned()];
            compare(lab, &base, "synchronisation", names, [waiting, queued])?;
        }
        kind => {
            let reason = format!("a call on {kind} ends when it is done: there is nothing to wait for");
            lab.push(Row::refused("synchronisation", "a wait after each call", reason))?;
        }
    }

    let (mut o, inputs) = (vec![T::Output::default(); problem.tensors().o.span()], &subject.inputs);
    let mut copying =
        Each(|| wall(|| backend.run(&plan, inputs.tensors(), Outputs { o: &mut o, lse: None })));
    let mut resident = Each(|| wall(|| one.time().map(drop)));
    let times = together(lab, "copies", [&mut copying, &mut resident])?;
    let names = ["tensors of the host in each call", "tensors that are there"].map(str::to_owned);
    compare(lab, &base, "host copies in the loop", names, times)?;

    let many = Shape { batch: CALLS * shape.batch, ..shape }.problem(Layout::Bhsd)?;
    let (many_plan, many_inputs) =
        (backend.plan(&many, &Request::default())?, Inputs::<T>::random(&many, lab.seed));
    let mut batch = backend.prepare(&many_plan, many_inputs.tensors())?;
    let mut single = Each(|| wall(|| one.time_runs(CALLS).map(drop)));
    let mut batched = Each(|| wall(|| batch.time().map(drop)));
    let times = together(lab, "batches", [&mut single, &mut batched])?;
    let names = [format!("{CALLS} calls of batch {}", shape.batch), format!("one of batch {}", many.batch())];
    compare(lab, &base, "small batches", names, times)?;

    match lab.kind() {
        BackendKind::Cuda => {
            launch_overhead(lab, &base, &mut one)?;
            host_time::<T>(lab, shape)?;
        }
        kind => {
            let reason = format!("{kind} launches nothing");
            lab.push(Row::refused("launch overhead", "one call alone", reason.as_str()))?;
            lab.push(Row::refused(HOST_TIME, "one call", reason))?;
        }
    }
    first_call::<T>(lab, args, &base, &problem, &subject)
}

/// What a launch costs beside the kernel: one call between two events, the share of one among many, and in a
/// graph that is replayed.
fn launch_overhead<T: Element>(lab: &mut Lab, base: &Row, one: &mut Prepared<'_, T>) -> Result<()> {
    let alone = lab.time_alone("one call", &mut Each(|| Ok(one.time()?)))?;
    let mut share = Each(|| Ok(one.time_runs(MANY)? / MANY as u32));
    let among = lab.time_alone("many calls", &mut share)?;
    let mut replayed = Each(|| Ok(one.time_replayed(MANY)?.unwrap_or_default() / MANY as u32));
    let replayed = lab.time_alone("a replayed graph", &mut replayed)?;
    let names = [
        "one call alone".to_owned(),
        format!("one of {MANY} calls behind one another"),
        format!("one of {MANY} in a replayed graph"),
    ];
    compare(lab, base, "launch overhead", names, [alone, among, replayed])
}

/// The case of [`host_time`].
const HOST_TIME: &str = "the host's time";

/// What the host spends on a call, where heads start at multiples of 16 bytes, and where they do not: then
/// forward_sm90 takes up to eight tensor maps of each tensor in place of one.
fn host_time<T: Element>(lab: &mut Lab, shape: Shape) -> Result<()> {
    const ALIGNED: usize = 128;
    let session = std::rc::Rc::clone(&lab.session);
    let mut least = f64::NAN;
    for head_dim in [ALIGNED, ALIGNED + 1] {
        let problem = Shape { head_dim, ..shape }.problem(Layout::Bshd)?;
        session.check_tensors(&problem)?;
        let plan = session.backend.plan(&problem, &Request::default())?;
        let subject = Subject::<T>::new(&problem, lab.seed);
        let (mut prepared, verdict) = subject.judge(&session, &plan)?;
        let mut enqueued =
            Each(|| Ok(prepared.time_enqueued(ENQUEUED)?.unwrap_or_default() / ENQUEUED as u32));
        let times = lab.time_alone("calls enqueued", &mut enqueued)?;
        let median = times.median_s;
        let mut row = Row {
            case: HOST_TIME.to_owned(),
            series: format!("one of {ENQUEUED} calls, D={head_dim} in [B, S, H, D]"),
            problem: Some(ProblemRecord::new(&problem, Layout::Bshd)),
            plan: Some(PlanRecord::new(&plan)),
            measurement: Some(RunRecord::of_times(times)),
            check: Some(CheckRecord::new(&verdict)),
            ..Row::default()
        };
        if head_dim == ALIGNED {
            least = median;
        } else {
            row.put("factor lost", Unit::Times, median / least);
        }
        lab.push(row)?;
    }
    Ok(())
}

/// The first call in a process loads kernels; a later one finds them.
fn first_call<T: Element>(
    lab: &mut Lab,
    args: &LabArgs,
    base: &Row,
    problem: &Problem,
    subject: &Subject<T>,
) -> Result<()> {
    let kind = lab.kind();
    let open = || match args.backend.device {
        Some(ordinal) => flash_attention::cuda::Cuda::new(ordinal).map(Backend::cuda),
        None => Backend::open(Some(kind)),
    };
    let call = |backend: &Backend| {
        let plan = backend.plan(problem, &Request::default())?;
        backend.prepare(&plan, subject.inputs.tensors())?.time().map(drop)
    };
    lab.effort.warmup = 0;
    lab.effort.iterations = lab.effort.iterations.min(CALLS);
    let session = std::rc::Rc::clone(&lab.session);
    let mut cold = Each(|| {
        let backend = open()?;
        wall(|| call(&backend))
    });
    let mut warm = Each(|| wall(|| call(&session.backend)));
    let times = together(lab, "first calls", [&mut cold, &mut warm])?;
    let names = ["a new backend, which loads its kernels", "one that has them"].map(str::to_owned);
    compare(lab, base, "the first call", names, times)
}

/// The wall-clock time of some work.
fn wall(work: impl FnOnce() -> flash_attention::Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn together(lab: &Lab, what: &str, timed: [&mut dyn Timed; 2]) -> Result<[TimesRecord; 2]> {
    let times = lab.time_together(what, timed.into())?;
    times.try_into().map_err(|_| anyhow::anyhow!("two were timed"))
}

/// A row for each habit with the factor that it loses, and last one for the way without it.
fn compare<const N: usize>(
    lab: &mut Lab,
    base: &Row,
    case: &str,
    names: [String; N],
    times: [TimesRecord; N],
) -> Result<()> {
    let right = times[N - 1].median_s;
    for (index, (series, times)) in names.into_iter().zip(times).enumerate() {
        let lost = times.median_s / right;
        let measurement = Some(RunRecord::of_times(times));
        let mut row = Row { case: case.to_owned(), series, measurement, ..base.clone() };
        if index < N - 1 {
            row.put("factor lost", Unit::Times, lost);
        }
        lab.push(row)?;
    }
    Ok(())
}
