//! The experiments: one file each, and one entry each in [`EXPERIMENTS`]. `single` is what runs without a
//! name.

mod alignment;
mod backward;
mod bits;
mod causal;
mod context;
mod cpu;
mod decode;
mod doctor;
mod dtypes;
mod flash;
mod forward;
mod fuzz;
mod generations;
mod layout;
mod matmul;
mod memory;
mod pitfalls;
mod profile;
mod published;
mod roofline;
mod scaling;
mod serve;
pub(crate) mod single;
mod sums;
mod tiles;
mod traffic;
mod verify;

use anyhow::Result;
use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};

use crate::lab::Shared;

/// An experiment that has a name.
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    /// What it shows, in a line.
    pub(crate) help: &'static str,
    /// The arguments that `fa-bench all` gives it; `None` where it takes no part.
    pub(crate) in_all: Option<&'static [&'static str]>,
    augment: fn(Command) -> Command,
    run: fn(&ArgMatches, &mut Shared) -> Result<bool>,
}

impl Experiment {
    /// Its command line.
    pub(crate) fn command(&self) -> Command {
        // Last, in place of what the arguments' own comment says.
        (self.augment)(Command::new(self.name)).about(self.help)
    }

    /// Runs it; false if a result is wrong.
    pub(crate) fn run(&self, matches: &ArgMatches, shared: &mut Shared) -> Result<bool> {
        (self.run)(matches, shared)
    }
}

/// An experiment of the module that has its name, with what [`Experiment`] says of it.
macro_rules! experiment {
    ($module:ident, $in_all:expr, $help:literal) => {
        Experiment {
            name: stringify!($module),
            help: $help,
            in_all: $in_all,
            augment: $module::Args::augment_args,
            run: |matches, shared| $module::run(&$module::Args::from_arg_matches(matches)?, shared),
        }
    };
}

/// The arguments of a grid whose figures README shows.
const PUBLISHED: &[&str] = &["--grid", "published"];

/// Every experiment: those of `fa-bench all` in the order in which they run, the most telling first.
pub(crate) const EXPERIMENTS: [Experiment; 25] = [
    experiment!(
        doctor,
        Some(&[]),
        "What this machine has, which kernels run, and how to get what is missing"
    ),
    experiment!(
        forward,
        Some(PUBLISHED),
        "The forward pass over the sequence length, beside cuDNN, FlashAttention-2 and -4, and PyTorch's default"
    ),
    experiment!(flash, Some(&[]), "Fused against unfused attention over the sequence length"),
    experiment!(scaling, Some(&[]), "How cost grows with the sequence length, with the fitted exponent"),
    experiment!(memory, Some(&[]), "Memory beside Q, K, V and O, as the allocator counts it"),
    experiment!(matmul, Some(&[]), "C = A·B, every kernel of the backend, beside the ceiling of mma.sync"),
    experiment!(alignment, Some(&[]), "head_dim 128 against 129, and the staircase of every head_dim"),
    experiment!(causal, Some(&[]), "What a causal mask costs"),
    experiment!(layout, Some(&[]), "Tensors read through strides against copies to contiguous ones"),
    experiment!(generations, Some(&[]), "Unfused attention and FlashAttention as version 1, 2 and 3 have it"),
    experiment!(dtypes, Some(&[]), "Storage types: speed and error"),
    experiment!(tiles, Some(&[]), "Every built tile that takes the problem"),
    experiment!(roofline, Some(&[]), "Kernels under the roof of bandwidth and arithmetic, both measured"),
    experiment!(
        backward,
        Some(PUBLISHED),
        "Forward and backward pass by recomputation: speed, error of the gradients, memory beside what P would take"
    ),
    experiment!(
        decode,
        Some(&[]),
        "Few queries against a long K/V cache, contiguous or paged: bandwidth beside that of a copy"
    ),
    experiment!(
        traffic,
        Some(&[]),
        "Bytes through device memory, counted by the simulator and by the hardware"
    ),
    experiment!(pitfalls, Some(&[]), "What careless callers lose: waits, copies, small batches, first calls"),
    experiment!(profile, Some(&[]), "Chrome traces of fused and unfused attention"),
    experiment!(
        context,
        None,
        "One problem on several GPUs (context parallelism): of linear, and whether the bits are one GPU's"
    ),
    experiment!(cpu, None, "The forward pass on the CPU, beside PyTorch's on as many threads"),
    experiment!(
        bits,
        None,
        "Whether each run of the backward pass gives the same bits, whatever runs beside it and wherever"
    ),
    experiment!(
        fuzz,
        None,
        "Random problems in memory full of NaN against the f64 reference, and a line that replays each failure"
    ),
    experiment!(
        serve,
        None,
        "A service's requests against the attention kernels: tokens a second, times, share of attention, pages"
    ),
    experiment!(sums, None, "Whether long sums are right: V of ones and around 1 over many keys"),
    experiment!(verify, None, "Checks every built kernel against the f64 reference over awkward shapes"),
];
