//! Finding a device toolchain: a rustc with `core` for nvptx64, and ptxas.

use std::collections::BTreeSet;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fa_kernels::shipped::Manifest;

use crate::process;

/// rustc's name of the GPU target.
pub const TARGET: &str = "nvptx64-nvidia-cuda";

/// The oldest compiler that builds the kernels: the workspace's `rust-version`.
pub(crate) const MINIMUM: &str = env!("CARGO_PKG_RUST_VERSION");

/// The ptxas that is fetched, and preferred where the manifest names no other.
pub const PTXAS_VERSION: &str = "13.0.88";

/// Where a compiler comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A toolchain of rustup, or another with the target's libraries installed.
    Rustup,
    /// Debian's rustc-web packages, unpacked under the checkout's `target` folder.
    Debian,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rustup => "rustup",
            Self::Debian => "Debian's rustc-web",
        })
    }
}

/// Where a compiler's `core` for the GPU comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceCore {
    /// In the compiler's own sysroot, at this path.
    Ready(PathBuf),
    /// To be built from this `library` folder of the compiler's sources.
    Source(PathBuf),
}

/// A compiler that can build for the GPU.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// Where it comes from.
    pub origin: Origin,
    /// The executable.
    pub rustc: PathBuf,
    /// Its version with that of its LLVM: equal strings give equal PTX.
    pub version: String,
    /// Where its `core` comes from.
    pub core: DeviceCore,
    /// The folder of its shared libraries, where the loader does not find them by itself.
    libraries: Option<PathBuf>,
}

impl Compiler {
    /// A command that runs it, with the unstable features that device code needs switched on.
    pub fn command(&self) -> Command {
        rustc(&self.rustc, self.libraries.as_deref())
    }

    /// A compiler unpacked at a prefix (a folder that holds `usr`); `None` where there is none.
    ///
    /// # Errors
    /// When a compiler is there and does not run, or is older than this workspace needs.
    pub fn unpacked(prefix: &Path) -> Result<Option<Self>> {
        let executable = prefix.join("usr/bin/rustc");
        if !executable.is_file() {
            return Ok(None);
        }
        let lib = prefix.join("usr/lib");
        let libraries = children(&lib)
            .into_iter()
            .find(|folder| {
                children(folder).iter().any(|file| file_name(file).starts_with("librustc_driver-"))
            })
            .with_context(|| format!("no librustc_driver under {}", lib.display()))?;
        let library = children(&prefix.join("usr/src"))
            .into_iter()
            .map(|source| source.join("library"))
            .find(|library| library.join("core/src/lib.rs").is_file())
            .with_context(|| format!("no sources of core under {}", prefix.join("usr/src").display()))?;
        let version = version(&executable, Some(&libraries))?;
        if !recent(&version) {
            bail!("the device compiler is {version}, and at least {MINIMUM} is needed");
        }
        Ok(Some(Self {
            origin: Origin::Debian,
            rustc: executable,
            version,
            core: DeviceCore::Source(library),
            libraries: Some(libraries),
        }))
    }

    /// The compiler of a sysroot, where the target's libraries are installed in it.
    fn of_sysroot(sysroot: &Path) -> Option<Self> {
        let folder = sysroot.join("lib/rustlib").join(TARGET).join("lib");
        let core = children(&folder)
            .into_iter()
            .find(|file| file_name(file).starts_with("libcore-") && file_name(file).ends_with(".rlib"))?;
        let rustc = sysroot.join("bin/rustc");
        let version = version(&rustc, None).ok().filter(|version| recent(version))?;
        Some(Self { origin: Origin::Rustup, rustc, version, core: DeviceCore::Ready(core), libraries: None })
    }
}

/// An assembler.
#[derive(Clone, Debug)]
pub struct Ptxas {
    /// The executable.
    pub path: PathBuf,
    /// Its version, as in `13.0.88`.
    pub version: String,
}

impl Ptxas {
    /// The assembler at a path; `None` where none runs there.
    pub fn at(path: &Path) -> Option<Self> {
        let text = process::stdout(Command::new(path).arg("--version")).ok()?;
        Some(Self { path: path.to_owned(), version: ptxas_version(&text)?.to_owned() })
    }
}

/// Everything that was found, the pinned and the self-made first.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Compilers with `core` or its sources at hand.
    pub compilers: Vec<Compiler>,
    /// Assemblers.
    pub assemblers: Vec<Ptxas>,
}

/// What a build uses.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// The compiler.
    pub compiler: Compiler,
    /// Why this compiler.
    pub compiler_reason: &'static str,
    /// The assembler.
    pub ptxas: Ptxas,
    /// Why this assembler.
    pub ptxas_reason: &'static str,
}

