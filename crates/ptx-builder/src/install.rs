//! Putting a device toolchain in place without root.
//!
//! Everything is unpacked into a folder of another name and renamed at the end, so that an
//! interrupted install leaves nothing that looks complete.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::toolchain::{self, Compiler, PTXAS_VERSION, Ptxas, TARGET};
use crate::workspace::Workspace;

/// The compiler, and the sources of its `core`.
const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];

/// Writes the one member of a wheel that we need: the wheel is 40 MB of other tools.
const EXTRACT_PTXAS: &str = "\
import os, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name = next(name for name in wheel.namelist() if name.endswith('/bin/ptxas'))
open(sys.argv[2], 'wb').write(wheel.read(name))
os.chmod(sys.argv[2], 0o755)
";

/// Installs the target's libraries for the toolchain that rustup uses in this checkout.
///
/// # Errors
/// When rustup is absent or cannot install the target.
pub fn rustup(workspace: &Workspace) -> Result<()> {
    let mut command = Command::new("rustup");
    command.args(["target", "add", TARGET]).current_dir(workspace.root());
    process::output(&mut command).context("rustup cannot install the GPU target")?;
    Ok(())
}

/// Unpacks Debian's rustc-web, what it needs to run, and its sources, under the checkout's `target`
/// folder. Does nothing where that has been done.
///
/// # Errors
/// When apt is absent, has no package lists, or cannot fetch; the line says what to do.
pub fn debian(workspace: &Workspace) -> Result<()> {
    let device = workspace.device();
    let _lock = workspace.lock_device()?;
    let prefix = toolchain::debian_prefix(&device);
    if Compiler::unpacked(&prefix).is_ok_and(|compiler| compiler.is_some()) {
        return Ok(());
    }
    for tool in ["apt-get", "apt-cache", "dpkg-deb", "dpkg-query", "tar"] {
        require(tool, "this is no Debian; use `cargo xtask toolchain --rustup`")?;
    }
    refresh_package_lists()?;
    let staging = fresh(device.join("debian.partial"))?;
    let downloads = fresh(device.join("debian.download"))?;
    download(&packages()?, &downloads)?;
    for package in files(&downloads)? {
        unpack(&package, &staging)?;
    }
    fs::remove_dir_all(&downloads).context("cannot remove the downloaded packages")?;
    Compiler::unpacked(&staging)?.context("the unpacked packages hold no compiler")?;
    replace(&staging, &prefix)
}

/// Unpacks the pinned ptxas under the checkout's `target` folder. Does nothing where that has been done.
///
/// # Errors
/// When Python's pip is absent or cannot fetch; the line says what to do.
pub fn ptxas(workspace: &Workspace) -> Result<()> {
    let device = workspace.device();
    let _lock = workspace.lock_device()?;
    let folder = toolchain::ptxas_folder(&device);
    if Ptxas::at(&folder.join("ptxas")).is_some() {
        return Ok(());
    }
    require("python3", "it fetches ptxas; or put the ptxas of a CUDA toolkit on PATH")?;
    let staging = fresh(device.join("ptxas.partial"))?;
    let downloads = fresh(device.join("ptxas.download"))?;
    let wheel = format!("nvidia-cuda-nvcc=={PTXAS_VERSION}");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--quiet", "--dest"]);
    process::output(pip.arg(&downloads).arg(&wheel))
        .with_context(|| format!("pip cannot fetch {wheel}; or put the ptxas of a CUDA toolkit on PATH"))?;
    let wheel = files(&downloads)?.pop().context("pip fetched nothing")?;
    let executable = staging.join("ptxas");
    process::output(Command::new("python3").args(["-c", EXTRACT_PTXAS]).arg(wheel).arg(&executable))
        .context("cannot unpack ptxas")?;
    fs::remove_dir_all(&downloads).context("cannot remove the downloaded wheel")?;
    Ptxas::at(&executable).context("the fetched ptxas does not run on this machine")?;
    replace(&staging, &folder)
}

/// Fails where a program is not on `PATH`.
fn require(tool: &str, advice: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()) {
        return Ok(());
    }
    bail!("{tool} is not on PATH: {advice}")
}

/// Sees to it that apt knows a compiler that is new enough, updating its lists where it may: the lists of a
/// fresh machine may be older than the compiler.
fn refresh_package_lists() -> Result<()> {
    let package = DEBIAN_PACKAGES[0];
    let known = || record(package).is_ok_and(|record| is_recent(&record));
    if known() {
        return Ok(());
    }
    let needed = toolchain::MINIMUM;
    let user = process::stdout(Command::new("id").arg("-u"))?;
    if user.trim() != "0" {
        bail!("apt knows no {package} of at least {needed}: run `sudo apt-get update` first");
    }
    process::output(Command::new("apt-get").args(["update", "--quiet"]))
        .context("apt cannot update its lists")?;
    if !known() {
        bail!("this Debian has no {package} of at least {needed}; use `cargo xtask toolchain --rustup`");
    }
    Ok(())
}

