//! Every experiment, one document each in a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use crate::cli::{BackendArgs, Cli, named, seconds};
use crate::failure;
use crate::interrupt::Interrupted;
use crate::lab::Shared;
use crate::output::Screen;
use crate::peer::Choice;
use crate::session::{REVISION, Session};
use crate::sweep::folder_name;
use flash_attention::{Backend, BackendKind};

/// The experiments of `fa-bench all`, in the order in which they run: first what a reader looks at first.
pub const EXPERIMENTS: [&str; 17] = [
    "doctor",
    "flash",
    "scaling",
    "memory",
    "matmul",
    "alignment",
    "causal",
    "layout",
    "generations",
    "dtypes",
    "tiles",
    "roofline",
    "backward",
    "decode",
    "traffic",
    "pitfalls",
    "profile",
];

/// Arguments of `all`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Also run PyTorch's kernels, in turns with these, in the Python named [default: python3]
    #[arg(long, value_name = "torch[=PYTHON]", value_parser = Choice::parse_text)]
    peer: Option<String>,
    /// Where to run [default: cuda if there is a usable GPU, else cpu]
    #[arg(long, value_parser = named(&[BackendKind::Cuda, BackendKind::Cpu], BackendKind::name))]
    backend: Option<BackendKind>,
    /// Which GPU, as the driver counts them
    #[arg(long, value_name = "ORDINAL")]
    device: Option<usize>,
    /// Seconds per kernel after which no run is begun, once the least number of runs is there
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    budget: f64,
    /// Names the random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The folder of the documents [default: results/<device>]
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Only these experiments, as in flash,memory
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(EXPERIMENTS))]
    only: Vec<String>,
}

/// Runs them all; false if a result is wrong or an experiment failed.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    let screen = Screen::stdout();
    let session = Session::open(&BackendArgs { backend: args.backend, device: args.device })?;
    let device = session.device();
    let folder = match &args.results {
        Some(folder) => folder.clone(),
        None => PathBuf::from("results").join(folder_name(&device.name)),
    };
    fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    let can_count = Backend::open(Some(BackendKind::Sim)).is_ok();
    let wanted = |name: &&&str| match args.only.as_slice() {
        [] => can_count || **name != "traffic",
        only => only.iter().any(|only| only == **name),
    };
    let chosen: Vec<_> = EXPERIMENTS.iter().filter(wanted).collect();
    let smaller = if device.backend == BackendKind::Cuda { "" } else { ", at smaller sizes than on a GPU" };
    screen.line(format!(
        "all: {} experiments on {} (revision {REVISION}) into {}{smaller}",
        chosen.len(),
        device.describe(),
        folder.display()
    ))?;
    if !can_count && args.only.is_empty() {
        screen
            .line("traffic is left out: it counts in the simulator, which the feature `simulator` builds")?;
    }
    drop(session);
    let (start, mut failed) = (Instant::now(), Vec::new());
    for name in chosen {
        let begun = Instant::now();
        screen.line("")?;
        let right = match one(args, name, &folder, shared) {
            Err(error) if error.chain().any(|cause| cause.is::<Interrupted>()) => return Err(error),
            Err(error) => {
                // What remains may still run.
                failure::say(&error);
                false
            }
            Ok(right) => right,
        };
        if !right {
            failed.push(*name);
        }
        screen.line(format!("{name} took {:.1} s", begun.elapsed().as_secs_f64()))?;
    }
    screen.line(format!("\nall took {:.1} s", start.elapsed().as_secs_f64()))?;
    if !failed.is_empty() {
        screen.line(format!("not right: {}", failed.join(", ")))?;
    }
    screen.line(format!("`cargo xtask report {}` makes the report", folder.display()))?;
    Ok(failed.is_empty())
}

/// One experiment, as a command line of its own would run it.
fn one(args: &Args, name: &str, folder: &Path, shared: &mut Shared) -> Result<bool> {
    let mut words = vec!["fa-bench".to_owned(), name.to_owned()];
    let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    if let Some(kind) = args.backend {
        option("backend", kind.name().to_owned());
    }
    if let Some(device) = args.device {
        option("device", device.to_string());
    }
    option("budget", args.budget.to_string());
    option("seed", args.seed.to_string());
    if let Some(peer) = &args.peer {
        option("peer", peer.clone());
    }
    shared.command = words.join(" ");
    let path = folder.join(format!("{name}.json"));
    words.extend(["--json".to_owned(), path.display().to_string()]);
    if name == "profile" {
        words.extend(["--traces".to_owned(), folder.display().to_string()]);
    }
    let cli = Cli::try_parse_from(&words).map_err(|error| failure::usage(failure::one_line(&error)))?;
    crate::run(&cli, shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_a_command_that_takes_what_all_gives_it() {
        for name in EXPERIMENTS {
            let words = [
                "fa-bench",
                name,
                "--backend",
                "cpu",
                "--budget",
                "1",
                "--seed",
                "2",
                "--peer",
                "torch",
                "--json",
                "x",
            ];
            Cli::try_parse_from(words).unwrap();
        }
    }
}
