//! `cargo xtask bench`: the tuning loop.

mod sweep;
mod tune;

use anyhow::Result;
use clap::{Args, Subcommand};
use fa_ptx_builder::Workspace;

/// Sweep a kernel's tiles, and make the planner's table from the results.
#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Sweep(Box<fa_bench::sweep::Args>),
    Tune(tune::Tune),
}

impl Bench {
    /// False where a tile failed.
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<bool> {
        match &self.task {
            Task::Sweep(args) => sweep::run(args, workspace),
            Task::Tune(task) => task.run(workspace).map(|()| true),
        }
    }
}

/// The folder of all results: that of the checkout, or where this program was carried elsewhere, of the
/// working directory.
fn results(workspace: &Workspace) -> std::path::PathBuf {
    let folder = workspace.root().join("results");
    if workspace.root().is_dir() { folder } else { "results".into() }
}