/// Whether a package's record names a version that is new enough.
fn is_recent(record: &str) -> bool {
    record.lines().find_map(|line| line.strip_prefix("Version: ")).is_some_and(toolchain::is_recent)
}

/// The packages to fetch: the compiler, its sources, and the libraries it needs that the system lacks.
///
/// The names of the libraries carry versions and change with the archive, so they are found by
/// following dependencies. Development files are passed through but not fetched: the host's
/// standard library is of no use here.
fn packages() -> Result<Vec<String>> {
    let mut seen: BTreeSet<String> = DEBIAN_PACKAGES.map(str::to_owned).into();
    let mut queue: VecDeque<String> = seen.iter().cloned().collect();
    let mut wanted = Vec::new();
    while let Some(package) = queue.pop_front() {
        let dependencies = depends(&package)?;
        if !package.ends_with("-dev") {
            wanted.push(package);
        }
        for dependency in dependencies {
            if dependency.starts_with("lib")
                && dependency != "libc-dev"
                && !installed(&dependency)
                && seen.insert(dependency.clone())
            {
                queue.push_back(dependency);
            }
        }
    }
    Ok(wanted)
}

/// What apt knows of a package.
fn record(package: &str) -> Result<String> {
    process::stdout(Command::new("apt-cache").args(["show", "--no-all-versions", package]))
        .with_context(|| format!("apt knows no package {package}"))
}

/// The names that a package depends on, first alternatives only.
fn depends(package: &str) -> Result<Vec<String>> {
    Ok(parse_depends(&record(package)?))
}

fn parse_depends(record: &str) -> Vec<String> {
    let fields = record
        .lines()
        .filter_map(|line| line.strip_prefix("Depends: ").or_else(|| line.strip_prefix("Pre-Depends: ")));
    let names = fields.flat_map(|field| field.split(',')).filter_map(|dependency| {
        let name = dependency.split(['|', '(', ':']).next()?.trim();
        (!name.is_empty()).then(|| name.to_owned())
    });
    names.collect()
}

fn installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    process::stdout(query.args(["--show", "--showformat=${db:Status-Status}\n", package]))
        .is_ok_and(|text| text.lines().any(|status| status == "installed"))
}

fn download(packages: &[String], folder: &Path) -> Result<()> {
    let mut command = Command::new("apt-get");
    // apt drops root for downloads and warns where its own user cannot write the folder.
    command.args(["download", "--quiet", "--option", "APT::Sandbox::User=root"]);
    process::output(command.args(packages).current_dir(folder)).context(
        "apt cannot fetch the device compiler; if its lists are old, run `sudo apt-get update` first",
    )?;
    Ok(())
}

/// Unpacks one package; of one that holds sources, only those of the standard library.
fn unpack(package: &Path, prefix: &Path) -> Result<()> {
    let is_source =
        package.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rust-web-src"));
    if !is_source {
        process::output(Command::new("dpkg-deb").arg("-x").arg(package).arg(prefix))?;
        return Ok(());
    }
    let script =
        r#"set -o pipefail; dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --wildcards './usr/src/*/library'"#;
    process::output(Command::new("bash").args(["-c", script, "unpack"]).arg(package).arg(prefix))?;
    Ok(())
}

/// An empty folder at `path`.
fn fresh(path: PathBuf) -> Result<PathBuf> {
    if path.exists() {
        fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

fn replace(staging: &Path, target: &Path) -> Result<()> {
    if target.exists() {
        fs::remove_dir_all(target).with_context(|| format!("cannot remove {}", target.display()))?;
    }
    fs::rename(staging, target).with_context(|| format!("cannot make {}", target.display()))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_lose_versions_alternatives_and_architectures() {
        let record = "Package: rustc-web\nPre-Depends: dpkg (>= 1.15)\n\
                      Depends: libc6 (>= 2.34), libstd-rust-web-dev (= 1.96.0), gcc:any | clang, libedit2\nSuggests: lld\n";
        assert_eq!(parse_depends(record), ["dpkg", "libc6", "libstd-rust-web-dev", "gcc", "libedit2"]);
    }

    #[test]
    fn a_record_of_an_old_compiler_is_not_enough() {
        let record = |version| format!("Package: rustc-web\nVersion: {version}\nDepends: libc6\n");
        assert!(is_recent(&record("1.96.0+dfsg1-1~deb12u2")));
        assert!(!is_recent(&record("1.85.0+dfsg3-1~deb12u3")));
        assert!(!is_recent("Package: rustc-web\n"));
    }

    #[test]
    fn a_missing_program_is_named_with_advice() {
        let error = require("no-such-program-on-any-path", "do this").expect_err("it is not there");
        assert_eq!(error.to_string(), "no-such-program-on-any-path is not on PATH: do this");
    }
}
