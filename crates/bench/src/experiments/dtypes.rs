//! Storage types: speed and error of each on one problem.

use anyhow::Result;
use flash_attention::{BackendKind, DType, Element, Plan, Problem, Request};

use crate::args::{LabArgs, at_least_one};
use crate::inputs::Inputs;
use crate::lab::{self, Case, ITERATIONS, Lab, Recipe, Row, Shared, Unit};
use crate::measure::with_element;
use crate::problem::{Layout, Shape};
use crate::timer::Times;

const RECIPE: Recipe = Recipe {
    name: "dtypes",
    what: "one problem in each storage type, with its speed and error",
    reported_elsewhere: Some("16-bit types 2 times and fp8 4 times as fast as fp32"),
    axis: None,
    iterations: ITERATIONS,
    scaled: true,
};

/// Arguments of `dtypes`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of sequences
    #[arg(long)]
    batch: Option<usize>,
    /// Heads of Q, K and V
    #[arg(long)]
    heads: Option<usize>,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256
    #[arg(long, alias = "head-dim", default_value_t = 64)]
    dim: usize,
    /// Sequence length [default: 2048; cpu: 512; sim: 64]
    #[arg(long, value_parser = at_least_one)]
    seq: Option<usize>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let (batch, heads, seq) = lab.pick((4, 32, 2048), (1, 4, 512), (1, 1, 64));
        for dtype in DType::ALL {
            let (batch, heads) = (args.batch.unwrap_or(batch), args.heads.unwrap_or(heads));
            let seq = args.seq.unwrap_or(seq);
            let shape = Shape { batch, heads, seq, head_dim: args.dim, dtype, causal: false };
            let case = Case::named(dtype.name(), shape.problem(Layout::Bhsd)?);
            let contenders = lab.flash_and_standard(&case.problem);
            let first = lab.contest(&case, Layout::Bhsd, contenders)?.start;
            // The planner's choice is the first row of each type, and f32 the first type.
            let ratio = lab.rows()[0].median().zip(Row::median(&lab.rows()[first]));
            if let Some((single, median)) = ratio {
                lab.row_mut(first).put("speedup over f32", Unit::Times, single / median);
            }
            let planned = lab.session.backend.plan(&case.problem, &Request::default());
            if let Some(plan) =
                planned.ok().filter(|plan| plan.launches().len() > 1 && lab.kind() == BackendKind::Cuda)
            {
                let alone = with_element!(dtype, attention_alone(lab, &case.problem, &plan))?;
                lab.row_mut(first).put("attention alone", Unit::Seconds, alone);
            }
        }
        lab.note(
            "O of e4m3 is stored in bf16; its time has the launch that transposes V, attention alone has not",
        );
        Ok(())
    })
}

/// Seconds of the last launch of a plan, which is attention without the copies before it: the median of some
/// runs.
fn attention_alone<T: Element>(lab: &Lab, problem: &Problem, plan: &Plan) -> Result<f64> {
    let inputs = Inputs::<T>::random(problem, lab.seed);
    let mut prepared = lab.session.backend.prepare(plan, inputs.tensors())?;
    let mut seconds = Vec::new();
    for _ in 0..ITERATIONS {
        prepared.flush_cache()?;
        seconds.extend(prepared.trace()?.last().map(|span| (span.end - span.begin).as_secs_f64()));
    }
    Ok(Times { warmup_runs: 0, seconds }.median())
}
