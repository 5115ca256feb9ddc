//! Benchmarks of attention kernels: one problem, one of the experiments, or a sweep over tiles.
//!
//! `README.md` beside this crate describes the output and the JSON document. The experiments are the program
//! `fa-bench`; the sweep is `cargo xtask bench sweep`, which brings the device build.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod check;
mod cli;
mod decode;
mod experiments;
pub mod failure;
mod gradients;
pub mod heap;
mod inputs;
mod interrupt;
mod json;
pub mod lab;
mod measure;
mod memory;
mod nvtx;
mod output;
mod peer;
mod problem;
mod product;
mod record;
mod session;
pub mod sweep;
mod table;
mod timer;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use cli::{Cli, Experiment};
pub use experiments::all::EXPERIMENTS;

/// The command line of `fa-bench`: its experiments and their arguments.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The program `fa-bench`.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(request) if !request.use_stderr() => {
            // Help or version; if stdout is closed, there is nobody to tell.
            let _ = request.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{}", failure::one_line(&error));
            return ExitCode::from(2);
        }
    };
    let mut shared = lab::Shared { peer: None, command: lab::command(std::env::args()) };
    match run(&cli, &mut shared) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: at least one result is outside of its error bound, or missing");
            ExitCode::FAILURE
        }
        Err(error) => failure::report(&error),
    }
}

/// Runs the experiment of a command line; false if a result is wrong.
fn run(cli: &Cli, shared: &mut lab::Shared) -> anyhow::Result<bool> {
    match &cli.experiment {
        None => experiments::single::run(&cli.single, shared),
        Some(Experiment::All(args)) => experiments::all::run(args, shared),
        Some(Experiment::Alignment(args)) => experiments::alignment::run(args, shared),
        Some(Experiment::Backward(args)) => experiments::backward::run(args, shared),
        Some(Experiment::Causal(args)) => experiments::causal::run(args, shared),
        Some(Experiment::Decode(args)) => experiments::decode::run(args, shared),
        Some(Experiment::Doctor(args)) => experiments::doctor::run(args, shared),
        Some(Experiment::Dtypes(args)) => experiments::dtypes::run(args, shared),
        Some(Experiment::Flash(args)) => experiments::flash::run(args, shared),
        Some(Experiment::Fuzz(args)) => experiments::fuzz::run(args, shared),
        Some(Experiment::Generations(args)) => experiments::generations::run(args, shared),
        Some(Experiment::Layout(args)) => experiments::layout::run(args, shared),
        Some(Experiment::Matmul(args)) => experiments::matmul::run(args, shared),
        Some(Experiment::Memory(args)) => experiments::memory::run(args, shared),
        Some(Experiment::Pitfalls(args)) => experiments::pitfalls::run(args, shared),
        Some(Experiment::Profile(args)) => experiments::profile::run(args, shared),
        Some(Experiment::Roofline(args)) => experiments::roofline::run(args, shared),
        Some(Experiment::Scaling(args)) => experiments::scaling::run(args, shared),
        Some(Experiment::Tiles(args)) => experiments::tiles::run(args, shared),
        Some(Experiment::Traffic(args)) => experiments::traffic::run(args, shared),
        Some(Experiment::Sums(args)) => experiments::sums::run(args),
        Some(Experiment::Verify(args)) => experiments::verify::run(args),
    }
}
