//! Whether dS is stored between the launch that computes it and the one that multiplies it with K, and of how
//! many heads at a time.

use fa_kernels::attention::stored_ds::{GRANULE, PANEL, ROW_BYTES};
use fa_kernels::params::StoredDs;

use super::BackwardProblem;
use crate::{Device, Problem};

/// Bytes of workspace that a backward pass takes at most, unless its request says another number.
pub const DEFAULT_WORKSPACE_LIMIT: u64 = 512 << 20;

/// What the workspace's parts are multiples of, so that rows of dS are whole lines of L2.
const ALIGNMENT: u64 = 256;

/// The heads of a launch, of one sequence after the other: key/value heads where its blocks own keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    pub(super) first: usize,
    pub(super) count: usize,
}

/// Bytes of the workspace before dS: delta.
pub(super) fn delta_bytes(forward: &Problem) -> u64 {
    4 * forward.lse_len() as u64
}

/// Where dS lies in a workspace at this address, and how.
pub(super) fn layout(forward: &Problem, workspace: u64) -> StoredDs {
    let panel_bytes = key_rows(forward) as u64 * u64::from(ROW_BYTES);
    StoredDs {
        address: workspace + delta_bytes(forward).next_multiple_of(ALIGNMENT),
        panel_bytes,
        head_bytes: panel_bytes.saturating_mul(panels(forward) as u64),
    }
}

/// Panels of a head of the longest sequence.
pub(super) fn panels(forward: &Problem) -> usize {
    forward.seqlen_q().div_ceil(PANEL as usize)
}

/// Rows of a panel: keys of the longest sequence, in whole granules.
pub(super) fn key_rows(forward: &Problem) -> usize {
    forward.seqlen_k().next_multiple_of(GRANULE as usize)
}

/// Bytes of dS of the query heads that share a key/value head.
pub(super) fn kv_head_bytes(forward: &Problem) -> u64 {
    layout(forward, 0).head_bytes.saturating_mul(forward.group() as u64)
}

/// Bytes of a workspace that holds dS of so many key/value heads.
pub(super) fn workspace_bytes(forward: &Problem, kv_heads: usize) -> u64 {
    let before = delta_bytes(forward).next_multiple_of(ALIGNMENT);
    before.saturating_add(kv_head_bytes(forward).saturating_mul(kv_heads as u64))
}

/// Key/value heads whose dS fits the limit, up to all.
pub(super) fn fitting(forward: &Problem, limit: u64) -> usize {
    let left = limit.saturating_sub(workspace_bytes(forward, 0));
    let all = forward.kv_heads() * forward.batch();
    usize::try_from(left / kv_head_bytes(forward)).map_or(all, |heads| heads.min(all))
}

/// Of at most `most` key/value heads at a time, how many are estimated to be the fastest; `None` where it is
/// faster to compute scores twice.
pub(super) fn fastest(problem: &BackwardProblem, device: &Device, most: usize) -> Option<usize> {
    let forward = problem.forward();
    let all = forward.kv_heads() * forward.batch();
    let estimate = Estimate::new(forward, device);
    let seconds = |heads: usize| {
        let (whole, rest) = (all / heads, all % heads);
        let rest = if rest > 0 { estimate.stored(rest) } else { 0.0 };
        whole as f64 * estimate.stored(heads) + rest
    };
    let heads = (1..=most).min_by(|&a, &b| seconds(a).total_cmp(&seconds(b)))?;
    (seconds(heads) < estimate.recomputed(all)).then_some(heads)
}

/// Cycles of launches, as estimated.
struct Estimate<'a> {
    forward: &'a Problem,
    multiprocessors: f64,
    /// Cycles of a product of a granule of queries and one of keys.
    product: f64,
    /// Cycles in which a granule of both is read from device memory.
    read: f64,
}

impl<'a> Estimate<'a> {
    /// Cycles that a launch takes beside its blocks.
    const LAUNCH: f64 = 6_000.0;
    /// Share of the tensor cores' time that products take: owning keys with dS stored, owning queries, and
    /// of dS with K.
    const SHARES: [f64; 3] = [0.75, 0.78, 0.7];
    /// Bytes that all multiprocessors read in a cycle.
    const READ_BYTES: f64 = 2_400.0;

    fn new(forward: &'a Problem, device: &Device) -> Self {
        let pairs = f64::from(GRANULE * GRANULE);
        let multiprocessors = f64::from(device.multiprocessors.max(1));
        let columns = (forward.head_dim() + forward.head_dim_v()) as f64 / 2.0;
        Self {
            forward,
            multiprocessors,
            product: pairs * columns / 2_048.0,
            read: 2.0 * pairs * multiprocessors / Self::READ_BYTES,
        }
    }

