//! Whether each run of the backward pass gives the same bits: beside another load, in a replayed graph, on
//! fewer blocks, with any workspace.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use flash_attention::backward::{BackwardPlan, BackwardProblem, BackwardRequest, DEFAULT_WORKSPACE_LIMIT};
use flash_attention::{BackendKind, Device, Element, Options, Plan, Prepared, Problem, Request};
use serde::Serialize;

use super::verify::repeat::{Repeatable, difference};
use crate::args::{BackendArgs, ReportArgs, at_least_one};
use crate::check::Verdict;
use crate::gradients::Gradients;
use crate::inputs::Inputs;
use crate::lab::Shared;
use crate::measure::{Subject, with_output_element};
use crate::problem::{Layout, ShapeArgs, describe};
use crate::record::Header;
use crate::session::Session;
use crate::table::table;

/// Arguments of `bits`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Runs of each way [default: 100; cpu, sim: 2]
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    runs: Option<usize>,
    /// Sequence length [default: 2048; cpu: 256; sim: 320]
    #[arg(long, value_parser = at_least_one)]
    seq: Option<usize>,
    /// Heads of K and V, which divide those of Q [default: as many]
    #[arg(long, value_name = "HEADS", value_parser = at_least_one)]
    kv_heads: Option<usize>,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    header: Header,
    rows: Vec<RowRecord>,
    passed: bool,
}

#[derive(Clone, Debug, Serialize)]
struct RowRecord {
    problem: String,
    way: String,
    launches: usize,
    workspace_bytes: u64,
    runs: usize,
    /// Runs of another load that ended meanwhile.
    other_runs: u64,
    /// What differs from the first run, if anything does.
    difference: Option<String>,
    /// Of the first run, against the f64 reference.
    max_error: f64,
    bound: f64,
    passed: bool,
}

/// In which way a plan is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Launched,
    /// In a replayed CUDA graph.
    Replayed,
    /// While forward passes run on another stream.
    BesideLoad,
}

/// A plan, and how it is run.
struct Way {
    name: String,
    plan: BackwardPlan,
    run: Run,
}

/// Runs the experiment; false if a result is wrong, or bits differ.
pub(crate) fn run(args: &Args, _: &mut Shared) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    session.header(&screen)?;
    let mut rows = Vec::new();
    for causal in [false, true] {
        let problem = problem(args, session.kind(), causal)?;
        session.check_tensors(&problem)?;
        with_output_element!(problem.dtype(), of_problem(&session, args, &problem, &mut rows))?;
    }
    let cells = rows.iter().map(|row| {
        let verdict = row.difference.clone().unwrap_or_else(|| "the same bits".to_owned());
        vec![
            row.problem.clone(),
            row.way.clone(),
            row.launches.to_string(),
            row.workspace_bytes.to_string(),
            row.runs.to_string(),
            row.other_runs.to_string(),
            if row.passed { verdict } else { format!("FAIL: {verdict}") },
        ]
    });
    let titles = ["problem", "way", "launches", "workspace", "runs", "others' runs", "check"];
    screen.line(table(&titles, cells.collect()))?;
    let passed = rows.iter().all(|row| row.passed);
    let header = Header::new("bits", &session, args.report.seed);
    args.report.write(&Document { header, rows, passed }, &screen)?;
    Ok(passed)
}

/// Keys beside as many as queries under a causal mask: tiles begin at no multiple of what tensor cores add up
/// at once, unless kernels see to it.
const MORE_KEYS: usize = 13;

fn problem(args: &Args, backend: BackendKind, causal: bool) -> Result<Problem> {
    let (sizes, seq) = match backend {
        BackendKind::Cuda => ((2, 16, 128), 2048),
        BackendKind::Cpu => ((1, 2, 64), 256),
        BackendKind::Sim => ((1, 2, 64), 320),
    };
    let shape = args.shape.shape(sizes, args.seq.unwrap_or(seq));
    let like = shape.problem(Layout::Bhsd)?;
    let mut tensors = *like.tensors();
    let heads = args.kv_heads.unwrap_or(shape.heads);
    let keys = if causal { shape.seq + MORE_KEYS } else { shape.seq };
    let layout = Layout::Bhsd.tensor(shape.batch, keys, heads, shape.head_dim);
    (tensors.k, tensors.v) = (layout, layout);
    Ok(Problem::new(tensors, shape.dtype, Options { causal, ..Options::default() })?)
}

