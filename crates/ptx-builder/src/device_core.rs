//! `core` for the GPU, built from the compiler's own sources where it has none ready-made.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::process;
use crate::source;
use crate::toolchain::{Compiler, DeviceCore, TARGET};
use crate::workspace::Workspace;

/// rustc wants this crate beside `core`; device code needs nothing of it.
const COMPILER_BUILTINS: &str =
    "#![no_std]\n#![allow(internal_features)]\n#![feature(compiler_builtins)]\n#![compiler_builtins]\n";

/// The folder to pass as `-L` for device code, building `core` on first use; `None` where the
/// compiler finds its own.
///
/// The result is kept under the checkout's `target` folder by compiler version and `target_cpu`; the
/// caller holds [`Workspace::lock_device`].
///
/// # Errors
/// When `core` does not compile, or the folder cannot be written.
pub fn folder(workspace: &Workspace, compiler: &Compiler, target_cpu: &str) -> Result<Option<PathBuf>> {
    let DeviceCore::Source(library) = &compiler.core else {
        return Ok(None);
    };
    let cache = workspace.device().join("core");
    let key = format!("{target_cpu}-{}", &source::hash_bytes(compiler.version.as_bytes())[..16]);
    let folder = cache.join(&key);
    if folder.is_dir() {
        return Ok(Some(folder));
    }
    let staging = cache.join(format!("{key}.partial"));
    if staging.exists() {
        fs::remove_dir_all(&staging).with_context(|| format!("cannot remove {}", staging.display()))?;
    }
    fs::create_dir_all(&staging).with_context(|| format!("cannot make {}", staging.display()))?;
    build(compiler, target_cpu, library, &staging).context("core does not compile for the GPU")?;
    fs::rename(&staging, &folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(Some(folder))
}

fn build(compiler: &Compiler, target_cpu: &str, library: &Path, out: &Path) -> Result<()> {
    let builtins = out.join("compiler_builtins.rs");
    fs::write(&builtins, COMPILER_BUILTINS)
        .with_context(|| format!("cannot write {}", builtins.display()))?;
    for (name, edition, source) in
        [("core", "2024", library.join("core/src/lib.rs")), ("compiler_builtins", "2021", builtins)]
    {
        let mut command = compiler.command();
        command.args([
            "--edition",
            edition,
            "--crate-name",
            name,
            "--crate-type",
            "rlib",
            "--target",
            TARGET,
        ]);
        command.args(["-C", &format!("target-cpu={target_cpu}"), "-C", "opt-level=3", "-C", "panic=abort"]);
        command.args(["-C", "embed-bitcode=yes", "-Z", "force-unstable-if-unmarked", "--cap-lints", "allow"]);
        command.arg("--emit=metadata,link").arg(format!("--remap-path-prefix={}=library", library.display()));
        process::output(command.arg("-L").arg(out).arg("--out-dir").arg(out).arg(source))?;
    }
    Ok(())
}
