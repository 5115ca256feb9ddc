//! `cargo xtask test` and `cargo xtask ci`.

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use fa_ptx_builder::Workspace;

use crate::{candle, comments, python};

/// Unit, property and command-line tests, and every kernel in the simulator: what to run after a change.
#[derive(Args)]
pub(crate) struct Test {}

/// What must pass beside `test` before a change goes in; stops at the first failure, with its exit code.
#[derive(Args)]
pub(crate) struct Ci {}

/// A program and its arguments.
enum Step {
    Cargo(&'static [&'static str]),
    /// `fa-bench`, as `cargo build --workspace` made it: `cargo run -p` would compile its dependencies again,
    /// with the features of that one package.
    FaBench(&'static [&'static str]),
    /// An example of the library, as `cargo build --workspace --examples` made it.
    Example(&'static str),
    /// What this program does by itself, and how it reads.
    Task(fn(&Path) -> Result<()>, &'static str),
}
use Step::{Cargo, Example, FaBench, Task};

const TEST: [Step; 1] = [Cargo(&["test", "--workspace"])];

/// The library without what it has by default.
const LIBRARY: &str = "--package=flash-attention";
const ALONE: &str = "--no-default-features";

/// The manifest of the Python package, a workspace of its own, and where that is built: [`python::TARGET`].
const PYTHON: &str = "--manifest-path=python/Cargo.toml";
const IN_PYTHON: &str = "--target-dir=target/python";

/// The manifests of the candle crate and its demonstration, workspaces of their own, and where they are
/// built.
const CANDLE: &str = "--manifest-path=crates/candle/Cargo.toml";
const CANDLE_DEMO: &str = "--manifest-path=demos/candle-transformers/Cargo.toml";
const IN_CANDLE: &str = "--target-dir=target/candle";

/// The manifest of the program with score functions of its own, likewise.
const FUNCTIONS: &str = "--manifest-path=demos/score-functions/Cargo.toml";
const IN_FUNCTIONS: &str = "--target-dir=target/score-functions";

const CI: [Step; 33] = [
    Cargo(&["fmt", "--all", "--check"]),
    Task(comments::check, "the width of comments"),
    Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    // As users build it: without the simulator.
    Cargo(&["clippy", "-p", "fa-bench", "--bins", "--", "-D", "warnings"]),
    // Plans alone, and each backend without the other.
    Cargo(&["clippy", LIBRARY, ALONE, "--", "-D", "warnings"]),
    Cargo(&["clippy", LIBRARY, ALONE, "--features=cuda,forward", "--", "-D", "warnings"]),
    Cargo(&["clippy", LIBRARY, ALONE, "--features=cpu", "--", "-D", "warnings"]),
    Cargo(&["doc", "--workspace", "--no-deps"]),
    Cargo(&["build", "--workspace", "--bins"]),
    Cargo(&["build", "--workspace", "--examples"]),
    Example("cpu_attention"),
    // Where there is no GPU it says so, and passes.
    Example("device_pointers"),
    Example("several_gpus"),
    Example("training_on_several_gpus"),
    Example("training_step"),
    Example("decode_loop"),
    // Every kernel entry in the simulator, each case under eight thread schedules.
    FaBench(&["verify", "--backend", "sim"]),
    // A bounded share of random problems, the same ones each time.
    FaBench(&["fuzz", "--backend", "cpu", "--runs", "2000", "--seed", "1"]),
    FaBench(&["fuzz", "--backend", "sim", "--runs", "300", "--seed", "1"]),
    Cargo(&["fmt", PYTHON, "--check"]),
    Cargo(&["clippy", PYTHON, "--locked", IN_PYTHON, "--", "-D", "warnings"]),
    Cargo(&["build", PYTHON, "--locked", IN_PYTHON]),
    Task(python::check, "the Python package"),
    Cargo(&["fmt", CANDLE, "--check"]),
    Cargo(&["fmt", CANDLE_DEMO, "--check"]),
    Cargo(&["clippy", CANDLE, "--locked", IN_CANDLE, "--all-targets", "--", "-D", "warnings"]),
    Cargo(&["test", CANDLE, "--locked", IN_CANDLE]),
    Task(candle::check_cuda, "candle on CUDA"),
    Cargo(&["xtask", "bench", "tune", "--check"]),
    Cargo(&["xtask", "kernels", "--check", "--install"]),
    // With the toolchain that the last step has put in place.
    Cargo(&["fmt", FUNCTIONS, "--check"]),
    Cargo(&["clippy", FUNCTIONS, "--locked", IN_FUNCTIONS, "--", "-D", "warnings"]),
    Cargo(&["run", FUNCTIONS, "--locked", IN_FUNCTIONS]),
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
        let (start, text) = (Instant::now(), step.text());
        println!("== {text}");
        let status = step.run(workspace.root())?;
        let seconds = start.elapsed().as_secs_f64();
        if status != Some(0) {
            println!("== {text}: failed after {seconds:.1} s");
            return Ok(code(status));
        }
        println!("== {text}: passed in {seconds:.1} s");
    }
    println!("== all {} steps passed in {:.1} s", steps.len(), start.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

impl Step {
    /// How it reads.
    fn text(&self) -> String {
        let (name, arguments) = match self {
            Cargo(arguments) => ("cargo", *arguments),
            FaBench(arguments) => ("fa-bench", *arguments),
            Example(name) | Task(_, name) => (*name, &[][..]),
        };
        [&[name], arguments].concat().join(" ")
    }

    /// Runs it in the workspace, and gives its exit code; none where a signal ended it.
    fn run(&self, root: &Path) -> Result<Option<i32>> {
        let beside = |name: &str| {
            let this = env::current_exe().context("this program does not know where it is")?;
            anyhow::Ok(this.with_file_name(format!("{name}{}", env::consts::EXE_SUFFIX)).into_os_string())
        };
        let (program, arguments) = match self {
            Cargo(arguments) => (env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), *arguments),
            FaBench(arguments) => (beside("fa-bench")?, *arguments),
            Example(name) => (beside(&format!("examples/{name}"))?, &[][..]),
            Task(task, _) => return task(root).map(|()| Some(0)),
        };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(root).env("RUSTDOCFLAGS", "-D warnings");
        // The Python package builds for the stable ABI of no Python in particular: there may be none.
        command.env("PYO3_NO_PYTHON", "1");
        Ok(command.status().with_context(|| format!("cannot run `{}`", self.text()))?.code())
    }
}

/// A child's exit code as our own; 1 where a signal ended it.
fn code(status: Option<i32>) -> ExitCode {
    status.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
