//! Where the JSON document goes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

/// A place for the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// In place of the table.
    Stdout,
    /// A file, beside the table.
    File(PathBuf),
}

impl Destination {
    /// `-` is stdout, anything else a path.
    ///
    /// # Errors
    /// When the path is empty.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("the path is empty".to_owned()),
            "-" => Ok(Self::Stdout),
            path => Ok(Self::File(path.into())),
        }
    }

    /// Finds out before the measurement whether the document can be written after it. Leaves nothing behind.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Self::File(path) = self else { return Ok(()) };
        attempt(path).with_context(|| format!("--json {}: cannot be written", path.display()))
    }

    /// Writes the document and a newline: to a file as a whole or not at all.
    pub(crate) fn write(&self, document: &impl Serialize) -> anyhow::Result<()> {
        let text = text(document)?;
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&text)?;
                Ok(stdout.flush()?)
            }
            Self::File(path) => write_file(path, &text)
                .with_context(|| format!("--json {}: cannot be written", path.display())),
        }
    }
}

/// Writes a document as a file, as a whole or not at all.
pub(crate) fn write(path: &Path, document: &impl Serialize) -> anyhow::Result<()> {
    write_file(path, &text(document)?).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Finds out whether a file can be written. Leaves nothing behind.
pub(crate) fn check_writable(path: &Path) -> anyhow::Result<()> {
    attempt(path).with_context(|| format!("{}: cannot be written", path.display()))
}

fn attempt(path: &Path) -> io::Result<()> {
    match place(path) {
        Place::Replace(path) => temporary(&path).map(drop),
        Place::Open => File::options().write(true).open(path).map(drop),
    }
}

fn text(document: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(document)?;
    text.push(b'\n');
    Ok(text)
}

/// How a path is written to.
enum Place {
    /// A regular file, or none yet: this path gets a new one.
    Replace(PathBuf),
    /// A pipe or a device, which a rename would destroy.
    Open,
}

fn place(path: &Path) -> Place {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Place::Open,
        // A symbolic link stays one: its target is replaced.
        Ok(_) => Place::Replace(path.canonicalize().unwrap_or_else(|_| path.to_owned())),
        Err(_) => Place::Replace(path.to_owned()),
    }
}

fn write_file(path: &Path, text: &[u8]) -> io::Result<()> {
    match place(path) {
        Place::Open => File::options().write(true).open(path)?.write_all(text),
        Place::Replace(path) => {
            let mut file = temporary(&path)?;
            file.write_all(text)?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)?;
            Ok(())
        }
    }
}

/// A file beside `path`, on the same file system, with the permissions of an ordinary new file.
fn temporary(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // The system's own words for a folder that is not there.
    fs::metadata(folder)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".fa-bench-").suffix(".json");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    // The bare I/O error: the caller names the path that the user knows.
    builder.tempfile_in(folder).map_err(|error| io::Error::from(error.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        fs::write(&path, "something longer than the document").unwrap();
        let destination = Destination::parse(path.to_str().unwrap()).unwrap();
        destination.check().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "something longer than the document");
        destination.write(&[1, 2]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[\n  1,\n  2\n]\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_refused_before() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("no/such/folder/out.json")] {
            let error = Destination::File(path.clone()).check().unwrap_err();
            assert!(
                format!("{error:#}").starts_with(&format!("--json {}: cannot be written: ", path.display()))
            );
        }
    }
}
