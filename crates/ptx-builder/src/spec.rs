//! What the list of entries says about one entry, in the builder's terms.

use fa_kernels::entries::{Entry, GemmEntry, entries, gemm_entries};

/// The facts about an entry that its PTX must bear out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrySpec {
    /// Name of the PTX entry.
    pub name: String,
    /// The kernel family, which names the archive.
    pub family: String,
    /// Storage type.
    pub dtype: String,
    /// PTX target, as in `sm_75`.
    pub target: String,
    /// Threads of a block (`.maxntid`).
    pub threads: u32,
    /// Blocks that the register budget leaves room for on a multiprocessor (`.minnctapersm`).
    pub min_blocks: u32,
    /// Bytes of dynamic shared memory that a launch needs.
    pub shared_bytes: u32,
    /// Block barriers in the source.
    pub barriers: u32,
}

impl From<&Entry> for EntrySpec {
    fn from(entry: &Entry) -> Self {
        Self::new(entry, entry.algorithm.family())
    }
}

impl From<&GemmEntry> for EntrySpec {
    fn from(entry: &GemmEntry) -> Self {
        Self::new(entry, entry.algorithm.family())
    }
}

impl EntrySpec {
    fn new<A, T>(entry: &Entry<A, T>, family: &str) -> Self {
        Self {
            name: entry.name.to_owned(),
            family: family.to_owned(),
            dtype: entry.dtype.to_owned(),
            target: entry.target.name().to_owned(),
            threads: entry.threads,
            min_blocks: entry.min_blocks,
            shared_bytes: entry.shared_bytes,
            barriers: entry.barriers,
        }
    }
}

/// The list of entries that the kernels crate gives.
pub fn listed() -> Vec<EntrySpec> {
    entries().map(EntrySpec::from).chain(gemm_entries().map(EntrySpec::from)).collect()
}
