//! Context parallelism: one problem on several GPUs, in turns with one GPU, and with each GPU by itself at once.

mod tensors;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use flash_attention::cuda::Cuda;
use flash_attention::distributed::{LocalRanks, Partition};
use flash_attention::{DType, Element, Options, Plan, Problem, Request, Tensors};
use serde::Serialize;

use crate::args::{BackendArgs, ReportArgs, at_least_one, named, seconds};
use crate::inputs::normal;
use crate::lab::Shared;
use crate::measure::with_output_element;
use crate::problem::{Layout, describe};
use crate::record::Header;
use crate::session::Session;
use crate::table::{self, table};
use crate::timer::Times;
use tensors::{PATTERN, Shards, Whole};

/// Arguments of `context`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// GPUs, from the first one on, a rank each
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = at_least_one)]
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
    /// All queries see all keys; by default none sees a key that comes after it
    #[arg(long)]
    full: bool,
    /// Query i sees key j only if j >= i - KEYS [default: no limit]
    #[arg(long, value_name = "KEYS")]
    window_left: Option<usize>,
    /// Give each rank neighbouring rows in place of a zigzag
    #[arg(long)]
    contiguous: bool,
    /// Compare the bits of O and lse with one GPU's, in each of so many runs
    #[arg(long, value_name = "RUNS", num_args = 0..=1, default_value_t = 1, default_missing_value = "100")]
    check: usize,
    /// Turns of each side, at least 2
    #[arg(long, value_name = "TURNS", default_value_t = 9, value_parser = at_least_one)]
    iterations: usize,
    /// Seconds for each problem, after which no turn is begun
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    budget: f64,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    header: Header,
    gpus: usize,
    partition: &'static str,
    rows: Vec<RowRecord>,
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

/// Runs the experiment; false if bits differ.
pub(crate) fn run(args: &Args, _: &mut Shared) -> Result<bool> {
    let screen = args.report.open()?;
    let first = BackendArgs { backend: Some(flash_attention::BackendKind::Cuda), device: None };
    let session = Session::open(&first)?;
    session.header(&screen)?;
    let gpus = (0..args.gpus).map(|gpu| Cuda::new(if args.on_one { 0 } else { gpu }));
    let gpus = gpus.collect::<flash_attention::Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for &seq in &args.seq {
        let problem = problem(args, seq)?;
        let row = with_output_element!(args.dtype, of_problem(args, &gpus, &problem))?;
        row.reasons.iter().try_for_each(|reason| screen.line(reason))?;
        rows.push(row);
    }
    screen.line(table(
        &[
            "problem",
            "one GPU",
            "each by itself",
            "together",
            "of linear",
            "TFLOP/s a GPU",
            "turns",
            "extra",
            "bits",
        ],
        rows.iter().map(cells).collect(),
    ))?;
    let passed = rows.iter().all(|row| row.difference.is_none());
    let header = Header::new("context", &session, args.report.seed);
    let partition = if args.contiguous { "contiguous" } else { "zigzag" };
    args.report.write(&Document { header, gpus: args.gpus, partition, rows, passed }, &screen)?;
    Ok(passed)
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

/// A side of the comparison: enqueues a run, or waits for all.
enum Side<'a> {
    One(&'a Whole),
    Independent(&'a [Whole]),
    Together(&'a LocalRanks, &'a Shards),
}

impl Side<'_> {
    fn enqueue(&self) -> Result<()> {
        match self {
            Self::One(whole) => whole.enqueue(),
            Self::Independent(wholes) => wholes.iter().try_for_each(Whole::enqueue),
            Self::Together(ranks, shards) => shards.enqueue(ranks),
        }
    }

    fn wait(&self) -> Result<()> {
        match self {
            Self::One(whole) => whole.wait(),
            Self::Independent(wholes) => wholes.iter().try_for_each(Whole::wait),
            Self::Together(ranks, _) => Ok(ranks.wait()?),
        }
    }

    /// Seconds of a run, of so many behind one another.
    fn time(&self, runs: usize) -> Result<f64> {
        let start = Instant::now();
        (0..runs).try_for_each(|_| self.enqueue())?;
        self.wait()?;
        Ok(start.elapsed().as_secs_f64() / runs as f64)
    }
}

fn of_problem<T: Element<Output = T>>(args: &Args, gpus: &[Cuda], problem: &Problem) -> Result<RowRecord> {
    let pattern = [0, 1, 2].map(|tensor| normal::<T>(args.report.seed, tensor, PATTERN));
    let partition = if args.contiguous { Partition::Contiguous } else { Partition::ZigZag };
    let request = Request::default();
    let ranks = LocalRanks::new(gpus, problem, partition, &request)?;
    let alone = if args.on_one { &gpus[..1] } else { gpus };
    let whole = |gpu: &Cuda| -> Result<Whole> {
        let plan = Plan::new(problem, gpu.device(), &request)?;
        Whole::new(gpu, plan, &pattern)
    };
    let mut wholes = alone.iter().map(whole).collect::<Result<Vec<_>>>().context("one GPU's tensors")?;
    let mut shards = Shards::new(gpus, &ranks, &pattern)?;
    let (mut difference, mut checked) = (None, 0);
    if args.check > 0 {
        wholes[0].poison()?;
        wholes[0].enqueue()?;
        wholes[0].wait()?;
    }
    while checked < args.check && difference.is_none() {
        shards.poison()?;
        shards.enqueue(&ranks)?;
        ranks.wait()?;
        checked += 1;
        difference = shards.difference::<T>(&ranks, &wholes[0])?;
    }
    let sides = [Side::One(&wholes[0]), Side::Independent(&wholes), Side::Together(&ranks, &shards)];
    let runs = sides.each_ref().map(|side| -> Result<usize> {
        let once = side.time(1)?;
        Ok(((TURN.as_secs_f64() / once) as usize).clamp(1, 200))
    });
    let start = Instant::now();
    let mut times: [Vec<f64>; 3] = Default::default();
    for turn in 0..args.iterations.max(2) {
        if turn >= 2 && start.elapsed().as_secs_f64() > args.budget {
            break;
        }
        for ((side, runs), times) in sides.iter().zip(&runs).zip(&mut times) {
            let runs = runs.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            times.push(side.time(*runs)?);
        }
    }
    let turns = times[0].len();
    let [one_s, independent_s, together_s] =
        times.map(|times| Times { warmup_runs: 1, seconds: times }.median());
    let count = if args.on_one { 1 } else { gpus.len() } as f64;
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
        extra_bytes: (0..ranks.world()).map(|rank| ranks.memory_bytes(rank)).max().unwrap_or(0),
        reasons: ranks.reasons().to_vec(),
        checked_runs: checked,
        difference,
    })
}
