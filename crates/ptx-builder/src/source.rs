//! A hash of the kernel sources, which tells whether the committed PTX was built from them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

/// SHA-256 over all files under `folder`: for each, in the order of their relative paths, the path
/// with `/` between its parts, the length, and the contents. In hexadecimal.
///
/// # Errors
/// When a file cannot be read.
pub fn hash(folder: &Path) -> Result<String> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    let mut named = Vec::new();
    for file in files {
        let relative = file.strip_prefix(folder).context("a file outside its folder")?;
        let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
        named.push((parts.join("/"), file));
    }
    named.sort();
    let mut hasher = Sha256::new();
    for (name, file) in named {
        let contents = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for part in [name.as_bytes(), &contents] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    Ok(hexadecimal(&hasher.finalize()))
}

/// SHA-256 of some bytes, in hexadecimal.
pub fn hash_bytes(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, contents) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
    }

    #[test]
    fn hash_depends_on_names_and_contents_and_not_on_the_place() {
        let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
        write(folders[0].path(), &[("lib.rs", "a"), ("tile/mod.rs", "b")]);
        write(folders[1].path(), &[("tile/mod.rs", "b"), ("lib.rs", "a")]);
        write(folders[2].path(), &[("lib.rs", "a"), ("tile/mod.rs", "c")]);
        write(folders[3].path(), &[("lib.rs", "ab"), ("tile/mod.rs", "")]);
        let hashes: Vec<_> = folders.iter().map(|folder| hash(folder.path()).unwrap()).collect();
        assert_eq!(hashes[0], hashes[1]);
        assert_ne!(hashes[0], hashes[2]);
        assert_ne!(hashes[0], hashes[3]);
    }

    #[test]
    fn hash_bytes_matches_the_standard_vector() {
        assert_eq!(hash_bytes(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
