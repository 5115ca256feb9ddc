//! The files that ship: a zstd archive of each family's PTX, and of its cubins where it has some, the
//! manifest, and the lists of archives that the kernels crate includes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fa_kernels::shipped::{self, Manifest};

/// Beyond this level archives of a few MB do not shrink.
const LEVEL: i32 = 19;
const MANIFEST: &str = "manifest.json";
const LIST: &str = "archives.rs";
const ARCHIVE: &str = ".ptx.zst";
const CUBIN_LIST: &str = "cubins.rs";
const CUBIN_ARCHIVE: &str = ".cubin.zst";
/// Ending of a file that is being written.
const PARTIAL: &str = ".partial";

/// What ships: the manifest, and each family's decompressed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// The manifest.
    pub manifest: Manifest,
    /// The PTX of each family's entries, one after another.
    pub texts: BTreeMap<String, String>,
    /// The cubins of the entries of families that have some, one after another.
    pub cubins: BTreeMap<String, Vec<u8>>,
}

impl Shipped {
    /// Each archive's file name and content.
    fn archives(&self) -> impl Iterator<Item = (String, &[u8])> {
        let texts = self.texts.iter().map(|(family, text)| (format!("{family}{ARCHIVE}"), text.as_bytes()));
        let cubins =
            self.cubins.iter().map(|(family, bytes)| (format!("{family}{CUBIN_ARCHIVE}"), &bytes[..]));
        texts.chain(cubins)
    }
}

/// Reads the manifest alone.
///
/// # Errors
/// When it is absent, or was written with another layout.
pub fn read_manifest(folder: &Path) -> Result<Manifest> {
    let path = folder.join(MANIFEST);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
}

/// Reads the manifest and the archives that it names.
///
/// # Errors
/// When one of them is absent or cannot be decoded.
pub fn read(folder: &Path) -> Result<Shipped> {
    let manifest = read_manifest(folder)?;
    let texts = manifest.archives.iter().map(|archive| {
        let path = folder.join(format!("{}{ARCHIVE}", archive.family));
        let text = String::from_utf8(read_archive(&path)?)
            .with_context(|| format!("{} holds something else than text", path.display()))?;
        Ok((archive.family.clone(), text))
    });
    let texts = texts.collect::<Result<_>>()?;
    let families: BTreeSet<&str> =
        manifest.entries.iter().filter(|row| row.cubin.is_some()).map(|row| &*row.family).collect();
    let cubins = families.into_iter().map(|family| {
        Ok((family.to_owned(), read_archive(&folder.join(format!("{family}{CUBIN_ARCHIVE}")))?))
    });
    Ok(Shipped { texts, cubins: cubins.collect::<Result<_>>()?, manifest })
}

