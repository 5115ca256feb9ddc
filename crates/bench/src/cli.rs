//! The command line.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use flash_attention::{BackendKind, DType, Kernel};

use crate::experiments::{
    alignment, all, backward, causal, decode, doctor, dtypes, flash, fuzz, generations, layout, matmul,
    memory, pitfalls, profile, roofline, scaling, single, sums, tiles, traffic, verify,
};
use crate::json::Destination;
use crate::peer::Choice;
use crate::problem::Layout;

/// Benchmarks attention kernels: without an experiment's name, all kernels of the backend on one problem.
#[derive(Debug, Parser)]
#[command(
    name = "fa-bench",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) experiment: Option<Experiment>,
    #[command(flatten)]
    pub(crate) single: single::Args,
}

/// The experiments that have a name.
#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Every experiment below but fuzz, sums and verify, one document each in results/<device>
    All(all::Args),
    /// head_dim 128 against 129, and the staircase of every head_dim
    Alignment(Box<alignment::Args>),
    /// Forward and backward pass by recomputation: speed, error of the gradients, memory beside what P would
    /// take
    Backward(backward::Args),
    /// What a causal mask costs
    Causal(causal::Args),
    /// Few queries against a long K/V cache, contiguous or paged: bandwidth beside that of a copy
    Decode(decode::Args),
    /// What this machine has, which kernels run, and how to get what is missing
    Doctor(doctor::Args),
    /// Storage types: speed and error
    Dtypes(dtypes::Args),
    /// Fused against unfused attention over the sequence length
    Flash(flash::Args),
    /// Random problems in memory full of NaN against the f64 reference, and a line that replays each failure
    Fuzz(Box<fuzz::Args>),
    /// Unfused attention and FlashAttention as version 1, 2 and 3 have it
    Generations(generations::Args),
    /// Tensors read through strides against copies to contiguous ones
    Layout(layout::Args),
    /// C = A·B, every kernel of the backend, beside the ceiling of mma.sync
    Matmul(matmul::Args),
    /// Memory beside Q, K, V and O, as the allocator counts it
    Memory(memory::Args),
    /// What careless callers lose: waits, copies, small batches, first calls
    Pitfalls(pitfalls::Args),
    /// Chrome traces of fused and unfused attention
    Profile(profile::Args),
    /// Kernels under the roof of bandwidth and arithmetic, both measured
    Roofline(roofline::Args),
    /// How cost grows with the sequence length, with the fitted exponent
    Scaling(scaling::Args),
    /// Whether long sums are right: V of ones and around 1 over many keys
    Sums(sums::Args),
    /// Every built tile that takes the problem
    Tiles(tiles::Args),
    /// Bytes through device memory, counted by the simulator and by the hardware
    Traffic(traffic::Args),
    /// Checks every built kernel against the f64 reference over awkward shapes
    Verify(verify::Args),
}

/// Where to run.
#[derive(Clone, Debug, Args)]
pub(crate) struct BackendArgs {
    /// Where to run [default: cuda if there is a usable GPU, else cpu]
    #[arg(long, value_parser = named(&BackendKind::ALL, BackendKind::name))]
    pub(crate) backend: Option<BackendKind>,
    /// Which GPU, as the driver counts them
    #[arg(long, value_name = "ORDINAL")]
    pub(crate) device: Option<usize>,
}

