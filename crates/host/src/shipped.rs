//! The kernels that ship with the library: their manifest, and their PTX and cubins on demand.

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
/// When no such entry ships, its feature is not there, or this crate was built with a damaged archive.
pub fn ptx(name: &str) -> Result<String> {
    let entry = entry(name)?;
    let archive = archive(&entry.family, carried(entry, shipped::archive)?)?;
    let text = archive.get(entry.offset..entry.offset + entry.length);
    text.and_then(|text| String::from_utf8(text.to_vec()).ok())
        .ok_or_else(|| broken(format!("{name} lies outside its archive {}", entry.family)))
}

/// An entry's machine code, an image of its own that a driver for its architecture can load; `None` for an
/// entry that runs on several architectures, of which there is PTX alone.
///
/// # Errors
/// As [`ptx`].
pub fn cubin(name: &str) -> Result<Option<Vec<u8>>> {
    let entry = entry(name)?;
    let Some(cubin) = &entry.cubin else { return Ok(None) };
    let family = format!("{}.cubin", entry.family);
    let archive = archive(&family, carried(entry, shipped::cubin_archive)?)?;
    let bytes = archive.get(cubin.offset..cubin.offset + cubin.length);
    bytes
        .map(|bytes| Some(bytes.to_vec()))
        .ok_or_else(|| broken(format!("{name} lies outside its archive {family}")))
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

/// The compressed archive that an entry is in.
fn carried(entry: &ShippedEntry, archive: fn(&str) -> Option<&'static [u8]>) -> Result<&'static [u8]> {
    archive(&entry.family).ok_or_else(|| Error::KernelLeftOut {
        entry: entry.name.clone(),
        features: shipped::features(&entry.family).join("` or `"),
    })
}

/// A decompressed archive, kept by its name for the next entry of it.
fn archive(name: &str, compressed: &'static [u8]) -> Result<Arc<[u8]>> {
    static ARCHIVES: OnceLock<Mutex<HashMap<String, Arc<[u8]>>>> = OnceLock::new();
    let mut archives = ARCHIVES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(content) = archives.get(name) {
        return Ok(Arc::clone(content));
    }
    let mut content = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(compressed)
        .map_err(|error| broken(format!("archive {name}: {error}")))?
        .read_to_end(&mut content)
        .map_err(|error| broken(format!("archive {name}: {error}")))?;
    let content: Arc<[u8]> = content.into();
    archives.insert(name.to_owned(), Arc::clone(&content));
    Ok(content)
}

fn broken(reason: String) -> Error {
    Error::Shipped { reason }
}
