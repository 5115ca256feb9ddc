//! About how long the launches of a backward pass take on Hopper.

use fa_kernels::attention::stored_ds::GRANULE;

use super::division::Division;
use super::{Stored, kv_heads};
use crate::{Device, Problem};

/// Cycles of launches, as estimated. Fitted to an H200 and an H100 at 1.7 GHz, head_dim 64 and 128, sequences
/// of 4,096 to 16,384 rows.
pub(in crate::backward) struct Estimate<'a> {
    forward: &'a Problem,
    multiprocessors: f64,
    /// Cycles of a product of a granule of queries and one of keys.
    product: f64,
    /// Cycles of a multiprocessor in which its share of the memory's bandwidth moves a byte.
    of_byte: f64,
}

/// What a step over a granule of both costs beside its products.
struct StepCycles;

impl StepCycles {
    /// Owning keys.
    const KEYS: f64 = 1_350.0;
    /// Owning keys, where dS is stored.
    const KEYS_DS: f64 = 1_650.0;
    /// As [`Self::KEYS_DS`], where two warpgroups split roles, in products.
    const SPLIT_ROLES: f64 = 3.5;
    /// Owning keys, where dQ is summed.
    const KEYS_DQ: f64 = 2_800.0;
    /// Owning queries.
    const QUERIES: f64 = 650.0;
}

/// Granules of so many rows.
fn granules(rows: usize) -> f64 {
    rows.div_ceil(GRANULE as usize) as f64
}

impl<'a> Estimate<'a> {
    /// Cycles that a launch takes beside its blocks.
    const LAUNCH: f64 = 6_000.0;
    /// Cycles in which a granule of dS is read, with its share of K, while most multiprocessors do not read.
    const READ_ALONE: f64 = 1_000.0;
    /// Units beside those whose dS is being stored or read.
    const UNITS_IN_HAND: f64 = 2.0;
    /// Times as long where dS is stored under a causal mask, whose tiles wait longer for each other.
    const CAUSAL: f64 = 1.1;
    /// Cycles in a second.
    const CLOCK: f64 = 1.7e9;
    /// What launches that are bound by memory reach of its bandwidth.
    const OF_BANDWIDTH: f64 = 0.72;
    /// What a tile takes beside its steps.
    const END_OF_KEYS: f64 = 6_000.0;
    /// Cycles that it takes to keep a column of its dK and dV until the next unit, and to go on from there.
    const CARRIED: f64 = 250.0;
    /// As [`Self::END_OF_KEYS`].
    const END_OF_QUERIES: f64 = 5_000.0;
    /// Blocks that take tiles of queries alone, of what their share is.
    const QUERIES_ALONE: f64 = 0.9;
    /// Share of the tensor cores' time that a product of dS takes where memory is quick enough.
    const OF_DS: f64 = 0.75;

    pub(in crate::backward) fn new(forward: &'a Problem, device: &Device) -> Self {
        let columns = (forward.head_dim() + forward.head_dim_v()) as f64 / 2.0;
        Self {
            forward,
            multiprocessors: f64::from(device.multiprocessors.max(1)),
            product: f64::from(GRANULE * GRANULE) * columns / 2_048.0,
            of_byte: match device.memory_bandwidth {
                0 => 0.0,
                bandwidth => {
                    let multiprocessors = f64::from(device.multiprocessors.max(1));
                    Self::CLOCK * multiprocessors / (Self::OF_BANDWIDTH * bandwidth as f64)
                }
            },
        }
    }

    /// A launch of so many blocks, that each go over so many rows of the other side, at so many cycles for a
    /// granule of these and so many at their end.
    fn launch(&self, blocks: usize, others: usize, (cycles, end): (f64, f64)) -> f64 {
        let longest = others.div_ceil(GRANULE as usize) as f64 * cycles;
        let rounds = blocks as f64 / self.multiprocessors;
        let blocks_cycles = if self.forward.causal() {
            // Long blocks go first, and short ones fill up.
            (rounds * (longest / 2.0 + end)).max(longest + end)
        } else {
            rounds.ceil() * (longest + end)
        };
        Self::LAUNCH + blocks_cycles
    }

    /// The launch that owns keys, of so many key/value heads. (Where roles are split, blocks are half as long
    /// and twice as many.)
    fn owning_keys(&self, kv_heads: usize, beside: f64) -> f64 {
        let blocks = self.forward.seqlen_k().div_ceil(GRANULE as usize) * kv_heads;
        let queries = self.forward.seqlen_q() * self.forward.group();
        self.launch(blocks, queries, (4.0 * self.product + beside, Self::END_OF_KEYS))
    }

