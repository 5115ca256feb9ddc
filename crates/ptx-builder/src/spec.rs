//! What the list of entries says about one entry, in the builder's terms.

use fa_kernels::entries::variants;
use fa_kernels::variant::Variant;

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
    /// Whether its launch may begin before the one in front of it has ended.
    pub begins_early: bool,
}

impl From<&Variant> for EntrySpec {
    fn from(variant: &Variant) -> Self {
        Self {
            name: variant.name(),
            family: variant.kernel.family().to_owned(),
            dtype: variant.dtype.name().to_owned(),
            target: variant.kernel.target().name().to_owned(),
            threads: variant.config.threads(),
            min_blocks: variant.min_blocks,
            shared_bytes: variant.config.shared_needed() as u32,
            barriers: variant.barriers(),
            begins_early: variant.kernel.begins_early(),
        }
    }
}

/// The list of entries that the kernels crate gives.
pub fn listed() -> Vec<EntrySpec> {
    variants().map(|variant| EntrySpec::from(&variant)).collect()
}
