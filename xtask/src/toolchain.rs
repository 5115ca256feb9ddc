//! `cargo xtask toolchain`.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use fa_ptx_builder::toolchain::{self, Compiler, DeviceCore, Found, Ptxas};
use fa_ptx_builder::{Workspace, archive, install};

/// Put a device toolchain in place where that needs no root, and say what there is.
#[derive(Args)]
pub(crate) struct Toolchain {
    /// Install the GPU target for the pinned toolchain with rustup.
    #[arg(long, conflicts_with = "debian")]
    rustup: bool,
    /// Unpack Debian's rustc-web under target/device-toolchain.
    #[arg(long)]
    debian: bool,
}

impl Toolchain {
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<()> {
        if self.rustup {
            install::rustup(workspace)?;
            ensure_ptxas(workspace)?;
        } else if self.debian {
            install::debian(workspace)?;
            ensure_ptxas(workspace)?;
        } else {
            ensure(workspace)?;
        }
        report(workspace)
    }
}

/// Installs what is missing: a compiler where none is found or none is the manifest's, and ptxas.
///
/// # Errors
/// When there is none afterwards.
pub(crate) fn ensure(workspace: &Workspace) -> Result<()> {
    let found = toolchain::search(&workspace.device())?;
    let manifest = archive::read_manifest(&workspace.shipped()).ok();
    let is_wanted =
        |compiler: &Compiler| manifest.as_ref().is_none_or(|manifest| compiler.version == manifest.compiler);
    if !found.compilers.iter().any(is_wanted) {
        install_compiler(workspace, &found)?;
    }
    ensure_ptxas(workspace)
}

/// Debian's compiler first, since its sources of `core` come along; else rustup's target.
fn install_compiler(workspace: &Workspace, found: &Found) -> Result<()> {
    let Err(debian) = install::debian(workspace) else { return Ok(()) };
    let Err(rustup) = install::rustup(workspace) else { return Ok(()) };
    if found.compilers.is_empty() {
        bail!("no device compiler can be installed: {debian:#}; and {rustup:#}");
    }
    Ok(())
}

fn ensure_ptxas(workspace: &Workspace) -> Result<()> {
    let manifest = archive::read_manifest(&workspace.shipped()).ok();
    let found = toolchain::search(&workspace.device())?;
    let is_wanted = |ptxas: &Ptxas| {
        ptxas.version == toolchain::PTXAS_VERSION
            || manifest.as_ref().is_some_and(|manifest| manifest.ptxas == ptxas.version)
    };
    if found.assemblers.iter().any(is_wanted) {
        return Ok(());
    }
    match install::ptxas(workspace) {
        // An assembler of another version builds as well; only its figures differ.
        Err(_) if !found.assemblers.is_empty() => Ok(()),
        installed => installed,
    }
}

/// Prints all that is found, and what a build would use and why.
fn report(workspace: &Workspace) -> Result<()> {
    let found = toolchain::search(&workspace.device())?;
    for compiler in &found.compilers {
        let core = match &compiler.core {
            DeviceCore::Ready(path) => format!("core ready at {}", path.display()),
            DeviceCore::Source(path) => format!("core from the sources at {}", path.display()),
        };
        println!(
            "compiler  {} ({}): {}, {core}",
            compiler.version,
            compiler.origin,
            compiler.rustc.display()
        );
    }
    for ptxas in &found.assemblers {
        println!("ptxas     {}: {}", ptxas.version, ptxas.path.display());
    }
    let manifest = archive::read_manifest(&workspace.shipped()).ok();
    let chosen = found.choose(manifest.as_ref()).context("no complete toolchain")?;
    println!("a build uses {} ({})", chosen.compiler.version, chosen.compiler_reason);
    println!("         and ptxas {} ({})", chosen.ptxas.version, chosen.ptxas_reason);
    Ok(())
}
