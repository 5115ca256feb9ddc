//! The built kernels that this crate ships: compressed PTX, cubins of kernels for one architecture, and the
//! manifest.
//!
//! `cargo xtask kernels` writes everything under `ptx/`. An archive is the concatenated PTX of one family's
//! entries, compressed with zstd; [`ShippedEntry`] says where in it an entry stands. Where all entries of a
//! family run on one architecture alone, a second archive has what ptxas made of them, which the driver loads
//! as it is. Which archives a build carries is said by features of this crate; the manifest has all entries.

extern crate alloc;

use alloc::{string::String, vec::Vec};
use serde::{Deserialize, Serialize};

/// The manifest as JSON; it deserialises to [`Manifest`].
pub const MANIFEST: &str = include_str!("../ptx/manifest.json");

/// Version of the manifest's layout that this source reads and writes.
pub const SCHEMA: u32 = 1;

/// Made by the builder, so that a new family needs no line here before its archive exists.
const PTX_ARCHIVES: &[(&str, &[u8])] = include!("../ptx/archives.rs");

/// As [`PTX_ARCHIVES`].
const CUBIN_ARCHIVES: &[(&str, &[u8])] = include!("../ptx/cubins.rs");

/// The zstd archive of a family, as in [`Algorithm::family`](crate::entries::Algorithm::family);
/// `None` where no such family is shipped, or none of its [`features`] is there.
pub fn archive(family: &str) -> Option<&'static [u8]> {
    find(PTX_ARCHIVES, family)
}

/// As [`archive`], of the family's cubins.
pub fn cubin_archive(family: &str) -> Option<&'static [u8]> {
    find(CUBIN_ARCHIVES, family)
}

/// The features of this crate that carry a family's archives: each one does by itself.
pub fn features(family: &str) -> &'static [&'static str] {
    match family.split('_').next() {
        _ if family == "forward_sm90_cached" => &["decode"],
        Some("backward") => &["backward"],
        Some("append" | "decode" | "mla") => &["decode"],
        Some("gemm" | "mma" | "read") => &["gemm"],
        // Copies of rows, which both passes read.
        Some("pack") => &["forward", "backward"],
        Some("forward" | "standard") => &["forward"],
        _ => &[],
    }
}

fn find(archives: &[(&str, &'static [u8])], family: &str) -> Option<&'static [u8]> {
    archives.iter().find(|(name, _)| *name == family).map(|(_, bytes)| *bytes)
}

/// What was built, from which sources, by what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Layout version, [`SCHEMA`].
    pub schema: u32,
    /// SHA-256 over the crate's sources, in hexadecimal.
    pub source_sha256: String,
    /// The device compiler and its LLVM; equal strings give equal PTX.
    pub compiler: String,
    /// The compiler's flags that shape the PTX, without the target.
    pub flags: Vec<String>,
    /// Version of the ptxas that [`ShippedEntry::resources`] come from.
    pub ptxas: String,
    /// The archives, by family.
    pub archives: Vec<ShippedArchive>,
    /// The entries, in the order of [`entries`](crate::entries::entries).
    pub entries: Vec<ShippedEntry>,
}

/// One archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedArchive {
    /// The kernel family.
    pub family: String,
    /// Bytes of the decompressed text.
    pub length: usize,
    /// SHA-256 of the decompressed text, in hexadecimal.
    pub sha256: String,
}

/// One entry: a self-contained PTX module inside its family's archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedEntry {
    /// Name of the PTX entry.
    pub name: String,
    /// The kernel family, which names the archive.
    pub family: String,
    /// Storage type: `f32`, `f16`, `bf16` or `e4m3`.
    pub dtype: String,
    /// PTX target, as in `sm_75`: the least device that it runs on.
    pub target: String,
    /// PTX ISA version, as in `6.3`: the driver must know it.
    pub ptx_version: String,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that the register budget leaves room for on a multiprocessor.
    pub min_blocks: u32,
    /// Bytes of dynamic shared memory that a launch needs.
    pub shared_bytes: u32,
    /// Block barriers in the PTX.
    pub barriers: u32,
    /// First byte in the decompressed archive.
    pub offset: usize,
    /// Bytes in the decompressed archive.
    pub length: usize,
    /// What ptxas made of it, per architecture.
    pub resources: Vec<Resources>,
    /// The cubin, of an entry that runs on one architecture alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cubin: Option<ShippedCubin>,
}

/// One entry's machine code, by the ptxas that [`Manifest::ptxas`] names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedCubin {
    /// The architecture, as in `sm_90a`.
    pub arch: String,
    /// First byte in the family's decompressed archive of cubins.
    pub offset: usize,
    /// Bytes there.
    pub length: usize,
    /// SHA-256 of these bytes, in hexadecimal.
    pub sha256: String,
}

/// What ptxas reports of one entry on one architecture. All sizes are bytes per thread, but for
/// `static_shared`, which is bytes per block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// The architecture, as in `sm_90`.
    pub arch: String,
    /// 32-bit registers of a thread.
    pub registers: u32,
    /// Registers written to local memory for want of room.
    pub spill_stores: u32,
    /// Registers read back.
    pub spill_loads: u32,
    /// The stack frame.
    pub stack: u32,
    /// Shared memory that the entry declares itself, beside the dynamic one.
    pub static_shared: u32,
}
