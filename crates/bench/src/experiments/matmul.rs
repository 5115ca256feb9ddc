//! C = A·B at several sizes, every kernel of the backend, beside the ceiling of `mma.sync` measured in the
//! same run.

use anyhow::Result;
use flash_attention::gemm::{GemmKernel, GemmPlan, GemmProblem, GemmRequest, Matrices, Order};
use flash_attention::{BackendKind, DType, Error};

use crate::args::{Grid, LabArgs, at_least_one, named};
use crate::lab::{self, Case, Contender, ITERATIONS, Recipe, Shared, Unit};
use crate::session::Session;

const RECIPE: Recipe = Recipe {
    name: "matmul",
    what: "C = A·B, every kernel of the backend, beside what mma.sync reaches without memory",
    reported_elsewhere: Some(
        "on an RTX 4090 in f16, 1024, 2048, 4096, 8192: 45, 85, 120, 150 TFLOP/s with PyTorch, 48, 95, 140, 175 with Triton",
    ),
    axis: Some("M = N = K"),
    iterations: ITERATIONS,
    scaled: true,
};

const GPU_SIZES: [usize; 4] = [1024, 2048, 4096, 8192];
const CPU_SIZES: [usize; 3] = [256, 512, 1024];
const SIM_SIZES: [usize; 1] = [128];

/// Arguments of `matmul`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The problems whose figures are published, by the planner's kernel alone [cpu, sim: smaller
    /// ones]
    #[arg(long, value_parser = named(&Grid::ALL, Grid::name))]
    #[arg(conflicts_with_all = ["size", "m", "n", "k", "kernel", "block_m", "block_n"])]
    grid: Option<Grid>,
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
    #[arg(long, default_value = "f16", value_parser = named(&DType::RESULTS, DType::name))]
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
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        if args.grid.is_some() {
            lab.compare_at_power_limit();
        }
        let mut planned = Vec::new();
        for problem in args.problems(lab.kind())? {
            lab.session.check_matrices(&problem)?;
            planned.push((problem, plans(&lab.session, args, &problem)?));
        }
        let ceiling = lab.mma_peak(args.dtype)?;
        for (problem, plans) in planned {
            let name = format!("{}x{}x{}", problem.m(), problem.n(), problem.k());
            let x = Some((problem.flops() / 2.0).cbrt())
                .filter(|_| problem.m() == problem.n() && problem.n() == problem.k());
            let case = Case { name, x, problem };
            let contender =
                |plan: GemmPlan| Contender { series: plan.kernel().name().to_owned(), plan: Ok(plan) };
            let rows = lab.products(&case, plans.into_iter().map(contender).collect())?;
            for row in rows {
                let row = lab.row_mut(row);
                let tflops = row.measurement.as_ref().and_then(|run| run.tflops);
                if let (Some(ceiling), Some(tflops)) = (ceiling, tflops) {
                    row.put("of mma.sync", Unit::Percent, 1e14 * tflops / ceiling);
                }
            }
        }
        Ok(())
    })
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
    let first = session.backend.plan(problem, &request)?;
    let others = GemmKernel::of_backend(session.kind()).iter().copied();
    let alone = kernel.is_some() || args.grid.is_some();
    let others: Vec<_> = others.filter(|&other| !alone && other != first.kernel()).collect();
    let mut plans = vec![first];
    for other in others {
        // A tile asked for means the planner's choice; the others keep theirs.
        match session.backend.plan(problem, &GemmRequest { kernel: Some(other), ..GemmRequest::default() }) {
            // A kernel that the type or the device lacks, or that does not take the matrices, is not one of
            // this problem's.
            Err(
                Error::UnsupportedDType { .. } | Error::KernelNeedsDevice { .. } | Error::UnfitKernel { .. },
            ) => {}
            plan => plans.push(plan?),
        }
    }
    Ok(plans)
}
