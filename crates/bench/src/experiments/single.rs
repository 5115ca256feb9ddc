//! One problem, and every kernel of the backend on it.

use anyhow::Result;
use flash_attention::{Element, Error, Kernel, Plan, Problem, Request};
use serde::Serialize;

use crate::cli::{BackendArgs, KernelArgs, MeasureArgs, ProblemArgs, ReportArgs};
use crate::failure::usage;
use crate::measure::{Measurement, Subject, with_element};
use crate::output::Screen;
use crate::problem::{Defaults, describe};
use crate::record::{Header, MeasurementRecord, PlanRecord, ProblemRecord};
use crate::session::Session;
use crate::table;
use crate::timer::Effort;

const DEFAULTS: Defaults = Defaults { batch: 1, heads: 8, seq: 0 };
const ITERATIONS: usize = 50;

/// Arguments without an experiment's name.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Elements of a row of Q and K, and without --dim-v of V and O: head_dim, 1 to 256
    #[arg(long, alias = "head-dim")]
    dim: Option<usize>,
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

/// A kernel that could run, with its plan or why it has none.
struct Candidate {
    kernel: Kernel,
    plan: Result<Plan, String>,
}

/// A kernel that ran, or why it did not.
struct Row {
    kernel: Kernel,
    outcome: Result<(Plan, Measurement), String>,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    header: Header,
    problem: ProblemRecord,
    kernels: Vec<KernelRecord>,
    passed: bool,
}

#[derive(Serialize)]
struct KernelRecord {
    kernel: &'static str,
    plan: Option<PlanRecord>,
    measurement: Option<MeasurementRecord>,
    speedup_vs_standard: Option<f64>,
    not_run: Option<String>,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.problem.seq.is_none() && args.problem.cu_seqlens_q.is_empty() {
        return Err(usage("--seq is missing: the query rows of each sequence, as in --seq 4096"));
    }
    let Some(head_dim) = args.dim else {
        return Err(usage("--dim is missing: the elements of a row, as in --dim 128"));
    };
    let problem = args.problem.problem(head_dim, DEFAULTS)?;
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    session.check_tensors(&problem)?;
    let candidates = candidates(&session, &problem, &args.kernel)?;
    let effort = session.effort(&args.measure, ITERATIONS);
    session.check_patience(&problem, candidates.len(), &effort, &args.measure)?;

    session.header(&screen)?;
    screen.line(format!("problem {}", describe(&problem, args.problem.layout)))?;
    let only = args.kernel.kernel.is_some();
    let rows = with_element!(
        problem.dtype(),
        measure(&session, &problem, candidates, &effort, args.report.seed, &screen, only)
    )?;
    let passed = rows.iter().filter_map(|row| row.outcome.as_ref().ok()).all(|(_, run)| run.verdict.passed());
    print(&screen, &problem, &rows)?;
    let document = Document {
        header: Header::new("single", &session, args.report.seed),
        problem: ProblemRecord::new(&problem, args.problem.layout),
        kernels: rows.iter().map(|row| row.record(&problem, &rows)).collect(),
        passed,
    };
    args.report.write(&document, &screen)?;
    Ok(passed)
}

/// The kernel asked for, or all of the backend's, the planner's choice first.
fn candidates(session: &Session, problem: &Problem, args: &KernelArgs) -> Result<Vec<Candidate>> {
    let request = Request { kernel: args.kernel, block_m: args.block_m, block_n: args.block_n };
    let chosen = session.backend.plan(problem, &request)?;
    if args.kernel.is_some() {
        session.check_workspace(problem, &chosen)?;
    }
    let first = chosen.kernel;
    let mut candidates = vec![Candidate { kernel: first, plan: Ok(chosen) }];
    if args.kernel.is_none() {
        let others = Kernel::of_backend(session.kind()).iter().copied().filter(|&kernel| kernel != first);
        candidates.extend(others.filter_map(|kernel| {
            // A tile asked for without a kernel cannot mean the baseline, which has none to choose.
            let blocks = if kernel == Kernel::Standard { Request::default() } else { request };
            match session.backend.plan(problem, &Request { kernel: Some(kernel), ..blocks }) {
                // A kernel that the type or the device lacks, or that does not take the problem, is none of its.
                Err(
                    Error::UnsupportedDType { .. }
                    | Error::KernelNeedsDevice { .. }
                    | Error::UnfitKernel { .. },
                ) => None,
                plan => Some(Candidate { kernel, plan: plan.map_err(|error| error.to_string()) }),
            }
        }));
    }
    Ok(candidates)
}

