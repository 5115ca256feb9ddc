//! The half of the candle crates that needs nvcc.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Manifests of what uses candle on GPUs, and arguments beside those of each Clippy.
const PACKAGES: [(&str, &[&str]); 2] = [
    ("crates/candle/Cargo.toml", &["--features", "cuda", "--all-targets"]),
    ("demos/candle-transformers/Cargo.toml", &[]),
];

/// Lints it. Without an nvcc in PATH it says so, and passes.
///
/// # Errors
/// When there is something to say, or candle does not build.
pub(crate) fn check_cuda(root: &Path) -> Result<()> {
    let nvcc = Command::new("nvcc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !nvcc.is_ok_and(|status| status.success()) {
        println!("no nvcc in PATH: candle-flash-attention was not compiled for CUDA");
        return Ok(());
    }
    // Where there is no GPU to ask, candle compiles its kernels for this one.
    let capability = env::var_os("CUDA_COMPUTE_CAP").unwrap_or_else(|| "90".into());
    for (manifest, arguments) in PACKAGES {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["clippy", "--locked", "--target-dir=target/candle", "--manifest-path", manifest]);
        command.args(arguments).args(["--", "-D", "warnings"]);
        command.current_dir(root).env("CUDA_COMPUTE_CAP", &capability);
        let status = command.status().context("cannot run cargo clippy")?;
        if !status.success() {
            bail!("cargo clippy of {manifest}: {status}");
        }
    }
    Ok(())
}
