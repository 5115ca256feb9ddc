//! Every experiment, one document each in a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::args::{BackendArgs, Choice, named, seconds};
use crate::experiments::{EXPERIMENTS as TABLE, Experiment};
use crate::failure;
use crate::interrupt::Interrupted;
use crate::lab::Shared;
use crate::output::Screen;
use crate::session::{REVISION, Session};
use crate::sweep::folder_name;
use flash_attention::{Backend, BackendKind};

/// The names of the experiments of `fa-bench all`, in the order in which they run.
pub const EXPERIMENTS: [&str; count()] = names();

const fn count() -> usize {
    let (mut count, mut index) = (0, 0);
    while index < TABLE.len() {
        count += TABLE[index].in_all.is_some() as usize;
        index += 1;
    }
    count
}

const fn names() -> [&'static str; count()] {
    let (mut names, mut count, mut index) = ([""; count()], 0, 0);
    while index < TABLE.len() {
        if TABLE[index].in_all.is_some() {
            names[count] = TABLE[index].name;
            count += 1;
        }
        index += 1;
    }
    names
}

/// Arguments of `all`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Also run PyTorch's kernels and FlashAttention-4, in turns with these, in the Python named [default:
    /// python3]
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
    let chosen = chosen(&args.only, can_count);
    let smaller = if device.backend == BackendKind::Cuda { "" } else { ", at smaller sizes than on a GPU" };
    screen.line(format!(
        "all: {} experiments on {} (revision {REVISION}) into {}{smaller}",
        chosen.len(),
        device.describe(),
        folder.display()
    ))?;
    if !can_count && args.only.is_empty() {
        screen.line("traffic is left out: it counts in the simulator, which the feature `sim` builds")?;
    }
    drop(session);
    let (start, mut failed) = (Instant::now(), Vec::new());
    for experiment in chosen {
        let (begun, name) = (Instant::now(), experiment.name);
        screen.line("")?;
        let right = match one(args, experiment, &folder, shared) {
            Err(error) if error.chain().any(|cause| cause.is::<Interrupted>()) => return Err(error),
            Err(error) => {
                // What remains may still run.
                failure::say(&error);
                false
            }
            Ok(right) => right,
        };
        if !right {
            failed.push(name);
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

/// The experiments named, or without a name all: `traffic` only where the simulator can count.
fn chosen(only: &[String], can_count: bool) -> Vec<&'static Experiment> {
    let wanted = |experiment: &&Experiment| match only {
        [] => experiment.in_all.is_some() && (can_count || experiment.name != "traffic"),
        only => only.iter().any(|only| only == experiment.name),
    };
    TABLE.iter().filter(wanted).collect()
}

/// One experiment, as if its command line were typed.
fn one(args: &Args, experiment: &Experiment, folder: &Path, shared: &mut Shared) -> Result<bool> {
    let mut words = vec!["fa-bench".to_owned(), experiment.name.to_owned()];
    words.extend(experiment.in_all.unwrap_or_default().iter().map(|&word| word.to_owned()));
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
    let path = folder.join(format!("{}.json", experiment.name));
    words.extend(["--json".to_owned(), path.display().to_string()]);
    if experiment.name == "profile" {
        words.extend(["--traces".to_owned(), folder.display().to_string()]);
    }
    let matches = experiment.command().try_get_matches_from(&words[1..]);
    experiment.run(&matches.map_err(|error| failure::usage(failure::one_line(&error)))?, shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_a_command_that_takes_what_all_gives_it() {
        for experiment in chosen(&[], true) {
            let name = experiment.name;
            let given =
                ["--backend", "cpu", "--budget", "1", "--seed", "2", "--peer", "torch", "--json", "x"];
            let words = [&[name], experiment.in_all.unwrap(), &given].concat();
            experiment.command().try_get_matches_from(words).unwrap();
        }
        assert_eq!(chosen(&[], true).len(), EXPERIMENTS.len());
    }

    #[test]
    fn no_name_stands_twice() {
        let mut names: Vec<_> = TABLE.iter().map(|experiment| experiment.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }
}
