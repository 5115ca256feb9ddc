//! What a warpgroup has under way: its products, and how far each of its warps is.

use std::collections::VecDeque;
use std::panic::Location;

use crate::operation::{Operation, Options};
use crate::state::accumulators::Accumulators;

use crate::race::Group;
use crate::site::Site;
use crate::threads::WARPGROUP_WARPS;

/// The products of a warpgroup that are under way.
#[derive(Default)]
pub(crate) struct Warpgroup {
    pub(crate) warps: [Progress; WARPGROUP_WARPS],
    /// Those not complete for all warps, the oldest first.
    pub(crate) products: VecDeque<Product>,
    /// Number of `products[0]`.
    pub(crate) first: u64,
    pub(crate) accumulators: Accumulators,
    pub(crate) reader: Option<Reader>,
}

/// The author of the reads of a warpgroup's products.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    pub(crate) agent: usize,
    /// Its epoch in group 0.
    pub(crate) base: u32,
    /// The group whose epoch it is in.
    pub(crate) group: u64,
}

/// How far one warp is.
#[derive(Default)]
pub(crate) struct Progress {
    /// Products issued.
    pub(crate) issued: u64,
    /// Groups closed.
    pub(crate) committed: u64,
    /// Products in no group yet.
    pub(crate) open: u64,
    /// Groups complete.
    pub(crate) complete: u64,
    /// Whether it has fenced since its last wait.
    pub(crate) fenced: bool,
    /// The number of groups that it waits for.
    pub(crate) awaits: Option<u64>,
    /// Its rows of the accumulator that its lanes bring to the next product.
    pub(crate) staged: Vec<f32>,
    /// Where it issued its last product.
    pub(crate) last: Option<&'static Location<'static>>,
}

/// What the warps of a warpgroup issue alike.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Issue {
    pub(crate) site: Site,
    pub(crate) operation: Operation,
    /// The descriptor of A; `None` where it is in registers.
    pub(crate) a: Option<u64>,
    pub(crate) b: u64,
    /// The group that the product is in.
    pub(crate) group: u64,
    /// The tag of the accumulator that the lanes bring.
    pub(crate) brought: u32,
}

impl Issue {
    /// In what another one differs from this one.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let differences = [
            (self.site != other.site, "places"),
            (self.operation != other.operation, "operations"),
            ((self.a, self.b) != (other.a, other.b), "descriptors"),
            (self.group != other.group, "groups"),
            (self.brought != other.brought, "accumulators"),
        ];
        differences.into_iter().find_map(|(differs, what)| differs.then_some(what))
    }
}

/// One product under way.
pub(crate) struct Product {
    pub(crate) issue: Issue,
    pub(crate) options: Options,
    pub(crate) n: usize,
    /// A from registers; empty where it is in shared memory.
    pub(crate) a_bits: Vec<u16>,
    /// Its accumulator's tag.
    pub(crate) tag: u32,
    /// One bit for each warp that has issued it.
    pub(crate) issued: u32,
    pub(crate) issuers: Group,
    /// Whether it reads bytes that nothing has written: it is never complete, as in `Block::shared_read`.
    pub(crate) is_held: bool,
    pub(crate) computed: bool,
    pub(crate) location: &'static Location<'static>,
}

impl Product {
    /// Whether all warps have issued it, so that it can be complete.
    pub(crate) fn is_issued(&self) -> bool {
        self.issued == (1 << WARPGROUP_WARPS) - 1 && !self.is_held
    }
}

impl Warpgroup {
    /// Whether all products of the groups before `groups` are issued by all warps.
    pub(crate) fn is_issued(&self, groups: u64) -> bool {
        let first = self.products.iter().find(|product| !product.is_issued());
        first.is_none_or(|product| product.issue.group >= groups)
    }
}
