//! Bytes that go through device memory, fused and unfused: counted by the simulator, which sees every access,
//! and beside that by the hardware, where a profiler may read its counters.

mod counters;

use anyhow::{Context as _, Result};
use flash_attention::forward::Outputs;
use flash_attention::sim::Sim;
use flash_attention::{Backend, BackendKind, Element, Kernel, Plan, Problem, Request};

use crate::args::{LabArgs, at_least_one};
use crate::check::Expected;
use crate::inputs::Inputs;
use crate::lab::{self, Case, Lab, Recipe, Row, Shared, Unit, is_refusal};
use crate::measure::{CHECKED_ROWS, with_element};
use crate::problem::{Layout, Shape, ShapeArgs};
use crate::record::{PlanRecord, ProblemRecord, tensor_bytes};

const RECIPE: Recipe = Recipe {
    name: "traffic",
    what: "bytes read and written in device memory, fused and unfused: as the simulator counts every access, and as the \
           hardware's counters say",
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
const MODEL: &str = "model";

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
    /// Nsight Compute, for counters of all heads at the longest --seq [default: ncu on a GPU, none elsewhere]
    #[arg(long, value_name = "PROGRAM")]
    ncu: Option<String>,
    #[command(flatten)]
    lab: LabArgs,
}

/// GPU kernels, the one that the others are compared with first.
const KERNELS: [Kernel; 4] =
    [Kernel::Standard, Kernel::ForwardSimt, Kernel::ForwardSm80, Kernel::ForwardSm90];

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    Backend::open(Some(BackendKind::Sim)).context("traffic counts in the simulator")?;
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let lengths: &[usize] = if args.seq.is_empty() { &[256, 512, 1024, 2048] } else { &args.seq };
        for &seq in lengths {
            let shape = Shape { causal: !args.full, ..args.shape.shape((1, 1, 64), seq) };
            let case = Case::at("S", seq, shape.problem(Layout::Bhsd)?);
            with_element!(args.shape.dtype, of_case(lab, &case))?;
        }
        lab.note("every head of every sequence moves the same bytes, so that one stands for all");
        lab.note("the model is N²d²/M elements with M of shared memory (Dao et al. 2022, theorem 2), without its constant");
        let on_gpu = (lab.kind() == BackendKind::Cuda).then(|| "ncu".to_owned());
        let longest = lengths.iter().copied().max();
        if let (Some(ncu), Some(seq)) = (args.ncu.clone().or(on_gpu), longest) {
            let shape = Shape { causal: !args.full, ..args.shape.shape((4, 32, 64), seq) };
            with_element!(args.shape.dtype, of_hardware(lab, args, &ncu, shape))?;
        }
        Ok(())
    })
}

/// A row for each kernel that the device runs on all heads: the counters beside the simulator's bytes and the
/// model.
fn of_hardware<T: Element>(lab: &mut Lab, args: &Args, ncu: &str, shape: Shape) -> Result<()> {
    let (sim, session) = (Sim::new(lab.seed), std::rc::Rc::clone(&lab.session));
    let device = if lab.kind() == BackendKind::Cuda { session.device() } else { sim.device() };
    let problem = shape.problem(Layout::Bhsd)?;
    let one_head = Shape { batch: 1, heads: 1, ..shape }.problem(Layout::Bhsd)?;
    let inputs = Inputs::<T>::random(&one_head, lab.seed);
    let heads = (shape.batch * shape.heads) as f64;
    let name = format!("B={} H={} S={} D={}", shape.batch, shape.heads, shape.seq, shape.head_dim);
    let mut refused = None;
    for kernel in KERNELS {
        crate::interrupt::check()?;
        let request = Request { kernel: Some(kernel), ..Request::default() };
        let chosen = match Plan::new(&problem, device, &request) {
            Err(error) if is_refusal(&error) => {
                lab.push(Row::refused(&name, kernel.name(), error.to_string()))?;
                continue;
            }
            chosen => chosen?,
        };
        let mut row = Row {
            case: name.clone(),
            series: kernel.name().to_owned(),
            problem: Some(ProblemRecord::new(&problem, Layout::Bhsd)),
            plan: Some(PlanRecord::new(&chosen)),
            ..Row::default()
        };
        let tile = chosen.tile().unzip();
        let request = Request { block_m: tile.0, block_n: tile.1, ..request };
        // The planner may know no such tile for a single head; then there is nothing to compare with.
        if let Ok(of_one) = Plan::new(&one_head, sim.device(), &request)
            && of_one
                .launches()
                .iter()
                .map(|launch| launch.entry.name)
                .eq(chosen.launches().iter().map(|launch| launch.entry.name))
        {
            let mut o = vec![T::Output::default(); one_head.tensors().o.span()];
            let mut lse = vec![0.0; one_head.lse_len()];
            let traffic = sim.run(&of_one, inputs.tensors(), Outputs { o: &mut o, lse: Some(&mut lse) })?;
            row.put(READ, Unit::Bytes, heads * traffic.bytes_read as f64);
            row.put(WRITTEN, Unit::Bytes, heads * traffic.bytes_written as f64);
        }
        if let Some(model) = model(&problem, &chosen) {
            row.put(MODEL, Unit::Bytes, model);
        }
        if refused.is_none() {
            let entries: Vec<_> = chosen.launches().iter().map(|launch| launch.entry.name).collect();
            match counters::count(ncu, &entries, &launch(args, lab, shape, kernel))? {
                Ok(counters) => {
                    row.put("DRAM read", Unit::Bytes, counters.dram_read);
                    row.put("DRAM written", Unit::Bytes, counters.dram_written);
                    row.put("through L2", Unit::Bytes, counters.l2);
                }
                // What one kernel is refused, all are.
                Err(reason) => refused = Some(reason),
            }
        }
        lab.push(row)?;
    }
    lab.note(match refused {
        None => "DRAM and L2 are the hardware's counters, from caches that the profiler flushed; what L2 serves does not \
                 reach DRAM, and read and written are what the kernels ask of both"
            .to_owned(),
        Some(reason) => format!("no hardware counters: {reason}"),
    });
    Ok(())
}

