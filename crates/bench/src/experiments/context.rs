//! Context parallelism: one problem on several GPUs, in turns with one GPU, and with each GPU by itself at
//! once.

mod decode;
mod launch;
mod team;
mod tensors;

use std::time::Duration;

use anyhow::{Context as _, Result};
use flash_attention::cuda::Cuda;
use flash_attention::distributed::{Distributed, LocalRanks, Partition, World, request_of_one};
use flash_attention::{DType, Element, Options, Plan, Problem, Request, Tensors};
use serde::Serialize;

use crate::args::{BackendArgs, Choice, ReportArgs, at_least_one, named, seconds};
use crate::inputs::normal;
use crate::lab::Shared;
use crate::measure::with_output_element;
use crate::output::Screen;
use crate::problem::{Layout, describe};
use crate::record::Header;
use crate::session::Session;
use crate::table::{self, table};
use crate::timer::Times;
use launch::{TorchProblems, TorchTime};
use team::{Side, Team, TeamPlan, Work};
use tensors::{PATTERN, Part, Whole};

/// Arguments of `context`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// GPUs, from the first one on, a rank each
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = gpus)]
    gpus: usize,
    /// Put all ranks on the first GPU, where they take turns: their bits, and no speed
    #[arg(long)]
    on_one: bool,
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
    /// Decode: one query row for each sequence, whose --seq keys GPUs share out, bound by memory
    #[arg(long, conflicts_with_all = ["full", "window_left", "contiguous", "peer"])]
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
    /// How pieces go from GPU to GPU; under torchrun, Slurm or Open MPI it is nccl-ce
    #[arg(long, default_value = "peer", value_parser = named(&Transport::ALL, Transport::name))]
    transport: Transport,
    /// Seconds after which a rank in another process that says nothing is gone
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    patience: f64,
    /// Compare the bits of O and lse with one GPU's, in each of so many runs; with --decode, their errors
    #[arg(long, value_name = "RUNS", num_args = 0..=1, default_value_t = 1, default_missing_value = "100")]
    check: usize,
    /// Turns of each side, at least 2
    #[arg(long, value_name = "TURNS", default_value_t = 9, value_parser = at_least_one)]
    iterations: usize,
    /// Seconds for each problem, after which no turn is begun
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    budget: f64,
    /// Also run PyTorch's context_parallel, behind these, in the Python named [default: python3]
    #[arg(long, value_name = "torch[=PYTHON]", value_parser = Choice::parse)]
    peer: Option<Choice>,
    #[command(flatten)]
    report: ReportArgs,
}

impl Args {
    /// GPUs of all ranks.
    const fn count(&self) -> f64 {
        if self.on_one { 1.0 } else { self.gpus as f64 }
    }
}

#[derive(Serialize)]
struct Document<R> {
    #[serde(flatten)]
    header: Header,
    gpus: usize,
    partition: &'static str,
    transport: &'static str,
    rows: Vec<R>,
    torch: Vec<TorchTime>,
    passed: bool,
}

#[derive(Clone, Debug, Serialize)]
struct RowRecord {
    problem: String,
    seq: usize,
    flops: f64,
    /// One GPU by itself.
    one_s: f64,
    /// The slowest of all GPUs, each with the whole problem.
    independent_s: f64,
    /// All GPUs together.
    together_s: f64,
    turns: usize,
    /// one / (GPUs · together).
    of_linear: f64,
    /// independent / (GPUs · together): what is left of it where GPUs share nothing but their power.
    of_independent: f64,
    tflops_per_gpu: f64,
    /// Beside the tensors, of the rank that takes the most.
    extra_bytes: usize,
    reasons: Vec<String>,
    checked_runs: usize,
    difference: Option<String>,
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
}

impl Transport {
    const ALL: [Self; 2] = [Self::Peer, Self::NcclCe];

