//! Few queries against a long K/V cache: bytes of K and V per second, beside what a plain copy reaches.

use anyhow::Result;
use flash_attention::{BackendKind, DType, DecodePlan, DecodeProblem, DecodeRequest, Element, Error};
use serde::Serialize;

use crate::check::Expected;
use crate::cli::{BackendArgs, MeasureArgs, ReportArgs, named};
use crate::decode::{Cache, Shape, describe};
use crate::measure::{CHECKED_ROWS, Measurement, measure, with_element};
use crate::output::Screen;
use crate::problem::Layout;
use crate::record::{Header, MeasurementRecord, PlanRecord, ProblemRecord};
use crate::session::Session;
use crate::table;
use crate::timer::Effort;

const ITERATIONS: usize = 50;
const GPU_SEQ_K: usize = 8192;
const CPU_SEQ_K: usize = 2048;
const SIM_SEQ_K: usize = 256;

/// Bytes that are copied to measure the bandwidth: far more than any cache holds.
const COPY_BYTES: usize = 1 << 30;

/// Arguments of `decode`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of sequences
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Query heads
    #[arg(long, default_value_t = 32)]
    heads: usize,
    /// Key/value heads; they divide the query heads
    #[arg(long, default_value_t = 8)]
    kv_heads: usize,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256
    #[arg(long, alias = "head-dim", default_value_t = 128)]
    dim: usize,
    /// Query rows of each sequence, 1 to 16
    #[arg(long, default_value_t = 1, alias = "seq")]
    seq_q: usize,
    /// Keys that each sequence has room for [default: 8192; cpu: 2048, sim: 256]
    #[arg(long, alias = "kv-seq")]
    seq_k: Option<usize>,
    /// Keys that each sequence uses [default: all]
    #[arg(long, value_name = "KEYS")]
    seqused_k: Option<i32>,
    /// Rows of a page: K and V lie in pages, in random order [default: contiguous]
    #[arg(long, value_name = "ROWS")]
    page_size: Option<usize>,
    /// Parts that each sequence's keys are split into [default: the planner's choice]
    #[arg(long, value_name = "COUNT")]
    num_splits: Option<usize>,
    /// The kernel's entry, as in decode_f16_m16_d128_w4_s3 [default: the planner's choice]
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Storage type of Q, K, V and O
    #[arg(long, default_value = "f16", value_parser = named(&DType::ALL, DType::name))]
    dtype: DType,
    /// Row i sees key j only if j <= i + keys - seq_q
    #[arg(long)]
    causal: bool,
    /// Factor on Q·Kᵀ before the softmax [default: 1/sqrt(head_dim)]
    #[arg(long, allow_negative_numbers = true)]
    softmax_scale: Option<f32>,
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
    problem: ProblemRecord,
    page_size: Option<usize>,
    plan: PlanRecord,
    num_splits: usize,
    measurement: MeasurementRecord,
    /// Of K and V that the sequences use.
    cache_bytes: u64,
    cache_bytes_per_s: f64,
    copy: Option<CopyRecord>,
    /// 100 · `cache_bytes_per_s` / the copy's bytes per second.
    percent_of_copy: Option<f64>,
    passed: bool,
}

/// A copy within the device's memory.
#[derive(Clone, Copy, Serialize)]
struct CopyRecord {
    /// Read and written together.
    bytes: u64,
    median_s: f64,
    bytes_per_s: f64,
}

/// What was measured.
struct Run {
    measurement: Measurement,
    cache_bytes: u64,
    copy: Option<CopyRecord>,
}

impl Run {
    fn bytes_per_s(&self) -> f64 {
        self.cache_bytes as f64 / self.measurement.times.median()
    }

    fn percent_of_copy(&self) -> Option<f64> {
        self.copy.map(|copy| 100.0 * self.bytes_per_s() / copy.bytes_per_s)
    }
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    let problem = args.problem(session.kind())?;
    session.check_tensors(problem.dense())?;
    let request = DecodeRequest { num_splits: args.num_splits, entry: args.entry.clone() };
    let plan = session.backend.plan_decode(&problem, &request)?;
    let effort = session.effort(&args.measure, ITERATIONS);
    session.check_patience(problem.dense(), 1, &effort, &args.measure)?;

