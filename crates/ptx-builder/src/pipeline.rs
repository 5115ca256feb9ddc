//! The whole build: compile, take apart, gate, assemble, gate, and put together what ships.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use fa_kernels::shipped::{Manifest, Resources, SCHEMA, ShippedArchive, ShippedCubin, ShippedEntry};

use crate::archive::Shipped;
use crate::assemble::{self, Assembled, Job};
use crate::check;
use crate::compile;
use crate::gate::{self, Violation};
use crate::parallel;
use crate::ptx::Module;
use crate::source;
use crate::spec::EntrySpec;
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;

/// An entry's own module.
struct Built<'a> {
    spec: &'a EntrySpec,
    ptx_version: String,
    text: String,
}

/// What ptxas made of an entry: its figures, and the machine code of the one architecture that it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Figures {
    resources: Vec<Resources>,
    cubin: Option<(String, Vec<u8>)>,
}

/// What a build gave, and how much of it ptxas had to assemble.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// The kernels.
    pub shipped: Shipped,
    /// Entries that went through ptxas; the figures of the others are those of the same text in `known`.
    pub assembled: usize,
}

/// Builds everything in the list; writes nothing but working files under the checkout's `target`.
///
/// Every entry is compiled. ptxas gives the same figures and machine code for the same text, so an entry
/// whose text is that of `known`, of the same ptxas, keeps what stands there. Without `known` ptxas assembles
/// every entry.
///
/// # Errors
/// When the sources do not compile, ptxas rejects an entry, or a gate does: then one line for each
/// broken rule.
pub fn build(
    workspace: &Workspace,
    toolchain: &Toolchain,
    specs: &[EntrySpec],
    known: Option<&Shipped>,
) -> Result<Rebuilt> {
    let _lock = workspace.lock_device()?;
    let source_sha256 = source::hash(&workspace.kernel_sources())?;
    let built = compile_all(workspace, toolchain, specs)?;
    let known = known.filter(|known| known.manifest.ptxas == toolchain.ptxas.version);
    let kept: Vec<Option<Figures>> =
        built.iter().map(|built| known.and_then(|known| figures(known, built))).collect();
    let changed: Vec<&Built<'_>> =
        built.iter().zip(&kept).filter(|(_, kept)| kept.is_none()).map(|(built, _)| built).collect();
    let mut assembled = assemble_all(workspace, toolchain, &changed)?.into_iter();
    let figures = kept.into_iter().map(|kept| kept.or_else(|| assembled.next()));
    let figures: Vec<Figures> = figures.collect::<Option<_>>().context("an entry was not assembled")?;
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut cubins: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut entries = Vec::with_capacity(built.len());
    for (built, figures) in built.iter().zip(figures) {
        let text = texts.entry(built.spec.family.clone()).or_default();
        let mut row = row(built, text.len(), figures.resources);
        text.push_str(&built.text);
        if let Some((arch, cubin)) = figures.cubin {
            let archive = cubins.entry(built.spec.family.clone()).or_default();
            let (offset, length) = (archive.len(), cubin.len());
            row.cubin = Some(ShippedCubin { arch, offset, length, sha256: source::hash_bytes(&cubin) });
            archive.extend(cubin);
        }
        entries.push(row);
    }
    let archives = texts.iter().map(|(family, text)| archive_row(family, text)).collect();
    let manifest = Manifest {
        schema: SCHEMA,
        source_sha256,
        compiler: toolchain.compiler.version.clone(),
        flags: compile::FLAGS.map(str::to_owned).to_vec(),
        ptxas: toolchain.ptxas.version.clone(),
        archives,
        entries,
    };
    Ok(Rebuilt { shipped: Shipped { manifest, texts, cubins }, assembled: changed.len() })
}

/// What stands in `known` of an entry with this text; `None` where another text stands there, or what is
/// there is not what its hash says.
fn figures(known: &Shipped, built: &Built<'_>) -> Option<Figures> {
    let row = known.manifest.entries.iter().find(|row| row.name == built.spec.name)?;
    let architectures = assemble::architectures(&built.spec.target);
    let complete = row.resources.iter().map(|resources| &resources.arch).eq(&architectures);
    let same = check::slice(known, row)? == built.text && row.target == built.spec.target;
    if !complete || !same || check::cubin(known, row).is_some() {
        return None;
    }
    let cubin = row.cubin.as_ref().and_then(|cubin| {
        let bytes = known.cubins.get(&row.family)?.get(cubin.offset..cubin.offset + cubin.length)?;
        Some((cubin.arch.clone(), bytes.to_vec()))
    });
    Some(Figures { resources: row.resources.clone(), cubin })
}

/// Compiles each target once, gates the text, and gives the entries in the order of the list.
fn compile_all<'a>(
    workspace: &Workspace,
    toolchain: &Toolchain,
    specs: &'a [EntrySpec],
) -> Result<Vec<Built<'a>>> {
    let targets: BTreeSet<&str> = specs.iter().map(|spec| &*spec.target).collect();
    let targets: Vec<&str> = targets.into_iter().collect();
    // Each target is one module, and so one thread of the compiler.
    let compiled = parallel::map(&targets, |target| compile_one(workspace, toolchain, specs, target))?;
    let compiled = compiled.into_iter().collect::<Result<Vec<Module>>>()?;
    let modules: BTreeMap<&str, Module> = targets.into_iter().zip(compiled).collect();
    let built = specs.iter().map(|spec| {
        let module = &modules[&*spec.target];
        Ok(Built { spec, ptx_version: module.version.clone(), text: standalone(module, spec)? })
    });
    built.collect()
}

