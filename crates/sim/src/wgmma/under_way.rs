//! What a warpgroup has under way: its products, and how far each of its warps is.

use std::collections::VecDeque;
use std::panic::Location;

use super::sums::Accumulators;
use crate::operation::Operation;
use crate::operation::Options;
use crate::race::Group;
use crate::site::Site;
use crate::threads::WARPGROUP_WARPS;

/// The products of a warpgroup that are under way.
#[derive(Default)]
pub(crate) struct Warpgroup {
    pub(super) warps: [Progress; WARPGROUP_WARPS],
    /// Those not complete for all warps, the oldest first.
    pub(super) products: VecDeque<Product>,
    /// Number of `products[0]`.
    pub(super) first: u64,
    pub(super) accumulators: Accumulators,
    pub(super) reader: Option<Reader>,
}

/// The author of the reads of a warpgroup's products.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    pub(super) agent: usize,
    /// Its epoch in group 0.
    pub(super) base: u32,
    /// The group whose epoch it is in.
    pub(super) group: u64,
}

/// How far one warp is.
#[derive(Default)]
pub(super) struct Progress {
    /// Products issued.
    pub(super) issued: u64,
    /// Groups closed.
    pub(super) committed: u64,
    /// Products in no group yet.
    pub(super) open: u64,
    /// Groups complete.
    pub(super) complete: u64,
    /// Whether it has fenced since its last wait.
    pub(super) fenced: bool,
    /// The number of groups that it waits for.
    pub(super) awaits: Option<u64>,
    /// Its rows of the accumulator that its lanes bring to the next product.
    pub(super) staged: Vec<f32>,
    /// Where it issued its last product.
    pub(super) last: Option<&'static Location<'static>>,
}

/// What the warps of a warpgroup issue alike.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Issue {
    pub(super) site: Site,
    pub(super) operation: Operation,
    /// The descriptor of A; `None` where it is in registers.
    pub(super) a: Option<u64>,
    pub(super) b: u64,
    /// The group that the product is in.
    pub(super) group: u64,
    /// The tag of the accumulator that the lanes bring.
    pub(super) brought: u32,
}

impl Issue {
    /// In what another one differs from this one.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
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
pub(super) struct Product {
    pub(super) issue: Issue,
    pub(super) options: Options,
    pub(super) n: usize,
    /// A from registers; empty where it is in shared memory.
    pub(super) a_bits: Vec<u16>,
    /// Its accumulator's tag.
    pub(super) tag: u32,
    /// One bit for each warp that has issued it.
    pub(super) issued: u32,
    pub(super) issuers: Group,
    /// Whether it reads bytes that nothing has written: it is never complete, as in `Block::shared_read`.
    pub(super) is_held: bool,
    pub(super) computed: bool,
    pub(super) location: &'static Location<'static>,
}

impl Product {
    /// Whether all warps have issued it, so that it can be complete.
    pub(super) fn is_issued(&self) -> bool {
        self.issued == (1 << WARPGROUP_WARPS) - 1 && !self.is_held
    }
}

impl Warpgroup {
    /// Whether all products of the groups before `groups` are issued by all warps.
    pub(super) fn is_issued(&self, groups: u64) -> bool {
        let first = self.products.iter().find(|product| !product.is_issued());
        first.is_none_or(|product| product.issue.group >= groups)
    }
}