/// The arguments of a process that launches one kernel.
fn launch(args: &Args, lab: &Lab, shape: Shape, kernel: Kernel) -> Vec<String> {
    let Shape { batch, heads, seq, head_dim, dtype, causal } = shape;
    let mut words: Vec<_> =
        ["--layout", "bhsd", "--warmup", "0", "--iterations", "1", "--json"].map(str::to_owned).into();
    let mut option =
        |name: &str, value: &dyn std::fmt::Display| words.extend([format!("--{name}"), value.to_string()]);
    for (name, size) in [("batch", batch), ("heads", heads), ("seq", seq), ("dim", head_dim)] {
        option(name, &size);
    }
    option("dtype", &dtype);
    option("kernel", &kernel);
    option("backend", &lab.kind());
    option("seed", &lab.seed);
    if let Some(device) = args.lab.backend.device {
        option("device", &device);
    }
    words.extend(causal.then(|| "--causal".to_owned()));
    words
}

/// Adds a row for each GPU kernel.
fn of_case<T: Element>(lab: &mut Lab, case: &Case<Problem>) -> Result<()> {
    let problem = &case.problem;
    let (sim, inputs) = (Sim::new(lab.seed), Inputs::<T>::random(problem, lab.seed));
    let expected = Expected::new(problem, &inputs, CHECKED_ROWS, lab.seed);
    let mut unfused = None;
    for kernel in KERNELS {
        crate::interrupt::check()?;
        let request = Request { kernel: Some(kernel), ..Request::default() };
        let plan = match Plan::new(problem, sim.device(), &request) {
            Err(error) if is_refusal(&error) => {
                lab.push(Row::refused(&case.name, kernel.name(), error.to_string()))?;
                continue;
            }
            plan => plan?,
        };
        let mut o = vec![T::Output::from_f32(f32::NAN); problem.tensors().o.span()];
        let mut lse = vec![f32::NAN; problem.lse_len()];
        let traffic = sim.run(&plan, inputs.tensors(), Outputs { o: &mut o, lse: Some(&mut lse) })?;
        let verdict = expected.judge(problem, plan.score_roundoff(), &o, &lse);
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
            row.put(MODEL, Unit::Bytes, model);
        }
        lab.push(row)?;
    }
    Ok(())
}

/// N²d²/M elements, in bytes, of a fused kernel with M elements of shared memory.
fn model(problem: &Problem, plan: &Plan) -> Option<f64> {
    let step = plan.launches().last().filter(|_| plan.kernel() != Kernel::Standard)?;
    let bytes = problem.dtype().bytes() as f64;
    let heads = (problem.batch() * problem.heads()) as f64;
    let [rows, keys, columns] =
        [problem.seqlen_q(), problem.seqlen_k(), problem.head_dim()].map(|size| size as f64);
    let shared = f64::from(step.shared_bytes) / bytes;
    Some(bytes * heads * rows * keys * columns * columns / shared)
}
