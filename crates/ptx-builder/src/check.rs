//! Whether what is committed is what the list and the sources ask for.

use std::collections::BTreeSet;

use fa_kernels::shipped::{Manifest, SCHEMA, ShippedEntry};

use crate::archive::Shipped;
use crate::gate;
use crate::ptx::Module;
use crate::source;
use crate::spec::EntrySpec;

/// Checks committed kernels against the list of entries, with no toolchain at hand: one line for
/// each thing that is wrong.
pub fn committed(shipped: &Shipped, specs: &[EntrySpec]) -> Vec<String> {
    let manifest = &shipped.manifest;
    if manifest.schema != SCHEMA {
        return vec![format!("the manifest has layout {}, and {SCHEMA} is needed", manifest.schema)];
    }
    let mut problems = archives(shipped);
    problems.extend(names(manifest, specs));
    for row in &manifest.entries {
        if let Some(spec) = specs.iter().find(|spec| spec.name == row.name) {
            problems.extend(facts(row, spec).into_iter().map(|fact| format!("{}: {fact}", row.name)));
            problems.extend(text(shipped, row, spec));
            problems.extend(cubin(shipped, row));
        }
        problems.extend(
            row.resources
                .iter()
                .flat_map(|figures| gate::resources(&row.name, figures))
                .map(|v| v.to_string()),
        );
    }
    problems
}

/// What differs between the committed kernels and a rebuild, one line each. Figures are compared
/// only where the same ptxas made both.
pub fn differences(committed: &Shipped, rebuilt: &Shipped) -> Vec<String> {
    let mut differences = Vec::new();
    let mut rebuilt_manifest = rebuilt.manifest.clone();
    let same_ptxas = committed.manifest.ptxas == rebuilt_manifest.ptxas;
    for (row, new) in committed.manifest.entries.iter().zip(&mut rebuilt_manifest.entries) {
        if !same_ptxas {
            new.resources.clone_from(&row.resources);
            new.cubin.clone_from(&row.cubin);
        }
        let same_text = slice(committed, row) == slice(rebuilt, new);
        if row.name == new.name && !same_text {
            differences.push(format!("{}: the rebuilt PTX differs", row.name));
        } else if row != new && same_text {
            differences.push(format!("{}: the rebuilt row of the manifest differs", row.name));
        }
    }
    rebuilt_manifest.ptxas.clone_from(&committed.manifest.ptxas);
    let same_cubins = !same_ptxas || committed.cubins == rebuilt.cubins;
    if differences.is_empty()
        && (committed.manifest != rebuilt_manifest || committed.texts != rebuilt.texts || !same_cubins)
    {
        differences.push("the rebuilt manifest or its set of entries differs".to_owned());
    }
    differences
}

/// An entry's text in the archive of its family.
pub fn slice<'a>(shipped: &'a Shipped, row: &ShippedEntry) -> Option<&'a str> {
    shipped.texts.get(&row.family)?.get(row.offset..row.offset.checked_add(row.length)?)
}

fn archives(shipped: &Shipped) -> Vec<String> {
    let damaged = shipped.manifest.archives.iter().filter(|archive| {
        let text = shipped.texts.get(&archive.family);
        !text.is_some_and(|text| {
            text.len() == archive.length && source::hash_bytes(text.as_bytes()) == archive.sha256
        })
    });
    damaged
        .map(|archive| {
            format!("archive {}: its text is not the one that the manifest hashes", archive.family)
        })
        .collect()
}

fn names(manifest: &Manifest, specs: &[EntrySpec]) -> Vec<String> {
    let rows: BTreeSet<&str> = manifest.entries.iter().map(|row| &*row.name).collect();
    let listed: BTreeSet<&str> = specs.iter().map(|spec| &*spec.name).collect();
    let missing = listed.difference(&rows).map(|name| format!("{name}: listed, and not in the manifest"));
    let extra = rows.difference(&listed).map(|name| format!("{name}: in the manifest, and not listed"));
    let mut problems: Vec<String> = missing.chain(extra).collect();
    if rows.len() != manifest.entries.len() {
        problems.push("an entry has two rows in the manifest".to_owned());
    }
    problems
}

/// The facts in which a row differs from the list.
fn facts(row: &ShippedEntry, spec: &EntrySpec) -> Vec<String> {
    let texts = [
        ("family", &row.family, &spec.family),
        ("dtype", &row.dtype, &spec.dtype),
        ("target", &row.target, &spec.target),
    ];
    let numbers = [
        ("threads", row.threads, spec.threads),
        ("min_blocks", row.min_blocks, spec.min_blocks),
        ("shared_bytes", row.shared_bytes, spec.shared_bytes),
        ("barriers", row.barriers, spec.barriers),
    ];
    let texts = texts.map(|(fact, row, spec)| (fact, row.clone(), spec.clone()));
    let numbers = numbers.map(|(fact, row, spec)| (fact, row.to_string(), spec.to_string()));
    texts
        .into_iter()
        .chain(numbers)
        .filter(|(_, row, spec)| row != spec)
        .map(|(fact, row, spec)| format!("{fact} is {row} in the manifest and {spec} in the list"))
        .collect()
}