/// Runs the candidates on the same inputs. What does not fit into memory has a row that says so,
/// unless it is the `only` one.
fn measure<T: Element>(
    session: &Session,
    problem: &Problem,
    candidates: Vec<Candidate>,
    effort: &Effort,
    seed: u64,
    screen: &Screen,
    only: bool,
) -> Result<Vec<Row>> {
    for candidate in &candidates {
        match &candidate.plan {
            Ok(plan) => screen.line(format!("plan: {}", plan.reasons.join("; ")))?,
            Err(reason) => screen.line(format!("plan: {} cannot run: {reason}", candidate.kernel))?,
        }
    }
    let subject = Subject::<T>::new(problem, seed);
    let mut rows = Vec::new();
    for Candidate { kernel, plan } in candidates {
        let outcome = match plan {
            Err(reason) => Err(reason),
            Ok(plan) => {
                let progress = screen.progress(effort.warmup + effort.iterations, kernel.name());
                match subject.measure(session, &plan, effort, &progress) {
                    Ok(measurement) => Ok((plan, measurement)),
                    Err(error @ Error::OutOfMemory { .. }) if !only => Err(error.to_string()),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        rows.push(Row { kernel, outcome });
    }
    Ok(rows)
}

fn print(screen: &Screen, problem: &Problem, rows: &[Row]) -> std::io::Result<()> {
    let compare = rows.len() > 1;
    let mut titles = vec!["kernel", "tile"];
    titles.extend(table::MEASURED_TITLES);
    titles.extend(if compare { &["vs standard"][..] } else { &[] });
    titles.extend(table::VERDICT_TITLES);
    let cells = rows.iter().filter_map(|row| {
        let (plan, measurement) = row.outcome.as_ref().ok()?;
        let mut cells = vec![row.kernel.to_string(), tile(plan)];
        cells.extend(table::measured_cells(problem, measurement));
        if compare {
            cells.push(row.speedup(rows).map_or("-".to_owned(), |speedup| format!("{speedup:.2}x")));
        }
        cells.extend(table::verdict_cells(&measurement.verdict));
        Some(cells)
    });
    screen.line("")?;
    screen.line(table::table(&titles, cells.collect()))?;
    for row in rows {
        if let Err(reason) = &row.outcome {
            screen.line(format!("{} was not run: {reason}", row.kernel))?;
        }
    }
    Ok(())
}

/// BLOCK_M x BLOCK_N, where the kernel has a tile that can be chosen.
pub(super) fn tile(plan: &Plan) -> String {
    plan.tile.map_or("-".to_owned(), |(block_m, block_n)| format!("{block_m}x{block_n}"))
}

impl Row {
    /// How many times as fast as the baseline among `rows`.
    fn speedup(&self, rows: &[Self]) -> Option<f64> {
        let median = |row: &Self| row.outcome.as_ref().ok().map(|(_, run)| run.times.median());
        let standard = rows.iter().find(|row| row.kernel == Kernel::Standard)?;
        Some(median(standard)? / median(self)?)
    }

    fn record(&self, problem: &Problem, rows: &[Self]) -> KernelRecord {
        let ran = self.outcome.as_ref().ok();
        KernelRecord {
            kernel: self.kernel.name(),
            plan: ran.map(|(plan, _)| PlanRecord::new(plan)),
            measurement: ran.map(|(_, measurement)| MeasurementRecord::new(problem, measurement)),
            speedup_vs_standard: self.speedup(rows),
            not_run: self.outcome.as_ref().err().cloned(),
        }
    }
}
