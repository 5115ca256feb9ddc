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

use crate::assemble::{self, Assembled, Job};
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

/// An entry that is built by itself.
pub(crate) struct Unit<'a> {
    pub(crate) spec: &'a EntrySpec,
    /// The source of its entry point.
    pub(crate) source: &'a str,
    /// Where its files go.
    pub(crate) folder: &'a Path,
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
    let cores = Cores::of(workspace, toolchain, variants)?;
    parallel::map(variants, |variant| {
        let built = one(workspace, toolchain, variant, cores.core(variant.kernel.target()), &folder);
        done();
        built
    })
}

/// `core` for each target, where the compiler has none ready-made.
pub(crate) struct Cores(Vec<(Target, Option<PathBuf>)>);

impl Cores {
    /// Those that `variants` need. The caller holds [`Workspace::lock_device`].
    pub(crate) fn of(workspace: &Workspace, toolchain: &Toolchain, variants: &[Variant]) -> Result<Self> {
        let mut targets: Vec<Target> = variants.iter().map(|variant| variant.kernel.target()).collect();
        targets.sort_unstable();
        targets.dedup();
        let core = |target: Target| device_core::folder(workspace, &toolchain.compiler, target.name());
        let cores = targets.into_iter().map(|target| Ok((target, core(target)?)));
        cores.collect::<Result<_>>().map(Self)
    }

    pub(crate) fn core(&self, target: Target) -> Option<&Path> {
        self.0.iter().find(|(of, _)| *of == target).and_then(|(_, core)| core.as_deref())
    }
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
    let (spec, source) = (EntrySpec::from(variant), variant.source());
    let unit = Unit { spec: &spec, source: &source, folder: &folder };
    let (ptx, assembled) = unit.build(workspace, toolchain, core)?;
    let resources: Vec<_> = assembled.into_iter().map(|assembled| assembled.resources).collect();
    fs::write(&kept, &ptx).with_context(|| format!("cannot write {}", kept.display()))?;
    fs::write(&figures, serde_json::to_string_pretty(&resources)?)
        .with_context(|| format!("cannot write {}", figures.display()))?;
    Ok(BuiltVariant { ptx, resources })
}

impl Unit<'_> {
    /// Its PTX, a module of its own, and what ptxas made of it.
    pub(crate) fn build(
        &self,
        workspace: &Workspace,
        toolchain: &Toolchain,
        core: Option<&Path>,
    ) -> Result<(String, Vec<Assembled>)> {
        let Self { spec, source, folder } = *self;
        let entries = folder.join("entries.rs");
        fs::write(&entries, source).with_context(|| format!("cannot write {}", entries.display()))?;
        let text = compile::variant(workspace, &toolchain.compiler, &spec.target, core, &entries)?;
        let module = Module::parse(&text).context("the compiler's PTX cannot be read")?;
        refuse(&pipeline::violations(&module, std::slice::from_ref(spec)))?;
        let ptx = pipeline::standalone(&module, spec)?;
        let job = |arch| Job { name: &spec.name, text: &ptx, arch };
        let jobs: Vec<_> = assemble::architectures(&spec.target).into_iter().map(job).collect();
        let assembled = assemble::all(&toolchain.ptxas, &jobs, folder)?;
        refuse(&assembled.iter().flat_map(|one| gate::assembled(spec, one)).collect::<Vec<_>>())?;
        Ok((ptx, assembled))
    }
}

/// Fails with what the gates have against the variant, in one line.
fn refuse(violations: &[gate::Violation]) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    let broken = violations.iter().map(|violation| format!("{}: {}", violation.rule, violation.detail));
    bail!("the gates refuse it: {}", broken.collect::<Vec<_>>().join("; "))
}