    const fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::NcclCe => "nccl-ce",
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
pub(crate) fn run(args: &Args, _: &mut Shared) -> Result<bool> {
    let screen = args.report.open()?;
    let world = World::launched()?;
    let ranks = match (&world, args.transport) {
        (Some(world), _) => {
            anyhow::ensure!(
                world.size == args.gpus,
                "there are {} ranks, and --gpus is {}",
                world.size,
                args.gpus
            );
            let cuda = Cuda::new(world.local_rank)?;
            Ranks::Process(Box::new(Distributed::new(
                world.clone(),
                &cuda,
                Duration::from_secs_f64(args.patience),
            )?))
        }
        (None, Transport::NcclCe) => {
            // One line in place of one from each rank.
            drop(Cuda::new(args.gpus - 1)?);
            return launch::ranks(args.gpus);
        }
        (None, Transport::Peer) => {
            let gpus = (0..args.gpus).map(|gpu| Cuda::new(if args.on_one { 0 } else { gpu }));
            Ranks::Local(gpus.collect::<flash_attention::Result<Vec<_>>>()?)
        }
    };
    let is_first = world.is_none_or(|world| world.rank == 0);
    let first = BackendArgs { backend: Some(flash_attention::BackendKind::Cuda), device: None };
    let session = Session::open(&first)?;
    if is_first {
        session.header(&screen)?;
    }
    let out = Out { session: &session, screen: is_first.then_some(&screen) };
    if args.decode {
        let rows = out.rows(args, |seq| decode::row(args, &ranks, seq), |row| &row.reasons)?;
        let passed = rows.iter().all(|row| row.failure.is_none());
        let shown = (&decode::TITLES[..], rows.iter().map(decode::cells).collect());
        return out.document(args, &ranks, shown, rows, (Vec::new(), passed));
    }
    let row = |seq| {
        let problem = problem(args, seq)?;
        with_output_element!(args.dtype, of_problem(args, &ranks, &problem))
    };
    let rows = out.rows(args, row, |row| &row.reasons)?;
    let passed = rows.iter().all(|row| row.difference.is_none());
    let torch = match (&args.peer, out.screen) {
        (Some(choice), Some(screen)) => torch(args, choice, &rows, screen)?,
        _ => Vec::new(),
    };
    let shown = (&TITLES[..], rows.iter().map(cells).collect());
    out.document(args, &ranks, shown, rows, (torch, passed))
}

/// Where a process shows what it measured: the first rank's on the screen and in a document, others' nowhere.
struct Out<'a> {
    session: &'a Session,
    screen: Option<&'a Screen>,
}

impl Out<'_> {
    /// A row for each length, whose reasons are shown as soon as it is there.
    fn rows<R>(
        &self,
        args: &Args,
        row: impl Fn(usize) -> Result<R>,
        reasons: impl Fn(&R) -> &[String],
    ) -> Result<Vec<R>> {
        let shown = |&seq: &usize| {
            let row = row(seq)?;
            if let Some(screen) = self.screen {
                reasons(&row).iter().try_for_each(|reason| screen.line(reason))?;
            }
            Ok(row)
        };
        args.seq.iter().map(shown).collect()
    }

    /// Shows a table of titles and cells, and writes the document; gives whether all is right.
    fn document<R: Serialize>(
        &self,
        args: &Args,
        ranks: &Ranks,
        (titles, cells): (&[&str], Vec<Vec<String>>),
        rows: Vec<R>,
        (torch, passed): (Vec<TorchTime>, bool),
    ) -> Result<bool> {
        let Some(screen) = self.screen else { return Ok(passed) };
        screen.line(table(titles, cells))?;
        let header = Header::new("context", self.session, args.report.seed);
        let partition = if args.contiguous || args.decode { "contiguous" } else { "zigzag" };
        let transport = match ranks {
            Ranks::Local(_) => Transport::Peer,
            Ranks::Process(_) => Transport::NcclCe,
        };
        let transport = transport.name();
        let document = Document { header, gpus: args.gpus, partition, transport, rows, torch, passed };
        args.report.write(&document, screen)?;
        Ok(passed)
    }
}

/// Titles of [`cells`].
const TITLES: [&str; 9] = [
    "problem",
    "one GPU",
    "each by itself",
    "together",
    "of linear",
    "TFLOP/s a GPU",
    "turns",
    "extra",
    "bits",
];

/// PyTorch's times of the same problems, and how much faster the ranks here are.
fn torch(args: &Args, choice: &Choice, rows: &[RowRecord], screen: &Screen) -> Result<Vec<TorchTime>> {
    let problems = TorchProblems {
        batch: args.batch,
        heads: args.heads,
        kv_heads: args.kv_heads.unwrap_or(args.heads),
        dim: args.dim,
        dtype: args.dtype.name(),
        causal: !args.full,
        seq: &args.seq,
    };
    let times = launch::torch(&choice.python, args.gpus, &problems)?;
    for time in &times {
        let name = format!("PyTorch's context_parallel, {}, S={}", time.backend, time.seq);
        let ours = rows.iter().find(|row| row.seq == time.seq).map(|row| row.together_s);
        screen.line(match (time.seconds, ours) {
            (Some(theirs), Some(ours)) => {
                format!("{name}: {}, {:.2} times as long as together", table::seconds(theirs), theirs / ours)
            }
            _ => format!("{name}: {}", time.error.as_deref().unwrap_or("no time")),
        })?;
    }
    Ok(times)
}

fn cells(row: &RowRecord) -> Vec<String> {
    vec![
        row.problem.clone(),
        table::seconds(row.one_s),
        table::seconds(row.independent_s),
        table::seconds(row.together_s),
        format!("{:.1} %", 100.0 * row.of_linear),
        format!("{:.0}", row.tflops_per_gpu),
        row.turns.to_string(),
        format!("{:.2} GiB", row.extra_bytes as f64 / f64::from(1 << 30)),
        match &row.difference {
            None => format!("the same, {} runs", row.checked_runs),
            Some(difference) => format!("FAIL: {difference}"),
        },
    ]
}