    let note = match (args.seq_k, session.kind()) {
        (None, kind @ (BackendKind::Cpu | BackendKind::Sim)) => {
            format!(" (default for {kind}; a GPU's is Sk={GPU_SEQ_K})")
        }
        _ => String::new(),
    };
    screen.line(format!("decode: Sk={}{note}", problem.dense().seqlen_k()))?;
    session.header(&screen)?;
    screen.line(format!("problem {}", describe(&problem)))?;
    screen.line(format!("plan: {}", plan.reasons.join("; ")))?;
    let run = with_element!(args.dtype, run_in(&session, args, &problem, &plan, &effort, &screen))?;
    print(&screen, &plan, &run)?;
    let document = Document {
        header: Header::new("decode", &session, args.report.seed),
        problem: ProblemRecord::new(problem.dense(), Layout::Bshd),
        page_size: args.page_size,
        plan: PlanRecord::of_decode(&plan),
        num_splits: plan.num_splits,
        measurement: MeasurementRecord::new(problem.dense(), &run.measurement),
        cache_bytes: run.cache_bytes,
        cache_bytes_per_s: run.bytes_per_s(),
        copy: run.copy,
        percent_of_copy: run.percent_of_copy(),
        passed: run.measurement.verdict.passed(),
    };
    args.report.write(&document, &screen)?;
    Ok(document.passed)
}

impl Args {
    fn problem(&self, backend: BackendKind) -> flash_attention::Result<DecodeProblem> {
        let default = match backend {
            BackendKind::Cuda => GPU_SEQ_K,
            BackendKind::Cpu => CPU_SEQ_K,
            BackendKind::Sim => SIM_SEQ_K,
        };
        let shape = Shape {
            batch: self.batch,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.dim,
            seq_q: self.seq_q,
            seq_k: self.seq_k.unwrap_or(default),
            page_size: self.page_size,
            dtype: self.dtype,
            causal: self.causal,
            softmax_scale: self.softmax_scale,
        };
        let problem = shape.problem()?;
        // Refused before the inputs are made, which can take long.
        match self.seqused_k {
            Some(value) if usize::try_from(value).map_or(true, |used| used > problem.dense().seqlen_k()) => {
                Err(Error::SeqUsed { batch: 0, value, limit: problem.dense().seqlen_k() })
            }
            _ => Ok(problem),
        }
    }
}

fn run_in<T: Element>(
    session: &Session,
    args: &Args,
    problem: &DecodeProblem,
    plan: &DecodePlan,
    effort: &Effort,
    screen: &Screen,
) -> Result<Run> {
    let seed = args.report.seed;
    let used = args.seqused_k.map(|used| vec![used; args.batch]);
    let cache = Cache::<T>::random(problem, used, seed);
    let prepared = session.backend.prepare_decode(problem, plan, cache.inputs())?;
    let expected = Expected::of_decode(problem, &cache.inputs(), CHECKED_ROWS, seed);
    let judge = |o: &[T], lse: &[f32]| expected.judge(problem.dense(), DType::F32, o, lse);
    let progress = screen.progress(effort.warmup + effort.iterations, "decode");
    let measurement = measure(prepared, judge, effort, &progress)?;
    let cache_bytes = problem.cache_bytes(&cache.inputs());
    Ok(Run { measurement, cache_bytes, copy: copy(session, effort)? })
}

/// Times a copy within the device's memory, where it has one of its own.
fn copy(session: &Session, effort: &Effort) -> Result<Option<CopyRecord>> {
    let Some(mut copy) = session.backend.device_copy(COPY_BYTES)? else { return Ok(None) };
    let median_s = effort.time(|| copy.time(), || ())?.median();
    let bytes = copy.traffic() as u64;
    Ok(Some(CopyRecord { bytes, median_s, bytes_per_s: bytes as f64 / median_s }))
}

fn print(screen: &Screen, plan: &DecodePlan, run: &Run) -> std::io::Result<()> {
    let times = &run.measurement.times;
    let titles =
        ["splits", "latency", "p20-p80", "runs", "K+V", "TB/s", "of copy", "extra memory", "launches"];
    let mut cells = vec![
        plan.num_splits.to_string(),
        table::seconds(times.median()),
        format!("{} - {}", table::seconds(times.quantile(0.2)), table::seconds(times.quantile(0.8))),
        times.seconds.len().to_string(),
        table::bytes(run.cache_bytes),
        table::significant(run.bytes_per_s() / 1e12),
        run.percent_of_copy().map_or("-".to_owned(), |percent| format!("{percent:.1} %")),
        table::bytes(run.measurement.extra_bytes),
        run.measurement.launches.to_string(),
    ];
    cells.extend(table::verdict_cells(&run.measurement.verdict));
    screen.line("")?;
    screen.line(table::table(&[&titles[..], &table::VERDICT_TITLES].concat(), vec![cells]))?;
    match run.copy {
        Some(copy) => screen.line(format!(
            "copy: {} TB/s, reads and writes of a copy of {} within the device's memory",
            table::significant(copy.bytes_per_s / 1e12),
            table::bytes(copy.bytes / 2)
        )),
        None => Ok(()),
    }
}