    /// What a granule of queries and one of keys cost owning keys, where dS is stored.
    fn storing_ds(&self, stored: &Stored) -> f64 {
        let splits_roles = stored.tiles.keys < GRANULE as usize;
        let beside = if splits_roles { StepCycles::SPLIT_ROLES * self.product } else { StepCycles::KEYS_DS };
        4.0 * self.product + beside
    }

    /// What they cost owning queries, of which dS is read.
    fn of_ds(&self) -> f64 {
        (self.product / Self::OF_DS).max(Self::READ_ALONE)
    }

    /// What a tile of keys costs that leaves dK and dV to the next unit, or goes on from there.
    fn carrying(&self) -> f64 {
        Self::CARRIED * (self.forward.head_dim() + self.forward.head_dim_v()) as f64 / 2.0
    }

    /// Cycles of a key/value head's tiles of keys, and of its tiles of queries, beside each other on one
    /// multiprocessor; and those in which its share of memory moves what both store and read.
    fn of_head(&self, stored: &Stored) -> (f64, f64, f64) {
        let forward = self.forward;
        let pairs = granules(forward.seqlen_q()) * granules(forward.seqlen_k()) * forward.group() as f64;
        let pairs = if forward.causal() { pairs / 2.0 } else { pairs };
        let (units, (of_keys, of_queries)) = (stored.units_of_head(forward), stored.tiles_of_unit(forward));
        // Under a causal mask a tile of keys has queries in half of the units, and in one more.
        let in_units = if forward.causal() { (units + 1) as f64 / 2.0 } else { units as f64 };
        let ends = in_units * Self::END_OF_KEYS + (in_units - 1.0) * self.carrying();
        let ends_of_queries = (units * of_queries) as f64 * Self::END_OF_QUERIES;
        let keys = pairs * self.storing_ds(stored) + of_keys as f64 * ends;
        let carried_bytes = 2.0 * (in_units - 1.0) * of_keys as f64 * stored.tiles.carried_bytes as f64;
        let bytes = pairs * f64::from(4 * GRANULE * GRANULE) + carried_bytes;
        (keys, pairs * self.of_ds() + ends_of_queries, bytes * self.of_byte)
    }

    /// Which share of the blocks take tiles of queries alone; blocks that are done with keys take what is
    /// left of them.
    pub(super) fn share_of_queries(&self, stored: &Stored) -> f64 {
        let (keys, queries, _) = self.of_head(stored);
        Self::QUERIES_ALONE * queries / (keys + queries)
    }

    /// The launch that computes all gradients, where dS is stored.
    pub(in crate::backward) fn stored(&self, stored: &Stored) -> f64 {
        let forward = self.forward;
        let (keys, queries, memory) = self.of_head(stored);
        let (units, key_tiles) = (stored.units_of_head(forward) as f64, stored.tiles.of_keys(forward) as f64);
        let heads = kv_heads(forward) as f64;
        let blocks = self.multiprocessors * (1.0 - self.share_of_queries(stored));
        let all = heads * (keys + queries).max(memory) / self.multiprocessors;
        // A unit's dS is stored while its longest tile of keys is computed, and then its longest of queries.
        let Division { heads: of_unit, rows } = stored.division;
        let steps = granules(rows.min(forward.seqlen_q())) * of_unit as f64;
        let longest = steps * self.storing_ds(stored) + Self::END_OF_KEYS;
        let carrying = if units > 1.0 { self.carrying() } else { 0.0 };
        let tile = granules(stored.tiles.queries) * granules(forward.seqlen_k()) * self.of_ds();
        let stays = longest + carrying + tile + Self::END_OF_QUERIES;
        let needed = (Self::UNITS_IN_HAND + stays * heads * units / all).min(heads * units);
        let of_ring = (stored.ring as f64 / needed).min(1.0);
        // A tile of keys waits for itself in the unit before.
        let in_turn = stored.heads_of_round as f64 * key_tiles / blocks;
        let of_heads = if units > 1.0 { in_turn.min(1.0) } else { 1.0 };
        let of_mask = if forward.causal() { Self::CAUSAL } else { 1.0 };
        Self::LAUNCH + longest + of_mask * all / of_ring / of_heads
    }

    /// The launch that computes all gradients, where dQ is summed.
    pub(in crate::backward) fn summed(&self) -> f64 {
        self.owning_keys(kv_heads(self.forward), self.product + StepCycles::KEYS_DQ)
    }

    /// Both launches where each computes its own scores.
    pub(in crate::backward) fn recomputed(&self) -> f64 {
        let heads = kv_heads(self.forward);
        let blocks = self.forward.seqlen_q().div_ceil(GRANULE as usize) * heads * self.forward.group();
        let cycles = 3.0 * self.product + StepCycles::QUERIES;
        self.owning_keys(heads, StepCycles::KEYS)
            + self.launch(blocks, self.forward.seqlen_k(), (cycles, Self::END_OF_QUERIES))
    }
}
