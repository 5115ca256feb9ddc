//! Whether dS is stored between the launch that computes it and the one that multiplies it with K, and of how
//! many heads at a time.

use fa_kernels::attention::stored_ds::{GRANULE, PANEL, ROW_BYTES};
use fa_kernels::params::StoredDs;

use super::BackwardProblem;
use crate::{Device, Problem};

/// Bytes of dS that a backward pass stores at most, unless its request says another number.
pub const DEFAULT_WORKSPACE_LIMIT: u64 = 512 << 20;

/// What the workspace's parts are multiples of, so that rows of dS are whole lines of L2.
const ALIGNMENT: u64 = 256;

/// The heads of a launch, of one sequence after the other: key/value heads where its blocks own keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heads {
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
    let all = forward.kv_heads() * forward.batch();
    usize::try_from(limit / kv_head_bytes(forward)).map_or(all, |heads| heads.min(all))
}

/// Of at most `most` key/value heads at a time, how many are estimated to be the fastest; `None` where there
/// are none, or scores may be computed `twice` and that is faster.
pub(super) fn fastest(
    problem: &BackwardProblem,
    device: &Device,
    (most, twice): (usize, bool),
) -> Option<usize> {
    let cycles = |heads: usize| cycles(problem, device, Some(heads));
    let heads = (1..=most).min_by(|&a, &b| cycles(a).total_cmp(&cycles(b)))?;
    (!twice || cycles(heads) < self::cycles(problem, device, None)).then_some(heads)
}

/// About how many cycles the launches take that compute gradients, where dS of so many key/value heads at a
/// time is stored, or none is.
pub(super) fn cycles(problem: &BackwardProblem, device: &Device, kv_heads: Option<usize>) -> f64 {
    let forward = problem.forward();
    let all = forward.kv_heads() * forward.batch();
    let estimate = Estimate::new(forward, device);
    let Some(heads) = kv_heads else { return estimate.recomputed(all) };
    let (whole, rest) = (all / heads, all % heads);
    let rest = if rest > 0 { estimate.stored(rest) } else { 0.0 };
    whole as f64 * estimate.stored(heads) + rest
}

/// The fastest number of queries of a block that computes dQ (BLOCK_M) of those that there are, of so many
/// query heads.
pub(super) fn fastest_block_m(
    forward: &Problem,
    device: &Device,
    heads: usize,
    tiles: impl Iterator<Item = usize>,
) -> Option<usize> {
    let estimate = Estimate::new(forward, device);
    tiles.min_by(|&a, &b| estimate.of_ds(heads, a).total_cmp(&estimate.of_ds(heads, b)))
}

/// Cycles of launches, as estimated. Fitted to an H200 at 1.7 GHz, head_dim 64 and 128, sequences of 4,096
/// and 16,384 rows.
struct Estimate<'a> {
    forward: &'a Problem,
    multiprocessors: f64,
    /// Cycles of a product of a granule of queries and one of keys.
    product: f64,
}

/// What a step over a granule of both costs beside its products.
struct StepCycles;

impl StepCycles {
    /// Owning keys.
    const KEYS: f64 = 1_350.0;
    /// Owning keys, where dS is stored.
    const KEYS_DS: f64 = 1_650.0;
    /// Owning queries.
    const QUERIES: f64 = 650.0;
}

impl<'a> Estimate<'a> {
    /// Cycles that a launch takes beside its blocks.
    const LAUNCH: f64 = 6_000.0;
    /// Cycles in which a granule of dS is read, with its share of K, by blocks of 256 and of 128 queries.
    const READ: [f64; 2] = [1_700.0, 2_200.0];
    /// Share of the tensor cores' time that a product of dS takes where memory is quick enough.
    const OF_DS: f64 = 0.75;

    fn new(forward: &'a Problem, device: &Device) -> Self {
        let columns = (forward.head_dim() + forward.head_dim_v()) as f64 / 2.0;
        Self {
            forward,
            multiprocessors: f64::from(device.multiprocessors.max(1)),
            product: f64::from(GRANULE * GRANULE) * columns / 2_048.0,
        }
    }

