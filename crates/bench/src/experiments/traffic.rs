//! Bytes that go through device memory, fused and unfused: counted by the simulator, which sees every access.

use anyhow::Result;
use flash_attention::{BackendKind, Element, Kernel, Plan, Problem, Request, Sim, plan};

use crate::check::Expected;
use crate::cli::{LabArgs, ShapeArgs, at_least_one};
use crate::inputs::Inputs;
use crate::lab::{self, Case, Lab, Recipe, Row, Shared, Unit, is_refusal};
use crate::measure::{CHECKED_ROWS, with_element};
use crate::problem::{Layout, Shape};
use crate::record::{PlanRecord, ProblemRecord, tensor_bytes};

const RECIPE: Recipe = Recipe {
    name: "traffic",
    what: "bytes read and written in device memory, fused and unfused, as the simulator counts every access",
    reported_elsewhere: Some(
        "at B=4 H=32 S=2048 D=64 causal: 94.7 % fewer bytes read and 95.1 % fewer written when fused",
    ),
    axis: Some("sequence length (rows)"),
    iterations: 1,
    scaled: false,
};

/// Figures of a row.
const READ: &str = "read";
const WRITTEN: &str = "written";

/// Arguments of `traffic`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence lengths [default: 256 to 2048, which takes about ten seconds]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = at_least_one)]
    seq: Vec<usize>,
    /// Without the causal mask
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let lengths: &[usize] = if args.seq.is_empty() { &[256, 512, 1024, 2048] } else { &args.seq };
        for &seq in lengths {
            let shape = Shape { causal: !args.full, ..args.shape.shape((1, 1, 64), seq) };
            let case = Case::at("S", seq, shape.problem(Layout::Bhsd)?);
            with_element!(args.shape.dtype, of_case(lab, &case))?;
        }
        lab.note("every head of every sequence moves the same bytes, so that one stands for all");
        lab.note("the model is N²d²/M elements with M of shared memory (Dao et al. 2022, theorem 2), without its constant");
        if lab.kind() == BackendKind::Cuda {
            lab.note("what of this the L2 cache serves only hardware counters know; no profiler was asked");
        }
        Ok(())
    })
}

/// Adds a row for each GPU kernel.
fn of_case<T: Element>(lab: &mut Lab, case: &Case<Problem>) -> Result<()> {
    let problem = &case.problem;
    let (sim, inputs) = (Sim::new(lab.seed), Inputs::<T>::random(problem, lab.seed));
    let expected = Expected::new(problem, &inputs, CHECKED_ROWS, lab.seed);
    let mut unfused = None;
    for kernel in [Kernel::Standard, Kernel::ForwardSimt, Kernel::ForwardSm80, Kernel::ForwardSm90] {
        crate::interrupt::check()?;
        let request = Request { kernel: Some(kernel), ..Request::default() };
        let plan = match plan(problem, sim.device(), &request) {
            Err(error) if is_refusal(&error) => {
                lab.push(Row::refused(&case.name, kernel.name(), error.to_string()))?;
                continue;
            }
            plan => plan?,
        };
        let mut o = vec![T::from_f32(f32::NAN); problem.tensors().o.span()];
        let mut lse = vec![f32::NAN; problem.lse_len()];
        let traffic = sim.forward(problem, &plan, inputs.tensors(), &mut o, Some(&mut lse))?;
        let verdict = expected.judge(problem, plan.score_dtype(problem), &o, &lse);
        let mut row = Row {
            case: case.name.clone(),
            series: kernel.name().to_owned(),
            x: case.x,
            problem: Some(ProblemRecord::new(problem, Layout::Bhsd)),
            plan: Some(PlanRecord::new(&plan)),
            check: Some(lab::CheckRecord::new(&verdict)),
            ..Row::default()
        };
        let (read, written) = (traffic.bytes_read as f64, traffic.bytes_written as f64);
        row.put(READ, Unit::Bytes, read);
        row.put(WRITTEN, Unit::Bytes, written);
        row.put("over the tensors' bytes", Unit::Times, (read + written) / tensor_bytes(problem) as f64);
        match unfused {
            None => unfused = Some((read, written)),
            Some((all_read, all_written)) => {
                row.put("fewer read", Unit::Percent, 100.0 * (1.0 - read / all_read));
                row.put("fewer written", Unit::Percent, 100.0 * (1.0 - written / all_written));
            }
        }
        if let Some(model) = model(problem, &plan) {
            row.put("model", Unit::Bytes, model);
        }
        lab.push(row)?;
    }
    Ok(())
}

/// N²d²/M elements, in bytes, of a fused kernel with M elements of shared memory.
fn model(problem: &Problem, plan: &Plan) -> Option<f64> {
    let step = plan.steps.first().filter(|_| plan.kernel != Kernel::Standard)?;
    let bytes = problem.dtype().bytes() as f64;
    let heads = (problem.batch() * problem.heads()) as f64;
    let [rows, keys, columns] =
        [problem.seqlen_q(), problem.seqlen_k(), problem.head_dim()].map(|size| size as f64);
    let shared = f64::from(step.entry.shared_bytes) / bytes;
    Some(bytes * heads * rows * keys * columns * columns / shared)
}