/// The problem; what an experiment gives no value for has the default that its help says.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProblemArgs {
    /// Number of sequences
    #[arg(long)]
    pub(crate) batch: Option<usize>,
    /// Query heads
    #[arg(long)]
    pub(crate) heads: Option<usize>,
    /// Key/value heads; they divide the query heads [default: as --heads]
    #[arg(long)]
    pub(crate) kv_heads: Option<usize>,
    /// Query rows of each sequence
    #[arg(long)]
    pub(crate) seq: Option<usize>,
    /// Key rows of each sequence [default: as --seq]
    #[arg(long)]
    pub(crate) kv_seq: Option<usize>,
    /// First query row of each sequence and of what follows the last, of a packed batch, as in 0,100,128
    #[arg(long, value_name = "ROWS", value_delimiter = ',', conflicts_with_all = ["batch", "seq", "kv_seq"])]
    pub(crate) cu_seqlens_q: Vec<u32>,
    /// The same of key rows [default: as --cu-seqlens-q]
    #[arg(long, value_name = "ROWS", value_delimiter = ',', requires = "cu_seqlens_q")]
    pub(crate) cu_seqlens_k: Vec<u32>,
    /// Elements of a row of V and O, 1 to 256 [default: as those of Q and K]
    #[arg(long)]
    pub(crate) dim_v: Option<usize>,
    /// Storage type of Q, K, V and O (e4m3: O in bf16)
    #[arg(long, default_value = "f16", value_parser = named(&DType::ALL, DType::name))]
    pub(crate) dtype: DType,
    /// Order of the axes in memory: batch, seqlen, heads, head_dim
    #[arg(long, default_value = "bshd", value_parser = named(&Layout::ALL, Layout::name))]
    pub(crate) layout: Layout,
    /// Query i sees key j only if j <= i + kv_seq - seq
    #[arg(long)]
    pub(crate) causal: bool,
    /// Query i sees key j only if j >= i + kv_seq - seq - KEYS [default: no limit]
    #[arg(long, value_name = "KEYS", allow_negative_numbers = true, value_parser = window)]
    pub(crate) window_left: Option<usize>,
    /// Query i sees key j only if j <= i + kv_seq - seq + KEYS; --causal makes it 0 [default: no limit]
    #[arg(long, value_name = "KEYS", allow_negative_numbers = true, value_parser = window)]
    pub(crate) window_right: Option<usize>,
    /// Factor on Q·Kᵀ before the softmax [default: 1/sqrt(head_dim)]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) softmax_scale: Option<f32>,
    /// Bend scaled scores s to SOFTCAP * tanh(s / SOFTCAP) before the mask; 0 is off
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) softcap: f32,
    /// Add ALiBi's bias, with the slopes of its paper: 2^(-8 h / heads) for head h = 1, 2, …
    #[arg(long)]
    pub(crate) alibi: bool,
    /// Probability that a weight of the softmax is dropped, 0 to below 1
    #[arg(long, value_name = "PROBABILITY")]
    pub(crate) dropout: Option<f32>,
}

/// Which kernel.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct KernelArgs {
    /// The only kernel to run
    #[arg(long, value_parser = named(&Kernel::ALL, Kernel::name))]
    pub(crate) kernel: Option<Kernel>,
    /// BLOCK_M, query rows of a tile [default: the planner's choice]
    #[arg(long, value_name = "ROWS")]
    pub(crate) block_m: Option<usize>,
    /// BLOCK_N, key rows of a step [default: the planner's choice]
    #[arg(long, value_name = "ROWS")]
    pub(crate) block_n: Option<usize>,
}

/// How to measure.
#[derive(Clone, Debug, Args)]
pub(crate) struct MeasureArgs {
    /// Untimed runs before the timed ones [default: 10; sim: 0]
    #[arg(long, value_name = "RUNS")]
    pub(crate) warmup: Option<usize>,
    /// Timed runs [default: 50, or 20 where runs are long or many; alignment: 100; sim: 1]
    #[arg(long, value_name = "RUNS", value_parser = at_least_one)]
    pub(crate) iterations: Option<usize>,
    /// Seconds per kernel after which no run is begun, once the least number of runs is there
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) budget: f64,
    /// Run on the simulator however long it may take
    #[arg(long)]
    pub(crate) force: bool,
}

/// What the inputs are and where the results go.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    /// Names the random inputs
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON document in place of the table, or write it to PATH beside the table
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-", value_parser = destination)]
    pub(crate) json: Option<Destination>,
}

/// What every experiment of the lab takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct LabArgs {
    /// Also run PyTorch's kernels, in turns with these, in the Python named [default: python3]
    #[arg(long, value_name = "torch[=PYTHON]", value_parser = Choice::parse)]
    pub(crate) peer: Option<Choice>,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// The problem of an experiment that varies one of its sizes.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShapeArgs {
    /// Number of sequences
    #[arg(long)]
    pub(crate) batch: Option<usize>,
    /// Heads of Q, K and V
    #[arg(long)]
    pub(crate) heads: Option<usize>,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256
    #[arg(long, alias = "head-dim")]
    pub(crate) dim: Option<usize>,
    /// Storage type of Q, K, V and O (e4m3: O in bf16)
    #[arg(long, default_value = "f16", value_parser = named(&DType::ALL, DType::name))]
    pub(crate) dtype: DType,
}

/// Parses the values that `name` names.
pub(crate) fn named<T>(all: &'static [T], name: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(|&value| name(value))).try_map(move |text| {
        all.iter().copied().find(|&value| name(value) == text).ok_or("not one of the values")
    })
}

fn destination(text: &str) -> Result<Destination, String> {
    Destination::parse(text)
}

fn window(text: &str) -> Result<usize, String> {
    text.parse().map_err(|error| format!("{error}; a side of the window is 0 or more keys, or left out"))
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1 is needed".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=1e6).contains(&seconds) => Ok(seconds),
        Ok(_) => Err("0 to 1000000 seconds".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