fn problem(args: &Args, seq: usize) -> Result<Problem> {
    let of = |heads| Layout::Bshd.tensor(args.batch, seq, heads, args.dim);
    let (q, k) = (of(args.heads), of(args.kv_heads.unwrap_or(args.heads)));
    let options = Options { causal: !args.full, window: (args.window_left, None), ..Options::default() };
    Ok(Problem::new(Tensors { q, k, v: k, o: q }, args.dtype, options)?)
}

/// Products that a GPU may be expected to compute in a second, for how often a side runs in a turn.
const FLOPS: f64 = 600e12;

/// How often each side runs in a turn, and how many turns there are, where one GPU takes about so many
/// seconds: the same on all ranks.
fn effort(args: &Args, once: f64) -> ([usize; 3], usize) {
    let seconds = [once, once, once / args.gpus as f64];
    let runs = seconds.map(|seconds| ((TURN.as_secs_f64() / seconds) as usize).clamp(1, 200));
    let turn: f64 = runs.iter().zip(seconds).map(|(&runs, seconds)| runs as f64 * seconds).sum();
    (runs, ((args.budget / turn) as usize).clamp(2, args.iterations.max(2)))
}

/// Seconds that it takes to enqueue one side's work.
const LAUNCHES: f64 = 20e-6;

/// Median seconds of each side in turns, and how many there were, where one GPU takes about `once`.
fn in_turns<W: Work>(
    args: &Args,
    group: Option<&Distributed>,
    sides: (&impl Work, &[W]),
    once: f64,
) -> Result<([f64; 3], usize)> {
    let (runs, turns) = effort(args, once);
    // What takes seconds is warm from the run that was checked.
    if once < 2.0 {
        for (side, runs) in Side::ALL.into_iter().zip(runs) {
            side.time(group, sides, runs)?;
        }
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..turns {
        for ((side, runs), times) in Side::ALL.into_iter().zip(runs).zip(&mut times) {
            times.push(side.time(group, sides, runs)?);
        }
    }
    Ok((times.map(|seconds| Times { warmup_runs: runs[0], seconds }.median()), turns))
}

fn of_problem<T: Element<Output = T>>(args: &Args, ranks: &Ranks, problem: &Problem) -> Result<RowRecord> {
    let pattern = [0, 1, 2].map(|tensor| normal::<T>(args.report.seed, tensor, PATTERN));
    let partition = if args.contiguous { Partition::Contiguous } else { Partition::ZigZag };
    let request = request_of_one(problem, &Request::default());
    let (plan, parts) = match ranks {
        Ranks::Local(gpus) => {
            let ranks = LocalRanks::new(gpus, problem, partition, &request)?;
            let shards = (0..ranks.world()).filter_map(|rank| ranks.shard(rank));
            let parts = gpus.iter().zip(shards).map(|(gpu, shard)| Part::new(gpu, shard, &pattern));
            let parts = parts.collect::<Result<_>>()?;
            (TeamPlan::Local(Box::new(ranks)), parts)
        }
        Ranks::Process(group) => {
            let plan = group.plan(problem, partition, &request)?;
            let parts = vec![Part::new(group.cuda(), plan.shard(), &pattern)?];
            (TeamPlan::Rank(Box::new(plan)), parts)
        }
    };
    let mut team = Team { plan, parts };
    let whole = |gpu: &Cuda| Whole::new(gpu, Plan::new(problem, gpu.device(), &request)?, &pattern);
    let mut wholes =
        ranks.each_gpu(args).iter().map(whole).collect::<Result<Vec<_>>>().context("one GPU's tensors")?;
    let (mut difference, mut checked) = (None, 0);
    let expected = if args.check > 0 { Some(wholes[0].outputs()?) } else { None };
    while let Some(expected) = expected.as_ref().filter(|_| checked < args.check && difference.is_none()) {
        team.poison()?;
        team.enqueue()?;
        team.wait()?;
        checked += 1;
        for part in &team.parts {
            difference = difference.or(part.difference::<T>(expected)?);
        }
    }
    drop(expected);
    let group = ranks.group();
    let once = problem.flops() / FLOPS + LAUNCHES;
    let ([one_s, independent_s, together_s], turns) = in_turns(args, group, (&team, &wholes), once)?;
    let count = args.count();
    Ok(RowRecord {
        problem: describe(problem, Layout::Bshd),
        seq: problem.seqlen_q(),
        flops: problem.flops(),
        one_s,
        independent_s,
        together_s,
        turns,
        of_linear: one_s / (count * together_s),
        of_independent: independent_s / (count * together_s),
        tflops_per_gpu: problem.flops() / together_s / count / 1e12,
        extra_bytes: team.extra_bytes(),
        reasons: team.reasons(),
        checked_runs: checked,
        difference,
    })
}
