//! Context parallelism: one problem on several GPUs, in turns with one GPU, and with each GPU by itself at
//! once.

mod decode;
mod grid;
mod launch;
mod pass;
mod record;
mod rows;
mod team;
mod tensors;

use std::time::Duration;

use anyhow::{Context as _, Result};
use flash_attention::cuda::Cuda;
use flash_attention::distributed::{Distributed, Transport as BetweenProcesses, World};
use flash_attention::{BackendKind, DType, Problem};

use crate::args::{
    BackendArgs, Choice, Grid, LabArgs, MeasureArgs, ReportArgs, at_least_one, named, seconds,
};
use crate::failure::usage;
use crate::interrupt;
use crate::lab::{self, Lab, Recipe, Shared};
use crate::measure::with_output_element;
use crate::problem::{Layout, describe};
use crate::timer::Times;
use record::{Measured, Setting};
use team::{Side, Work};

const RECIPE: Recipe = Recipe {
    name: "context",
    what: "one problem on several GPUs, in turns with one GPU and with each GPU by itself",
    reported_elsewhere: None,
    axis: Some("tokens of a sequence"),
    iterations: 9,
    scaled: false,
};

/// Arguments of `context`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// GPUs, from the first one on, a rank each
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = gpus)]
    gpus: usize,
    /// Put all ranks on the first GPU, where they take turns: their bits, and no speed
    #[arg(long)]
    on_one: bool,
    /// The problems whose figures are published, in place of those of other arguments; PyTorch computes those
    /// of up to 262,144 tokens
    #[arg(long, value_parser = named(&Grid::ALL, Grid::name))]
    #[arg(conflicts_with_all = ["seq", "batch", "heads", "kv_heads", "dim", "dtype", "full", "window_left"])]
    grid: Option<Grid>,
    /// Tokens of each sequence
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', default_values_t = [32_768_usize, 131_072, 262_144])]
    seq: Vec<usize>,
    /// Number of sequences
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    batch: usize,
    /// Query heads
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    heads: usize,
    /// Key/value heads; they divide the query heads [default: as --heads]
    #[arg(long, value_parser = at_least_one)]
    kv_heads: Option<usize>,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256
    #[arg(long, default_value_t = 128, alias = "head-dim")]
    dim: usize,
    /// Storage type of Q, K, V and O
    #[arg(long, default_value = "bf16", value_parser = named(&DType::RESULTS, DType::name))]
    dtype: DType,
    /// Gradients: dQ, dK and dV from O, lse and dO
    #[arg(long, conflicts_with = "peer")]
    backward: bool,
    /// Decode: one query row for each sequence, whose --seq keys GPUs share out, bound by memory
    #[arg(long, conflicts_with_all = ["backward", "full", "window_left", "contiguous", "peer"])]
    decode: bool,
    /// All queries see all keys; by default none sees a key that comes after it
    #[arg(long)]
    full: bool,
    /// Query i sees key j only if j >= i - KEYS [default: no limit]
    #[arg(long, value_name = "KEYS")]
    window_left: Option<usize>,
    /// Give each rank neighbouring rows in place of a zigzag
    #[arg(long)]
    contiguous: bool,
    /// How pieces go from GPU to GPU; under torchrun, Slurm or Open MPI it is nccl-ce where NCCL has it, else
    /// nccl
    #[arg(long, default_value = "peer", value_parser = named(&Transport::ALL, Transport::name))]
    transport: Transport,
    /// Seconds after which a rank in another process that says nothing is gone
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    patience: f64,
    /// Compare the bits of what is computed with one GPU's, in each of so many runs; with --decode, the
    /// errors
    #[arg(long, value_name = "RUNS", num_args = 0..=1, default_value_t = 1, default_missing_value = "100")]
    check: usize,
    /// Turns of each side, at least 2
    #[arg(long, value_name = "TURNS", default_value_t = 9, value_parser = at_least_one)]
    iterations: usize,
    /// Seconds for each problem, after which no turn is begun
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    budget: f64,
    /// Also run PyTorch's context_parallel, behind these, in the Python named [default: python3]
    #[arg(long, value_name = "torch[=PYTHON]", value_parser = Choice::parse, conflicts_with = "window_left")]
    peer: Option<Choice>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Time of a side's turn.
const TURN: Duration = Duration::from_millis(150);