    /// A launch of so many blocks, that each go over so many rows of the other side, at so many cycles for a
    /// granule of these.
    fn launch(&self, blocks: usize, others: usize, cycles: f64) -> f64 {
        let longest = others.div_ceil(GRANULE as usize) as f64 * cycles;
        let rounds = blocks as f64 / self.multiprocessors;
        let blocks_cycles = if self.forward.causal() {
            // Long blocks go first, and short ones fill up.
            (rounds * longest / 2.0).max(longest)
        } else {
            rounds.ceil() * longest
        };
        Self::LAUNCH + blocks_cycles
    }

    /// The launch that owns keys, of so many key/value heads. (Where roles are split, blocks are half as long
    /// and twice as many.)
    fn owning_keys(&self, kv_heads: usize, beside: f64) -> f64 {
        let blocks = self.forward.seqlen_k().div_ceil(GRANULE as usize) * kv_heads;
        let queries = self.forward.seqlen_q() * self.forward.group();
        self.launch(blocks, queries, 4.0 * self.product + beside)
    }

    /// The product of dS and K, of so many query heads, in blocks of so many queries.
    fn of_ds(&self, heads: usize, block_m: usize) -> f64 {
        let granules = (block_m / GRANULE as usize).max(1);
        let blocks = self.forward.seqlen_q().div_ceil(block_m) * heads;
        // Few blocks have memory for themselves.
        let read = Self::READ[usize::from(granules == 1)] * (blocks as f64 / self.multiprocessors).min(1.0);
        let cycles = (self.product / Self::OF_DS).max(read);
        self.launch(blocks, self.forward.seqlen_k(), cycles * granules as f64)
    }

    /// Both launches of so many key/value heads where dS is stored.
    fn stored(&self, kv_heads: usize) -> f64 {
        let heads = kv_heads * self.forward.group();
        self.owning_keys(kv_heads, StepCycles::KEYS_DS) + self.of_ds(heads, 256).min(self.of_ds(heads, 128))
    }

    /// Both launches where each computes its own scores.
    fn recomputed(&self, kv_heads: usize) -> f64 {
        let blocks = self.forward.seqlen_q().div_ceil(GRANULE as usize) * kv_heads * self.forward.group();
        let cycles = 3.0 * self.product + StepCycles::QUERIES;
        self.owning_keys(kv_heads, StepCycles::KEYS) + self.launch(blocks, self.forward.seqlen_k(), cycles)
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
        (kv_head_bytes(problem.forward()), fastest(&problem, Sim::new(0).device(), (most, true)))
    }

    #[test]
    fn as_many_heads_at_a_time_as_fill_the_device() {
        let limit = DEFAULT_WORKSPACE_LIMIT;
        // All of them, where they fit.
        let (mib, full) = (1 << 20, false);
        // All of them, where they fit, and else whole rounds of 132 blocks, or nearly.
        assert_eq!(chosen((16, 1024, 16, 16), full, limit), (2 * mib, Some(256)));
        assert_eq!(chosen((4, 4096, 16, 16), full, limit), (32 * mib, Some(16)));
        assert_eq!(chosen((2, 8192, 16, 16), full, limit), (128 * mib, Some(4)));
        assert_eq!(chosen((1, 16_384, 16, 16), full, limit), (512 * mib, Some(1)));
        // A head's blocks leave most of the device idle, or there is no room for one.
        assert_eq!(chosen((4, 4096, 16, 16), full, 33 * mib), (32 * mib, None));
        assert_eq!(chosen((1, 16_384, 16, 16), true, limit), (512 * mib, None));
        assert_eq!(chosen((4, 4096, 32, 8), true, limit), (128 * mib, None));
        assert_eq!(chosen((1, 32_768, 16, 16), full, limit), (2048 * mib, None));
    }

    #[test]
    fn a_workspace_is_never_larger_than_its_limit() {
        for (shape, limit) in [((3, 100, 6, 2), 1 << 20), ((1, 4096, 4, 4), 100 << 20), ((1, 1, 1, 1), 0)] {
            let problem = problem(shape, false);
            let heads = fitting(problem.forward(), limit);
            let bytes =
                |heads| workspace_bytes(problem.forward(), heads) - workspace_bytes(problem.forward(), 0);
            assert!(bytes(heads) <= limit, "{shape:?} {heads}");
            assert!(heads == shape.0 * shape.3 || bytes(heads + 1) > limit, "{shape:?}");
        }
    }
}
