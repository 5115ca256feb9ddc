//! One problem, and every kernel of the backend on it.

use anyhow::{Result, bail};
use flash_attention::{Error, Kernel, Plan, Problem, Request};

use crate::args::{KernelArgs, LabArgs};
use crate::failure::usage;
use crate::lab::{self, Case, Contender, ITERATIONS, Lab, Recipe, Shared, Unit};
use crate::measure::ON_DEVICE;
use crate::problem::{Defaults, ProblemArgs, describe};
use crate::record::tensor_bytes;

const RECIPE: Recipe = Recipe {
    name: "single",
    what: "one problem, and every kernel of the backend on it",
    reported_elsewhere: None,
    axis: None,
    iterations: ITERATIONS,
    scaled: false,
};

const DEFAULTS: Defaults = Defaults { batch: 1, heads: 8, seq: 0 };

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
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    if args.problem.seq.is_none() && args.problem.cu_seqlens_q.is_empty() {
        return Err(usage("--seq is missing: the query rows of each sequence, as in --seq 4096"));
    }
    let Some(head_dim) = args.dim else {
        return Err(usage("--dim is missing: the elements of a row, as in --dim 128"));
    };
    let problem = args.problem.problem(head_dim, DEFAULTS)?;
    lab::run(&RECIPE, &args.lab, shared, |lab| measure(lab, args, problem))
}

fn measure(lab: &mut Lab, args: &Args, problem: Problem) -> Result<()> {
    let layout = args.problem.layout;
    lab.session.check_tensors(&problem)?;
    let contenders = contenders(lab, &problem, &args.kernel)?;
    let runnable = contenders.iter().filter(|contender| contender.plan.is_ok()).count();
    lab.session.check_patience(&problem, runnable, &lab.effort, &args.lab.measure)?;
    lab.line(format!("problem {}", describe(&problem, layout)))?;
    for Contender { series, plan } in &contenders {
        match plan {
            Ok(plan) => lab.line(format!("plan: {}", plan.reasons().join("; ")))?,
            Err(reason) => lab.line(format!("plan: {series} cannot run: {reason}"))?,
        }
    }
    let case = Case::named(format!("S={} D={}", problem.seqlen_q(), problem.head_dim()), problem);
    let rows = lab.contest(&case, layout, contenders)?;
    for index in rows.clone() {
        let row = lab.row_mut(index);
        if let Some(reason) =
            row.not_run.as_ref().filter(|_| args.kernel.kernel.is_some() && row.plan.is_some())
        {
            bail!("{reason}");
        }
        let Some(run) = &row.measurement else { continue };
        let (median, extra) = (run.times.median_s, run.extra_bytes);
        row.put("effective bandwidth", Unit::BytesPerSecond, tensor_bytes(&case.problem) as f64 / median);
        if let Some(extra) = extra {
            row.put("extra memory", Unit::Bytes, extra as f64);
        }
    }
    let Some(ceiling) = lab.matrix_ceiling(case.problem.dtype())? else { return Ok(()) };
    for index in rows {
        let row = lab.row_mut(index);
        if let Some(reached) = row.flops() {
            row.put("of the matrix ceiling", Unit::Percent, 100.0 * reached / ceiling);
        }
    }
    lab.note("the matrix ceiling is the fastest product of matrices of this run, whose rows are \"ceiling\"");
    Ok(())
}

/// The kernel asked for, or all of the backend's, the planner's choice first.
fn contenders(lab: &Lab, problem: &Problem, args: &KernelArgs) -> Result<Vec<Contender<Plan>>> {
    let session = &lab.session;
    let request = args.request();
    let chosen = session.backend.plan(problem, &request)?;
    let contender = |kernel: Kernel, plan| Contender { series: kernel.name().to_owned(), plan };
    let first = chosen.kernel();
    let mut contenders = vec![contender(first, Ok(chosen))];
    if let Some(cu_seqlens) = problem.cu_seqlens() {
        let plan = planned_for_bounds(lab, problem, &request, cu_seqlens);
        contenders.push(Contender { series: first.name().to_owned() + ON_DEVICE, plan });
    }
    if args.kernel.is_some() {
        for plan in contenders.iter().filter_map(|contender| contender.plan.as_ref().ok()) {
            session.check_workspace(problem, plan)?;
        }
        return Ok(contenders);
    }
    let others = Kernel::of_backend(session.kind()).iter().copied().filter(|&kernel| kernel != first);
    contenders.extend(others.filter_map(|kernel| {
        // A tile asked for without a kernel cannot mean the baseline, which has none to choose.
        let blocks = if kernel == Kernel::Standard { Request::default() } else { request };
        match session.backend.plan(problem, &Request { kernel: Some(kernel), ..blocks }) {
            // A kernel that the type or the device lacks, or that does not take the problem, is none of its.
            Err(
                Error::UnsupportedDType { .. } | Error::KernelNeedsDevice { .. } | Error::UnfitKernel { .. },
            ) => None,
            plan => Some(contender(kernel, plan)),
        }
    }));
    Ok(contenders)
}

/// A plan that knows the longest sequences of a packed batch and no offsets, with those of this one.
fn planned_for_bounds(
    lab: &Lab,
    problem: &Problem,
    request: &Request,
    (q, k): (&[u32], &[u32]),
) -> flash_attention::Result<Plan> {
    let bounded = problem.on_device((problem.seqlen_q(), problem.seqlen_k()))?;
    lab.session.backend.plan(&bounded, request)?.with_cu_seqlens(q, k)
}
