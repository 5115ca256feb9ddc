//! From the kernels' sources to one PTX text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::device_core;
use crate::process;
use crate::toolchain::{Compiler, TARGET};
use crate::workspace::Workspace;

/// The flags that shape the PTX, beside the target.
pub const FLAGS: [&str; 12] = [
    "--edition",
    "2024",
    "-C",
    "opt-level=3",
    "-C",
    "panic=abort",
    // One module: its order and its labels depend on nothing else.
    "-C",
    "codegen-units=1",
    // Below 4000 accumulator arrays are not unrolled into registers and land in local memory.
    "-C",
    "llvm-args=-unroll-threshold=100000",
    // It copies barriers into divergent branches, where a block waits for ever.
    "-Z",
    "mir-enable-passes=-JumpThreading",
];

/// The PTX of the kernels for one target, as in `sm_75`, and the file that it was left in. The caller
/// holds [`Workspace::lock_device`].
///
/// # Errors
/// When the sources do not compile: the compiler's messages go to standard error as they are.
pub fn kernels(workspace: &Workspace, compiler: &Compiler, target: &str) -> Result<(String, PathBuf)> {
    let core = device_core::folder(workspace, compiler, target)?;
    let folder = workspace.device().join("build");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(format!("{target}.ptx"));
    let mut command = command(workspace, compiler, target, core.as_deref(), &path);
    let status = command.status().with_context(|| format!("cannot run {}", compiler.rustc.display()))?;
    if !status.success() {
        bail!("the kernels do not compile for {target}");
    }
    Ok((read(&path)?, path))
}

/// The PTX of the entry points that stand in the file `entries`, in place of those of the lists.
/// `core` is [`device_core::folder`]; several of these may run at once, each with files of its own.
///
/// # Errors
/// When it does not compile: one line of the compiler's messages.
pub fn variant(
    workspace: &Workspace,
    compiler: &Compiler,
    target: &str,
    core: Option<&Path>,
    entries: &Path,
) -> Result<String> {
    let path = entries.with_extension("ptx");
    let mut command = command(workspace, compiler, target, core, &path);
    process::output(command.args(["--cfg", "fa_variants"]).env("FA_VARIANTS", entries))?;
    read(&path)
}

fn command(
    workspace: &Workspace,
    compiler: &Compiler,
    target: &str,
    core: Option<&Path>,
    path: &Path,
) -> Command {
    let mut command = compiler.command();
    command.args(FLAGS).args(["--crate-name", "fa_kernels", "--crate-type", "lib", "--emit=asm"]);
    command.args(["--target", TARGET, "-C", &format!("target-cpu={target}")]);
    command.arg(format!("--remap-path-prefix={}=.", workspace.root().display()));
    if let Some(core) = core {
        command.arg("-L").arg(core);
    }
    command.arg(workspace.kernel_sources().join("lib.rs")).arg("-o").arg(path);
    command
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
