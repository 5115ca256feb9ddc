//! C = A·B at several sizes, every kernel of the backend, beside the ceiling of `mma.sync` measured in the
//! same run.

use anyhow::Result;
use flash_attention::cuda::MmaPeak;
use flash_attention::gemm::{GemmKernel, GemmPlan, GemmProblem, GemmRequest, Matrices, Order};
use flash_attention::{BackendKind, DType, Element, Error};
use serde::Serialize;

use crate::check::Verdict;
use crate::cli::{BackendArgs, MeasureArgs, ReportArgs, at_least_one, named};
use crate::measure::with_element;
use crate::output::Screen;
use crate::product::{Product, describe};
use crate::record::{Header, TimesRecord};
use crate::session::Session;
use crate::table;
use crate::timer::{Effort, Times};

const ITERATIONS: usize = 50;
const GPU_SIZES: [usize; 4] = [1024, 2048, 4096, 8192];
const CPU_SIZES: [usize; 3] = [256, 512, 1024];
const SIM_SIZES: [usize; 1] = [128];

/// Elements of C that are compared with the reference take about this many products in all.
const CHECKED_PRODUCTS: usize = 1 << 30;

/// Rows that are compared at most.
const CHECKED_ROWS: usize = 64;

/// Arguments of `matmul`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// M = N = K, as in 1024,2048 [default: 1024,2048,4096,8192; cpu: 256,512,1024; sim: 128]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = at_least_one)]
    #[arg(conflicts_with_all = ["m", "n", "k"])]
    size: Vec<usize>,
    /// Rows of A and C
    #[arg(long, requires_all = ["n", "k"])]
    m: Option<usize>,
    /// Columns of B and C
    #[arg(long, requires_all = ["m", "k"])]
    n: Option<usize>,
    /// Columns of A and rows of B
    #[arg(long, requires_all = ["m", "n"])]
    k: Option<usize>,
    /// Storage type of A, B and C
    #[arg(long, default_value = "f16", value_parser = named(&DType::ALL, DType::name))]
    dtype: DType,
    /// Order of A in memory: row-major or column-major
    #[arg(long, default_value = "row", value_parser = named(&Order::ALL, Order::name))]
    a_layout: Order,
    /// Order of B
    #[arg(long, default_value = "row", value_parser = named(&Order::ALL, Order::name))]
    b_layout: Order,
    /// Order of C
    #[arg(long, default_value = "row", value_parser = named(&Order::ALL, Order::name))]
    c_layout: Order,
    /// Elements between the rows (or columns) of each matrix
    #[arg(long, default_value_t = 0, value_name = "ELEMENTS")]
    gap: usize,
    /// The only kernel to run
    #[arg(long, value_parser = named(&GemmKernel::ALL, GemmKernel::name))]
    kernel: Option<GemmKernel>,
    /// BLOCK_M, rows of C of a block [default: the planner's choice]
    #[arg(long, value_name = "ROWS")]
    block_m: Option<usize>,
    /// BLOCK_N, columns of C of a block [default: the planner's choice]
    #[arg(long, value_name = "COLUMNS")]
    block_n: Option<usize>,
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
    /// None where the backend or the storage type has no mma.sync.
    ceiling: Option<CeilingRecord>,
    runs: Vec<RunRecord>,
    passed: bool,
}

#[derive(Serialize)]
struct CeilingRecord {
    #[serde(flatten)]
    times: TimesRecord,
    tflops: f64,
}