/// What is wrong with an entry's text: it must be a module of that entry alone, with the launch
/// bounds of the list, and pass the gates.
fn text(shipped: &Shipped, row: &ShippedEntry, spec: &EntrySpec) -> Vec<String> {
    let name = &row.name;
    let Some(text) = slice(shipped, row) else {
        return vec![format!("{name}: its place lies outside the archive of {}", row.family)];
    };
    let module = match Module::parse(text) {
        Ok(module) => module,
        Err(error) => return vec![format!("{name}: {error}")],
    };
    let [entry] = &module.entries[..] else {
        return vec![format!("{name}: its place holds {} entries", module.entries.len())];
    };
    let bounds = format!(".maxntid {}, 1, 1\n.minnctapersm {}", spec.threads, spec.min_blocks);
    let mut problems = Vec::new();
    if entry.name != *name {
        problems.push(format!("{name}: its place holds {}", entry.name));
    }
    if (&module.version, &module.target) != (&row.ptx_version, &row.target) {
        problems.push(format!("{name}: its PTX is {} for {}", module.version, module.target));
    }
    if !entry.signature.ends_with(&bounds) {
        problems.push(format!("{name}: its PTX has not the launch bounds `{}`", bounds.replace('\n', " ")));
    }
    let broken =
        gate::module(&module, std::slice::from_ref(spec)).into_iter().chain(gate::entry(entry, spec));
    problems.extend(broken.map(|violation| violation.to_string()));
    problems
}

/// What is wrong with an entry's cubin: its bytes must be those that the manifest hashes.
pub(crate) fn cubin(shipped: &Shipped, row: &ShippedEntry) -> Option<String> {
    let cubin = row.cubin.as_ref()?;
    let place = cubin.offset..cubin.offset.checked_add(cubin.length)?;
    let bytes = shipped.cubins.get(&row.family).and_then(|archive| archive.get(place));
    let damaged = bytes.is_none_or(|bytes| source::hash_bytes(bytes) != cubin.sha256);
    damaged.then(|| format!("{}: its cubin is not the one that the manifest hashes", row.name))
}

#[cfg(test)]
pub(crate) mod fixture {
    use fa_kernels::shipped::{Resources, ShippedArchive, ShippedCubin};

    use super::*;

    const CUBIN: &[u8] = &[0x7f, b'E', b'L', b'F'];

    pub(crate) fn spec() -> EntrySpec {
        EntrySpec {
            name: "k".to_owned(),
            family: "test".to_owned(),
            dtype: "f32".to_owned(),
            target: "sm_75".to_owned(),
            threads: 128,
            min_blocks: 2,
            shared_bytes: 512,
            barriers: 1,
            begins_early: false,
        }
    }

    /// A complete set of one entry.
    pub(crate) fn shipped() -> Shipped {
        let text = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry k(\n.param .b64 k_param_0\n)\n\
                    .maxntid 128, 1, 1\n.minnctapersm 2\n{\nbar.sync 0, 128;\nret;\n}\n";
        Shipped {
            manifest: Manifest {
                schema: SCHEMA,
                source_sha256: "00".to_owned(),
                compiler: "rustc 1.96.0, LLVM 22.1.8".to_owned(),
                flags: Vec::new(),
                ptxas: "13.0.88".to_owned(),
                archives: vec![ShippedArchive {
                    family: "test".to_owned(),
                    length: text.len(),
                    sha256: source::hash_bytes(text.as_bytes()),
                }],
                entries: vec![ShippedEntry {
                    name: "k".to_owned(),
                    family: "test".to_owned(),
                    dtype: "f32".to_owned(),
                    target: "sm_75".to_owned(),
                    ptx_version: "6.3".to_owned(),
                    threads: 128,
                    min_blocks: 2,
                    shared_bytes: 512,
                    barriers: 1,
                    offset: 0,
                    length: text.len(),
                    resources: vec![Resources {
                        arch: "sm_90".to_owned(),
                        registers: 10,
                        spill_stores: 0,
                        spill_loads: 0,
                        stack: 0,
                        static_shared: 0,
                    }],
                    cubin: Some(ShippedCubin {
                        arch: "sm_90a".to_owned(),
                        offset: 0,
                        length: CUBIN.len(),
                        sha256: source::hash_bytes(CUBIN),
                    }),
                }],
            },
            texts: [("test".to_owned(), text.to_owned())].into(),
            cubins: [("test".to_owned(), CUBIN.to_vec())].into(),
        }
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
