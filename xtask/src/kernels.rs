//! `cargo xtask kernels`.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use fa_kernels::variant::{Generated, generated};
use fa_ptx_builder::archive::{self, Shipped};
use fa_ptx_builder::pipeline::Rebuilt;
use fa_ptx_builder::toolchain;
use fa_ptx_builder::{Workspace, check, pipeline, source, spec};

/// Build the kernels' PTX, gate it, and write what ships under crates/kernels/ptx.
#[derive(Args)]
pub(crate) struct Kernels {
    /// Write nothing; fail where the committed PTX is not what the sources give.
    #[arg(long)]
    check: bool,
    /// With --check: first put the toolchain of the manifest in place, where that can be done.
    #[arg(long, requires = "check")]
    install: bool,
    /// Have ptxas assemble every entry, those too whose PTX is the committed one.
    #[arg(long)]
    all: bool,
}

impl Kernels {
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<()> {
        if self.check { self.check(workspace) } else { self.build(workspace) }
    }

    fn check(&self, workspace: &Workspace) -> Result<()> {
        let committed = archive::read(&workspace.shipped())
            .context("the committed PTX cannot be read; run `cargo xtask kernels`")?;
        if source::hash(&workspace.kernel_sources())? != committed.manifest.source_sha256 {
            bail!(
                "the committed PTX is stale: crates/kernels/src has changed since; run `cargo xtask kernels`"
            );
        }
        let problems = check::committed(&committed, &spec::listed());
        refuse("the committed PTX is not what the list of entries asks for", &problems)?;
        println!(
            "{} committed entries match the sources' hash, the list and the gates",
            committed.manifest.entries.len()
        );
        if self.install
            && let Err(error) = crate::toolchain::ensure(workspace)
        {
            println!("no toolchain could be installed: {error:#}");
        }
        self.compare(workspace, &committed)
    }

    /// Rebuilds with the manifest's compiler, where it is at hand, and compares byte for byte.
    fn compare(&self, workspace: &Workspace, committed: &Shipped) -> Result<()> {
        let wanted = &committed.manifest.compiler;
        let found = toolchain::search(&workspace.device())?;
        let chosen = match found.choose(Some(&committed.manifest)) {
            Ok(chosen) if chosen.compiler.version == *wanted => chosen,
            Ok(chosen) => {
                println!(
                    "not rebuilt: the manifest's compiler is {wanted}, and here is {}",
                    chosen.compiler.version
                );
                return Ok(());
            }
            Err(error) => {
                println!("not rebuilt: {error:#}");
                return Ok(());
            }
        };
        let known = (!self.all).then_some(committed);
        let Rebuilt { shipped: rebuilt, assembled } =
            pipeline::build(workspace, &chosen, &spec::listed(), known)?;
        refuse("the committed PTX is not what the sources give", &check::differences(committed, &rebuilt))?;
        if rebuilt.manifest.ptxas != committed.manifest.ptxas {
            println!("the figures were not compared: the manifest's ptxas is {}", committed.manifest.ptxas);
        }
        let of_others = if self.all { "" } else { "; the machine code of the others is the committed one" };
        println!(
            "rebuilt with {wanted}: every byte of PTX is the same, {assembled} entries assembled{of_others}"
        );
        Ok(())
    }

    fn build(&self, workspace: &Workspace) -> Result<()> {
        let start = Instant::now();
        write_entries(workspace)?;
        let committed = archive::read(&workspace.shipped()).ok();
        let manifest = committed.as_ref().map(|committed| &committed.manifest);
        let chosen = toolchain::search(&workspace.device())?.choose(manifest)?;
        println!("building with {} and ptxas {}", chosen.compiler.version, chosen.ptxas.version);
        let known = committed.as_ref().filter(|_| !self.all);
        let Rebuilt { shipped, assembled } = pipeline::build(workspace, &chosen, &spec::listed(), known)?;
        let bytes = archive::write(&workspace.shipped(), &shipped)?;
        let text: usize = shipped.texts.values().map(String::len).sum();
        println!(
            "{} entries ({assembled} assembled), {} KiB of PTX in {} KiB of archives, {:.1} s",
            shipped.manifest.entries.len(),
            text / 1024,
            bytes.div_ceil(1024),
            start.elapsed().as_secs_f64(),
        );
        Ok(())
    }
}

/// Writes the source of the entry points, which the list gives, where it is another one.
fn write_entries(workspace: &Workspace) -> Result<()> {
    let folder = workspace.kernel_sources().join("entries/generated");
    for Generated { file, text } in generated() {
        let path = folder.join(&file);
        if fs::read_to_string(&path).is_ok_and(|written| written == text) {
            continue;
        }
        fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{file} is written anew");
    }
    Ok(())
}

/// Fails with one line for each problem.
fn refuse(summary: &str, problems: &[String]) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{summary}; run `cargo xtask kernels`\n  {}", problems.join("\n  "))
}
