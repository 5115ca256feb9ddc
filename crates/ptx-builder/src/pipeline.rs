//! The whole build: compile, take apart, gate, assemble, gate, and put together what ships.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use fa_kernels::shipped::{Manifest, SCHEMA, ShippedArchive, ShippedCubin, ShippedEntry};

use crate::archive::Shipped;
use crate::assemble::{self, Assembled, Job};
use crate::compile;
use crate::gate::{self, Violation};
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

/// Builds everything in the list; writes nothing but working files under the checkout's `target`.
///
/// # Errors
/// When the sources do not compile, ptxas rejects an entry, or a gate does: then one line for each
/// broken rule.
pub fn build(workspace: &Workspace, toolchain: &Toolchain, specs: &[EntrySpec]) -> Result<Shipped> {
    let _lock = workspace.lock_device()?;
    let source_sha256 = source::hash(&workspace.kernel_sources())?;
    let built = compile_all(workspace, toolchain, specs)?;
    let assembled = assemble_all(workspace, toolchain, &built)?;
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut cubins: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut entries = Vec::with_capacity(built.len());
    for (built, assembled) in built.iter().zip(assembled) {
        let text = texts.entry(built.spec.family.clone()).or_default();
        let mut row = row(built, text.len(), &assembled);
        text.push_str(&built.text);
        if let Some((arch, cubin)) =
            assembled.into_iter().find_map(|one| Some((one.resources.arch, one.cubin?)))
        {
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
    Ok(Shipped { manifest, texts, cubins })
}

/// Compiles each target once, gates the text, and gives the entries in the order of the list.
fn compile_all<'a>(
    workspace: &Workspace,
    toolchain: &Toolchain,
    specs: &'a [EntrySpec],
) -> Result<Vec<Built<'a>>> {
    let targets: BTreeSet<&str> = specs.iter().map(|spec| &*spec.target).collect();
    let mut modules = BTreeMap::new();
    for target in targets {
        let (text, path) = compile::kernels(workspace, &toolchain.compiler, target)?;
        let module = Module::parse(&text).with_context(|| format!("cannot read {}", path.display()))?;
        let violations = violations(&module, specs);
        refuse(&violations).with_context(|| format!("the gates refuse {}", path.display()))?;
        modules.insert(target, module);
    }
    let built = specs.iter().map(|spec| {
        let module = &modules[&*spec.target];
        Ok(Built { spec, ptx_version: module.version.clone(), text: standalone(module, spec)? })
    });
    built.collect()
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
fn assemble_all(
    workspace: &Workspace,
    toolchain: &Toolchain,
    built: &[Built<'_>],
) -> Result<Vec<Vec<Assembled>>> {
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
    Ok(grouped)
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

fn row(built: &Built<'_>, offset: usize, assembled: &[Assembled]) -> ShippedEntry {
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
        resources: assembled.iter().map(|assembled| assembled.resources.clone()).collect(),
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
