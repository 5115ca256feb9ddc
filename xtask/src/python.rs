//! The Python package, as cargo built its native half.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Where CI builds the package's native half, which has a lock file of its own.
pub(crate) const TARGET: &str = "target/python";

/// The oldest Python that the package imports in.
const OLDEST: &str = "import sys; sys.exit(sys.version_info < (3, 10))";

/// Lays the package out with the extension that was built, and runs its doctor, and its tests where pytest
/// and numpy are there. Without a Python that is new enough it says so, and passes.
///
/// # Errors
/// When a file cannot be copied, and when the doctor or a test fails.
pub(crate) fn check(root: &Path) -> Result<()> {
    let package = root.join(TARGET).join("package");
    lay_out(root, &package)?;
    let python = |arguments: &[&str]| {
        let mut command = Command::new("python3");
        command.args(arguments).current_dir(root);
        command.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let has = |code| {
        let quiet = python(&["-c", code]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    };
    let run = |arguments: &[&str]| {
        let status = python(arguments).status().context("cannot run python3")?;
        if status.success() { Ok(()) } else { bail!("python3 {}: {status}", arguments.join(" ")) }
    };
    if !has(OLDEST) {
        println!("no python3 of 3.10 or later: the package was built, and not run");
        return Ok(());
    }
    run(&["-m", "flash_attention_rs.doctor"])?;
    if has("import numpy, pytest") {
        return run(&["-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests"]);
    }
    println!("no numpy or no pytest: the package's tests were not run");
    Ok(())
}

/// Copies the Python files and the extension into an empty folder.
fn lay_out(root: &Path, package: &Path) -> Result<()> {
    let (source, to) = (root.join("python/flash_attention_rs"), package.join("flash_attention_rs"));
    let shown = || format!("cannot write {}", to.display());
    if package.exists() {
        fs::remove_dir_all(package).with_context(shown)?;
    }
    fs::create_dir_all(&to).with_context(shown)?;
    for entry in fs::read_dir(&source).with_context(|| format!("cannot read {}", source.display()))? {
        let path = entry.with_context(shown)?.path();
        if path.extension() == Some(OsStr::new("py")) {
            fs::copy(&path, to.join(path.file_name().unwrap_or_default())).with_context(shown)?;
        }
    }
    let built = root.join(TARGET).join("debug").join(format!("{DLL_PREFIX}_native{DLL_SUFFIX}"));
    let extension = if cfg!(windows) { "_native.pyd" } else { "_native.abi3.so" };
    fs::copy(&built, to.join(extension)).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(())
}
