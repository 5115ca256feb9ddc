//! Benchmarks of attention kernels: one problem, or one of the experiments.
//!
//! `README.md` beside this crate describes the output and the JSON document.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod check;
mod cli;
mod experiments;
mod failure;
mod inputs;
mod json;
mod measure;
mod memory;
mod output;
mod problem;
mod product;
mod record;
mod session;
mod table;
mod timer;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Experiment};

fn main() -> ExitCode {
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