/// All ways of a problem.
fn of_problem<T: Element<Output = T>>(
    session: &Session,
    args: &Args,
    problem: &Problem,
    rows: &mut Vec<RowRecord>,
) -> Result<()> {
    let subject = Subject::<T>::new(problem, args.report.seed);
    let plan = session.backend.plan(problem, &Request::default())?;
    let (mut forward, _) = subject.judge(session, &plan)?;
    let results = forward.outputs()?.clone();
    let gradients = Gradients::new(problem.clone(), (results.o, results.lse), args.report.seed)?;
    let expected = gradients.expected(&subject.inputs);
    let runs = args.runs.unwrap_or(if session.kind() == BackendKind::Cuda { 100 } else { 2 });
    let mut first = None;
    for way in ways(session.device(), &gradients.problem)? {
        let mut prepared = session.backend.prepare(&way.plan, gradients.inputs(&subject.inputs))?;
        prepared.run_poisoned()?;
        let (_, verdict) = gradients.judge(&expected, prepared.outputs()?);
        let first = first.get_or_insert(prepared.copied()?);
        let compare = |prepared: &mut Prepared<'_, T, BackwardProblem>| -> Result<Option<String>> {
            Ok(difference::<Prepared<'_, T, BackwardProblem>>(first, &prepared.copied()?))
        };
        let mut different = compare(&mut prepared)?;
        let mut ran = 1;
        let mut again = || -> Result<()> {
            while ran < runs && different.is_none() {
                if way.run == Run::Replayed {
                    prepared.replay_poisoned()?;
                } else {
                    prepared.run_poisoned()?;
                }
                ran += 1;
                different = compare(&mut prepared)?.map(|what| format!("run {ran} differs in {what}"));
            }
            Ok(())
        };
        let other_runs = if way.run == Run::BesideLoad {
            beside_load(args, &subject.inputs, (problem, &plan), again)?
        } else {
            again()?;
            0
        };
        rows.push(row(problem, &way, &verdict, (ran, other_runs, different)));
    }
    Ok(())
}

fn row(
    problem: &Problem,
    way: &Way,
    verdict: &Verdict,
    (runs, other_runs, difference): (usize, u64, Option<String>),
) -> RowRecord {
    RowRecord {
        problem: describe(problem, Layout::Bhsd),
        way: way.name.clone(),
        launches: way.plan.launches().len(),
        workspace_bytes: way.plan.workspace_bytes(),
        runs,
        other_runs,
        passed: verdict.passed() && difference.is_none(),
        difference,
        max_error: verdict.output.max_error,
        bound: verdict.output.bound,
    }
}

/// Plans of a problem that differ in what their bits must not depend on.
fn ways(device: &Device, problem: &BackwardProblem) -> Result<Vec<Way>> {
    let default = BackwardRequest::default();
    let plan = |request: &BackwardRequest| Plan::new(problem, device, request);
    let launched = |name: String, plan| Way { name, plan, run: Run::Launched };
    let planned = plan(&default)?;
    let mut ways = vec![
        launched("launched".to_owned(), planned.clone()),
        Way { name: "beside forward passes".to_owned(), plan: planned.clone(), run: Run::BesideLoad },
    ];
    if device.backend == BackendKind::Cpu {
        return Ok(ways);
    }
    if device.backend == BackendKind::Cuda {
        ways.push(Way { name: "replayed in a graph".to_owned(), plan: planned, run: Run::Replayed });
    }
    for blocks in [2, 3, device.multiprocessors / 2] {
        let sm_margin = device.multiprocessors.saturating_sub(blocks);
        let request = BackwardRequest { sm_margin, ..default.clone() };
        ways.push(launched(format!("on {blocks} blocks"), plan(&request)?));
    }
    for unit_rows in [256, 512, 1024].into_iter().filter(|&rows| rows < problem.forward().seqlen_q()) {
        let request = BackwardRequest { unit_rows: Some(unit_rows), ..default.clone() };
        ways.push(launched(format!("{unit_rows} queries a unit"), plan(&request)?));
    }
    for halved in (1..=20).step_by(3) {
        let limit = DEFAULT_WORKSPACE_LIMIT >> halved;
        let request = BackwardRequest { workspace_limit: Some(limit), ..default.clone() };
        ways.push(launched(format!("workspace of {limit} bytes at most"), plan(&request)?));
    }
    Ok(ways)
}

/// Runs `work` while another thread repeats the forward pass on a stream of its own, and says how often that
/// ended meanwhile.
fn beside_load<T: Element>(
    args: &Args,
    inputs: &Inputs<T>,
    (problem, plan): (&Problem, &Plan),
    work: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    let (over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let load = scope.spawn(|| -> Result<()> {
            let session = Session::open(&args.backend)?;
            session.check_workspace(problem, plan)?;
            let mut prepared = session.backend.prepare(plan, inputs.tensors())?;
            while !over.load(Ordering::Relaxed) {
                prepared.run()?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        while count.load(Ordering::Relaxed) == 0 && !load.is_finished() {
            thread::yield_now();
        }
        let done = work();
        over.store(true, Ordering::Relaxed);
        let loaded = load.join().unwrap_or_else(|_| anyhow::bail!("the load's thread panicked"));
        done.and(loaded.context("the load beside"))
    })?;
    Ok(count.into_inner())
}