/// The most GPUs that one host has, with room to spare.
const MOST_GPUS: usize = 64;

fn gpus(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        count if count <= MOST_GPUS => Ok(count),
        _ => Err(format!("at most {MOST_GPUS} are possible")),
    }
}

/// How pieces go from GPU to GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// Copies within one process.
    Peer,
    /// NCCL's gathers by copy engines, a process for each GPU.
    NcclCe,
    /// NCCL's gathers by kernels, likewise.
    Nccl,
}

impl Transport {
    const ALL: [Self; 3] = [Self::Peer, Self::NcclCe, Self::Nccl];

    const fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::NcclCe => "nccl-ce",
            Self::Nccl => "nccl",
        }
    }

    /// What ranks in processes of their own name; `None` where nobody named one.
    const fn between_processes(self) -> Option<BetweenProcesses> {
        match self {
            Self::Peer => None,
            Self::NcclCe => Some(BetweenProcesses::NcclCopyEngines),
            Self::Nccl => Some(BetweenProcesses::NcclKernels),
        }
    }
}

impl From<BetweenProcesses> for Transport {
    fn from(transport: BetweenProcesses) -> Self {
        match transport {
            BetweenProcesses::NcclCopyEngines => Self::NcclCe,
            BetweenProcesses::NcclKernels => Self::Nccl,
        }
    }
}

/// The ranks of this process.
enum Ranks {
    Local(Vec<Cuda>),
    Process(Box<Distributed>),
}

impl Ranks {
    /// The GPUs of this process, each once.
    fn each_gpu(&self, args: &Args) -> &[Cuda] {
        match self {
            Self::Local(gpus) if args.on_one => &gpus[..1],
            Self::Local(gpus) => gpus,
            Self::Process(group) => std::slice::from_ref(group.cuda()),
        }
    }

    /// The other processes, where there are some.
    fn group(&self) -> Option<&Distributed> {
        match self {
            Self::Local(_) => None,
            Self::Process(group) => Some(group),
        }
    }
}

/// Runs the experiment; false if bits differ.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    let problems = args.problems()?;
    let world = World::launched()?;
    if args.on_one && (world.is_some() || args.transport != Transport::Peer) {
        return Err(usage("--on-one is for ranks of one process: with NCCL each has a GPU of its own"));
    }
    let (ranks, transport) = match (&world, args.transport) {
        (Some(world), asked) => {
            anyhow::ensure!(
                world.size == args.gpus,
                "there are {} ranks, and --gpus is {}",
                world.size,
                args.gpus
            );
            let cuda = Cuda::new(world.local_rank)?;
            let patience = Duration::from_secs_f64(args.patience);
            let group = match asked.between_processes() {
                None => Distributed::new(world.clone(), &cuda, patience)?,
                Some(asked) => Distributed::with_transport(world.clone(), &cuda, patience, asked)?,
            };
            let transport = Transport::from(group.transport());
            (Ranks::Process(Box::new(group)), transport)
        }
        (None, Transport::NcclCe | Transport::Nccl) => {
            // One line in place of one from each rank.
            drop(Cuda::new(args.gpus - 1)?);
            return launch::ranks(args.gpus);
        }
        (None, Transport::Peer) => {
            let gpus = (0..args.gpus).map(|gpu| Cuda::new(if args.on_one { 0 } else { gpu }));
            (Ranks::Local(gpus.collect::<flash_attention::Result<Vec<_>>>()?), Transport::Peer)
        }
    };
    if world.is_some_and(|world| world.rank > 0) {
        let mut passed = true;
        for problem in &problems {
            passed &= measure(args, &ranks, problem)?.passed();
        }
        return Ok(passed);
    }
    lab::run(&RECIPE, &args.of_lab(), shared, |lab| {
        let setting = Setting::new(args, transport);
        lab.note(setting.note());
        let mut measured = Vec::new();
        for problem in &problems {
            let found = measure(args, &ranks, problem)?;
            lab.line(describe(&found.problem, Layout::Bshd))?;
            found.notes().into_iter().for_each(|note| lab.note(note));
            found.rows(&setting).into_iter().try_for_each(|row| lab.push(row).map(drop))?;
            measured.push(found);
        }
        args.peer.as_ref().map_or(Ok(()), |choice| torch(args, choice, &measured, lab))
    })
}

