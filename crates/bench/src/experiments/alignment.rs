//! What an unaligned head_dim costs: 128 against 129 (rows that start on no 16-byte boundary).

use anyhow::Result;
use flash_attention::{BackendKind, Element, Plan, Problem, Request};
use serde::Serialize;

use super::single::tile;
use crate::cli::{BackendArgs, KernelArgs, MeasureArgs, ProblemArgs, ReportArgs};
use crate::measure::{Measurement, Subject, with_element};
use crate::output::Screen;
use crate::problem::{Defaults, describe};
use crate::record::{Header, MeasurementRecord, PlanRecord, ProblemRecord};
use crate::session::Session;
use crate::table;
use crate::timer::Effort;

const HEAD_DIMS: [usize; 2] = [128, 129];
const ITERATIONS: usize = 100;
const GPU_DEFAULTS: Defaults = Defaults { batch: 16, heads: 16, seq: 2048 };
const CPU_DEFAULTS: Defaults = Defaults { batch: 1, heads: 8, seq: 512 };
const SIM_DEFAULTS: Defaults = Defaults { batch: 1, heads: 1, seq: 64 };

/// Arguments of `alignment`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    problem: ProblemArgs,
    #[command(flatten)]
    kernel: KernelArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    measure: MeasureArgs,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    header: Header,
    runs: Vec<RunRecord>,
    /// 100 · (t(129) / t(128) − 1).
    latency_increase_percent: f64,
    /// 100 · (1 − TFLOP/s(129) / TFLOP/s(128)).
    performance_drop_percent: f64,
    passed: bool,
}

#[derive(Serialize)]
struct RunRecord {
    problem: ProblemRecord,
    plan: PlanRecord,
    measurement: MeasurementRecord,
}

/// One head_dim, planned.
struct Subrun {
    problem: Problem,
    plan: Plan,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    let defaults = match session.kind() {
        BackendKind::Cuda => GPU_DEFAULTS,
        BackendKind::Cpu => CPU_DEFAULTS,
        BackendKind::Sim => SIM_DEFAULTS,
    };
    let subruns = plan(&session, args, defaults)?;
    let effort = session.effort(&args.measure, ITERATIONS);
    session.check_patience(&subruns[1].problem, subruns.len(), &effort, &args.measure)?;
    introduce(&screen, &session, args, &subruns)?;

    let mut measured = Vec::new();
    for subrun in &subruns {
        let problem = &subrun.problem;
        measured.push(with_element!(
            problem.dtype(),
            measure(&session, subrun, &effort, args.report.seed, &screen)
        )?);
    }
    let records: Vec<_> = subruns
        .iter()
        .zip(&measured)
        .map(|(subrun, measured)| RunRecord {
            problem: ProblemRecord::new(&subrun.problem, args.problem.layout),
            plan: PlanRecord::new(&subrun.plan),
            measurement: MeasurementRecord::new(&subrun.problem, measured),
        })
        .collect();
    let ratio = |value: fn(&MeasurementRecord) -> f64| {
        value(&records[1].measurement) / value(&records[0].measurement)
    };
    let document = Document {
        header: Header::new("alignment", &session, args.report.seed),
        latency_increase_percent: 100.0 * (ratio(|run| run.times.median_s) - 1.0),
        performance_drop_percent: 100.0 * (1.0 - ratio(|run| run.tflops)),
        passed: measured.iter().all(|measurement| measurement.verdict.passed()),
        runs: records,
    };
    print(&screen, &subruns, &measured, &document)?;
    args.report.write(&document, &screen)?;
    Ok(document.passed)
}

fn plan(session: &Session, args: &Args, defaults: Defaults) -> Result<Vec<Subrun>> {
    let KernelArgs { kernel, block_m, block_n } = args.kernel;
    HEAD_DIMS
        .into_iter()
        .map(|head_dim| {
            let problem = args.problem.problem(head_dim, defaults)?;
            session.check_tensors(&problem)?;
            let plan = session.backend.plan(&problem, &Request { kernel, block_m, block_n })?;
            Ok(Subrun { problem, plan })
        })
        .collect()
}

fn introduce(screen: &Screen, session: &Session, args: &Args, subruns: &[Subrun]) -> std::io::Result<()> {
    let Defaults { batch, heads, seq } = GPU_DEFAULTS;
    let given = &args.problem;
    let smaller = session.kind() != BackendKind::Cuda
        && (given.batch.is_none() || given.heads.is_none() || given.seq.is_none());
    let note = match smaller {
        true => format!(" (defaults for {}; a GPU's are B={batch} H={heads} S={seq})", session.kind()),
        false => String::new(),
    };
    let problem = &subruns[0].problem;
    screen.line(format!(
        "alignment: head_dim 128 against 129 at B={} H={} S={}{note}",
        problem.batch(),
        problem.heads(),
        problem.seqlen_q()
    ))?;
    session.header(screen)?;
    for Subrun { problem, plan } in subruns {
        screen.line(format!("problem {}", describe(problem, given.layout)))?;
        screen.line(format!("plan: {}", plan.reasons.join("; ")))?;
    }
    Ok(())
}

fn measure<T: Element>(
    session: &Session,
    Subrun { problem, plan }: &Subrun,
    effort: &Effort,
    seed: u64,
    screen: &Screen,
) -> Result<Measurement> {
    let subject = Subject::<T>::new(problem, seed);
    let progress =
        screen.progress(effort.warmup + effort.iterations, format!("head_dim {}", problem.head_dim()));
    Ok(subject.measure(session, plan, effort, &progress)?)
}

fn print(
    screen: &Screen,
    subruns: &[Subrun],
    measured: &[Measurement],
    document: &Document,
) -> std::io::Result<()> {
    let mut titles = vec!["head_dim", "kernel", "tile"];
    titles.extend(table::MEASURED_TITLES);
    titles.extend(table::VERDICT_TITLES);
    let rows = subruns.iter().zip(measured).map(|(Subrun { problem, plan }, measurement)| {
        let mut cells = vec![problem.head_dim().to_string(), plan.kernel.to_string(), tile(plan)];
        cells.extend(table::measured_cells(problem, measurement));
        cells.extend(table::verdict_cells(&measurement.verdict));
        cells
    });
    screen.line("")?;
    screen.line(table::table(&titles, rows.collect()))?;
    screen.line(format!(
        "head_dim 129 against 128: latency {:+.1} %, performance drop {:.1} % (of TFLOP/s, which counts the \
         extra column)",
        document.latency_increase_percent, document.performance_drop_percent
    ))
}