/// Writes everything, removes archives of families that are gone, and gives the compressed bytes
/// of all archives together.
///
/// All files are complete under other names before the first takes its place. A file that would say
/// the same stays untouched, so that another release of zstd changes no committed byte.
///
/// # Errors
/// When the folder cannot be written.
pub fn write(folder: &Path, shipped: &Shipped) -> Result<u64> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, content) in shipped.archives() {
        if !read_archive(&folder.join(&name)).is_ok_and(|old| old == content) {
            files.push((name, zstd::bulk::compress(content, LEVEL).context("zstd cannot compress")?));
        }
    }
    files.push((LIST.to_owned(), list(shipped.texts.keys(), ARCHIVE).into_bytes()));
    files.push((CUBIN_LIST.to_owned(), list(shipped.cubins.keys(), CUBIN_ARCHIVE).into_bytes()));
    files.push((MANIFEST.to_owned(), manifest_text(&shipped.manifest)?.into_bytes()));
    files.retain(|(name, bytes)| !fs::read(folder.join(name)).is_ok_and(|old| old == *bytes));
    for (name, bytes) in &files {
        let path = folder.join(format!("{name}{PARTIAL}"));
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    for (name, _) in &files {
        let path = folder.join(name);
        let partial = folder.join(format!("{name}{PARTIAL}"));
        fs::rename(partial, &path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    remove_stale(folder, shipped)?;
    archives(folder)?.iter().map(|path| Ok(fs::metadata(path)?.len())).sum()
}

/// The manifest as it is written.
fn manifest_text(manifest: &Manifest) -> Result<String> {
    let text = serde_json::to_string_pretty(manifest).context("the manifest is no JSON")?;
    Ok(text + "\n")
}

/// The expression that `fa_kernels::shipped` includes.
fn list<'a>(families: impl Iterator<Item = &'a String>, ending: &str) -> String {
    let lines = families.map(|family| {
        let condition = condition(shipped::features(family));
        format!("    #[cfg({condition})]\n    (\"{family}\", include_bytes!(\"{family}{ending}\")),\n")
    });
    format!("// Written by `cargo xtask kernels`.\n&[\n{}]\n", lines.collect::<String>())
}

/// Any of these features, as a `cfg`.
fn condition(features: &[&str]) -> String {
    let features: Vec<String> = features.iter().map(|feature| format!("feature = \"{feature}\"")).collect();
    match &features[..] {
        [one] => one.clone(),
        several => format!("any({})", several.join(", ")),
    }
}

fn read_archive(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    zstd::stream::decode_all(&bytes[..]).with_context(|| format!("{} is damaged", path.display()))
}

fn remove_stale(folder: &Path, shipped: &Shipped) -> Result<()> {
    let current: BTreeSet<PathBuf> = shipped.archives().map(|(name, _)| folder.join(name)).collect();
    for path in archives(folder)?.iter().filter(|path| !current.contains(*path)) {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Paths of the archives in a folder.
fn archives(folder: &Path) -> Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
    });
    let mut paths = paths.with_context(|| format!("cannot read {}", folder.display()))?;
    paths.retain(|path| {
        [ARCHIVE, CUBIN_ARCHIVE].iter().any(|ending| path.to_string_lossy().ends_with(ending))
    });
    Ok(paths)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::check::fixture;

    #[test]
    fn each_family_is_carried_by_a_feature() {
        for variant in fa_kernels::entries::variants() {
            let family = variant.kernel.family();
            assert!(!shipped::features(family).is_empty(), "{family}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let shipped = fixture::shipped();
        let size = write(folder.path(), &shipped).unwrap();
        let sizes = ["test.ptx.zst", "test.cubin.zst"]
            .map(|name| fs::metadata(folder.path().join(name)).unwrap().len());
        assert_eq!(size, sizes.iter().sum::<u64>());
        assert_eq!(read(folder.path()).unwrap(), shipped);
        for (list, archive) in [(LIST, "test.ptx.zst"), (CUBIN_LIST, "test.cubin.zst")] {
            let list = fs::read_to_string(folder.path().join(list)).unwrap();
            assert!(list.contains(&format!("(\"test\", include_bytes!(\"{archive}\")),")), "{list}");
        }
    }

    #[test]
    fn a_family_of_two_operations_ships_with_either() {
        let families = ["decode", "pack"].map(str::to_owned);
        let expected = "// Written by `cargo xtask kernels`.\n&[\n    #[cfg(feature = \"decode\")]\n    \
                        (\"decode\", include_bytes!(\"decode.ptx.zst\")),\n    \
                        #[cfg(any(feature = \"forward\", feature = \"backward\"))]\n    \
                        (\"pack\", include_bytes!(\"pack.ptx.zst\")),\n]\n";
        assert_eq!(list(families.iter(), ARCHIVE), expected);
    }

    #[test]
    fn a_second_write_touches_nothing_that_says_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let shipped = fixture::shipped();
        write(folder.path(), &shipped).unwrap();
        let archive = folder.path().join("test.ptx.zst");
        let other_level = zstd::bulk::compress(shipped.texts["test"].as_bytes(), 1).unwrap();
        fs::write(&archive, &other_level).unwrap();
        write(folder.path(), &shipped).unwrap();
        assert_eq!(fs::read(&archive).unwrap(), other_level);
    }

    #[test]
    fn archives_of_families_that_are_gone_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone.ptx.zst");
        fs::write(&gone, "").unwrap();
        write(folder.path(), &fixture::shipped()).unwrap();
        assert!(!gone.exists());
    }

    #[test]
    fn a_damaged_archive_is_named() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &fixture::shipped()).unwrap();
        fs::write(folder.path().join("test.ptx.zst"), "no zstd").unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("test.ptx.zst is damaged"), "{error}");
    }
}
