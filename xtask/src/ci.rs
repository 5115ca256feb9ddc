//! `cargo xtask test` and `cargo xtask ci`.

use std::env;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use fa_ptx_builder::Workspace;

use crate::comments;

/// Unit, property and command-line tests, and every kernel in the simulator: what to run after a change.
#[derive(Args)]
pub(crate) struct Test {}

/// What must pass beside `test` before a change goes in; stops at the first failure, with its exit code.
#[derive(Args)]
pub(crate) struct Ci {}

/// A program and its arguments.
enum Step {
    Cargo(&'static [&'static str]),
    /// Clippy of the library with these features alone.
    Features(&'static str),
    /// `fa-bench`, as `cargo build --workspace` made it: `cargo run -p` would compile its dependencies again,
    /// with the features of that one package.
    FaBench(&'static [&'static str]),
    /// An example of the library, as `cargo build --workspace --examples` made it.
    Example(&'static str),
    /// The width of comments.
    Comments,
}
use Step::{Cargo, Comments, Example, FaBench, Features};

const TEST: [Step; 1] = [Cargo(&["test", "--workspace"])];

const CI: [Step; 19] = [
    Cargo(&["fmt", "--all", "--check"]),
    Comments,
    Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    // As users build it: without the simulator.
    Cargo(&["clippy", "-p", "fa-bench", "--bins", "--", "-D", "warnings"]),
    // Plans alone, and each backend without the other.
    Features(""),
    Features("cuda,forward"),
    Features("cpu"),
    Cargo(&["doc", "--workspace", "--no-deps"]),
    Cargo(&["build", "--workspace", "--bins"]),
    Cargo(&["build", "--workspace", "--examples"]),
    Example("cpu_attention"),
    // Where there is no GPU it says so, and passes.
    Example("device_pointers"),
    Example("training_step"),
    Example("decode_loop"),
    // Every kernel entry in the simulator, each case under eight thread schedules.
    FaBench(&["verify", "--backend", "sim"]),
    // A bounded share of random problems, the same ones each time.
    FaBench(&["fuzz", "--backend", "cpu", "--runs", "2000", "--seed", "1"]),
    FaBench(&["fuzz", "--backend", "sim", "--runs", "300", "--seed", "1"]),
    Cargo(&["xtask", "bench", "tune", "--check"]),
    Cargo(&["xtask", "kernels", "--check", "--install"]),
];

impl Test {
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<ExitCode> {
        run(workspace, &TEST)
    }
}

impl Ci {
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<ExitCode> {
        run(workspace, &CI)
    }
}

/// Runs steps until one fails, and gives its exit code.
fn run(workspace: &Workspace, steps: &[Step]) -> Result<ExitCode> {
    let start = Instant::now();
    for step in steps {
        let start = Instant::now();
        let Some((mut command, text)) = step.command()? else {
            println!("== the width of comments");
            comments::check(workspace.root())?;
            continue;
        };
        println!("== {text}");
        let status = command.current_dir(workspace.root()).env("RUSTDOCFLAGS", "-D warnings").status();
        let status = status.with_context(|| format!("cannot run `{text}`"))?;
        let seconds = start.elapsed().as_secs_f64();
        if !status.success() {
            println!("== {text}: failed after {seconds:.1} s");
            return Ok(code(status.code()));
        }
        println!("== {text}: passed in {seconds:.1} s");
    }
    println!("== all {} steps passed in {:.1} s", steps.len(), start.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

impl Step {
    /// The command, and how it reads; `None` of what is no program.
    fn command(&self) -> Result<Option<(Command, String)>> {
        let beside = |name: &str| {
            let this = env::current_exe().context("this program does not know where it is")?;
            anyhow::Ok(this.with_file_name(format!("{name}{}", env::consts::EXE_SUFFIX)))
        };
        let cargo = || env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let of_library = |features| {
            let library = ["clippy", "-p", "flash-attention", "--no-default-features"];
            [&library[..], &["--features", features, "--", "-D", "warnings"]].concat()
        };
        let (program, name, arguments) = match self {
            Self::Cargo(arguments) => (cargo(), "cargo", arguments.to_vec()),
            Self::Features(features) => (cargo(), "cargo", of_library(*features)),
            Self::FaBench(arguments) => {
                (beside("fa-bench")?.into_os_string(), "fa-bench", arguments.to_vec())
            }
            Self::Example(name) => (beside(&format!("examples/{name}"))?.into_os_string(), *name, Vec::new()),
            Self::Comments => return Ok(None),
        };
        let mut command = Command::new(program);
        command.args(&arguments);
        Ok(Some((command, [&[name], &arguments[..]].concat().join(" "))))
    }
}

/// A child's exit code as our own; 1 where a signal ended it.
fn code(status: Option<i32>) -> ExitCode {
    status.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