/// Looks for toolchains: in rustup, on `PATH`, in `$CUDA_PATH/bin`, and unpacked under `device`.
///
/// # Errors
/// When an unpacked toolchain is broken.
pub fn search(device: &Path) -> Result<Found> {
    let mut compilers: Vec<Compiler> =
        sysroots().iter().filter_map(|path| Compiler::of_sysroot(path)).collect();
    compilers.extend(Compiler::unpacked(&debian_prefix(device))?);
    let assemblers = ptxas_paths(device).iter().filter_map(|path| Ptxas::at(path)).collect();
    Ok(Found { compilers, assemblers })
}

/// Where [`install`](crate::install) unpacks Debian's compiler.
pub fn debian_prefix(device: &Path) -> PathBuf {
    device.join("debian")
}

/// Where [`install`](crate::install) unpacks ptxas.
pub fn ptxas_folder(device: &Path) -> PathBuf {
    device.join(format!("ptxas-{PTXAS_VERSION}"))
}

impl Found {
    /// Picks what a build uses: the versions that the manifest names, so that a rebuild can be
    /// compared byte for byte; else the first compiler, and the pinned ptxas or the first.
    ///
    /// # Errors
    /// When no compiler or no assembler was found.
    pub fn choose(&self, manifest: Option<&Manifest>) -> Result<Toolchain> {
        let (compiler, compiler_reason) = pick(
            &self.compilers,
            &[(manifest.map(|manifest| &*manifest.compiler), "the manifest was built by it")],
            |compiler| &compiler.version,
        )
        .context("no device compiler found: run `cargo xtask toolchain`")?;
        let (ptxas, ptxas_reason) = pick(
            &self.assemblers,
            &[
                (manifest.map(|manifest| &*manifest.ptxas), "the manifest was built with it"),
                (Some(PTXAS_VERSION), "the pinned version"),
            ],
            |ptxas| &ptxas.version,
        )
        .context("no ptxas found: run `cargo xtask toolchain`")?;
        Ok(Toolchain { compiler: compiler.clone(), compiler_reason, ptxas: ptxas.clone(), ptxas_reason })
    }
}

/// The candidate of the first version that any has, else the first candidate.
fn pick<'a, T>(
    candidates: &'a [T],
    wanted: &[(Option<&str>, &'static str)],
    version: impl Fn(&T) -> &str,
) -> Option<(&'a T, &'static str)> {
    wanted
        .iter()
        .find_map(|&(wanted, reason)| {
            candidates
                .iter()
                .find(|candidate| Some(version(candidate)) == wanted)
                .map(|found| (found, reason))
        })
        .or_else(|| candidates.first().map(|found| (found, "the first one found")))
}

/// Sysroots that may hold the target's libraries: that of the `rustc` on `PATH`, then rustup's others.
fn sysroots() -> Vec<PathBuf> {
    let current = process::stdout(Command::new("rustc").args(["--print", "sysroot"])).ok();
    let mut sysroots: Vec<PathBuf> = current.iter().map(|text| PathBuf::from(text.trim())).collect();
    let rustup = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".rustup")));
    sysroots.extend(rustup.iter().flat_map(|home| children(&home.join("toolchains"))));
    let mut seen = BTreeSet::new();
    sysroots.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    sysroots
}

fn ptxas_paths(device: &Path) -> Vec<PathBuf> {
    let cuda = env::var_os("CUDA_PATH").map(|path| PathBuf::from(path).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [ptxas_folder(device)].into_iter().chain(cuda).chain(env::split_paths(&path));
    let mut seen = BTreeSet::new();
    folders
        .map(|folder| folder.join("ptxas"))
        .filter(|path| path.is_file() && seen.insert(path.clone()))
        .collect()
}

/// A folder's children in the order of their names; none where it cannot be read.
fn children(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn rustc(executable: &Path, libraries: Option<&Path>) -> Command {
    let mut command = Command::new(executable);
    command.env("RUSTC_BOOTSTRAP", "1");
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command
}

fn version(executable: &Path, libraries: Option<&Path>) -> Result<String> {
    let text = process::stdout(rustc(executable, libraries).arg("-vV"))?;
    compiler_version(&text).with_context(|| format!("{} gives no version", executable.display()))
}

/// From the output of `rustc -vV`: its first line and the line of LLVM.
fn compiler_version(text: &str) -> Option<String> {
    let llvm = text.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    Some(format!("{}, LLVM {llvm}", text.lines().next()?))
}

/// Whether a compiler, by the first line of `rustc --version`, is new enough.
fn recent(version: &str) -> bool {
    version.split_whitespace().nth(1).is_some_and(is_recent)
}

/// Whether a version that starts with major and minor number is at least [`MINIMUM`].
pub(crate) fn is_recent(version: &str) -> bool {
    let minor = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    let number = minor(version);
    number.is_some() && number >= minor(MINIMUM)
}

/// From the output of `ptxas --version`: `13.0.88` of `release 13.0, V13.0.88`.
fn ptxas_version(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.contains("release"))?;
    line.rsplit_once(", V").map(|(_, version)| version.trim())
}

#[cfg(test)]
#[path = "toolchain_tests.rs"]
mod tests;
