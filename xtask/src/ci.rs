//! `cargo xtask ci`.

use std::env;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use fa_ptx_builder::Workspace;

/// Everything that must pass before a change goes in; stops at the first failure, with its exit code.
#[derive(Args)]
pub(crate) struct Ci {}

/// The steps, as arguments of cargo.
const STEPS: [&[&str]; 6] = [
    &["fmt", "--all", "--check"],
    &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
    &["test", "--workspace"],
    // Every kernel entry in the simulator, each case under eight thread schedules.
    &["run", "-p", "fa-bench", "--", "verify", "--backend", "sim"],
    &["xtask", "bench", "tune", "--check"],
    &["xtask", "kernels", "--check", "--install"],
];

impl Ci {
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<ExitCode> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        for step in STEPS {
            let command = format!("cargo {}", step.join(" "));
            println!("== {command}");
            let start = Instant::now();
            let status = Command::new(&cargo)
                .args(step)
                .current_dir(workspace.root())
                .status()
                .with_context(|| format!("cannot run `{command}`"))?;
            let seconds = start.elapsed().as_secs_f64();
            if !status.success() {
                println!("== {command}: failed after {seconds:.1} s");
                return Ok(code(status.code()));
            }
            println!("== {command}: passed in {seconds:.1} s");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A child's exit code as our own; 1 where a signal ended it.
fn code(status: Option<i32>) -> ExitCode {
    status.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