impl Args {
    /// What the lab takes of them. PyTorch's ranks are processes of their own.
    fn of_lab(&self) -> LabArgs {
        LabArgs {
            peer: None,
            backend: BackendArgs { backend: Some(BackendKind::Cuda), device: None },
            measure: MeasureArgs {
                warmup: None,
                iterations: Some(self.iterations),
                budget: self.budget,
                force: false,
            },
            report: self.report.clone(),
        }
    }
}

/// PyTorch's times of the same problems.
fn torch(args: &Args, choice: &Choice, measured: &[Measured], lab: &mut Lab) -> Result<()> {
    let measured: Vec<_> = measured.iter().filter(|measured| args.is_for_peer(&measured.problem)).collect();
    let problems = measured.iter().map(|measured| &measured.problem);
    let times = launch::torch(&choice.python, args.gpus, problems)?;
    if let Some(time) = times.first() {
        lab.note(format!("PyTorch {} ran behind the others, not in turns", time.version));
    }
    for time in &times {
        let of = measured.get(time.problem).context("PyTorch names a problem that it was not given")?;
        lab.push(of.torch_row(args.gpus, time))?;
    }
    Ok(())
}

fn measure(args: &Args, ranks: &Ranks, problem: &Problem) -> Result<Measured> {
    use decode::measure as decode;
    use rows::{backward, forward};
    match (args.decode, args.backward) {
        (true, _) => with_output_element!(args.dtype, decode(args, ranks, problem)),
        (_, true) => with_output_element!(args.dtype, backward(args, ranks, problem)),
        _ => with_output_element!(args.dtype, forward(args, ranks, problem)),
    }
}

/// Products that a GPU may be expected to compute in a second, for how often a side runs in a turn.
const FLOPS: f64 = 600e12;

/// Seconds that it takes to enqueue one side's work.
const LAUNCHES: f64 = 20e-6;

/// Seconds for which sides run in turns before they are timed. A GPU that begins at its power limit is held
/// back by 10 to 15 % for its first runs, and settles within a second.
const WARMUP: f64 = 2.0;

/// How often each side runs in a turn, not at all where it is the one before again, how many turns there are,
/// and how many before them that are not timed, where one GPU takes about so many seconds: the same on all
/// ranks.
fn effort(args: &Args, once: f64) -> ([usize; 3], usize, usize) {
    let seconds = [once, once, once / args.gpus as f64];
    let mut runs = seconds.map(|seconds| ((TURN.as_secs_f64() / seconds) as usize).clamp(1, 200));
    if args.on_one {
        runs[Side::Independent as usize] = 0;
    }
    let turn: f64 = runs.iter().zip(seconds).map(|(&runs, seconds)| runs as f64 * seconds).sum();
    let turns = ((args.budget / turn) as usize).clamp(2, args.iterations.max(2));
    // A run of many seconds warms itself.
    (runs, turns, if turn > 2.0 * WARMUP { 0 } else { (WARMUP / turn).ceil() as usize })
}

/// Seconds of each side in turns, where one GPU takes about `once`; and of the slowest rank by itself, where
/// ranks share one GPU.
fn in_turns<W: Work>(
    args: &Args,
    group: Option<&Distributed>,
    sides: (&impl Work, &[W]),
    once: f64,
    slowest_rank: impl Fn(usize) -> Result<f64>,
) -> Result<([Times; 3], Option<Times>)> {
    let (runs, turns, warmup_turns) = effort(args, once);
    let timed: Vec<_> = Side::ALL.into_iter().zip(runs).filter(|(_, runs)| *runs > 0).collect();
    for _ in 0..warmup_turns {
        interrupt::check()?;
        timed.iter().try_for_each(|&(side, runs)| side.time(group, sides, runs).map(drop))?;
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut of_ranks = Vec::new();
    for _ in 0..turns {
        interrupt::check()?;
        for &(side, runs) in &timed {
            times[side as usize].push(side.time(group, sides, runs)?);
        }
        if args.on_one {
            of_ranks.push(slowest_rank(runs[2])?);
        }
    }
    let [one, independent, together] = times;
    let of_side = |side: usize, seconds| Times { warmup_runs: warmup_turns * runs[side], seconds };
    let of_ranks = (!of_ranks.is_empty()).then_some(Times { warmup_runs: 0, seconds: of_ranks });
    Ok(([of_side(0, one), of_side(1, independent), of_side(2, together)], of_ranks))
}
