//! What goes to the registry: packed, unpacked and built from there, with its licences and below the limit.

use std::fs;

use anyhow::{Context as _, Result, bail};
use fa_ptx_builder::Workspace;

use super::metadata::{Metadata, Package};

/// Bytes of a compressed package that the registry takes.
const LIMIT: u64 = 10 * 1024 * 1024;

/// Files that each package has beside its sources.
const NEEDED: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packs all packages together, so that each one is built against the others as packed, and prints their
/// sizes. Whether the tree is clean is a point of its own.
pub(super) fn check(workspace: &Workspace, metadata: &Metadata) -> Result<()> {
    let published = metadata.published();
    let mut arguments = vec!["package", "--allow-dirty"];
    arguments.extend(published.iter().flat_map(|package| ["-p", &package.name]));
    super::run(&mut super::cargo(workspace, &arguments))?;
    let mut sizes = Vec::new();
    for package in published {
        let missing = missing(&super::output(workspace, &mut super::cargo(workspace, &list(package)))?);
        if !missing.is_empty() {
            bail!("{} lacks {}", package.name, missing.join(", "));
        }
        let file = format!("package/{}-{}.crate", package.name, package.version);
        let path = metadata.target_directory.join(file);
        let file = fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        sizes.push((&*package.name, file.len()));
    }
    print!("{}", table(&sizes));
    match sizes.iter().find(|(_, bytes)| *bytes > LIMIT) {
        Some((name, bytes)) => bail!("{name} has {bytes} bytes; the registry takes {LIMIT}"),
        None => Ok(()),
    }
}

fn list(package: &Package) -> [&str; 5] {
    ["package", "--allow-dirty", "--list", "-p", &package.name]
}

/// What a list of files lacks.
fn missing(files: &str) -> Vec<&'static str> {
    NEEDED.into_iter().filter(|needed| !files.lines().any(|file| file == *needed)).collect()
}

/// The compressed sizes beside the limit.
fn table(sizes: &[(&str, u64)]) -> String {
    let kib = |bytes: u64| format!("{} KiB", bytes.div_ceil(1024));
    let mut text = format!(
        "| {:<16} | {:>10} | {:>9} |\n|:{:-<17}|{:->11}:|{:->10}:|\n",
        "package", "compressed", "limit", "", "", ""
    );
    for (name, bytes) in sizes {
        text += &format!("| {name:<16} | {:>10} | {:>9} |\n", kib(*bytes), kib(LIMIT));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_file_is_named() {
        assert_eq!(missing("Cargo.toml\nLICENSE-MIT\nsrc/README.md\n"), ["LICENSE-APACHE", "README.md"]);
        assert!(missing("LICENSE-APACHE\nLICENSE-MIT\nREADME.md\n").is_empty());
    }

    #[test]
    fn sizes_are_rounded_up_beside_the_limit() {
        let expected = "| package          | compressed |     limit |\n\
                        |:-----------------|-----------:|----------:|\n\
                        | fa-sim           |    151 KiB | 10240 KiB |\n";
        assert_eq!(table(&[("fa-sim", 150 * 1024 + 1)]), expected);
    }
}
