//! Building tiles that are not in the list, for sweeps: the same compiler, the same gates.
//!
//! Each variant is a build of the kernels crate by itself, so that one that does not compile or that a gate
//! refuses takes no other with it. What was built is kept under `target/sweep` for equal sources and tools.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use fa_kernels::entries::Target;
use fa_kernels::shipped::Resources;
use fa_kernels::variant::Variant;

use crate::assemble::{self, Job};
use crate::gate;
use crate::parallel;
use crate::pipeline;
use crate::ptx::Module;
use crate::source;
use crate::spec::EntrySpec;
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;
use crate::{compile, device_core};

/// A variant's PTX, a complete module of its own, and what ptxas made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltVariant {
    /// The PTX.
    pub ptx: String,
    /// ptxas's figures, per architecture.
    pub resources: Vec<Resources>,
}

/// Builds each variant, on all cores; `done` hears of each. A variant that does not build is an error of its
/// own.
///
/// # Errors
/// When nothing can be built at all: `core` does not compile, or a folder cannot be written.
pub fn build(
    workspace: &Workspace,
    toolchain: &Toolchain,
    variants: &[Variant],
    done: &(dyn Fn() + Sync),
) -> Result<Vec<Result<BuiltVariant>>> {
    let _lock = workspace.lock_device()?;
    let folder = cache(workspace, toolchain)?;
    let mut targets: Vec<Target> = variants.iter().map(|variant| variant.kernel.target()).collect();
    targets.sort_unstable();
    targets.dedup();
    let cores = targets
        .into_iter()
        .map(|target| Ok((target, device_core::folder(workspace, &toolchain.compiler, target.name())?)));
    let cores: Vec<(Target, Option<PathBuf>)> = cores.collect::<Result<_>>()?;
    parallel::map(variants, |variant| {
        let core = cores.iter().find(|(target, _)| *target == variant.kernel.target());
        let core = core.and_then(|(_, core)| core.as_deref());
        let built = one(workspace, toolchain, variant, core, &folder);
        done();
        built
    })
}

/// The folder of what these sources and tools build.
fn cache(workspace: &Workspace, toolchain: &Toolchain) -> Result<PathBuf> {
    let sources = source::hash(&workspace.kernel_sources())?;
    let tools =
        [&*toolchain.compiler.version, &*toolchain.ptxas.version, &compile::FLAGS.join(" "), &sources];
    let key = source::hash_bytes(tools.join("\n").as_bytes());
    let folder = workspace.sweep().join("built").join(&key[..16]);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

fn one(
    workspace: &Workspace,
    toolchain: &Toolchain,
    variant: &Variant,
    core: Option<&Path>,
    cache: &Path,
) -> Result<BuiltVariant> {
    let folder = cache.join(variant.id());
    let kept = folder.join("entry.ptx");
    let figures = folder.join("resources.json");
    // The figures are written last: where they are, the PTX is whole.
    if let (Ok(ptx), Ok(text)) = (fs::read_to_string(&kept), fs::read_to_string(&figures))
        && let Ok(resources) = serde_json::from_str(&text)
    {
        return Ok(BuiltVariant { ptx, resources });
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let spec = EntrySpec::from(variant);
    let entries = folder.join("entries.rs");
    fs::write(&entries, variant.source()).with_context(|| format!("cannot write {}", entries.display()))?;
    let text = compile::variant(workspace, &toolchain.compiler, &spec.target, core, &entries)?;
    let module = Module::parse(&text).context("the compiler's PTX cannot be read")?;
    let specs = std::slice::from_ref(&spec);
    refuse(&pipeline::violations(&module, specs))?;
    let ptx = pipeline::standalone(&module, &spec)?;
    let job = |arch| Job { name: &spec.name, text: &ptx, arch };
    let jobs: Vec<_> = assemble::architectures(&spec.target).into_iter().map(job).collect();
    let assembled = assemble::all(&toolchain.ptxas, &jobs, &folder)?;
    refuse(&assembled.iter().flat_map(|one| gate::assembled(&spec, one)).collect::<Vec<_>>())?;
    let resources: Vec<_> = assembled.into_iter().map(|assembled| assembled.resources).collect();
    fs::write(&kept, &ptx).with_context(|| format!("cannot write {}", kept.display()))?;
    fs::write(&figures, serde_json::to_string_pretty(&resources)?)
        .with_context(|| format!("cannot write {}", figures.display()))?;
    Ok(BuiltVariant { ptx, resources })
}

/// Fails with what the gates have against the variant, in one line.
fn refuse(violations: &[gate::Violation]) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    let broken = violations.iter().map(|violation| format!("{}: {}", violation.rule, violation.detail));
    bail!("the gates refuse it: {}", broken.collect::<Vec<_>>().join("; "))
}
