//! Project tasks, as in `cargo xtask kernels`.
//!
//! Exit code 0: done. 1: a task failed, said in one line. 2: wrong usage. `test` and `ci` end with the code
//! of the step that failed.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
mod candle;
mod ci;
mod comments;
mod kernels;
mod mutants;
mod python;
mod release;
mod report;
mod toolchain;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use fa_ptx_builder::Workspace;

/// Project tasks.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Toolchain(toolchain::Toolchain),
    Kernels(kernels::Kernels),
    Mutants(mutants::Mutants),
    Bench(bench::Bench),
    Report(report::Report),
    Release(release::Release),
    Test(ci::Test),
    Ci(ci::Ci),
}

fn main() -> ExitCode {
    match run(&Arguments::parse().task) {
        Ok(code) => code,
        Err(error) => fa_bench::failure::report(&error),
    }
}

fn run(task: &Task) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = Workspace::new(root.parent().unwrap_or(root));
    match task {
        Task::Toolchain(task) => task.run(&workspace).map(|()| ExitCode::SUCCESS),
        Task::Kernels(task) => task.run(&workspace).map(|()| ExitCode::SUCCESS),
        Task::Bench(task) => Ok(match task.run(&workspace)? {
            true => ExitCode::SUCCESS,
            false => {
                eprintln!("error: at least one tile that was built does not run or is wrong");
                ExitCode::FAILURE
            }
        }),
        Task::Report(task) => task.run().map(|()| ExitCode::SUCCESS),
        Task::Release(task) => task.run(&workspace),
        Task::Test(task) => task.run(&workspace),
        Task::Mutants(task) => task.run(&workspace),
        Task::Ci(task) => task.run(&workspace),
    }
}