fn compile_one(
    workspace: &Workspace,
    toolchain: &Toolchain,
    specs: &[EntrySpec],
    target: &str,
) -> Result<Module> {
    let (text, path) = compile::kernels(workspace, &toolchain.compiler, target)?;
    let module = Module::parse(&text).with_context(|| format!("cannot read {}", path.display()))?;
    refuse(&violations(&module, specs)).with_context(|| format!("the gates refuse {}", path.display()))?;
    Ok(module)
}

/// What the gates have against a module and its entries.
pub(crate) fn violations(module: &Module, specs: &[EntrySpec]) -> Vec<Violation> {
    let mut violations = gate::module(module, specs);
    for spec in specs.iter().filter(|spec| spec.target == module.target) {
        let entry = module.entries.iter().find(|entry| entry.name == spec.name);
        violations.extend(entry.map(|entry| gate::entry(entry, spec)).unwrap_or_default());
    }
    violations
}

/// An entry of a module as a module of its own.
pub(crate) fn standalone(module: &Module, spec: &EntrySpec) -> Result<String> {
    let entry = module.entries.iter().find(|entry| entry.name == spec.name);
    let entry = entry.with_context(|| format!("{} is not in the PTX", spec.name))?;
    Ok(module.standalone(entry, spec))
}

/// Assembles each entry for its architectures and gates the reports.
fn assemble_all(workspace: &Workspace, toolchain: &Toolchain, built: &[&Built<'_>]) -> Result<Vec<Figures>> {
    let architectures: Vec<_> =
        built.iter().map(|built| assemble::architectures(&built.spec.target)).collect();
    let jobs: Vec<Job<'_>> = built
        .iter()
        .zip(&architectures)
        .flat_map(|(built, architectures)| {
            architectures.iter().map(|arch| Job {
                name: &built.spec.name,
                text: &built.text,
                arch: arch.clone(),
            })
        })
        .collect();
    let folder = workspace.device().join("build/entries");
    let mut assembled = assemble::all(&toolchain.ptxas, &jobs, &folder)?.into_iter();
    let grouped: Vec<Vec<Assembled>> = architectures
        .iter()
        .map(|architectures| assembled.by_ref().take(architectures.len()).collect())
        .collect();
    let violations: Vec<Violation> = built
        .iter()
        .zip(&grouped)
        .flat_map(|(built, group)| group.iter().flat_map(|assembled| gate::assembled(built.spec, assembled)))
        .collect();
    refuse(&violations).with_context(|| format!("the gates refuse entries of {}", folder.display()))?;
    Ok(grouped.into_iter().map(Figures::of).collect())
}

impl Figures {
    fn of(group: Vec<Assembled>) -> Self {
        let cubin = |one: &Assembled| Some((one.resources.arch.clone(), one.cubin.clone()?));
        Self {
            cubin: group.iter().find_map(cubin),
            resources: group.into_iter().map(|one| one.resources).collect(),
        }
    }
}

/// Fails with one line for each violation.
fn refuse(violations: &[Violation]) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    let mut lines = String::new();
    for violation in violations {
        // Writing to a string cannot fail.
        let _ = write!(lines, "\n  {violation}");
    }
    bail!("broken rules ({}):{lines}", violations.len())
}

fn row(built: &Built<'_>, offset: usize, resources: Vec<Resources>) -> ShippedEntry {
    let spec = built.spec;
    ShippedEntry {
        name: spec.name.clone(),
        family: spec.family.clone(),
        dtype: spec.dtype.clone(),
        target: spec.target.clone(),
        ptx_version: built.ptx_version.clone(),
        threads: spec.threads,
        min_blocks: spec.min_blocks,
        shared_bytes: spec.shared_bytes,
        barriers: spec.barriers,
        offset,
        length: built.text.len(),
        resources,
        cubin: None,
    }
}

fn archive_row(family: &str, text: &str) -> ShippedArchive {
    ShippedArchive {
        family: family.to_owned(),
        length: text.len(),
        sha256: source::hash_bytes(text.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::check::fixture;

    /// What is kept of an entry with this text.
    fn kept(known: &Shipped, text: &str) -> Option<Figures> {
        let spec = EntrySpec { target: "sm_90a".to_owned(), ..fixture::spec() };
        let built = Built { spec: &spec, ptx_version: "8.0".to_owned(), text: text.to_owned() };
        figures(known, &built)
    }

    /// The fixture for the target whose cubin it has.
    fn known() -> Shipped {
        let mut known = fixture::shipped();
        let row = &mut known.manifest.entries[0];
        row.target = "sm_90a".to_owned();
        row.resources[0].arch = "sm_90a".to_owned();
        known
    }

    #[test]
    fn the_same_text_keeps_its_figures_and_its_cubin() {
        let known = known();
        let figures = kept(&known, &known.texts["test"]).unwrap();
        assert_eq!(figures.resources, known.manifest.entries[0].resources);
        assert_eq!(figures.cubin, Some(("sm_90a".to_owned(), known.cubins["test"].clone())));
    }

    #[test]
    fn what_differs_is_assembled() {
        let same = known();
        let text = &same.texts["test"];
        assert!(kept(&same, &text.replace("ret;", "exit;")).is_none(), "another text");
        let mut damaged = known();
        damaged.cubins.get_mut("test").unwrap()[0] ^= 1;
        assert!(kept(&damaged, text).is_none(), "a cubin that is not the hashed one");
        let mut fewer = known();
        fewer.manifest.entries[0].resources.clear();
        assert!(kept(&fewer, text).is_none(), "figures for no architecture");
        let mut other = known();
        other.manifest.entries[0].name = "other".to_owned();
        assert!(kept(&other, text).is_none(), "another entry");
    }
}
