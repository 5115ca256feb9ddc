//! Arguments that experiments share, and how their values are read.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use flash_attention::{BackendKind, Kernel, Request};

use crate::json::Destination;

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
    /// Choose the tile whatever the batch, so that a sequence has the same bits in any
    #[arg(long)]
    pub(crate) batch_invariant: bool,
}

impl KernelArgs {
    /// What is asked of the planner.
    pub(crate) const fn request(self) -> Request {
        let Self { kernel, block_m, block_n, batch_invariant } = self;
        Request { kernel, block_m, block_n, batch_invariant }
    }
}

/// How to measure.
#[derive(Clone, Debug, Args)]
pub(crate) struct MeasureArgs {
    /// Untimed runs before the timed ones [default: 10; sim: 0]
    #[arg(long, value_name = "RUNS")]
    pub(crate) warmup: Option<usize>,
    /// Timed runs [default: 50, or 20 to 30 where runs are long or many; alignment: 100; sim: 1]
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
    /// Also run PyTorch's kernels and FlashAttention-4, in turns with these, in the Python named [default:
    /// python3]
    #[arg(long, value_name = "torch[=PYTHON]", value_parser = Choice::parse)]
    pub(crate) peer: Option<Choice>,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Which peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The Python that has PyTorch.
    pub(crate) python: String,
}

impl Choice {
    /// `torch`, or `torch=PYTHON`.
    ///
    /// # Errors
    /// When it is neither.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "torch" => Ok(Self { python: "python3".to_owned() }),
            Some(("torch", python)) if !python.is_empty() => Ok(Self { python: python.to_owned() }),
            _ => Err("torch or torch=PYTHON is possible".to_owned()),
        }
    }

    /// The text itself, if it is a choice.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub(crate) fn parse_text(text: &str) -> Result<String, String> {
        Self::parse(text).map(|_| text.to_owned())
    }
}

/// Problems that an experiment runs in place of the one that its other arguments describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    /// Those whose figures README and the logs show.
    Published,
}

impl Grid {
    pub(crate) const ALL: [Self; 1] = [Self::Published];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
        }
    }
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
