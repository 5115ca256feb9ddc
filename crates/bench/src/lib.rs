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
mod inputs;
mod json;
mod measure;
mod memory;
mod output;
mod problem;
mod product;
mod record;
mod session;
pub mod sweep;
mod table;
mod timer;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Experiment};

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
    let passed = match &cli.experiment {
        None => experiments::single::run(&cli.single),
        Some(Experiment::Alignment(args)) => experiments::alignment::run(args),
        Some(Experiment::Decode(args)) => experiments::decode::run(args),
        Some(Experiment::Matmul(args)) => experiments::matmul::run(args),
        Some(Experiment::Verify(args)) => experiments::verify::run(args),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: at least one result is outside of its error bound, or missing");
            ExitCode::FAILURE
        }
        Err(error) => failure::report(&error),
    }
}