    /// A launch of blocks of a granule each of so many heads, that goes over granules of the other side at so
    /// many cycles each.
    fn launch(&self, heads: usize, (owned, others): (usize, usize), cycles: f64) -> f64 {
        let granules = |rows: usize| rows.div_ceil(GRANULE as usize) as f64;
        let longest = granules(others) * cycles;
        let blocks = granules(owned) * heads as f64;
        let rounds = blocks / self.multiprocessors;
        let blocks_cycles = if self.forward.causal() {
            // Long blocks go first, and short ones fill up.
            (rounds * longest / 2.0).max(longest)
        } else {
            rounds.ceil() * longest
        };
        Self::LAUNCH + blocks_cycles
    }

    /// Both launches of so many key/value heads.
    fn stored(&self, kv_heads: usize) -> f64 {
        let (queries, keys) = (self.forward.seqlen_q(), self.forward.seqlen_k());
        let group = self.forward.group();
        let [owning_keys, _, of_ds] = Self::SHARES;
        let product = (self.product / of_ds).max(self.read);
        self.launch(kv_heads, (keys, queries * group), 4.0 * self.product / owning_keys)
            + self.launch(kv_heads * group, (queries, keys), product)
    }

    /// Both launches where each computes its own scores.
    fn recomputed(&self, kv_heads: usize) -> f64 {
        let (queries, keys) = (self.forward.seqlen_q(), self.forward.seqlen_k());
        let group = self.forward.group();
        let [_, owning_queries, _] = Self::SHARES;
        self.launch(kv_heads, (keys, queries * group), 4.0 * self.product / owning_queries)
            + self.launch(kv_heads * group, (queries, keys), 3.0 * self.product / owning_queries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use crate::{DType, Options, TensorLayout, Tensors};

    fn problem(
        (batch, seqlen, heads, kv_heads): (usize, usize, usize, usize),
        causal: bool,
    ) -> BackwardProblem {
        let [q, kv] = [heads, kv_heads].map(|heads| TensorLayout::bshd(batch, seqlen, heads, 128));
        let options = Options { causal, ..Options::default() };
        BackwardProblem::like(Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F16, options).unwrap())
            .unwrap()
    }

    /// Bytes of a key/value head's dS, and how many of them are stored at a time in so many bytes.
    fn chosen(shape: (usize, usize, usize, usize), causal: bool, limit: u64) -> (u64, Option<usize>) {
        let problem = problem(shape, causal);
        let most = fitting(problem.forward(), limit);
        (kv_head_bytes(problem.forward()), fastest(&problem, Sim::new(0).device(), most))
    }

    #[test]
    fn as_many_heads_at_a_time_as_fill_the_device() {
        let limit = DEFAULT_WORKSPACE_LIMIT;
        // All of them, where they fit.
        assert_eq!(chosen((16, 1024, 16, 16), false, limit), (2 << 20, Some(255)));
        assert_eq!(chosen((4, 1024, 16, 16), false, limit), (2 << 20, Some(64)));
        // Whole rounds of 132 blocks, or nearly.
        assert_eq!(chosen((4, 4096, 16, 16), false, limit), (32 << 20, Some(12)));
        assert_eq!(chosen((2, 8192, 16, 16), false, limit), (128 << 20, Some(2)));
        assert_eq!(chosen((4, 4096, 32, 8), true, limit), (128 << 20, Some(3)));
        // A head's blocks leave most of the device idle, or there is no room for one.
        assert_eq!(chosen((4, 4096, 16, 16), false, 33 << 20), (32 << 20, None));
        assert_eq!(chosen((1, 32_768, 16, 16), false, limit), (2 << 30, None));
    }

    #[test]
    fn a_workspace_is_never_larger_than_its_limit() {
        for (shape, limit) in [((3, 100, 6, 2), 1 << 20), ((1, 4096, 4, 4), 100 << 20), ((1, 1, 1, 1), 0)] {
            let problem = problem(shape, false);
            let heads = fitting(problem.forward(), limit);
            let bytes = workspace_bytes(problem.forward(), heads);
            assert!(heads == 0 || bytes <= limit, "{shape:?} {heads} {bytes}");
            let all = shape.0 * shape.3;
            assert!(heads == all || workspace_bytes(problem.forward(), heads + 1) > limit, "{shape:?}");
        }
    }
}
