//! The command line: an experiment by its name, all of them, or one problem without a name.

use anyhow::Result;
use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};

use crate::all;
use crate::experiments::{EXPERIMENTS, single};
use crate::lab::Shared;

/// The name under which all experiments run.
const ALL: &str = "all";

/// The command line of `fa-bench`: its experiments and their arguments.
pub fn command() -> Command {
    // Each `about` stands in place of what the arguments' own comment says.
    let everything = all::Args::augment_args(Command::new(ALL))
        .about("Every experiment that the report shows, one document each in results/<device>");
    single::Args::augment_args(Command::new("fa-bench"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Benchmarks attention kernels: without an experiment's name, all kernels of the backend on one problem")
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .arg_required_else_help(true)
        .subcommand(everything)
        .subcommands(EXPERIMENTS.iter().map(|experiment| experiment.command()))
}

/// Runs what a command line asks for; false if a result is wrong.
///
/// # Errors
/// When an argument is at fault, or the experiment fails.
pub(crate) fn run(matches: &ArgMatches, shared: &mut Shared) -> Result<bool> {
    match matches.subcommand() {
        Some((ALL, matches)) => all::run(&all::Args::from_arg_matches(matches)?, shared),
        Some((name, matches)) => match EXPERIMENTS.iter().find(|experiment| experiment.name == name) {
            Some(experiment) => experiment.run(matches, shared),
            None => anyhow::bail!("{name} is no experiment"),
        },
        None => single::run(&single::Args::from_arg_matches(matches)?, shared),
    }
}
