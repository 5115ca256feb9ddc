//! Benchmarks of attention kernels: one problem, one of the experiments, or a sweep over tiles.
//!
//! `README.md` beside this crate describes the output and the JSON document. The experiments are the program
//! `fa-bench`; the sweep is `cargo xtask bench sweep`, which brings the device build.
#![cfg_attr(test, allow(clippy::unwrap_used))]

/// The code of README.md is compiled, and run, as its readers would.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod all;
mod args;
mod bytes;
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

pub use all::EXPERIMENTS;
pub use cli::command;

/// The program `fa-bench`.
pub fn main() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
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
    match cli::run(&matches, &mut shared) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: at least one result is outside of its error bound, or missing");
            ExitCode::FAILURE
        }
        Err(error) => failure::report(&error),
    }
}
