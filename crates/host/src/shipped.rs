//! The kernels that ship with the library: their manifest, and their PTX on demand.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fa_kernels::shipped::{self, Manifest, ShippedEntry};

use crate::{Error, Result};

/// The manifest of the shipped kernels.
///
/// # Errors
/// When this crate was built with a damaged manifest.
pub fn manifest() -> Result<&'static Manifest> {
    static MANIFEST: OnceLock<Result<Manifest, String>> = OnceLock::new();
    MANIFEST
        .get_or_init(|| serde_json::from_str(shipped::MANIFEST).map_err(|error| error.to_string()))
        .as_ref()
        .map_err(|reason| broken(format!("manifest.json: {reason}")))
}

/// An entry's row in the manifest.
///
/// # Errors
/// When no such entry ships.
pub fn entry(name: &str) -> Result<&'static ShippedEntry> {
    manifest()?
        .entries
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| broken(format!("no entry {name} in the manifest")))
}

/// An entry's PTX, a complete module of its own that any driver API can load.
///
/// # Errors
/// When no such entry ships, or this crate was built with a damaged archive.
pub fn ptx(name: &str) -> Result<String> {
    let entry = entry(name)?;
    let text = archive(&entry.family)?;
    text.get(entry.offset..entry.offset + entry.length)
        .map(str::to_owned)
        .ok_or_else(|| broken(format!("{name} lies outside its archive {}", entry.family)))
}

/// The oldest PTX ISA version among the shipped entries, as (major, minor). Newer ones come with kernels for
/// newer devices, whose drivers know them.
pub(crate) fn least_ptx_isa() -> Result<(u32, u32)> {
    let versions = manifest()?.entries.iter().map(|entry| {
        let (major, minor) = entry.ptx_version.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    versions.min().flatten().ok_or_else(|| broken("no PTX version in the manifest".to_owned()))
}

/// A family's decompressed archive, kept for the next entry of it.
fn archive(family: &str) -> Result<Arc<str>> {
    static ARCHIVES: OnceLock<Mutex<HashMap<String, Arc<str>>>> = OnceLock::new();
    let mut archives = ARCHIVES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = archives.get(family) {
        return Ok(Arc::clone(text));
    }
    let compressed = shipped::archive(family).ok_or_else(|| broken(format!("no archive {family}")))?;
    let mut text = String::new();
    ruzstd::decoding::StreamingDecoder::new(compressed)
        .map_err(|error| broken(format!("archive {family}: {error}")))?
        .read_to_string(&mut text)
        .map_err(|error| broken(format!("archive {family}: {error}")))?;
    let text: Arc<str> = text.into();
    archives.insert(family.to_owned(), Arc::clone(&text));
    Ok(text)
}

fn broken(reason: String) -> Error {
    Error::Shipped { reason }
}