#[derive(Serialize)]
struct RunRecord {
    m: usize,
    n: usize,
    k: usize,
    dtype: &'static str,
    layouts: [&'static str; 3],
    leading_dimensions: [usize; 3],
    kernel: &'static str,
    tile: Option<(u32, u32, u32)>,
    entry: Option<&'static str>,
    grid: Option<u32>,
    reasons: Vec<String>,
    #[serde(flatten)]
    times: TimesRecord,
    tflops: f64,
    ratio_to_ceiling: Option<f64>,
    effective_bytes_per_s: f64,
    rows_checked: usize,
    max_error: f64,
    bound: f64,
    unwritten: usize,
    passed: bool,
}

/// One kernel on one problem.
struct Run {
    problem: GemmProblem,
    plan: GemmPlan,
    times: Times,
    verdict: Verdict,
}

impl Run {
    fn tflops(&self) -> f64 {
        self.problem.flops() / self.times.median() / 1e12
    }
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    let effort = session.effort(&args.measure, ITERATIONS);
    let mut planned = Vec::new();
    for problem in args.problems(session.kind())? {
        session.check_matrices(&problem)?;
        let plans = plans(&session, args, &problem)?;
        session.check_flops(problem.flops(), plans.len(), &effort, &args.measure)?;
        planned.push((problem, plans));
    }
    session.header(&screen)?;
    let ceiling = ceiling(&session, args.dtype, &effort)?;
    match &ceiling {
        Some(ceiling) => screen.line(format!(
            "mma.sync reaches {} TFLOP/s in {} from registers alone: the ceiling",
            table::significant(ceiling.tflops),
            args.dtype
        ))?,
        None => screen.line(format!("no mma.sync in {} here, so no ceiling", args.dtype))?,
    }
    let mut runs = Vec::new();
    for (problem, plans) in planned {
        screen.line(format!("problem {}", describe(&problem)))?;
        for plan in &plans {
            screen.line(format!("plan: {}", plan.reasons.join("; ")))?;
        }
        let seed = args.report.seed;
        runs.extend(with_element!(
            problem.dtype(),
            measure(&session, &problem, plans, &effort, seed, &screen)
        )?);
    }
    print(&screen, &runs, ceiling.as_ref())?;
    let passed = runs.iter().all(|run| run.verdict.passed());
    let ceiling_tflops = ceiling.as_ref().map(|ceiling| ceiling.tflops);
    let document = Document {
        header: Header::new("matmul", &session, args.report.seed),
        ceiling,
        runs: runs.iter().map(|run| RunRecord::new(run, ceiling_tflops)).collect(),
        passed,
    };
    args.report.write(&document, &screen)?;
    Ok(passed)
}

impl Args {
    /// The problems asked for, or the backend's default ones.
    fn problems(&self, backend: BackendKind) -> Result<Vec<GemmProblem>> {
        let cube = |&size: &usize| [size; 3];
        let shapes: Vec<_> = match (self.m, self.n, self.k, backend) {
            (Some(m), Some(n), Some(k), _) => vec![[m, n, k]],
            _ if !self.size.is_empty() => self.size.iter().map(cube).collect(),
            (.., BackendKind::Cuda) => GPU_SIZES.iter().map(cube).collect(),
            (.., BackendKind::Cpu) => CPU_SIZES.iter().map(cube).collect(),
            (.., BackendKind::Sim) => SIM_SIZES.iter().map(cube).collect(),
        };
        let problem = |[m, n, k]: [usize; 3]| {
            let layout = |order: Order, rows, columns| {
                let layout = order.matrix(rows, columns);
                layout.with_leading_dimension(layout.leading_dimension.saturating_add(self.gap))
            };
            let matrices = Matrices {
                a: layout(self.a_layout, m, k),
                b: layout(self.b_layout, k, n),
                c: layout(self.c_layout, m, n),
            };
            Ok(GemmProblem::new(matrices, self.dtype)?)
        };
        shapes.into_iter().map(problem).collect()
    }
}

/// The kernel asked for, or all of the backend's that take the problem, the planner's choice first.
fn plans(session: &Session, args: &Args, problem: &GemmProblem) -> Result<Vec<GemmPlan>> {
    let Args { kernel, block_m, block_n, .. } = *args;
    let request = GemmRequest { kernel, block_m, block_n, realign: false };
    let first = session.backend.plan_gemm(problem, &request)?;
    let others = GemmKernel::of_backend(session.kind()).iter().copied();
    let others: Vec<_> = others.filter(|&other| kernel.is_none() && other != first.kernel).collect();
    let mut plans = vec![first];
    for other in others {
        // A tile asked for means the planner's choice; the others keep theirs.
        match session
            .backend
            .plan_gemm(problem, &GemmRequest { kernel: Some(other), ..GemmRequest::default() })
        {
            // A kernel that the type or the device lacks, or that does not take the matrices, is not one of this problem's.
            Err(
                Error::UnsupportedDType { .. } | Error::KernelNeedsDevice { .. } | Error::UnfitKernel { .. },
            ) => {}
            plan => plans.push(plan?),
        }
    }
    Ok(plans)
}

/// What `mma.sync` reaches on this device in this type, if it has it.
fn ceiling(session: &Session, dtype: DType, effort: &Effort) -> Result<Option<CeilingRecord>> {
    let Some(cuda) = session.backend.as_cuda() else { return Ok(None) };
    let mut peak = match MmaPeak::new(cuda, dtype) {
        Err(Error::UnsupportedDType { .. } | Error::KernelNeedsDevice { .. }) => return Ok(None),
        peak => peak?,
    };
    let times = effort.time(|| peak.time(), || ())?;
    Ok(Some(CeilingRecord { tflops: peak.flops() / times.median() / 1e12, times: TimesRecord::new(&times) }))
}

fn measure<T: Element>(
    session: &Session,
    problem: &GemmProblem,
    plans: Vec<GemmPlan>,
    effort: &Effort,
    seed: u64,
    screen: &Screen,
) -> Result<Vec<Run>> {
    let rows = (CHECKED_PRODUCTS / (problem.n() * problem.k())).clamp(2, CHECKED_ROWS);
    let product = Product::<T>::new(problem, seed, rows);
    plans
        .into_iter()
        .map(|plan| {
            let progress = screen.progress(effort.warmup + effort.iterations, plan.kernel.name());
            let (times, verdict) = product.measure(&session.backend, &plan, effort, &progress)?;
            Ok(Run { problem: *problem, plan, times, verdict })
        })
        .collect()
}

fn print(screen: &Screen, runs: &[Run], ceiling: Option<&CeilingRecord>) -> std::io::Result<()> {
    let mut titles = vec!["M x N x K", "kernel", "tile", "latency", "p20-p80", "runs", "TFLOP/s"];
    titles.extend(ceiling.map(|_| "of mma.sync"));
    titles.extend(table::VERDICT_TITLES);
    let rows = runs.iter().map(|run| {
        let GemmPlan { kernel, .. } = run.plan;
        let (problem, times) = (&run.problem, &run.times);
        let mut cells = vec![
            format!("{}x{}x{}", problem.m(), problem.n(), problem.k()),
            kernel.to_string(),
            run.plan.tile().map_or("-".to_owned(), |(m, n, k)| format!("{m}x{n}x{k}")),
            table::seconds(times.median()),
            format!("{} - {}", table::seconds(times.quantile(0.2)), table::seconds(times.quantile(0.8))),
            times.seconds.len().to_string(),
            table::significant(run.tflops()),
        ];
        cells.extend(ceiling.map(|ceiling| format!("{:.3}", run.tflops() / ceiling.tflops)));
        cells.extend(table::verdict_cells(&run.verdict));
        cells
    });
    screen.line("")?;
    screen.line(table::table(&titles, rows.collect()))
}

impl RunRecord {
    fn new(run: &Run, ceiling: Option<f64>) -> Self {
        let Run { problem, plan, times, verdict } = run;
        let Matrices { a, b, c } = problem.matrices();
        Self {
            m: problem.m(),
            n: problem.n(),
            k: problem.k(),
            dtype: problem.dtype().name(),
            layouts: [a, b, c].map(|layout| layout.order.name()),
            leading_dimensions: [a, b, c].map(|layout| layout.leading_dimension),
            kernel: plan.kernel.name(),
            tile: plan.tile(),
            entry: plan.step.map(|step| step.entry.name),
            grid: plan.step.map(|step| step.grid),
            reasons: plan.reasons.clone(),
            times: TimesRecord::new(times),
            tflops: run.tflops(),
            ratio_to_ceiling: ceiling.map(|ceiling| run.tflops() / ceiling),
            effective_bytes_per_s: problem.bytes() as f64 / times.median(),
            rows_checked: verdict.rows,
            max_error: verdict.output.max_error,
            bound: verdict.output.bound,
            unwritten: verdict.unwritten,
            passed: verdict.passed(),
        }
    }
}
