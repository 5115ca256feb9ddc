//! Whether dS is stored between the tiles of keys that compute it and those of queries that multiply it with
//! K, and of how many heads at a time.

mod estimate;

use std::ops::Range;

use fa_kernels::attention::stored_ds::{GRANULE, PANEL, PIECE, ROW_BYTES};
use fa_kernels::config::BackwardSm90Config;
use fa_kernels::entries::{Entry, Tile};
use fa_kernels::params::{StoredDs, Tickets};

use self::estimate::Estimate;
use super::BackwardProblem;
use crate::{Device, Problem};

/// Bytes of dS that a backward pass stores at most, unless its request says another number.
pub const DEFAULT_WORKSPACE_LIMIT: u64 = 512 << 20;

/// What the workspace's parts are multiples of, so that rows of dS are whole lines of L2.
const ALIGNMENT: u64 = 256;

/// Tiles of a kernel that stores dS and computes all gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tiles {
    /// Rows of a tile of keys.
    keys: usize,
    /// Rows of a tile of queries.
    pub(super) queries: usize,
}

impl Tiles {
    /// Of an entry that stores dS.
    pub(super) fn of(entry: &Entry) -> Self {
        let Tile { block_m, block_n, head_dim } = entry.tile;
        let config = BackwardSm90Config { owns_keys: true, stores_ds: true, step: block_m, head_dim };
        Self { keys: block_n as usize, queries: config.queries() as usize }
    }

    /// Those of keys, and of queries, of a unit: a key/value head of a sequence with its query heads.
    fn of_unit(&self, forward: &Problem) -> (usize, usize) {
        let queries = forward.seqlen_q().div_ceil(self.queries) * forward.group();
        (forward.seqlen_k().div_ceil(self.keys), queries)
    }
}

/// Of how many units at a time dS is stored, and in how many launches all gradients are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) ring: usize,
    tiles: Tiles,
    launches: usize,
}

/// The tiles of keys and of queries of a launch that computes gradients, and how many blocks it has for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    launch: u32,
    /// The first and one past the last tile of keys.
    keys: [u32; 2],
    /// Those of queries.
    queries: [u32; 2],
    /// Blocks.
    pub(super) blocks: u32,
    /// Those of them that take tiles of queries alone.
    query_blocks: u32,
}

impl Part {
    /// Tiles of a launch on a device, all below 2^31.
    fn new(device: &Device, launch: usize, keys: Range<usize>, queries: Range<usize>) -> Self {
        let tiles = keys.len() + queries.len();
        let of = |range: Range<usize>| [range.start as u32, range.end as u32];
        let blocks = tiles.min(device.multiprocessors.max(1) as usize) as u32;
        Self { launch: launch as u32, keys: of(keys), queries: of(queries), blocks, query_blocks: 0 }
    }
}

impl Stored {
    /// dS of so many units at a time, on a device.
    pub(super) fn new(forward: &Problem, device: &Device, tiles: Tiles, ring: usize) -> Self {
        let units = units(forward);
        let launches = if streams(forward, device, ring) { 1 } else { 2 * units.div_ceil(ring) };
        Self { ring, tiles, launches }
    }

    /// Its launches: one, or, where there is no room for units that are begun while queries of others wait,
    /// two for as many units as there is room for. All tiles are below 2^31.
    pub(super) fn parts(&self, forward: &Problem, device: &Device) -> Vec<Part> {
        let units = units(forward);
        let (of_keys, of_queries) = self.tiles.of_unit(forward);
        let keys = |units: &Range<usize>| units.start * of_keys..units.end * of_keys;
        let queries = |of: &Range<usize>| {
            units * of_keys + of.start * of_queries..units * of_keys + of.end * of_queries
        };
        if self.launches == 1 {
            let part = Part::new(device, 0, keys(&(0..units)), queries(&(0..units)));
            let share = Estimate::new(forward, device).share_of_queries(self.tiles);
            let query_blocks = (f64::from(part.blocks) * share).round() as u32;
            return vec![Part { query_blocks: query_blocks.clamp(1, part.blocks.max(2) - 1), ..part }];
        }
        let chunks = (0..units).step_by(self.ring).map(|first| first..units.min(first + self.ring));
        let of_chunk = |(chunk, of): (usize, Range<usize>)| {
            [
                Part::new(device, 2 * chunk, keys(&of), 0..0),
                Part::new(device, 2 * chunk + 1, 0..0, queries(&of)),
            ]
        };
        chunks.enumerate().flat_map(of_chunk).collect()
    }

    /// In how many launches its tiles are computed, and by how many blocks.
    pub(super) fn reason(&self, forward: &Problem, device: &Device) -> String {
        match self.parts(forward, device)[..] {
            [Part { blocks, query_blocks, .. }] => format!(
                "one launch of {blocks} blocks that take tiles as they come: {query_blocks} of queries alone, the others first of keys"
            ),
            ref parts => {
                let heads = self.ring;
                format!(
                    "{} launches, two for {heads} key/value heads at a time, since no more dS fits",
                    parts.len()
                )
            }
        }
    }

    /// All tiles of all launches.
    pub(super) fn tiles(&self, forward: &Problem) -> u128 {
        let (of_keys, of_queries) = self.tiles.of_unit(forward);
        units(forward) as u128 * (of_keys as u128 + of_queries as u128)
    }

    /// The tickets of a launch in a workspace whose counters begin at this address; of none for the first
    /// launch, which writes tiles down.
    pub(super) fn tickets(&self, forward: &Problem, part: &Part, counters: u64) -> Tickets {
        let (of_keys, of_queries) = self.tiles.of_unit(forward);
        // The plan checked that all tiles are below 2^31, and so are units and launches.
        Tickets {
            counters,
            tiles: counters + self.counter_bytes(forward),
            units: units(forward) as u32,
            ring: self.ring as u32,
            key_tiles: of_keys as u32,
            query_tiles: (of_queries / forward.group()) as u32,
            key_rows: self.tiles.keys as u32,
            query_rows: self.tiles.queries as u32,
            launches: self.launches as u32,
            launch: part.launch,
            of_keys: part.keys,
            of_queries: part.queries,
            query_blocks: part.query_blocks,
        }
    }

    fn counter_bytes(&self, forward: &Problem) -> u64 {
        let tickets =
            Tickets { units: units(forward) as u32, launches: self.launches as u32, ..Tickets::default() };
        (Tickets::COUNTER_BYTES * u64::from(tickets.counter_count())).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of counters and tiles, in front of dS.
    pub(super) fn bytes_before_ds(&self, forward: &Problem) -> u64 {
        let tiles = u64::try_from(self.tiles(forward)).unwrap_or(u64::MAX);
        let tiles = tiles.saturating_mul(Tickets::TILE_BYTES).checked_next_multiple_of(ALIGNMENT);
        self.counter_bytes(forward).saturating_add(tiles.unwrap_or(u64::MAX))
    }

    /// Bytes of all that is stored.
    pub(super) fn bytes(&self, forward: &Problem) -> u64 {
        self.bytes_before_ds(forward).saturating_add(unit_bytes(forward).saturating_mul(self.ring as u64))
    }
}

/// Bytes of counters and tiles at most, however many units there is room for.
pub(super) fn most_bytes_before_ds(forward: &Problem) -> u64 {
    let tiles = Tiles { keys: PANEL as usize, queries: GRANULE as usize };
    Stored { ring: 1, tiles, launches: 2 * units(forward) }.bytes_before_ds(forward)
}

/// Key/value heads of all sequences.
pub(super) fn units(forward: &Problem) -> usize {
    forward.kv_heads() * forward.batch()
}

/// Whether there is room for units whose tiles blocks are at, and for two more whose queries follow.
fn streams(forward: &Problem, device: &Device, ring: usize) -> bool {
    let key_tiles = forward.seqlen_k().div_ceil(GRANULE as usize);
    ring == units(forward) || ring > (device.multiprocessors.max(1) as usize).div_ceil(key_tiles) + 1
}

/// Bytes of the workspace's first part: delta.
pub(super) fn delta_bytes(forward: &Problem) -> u64 {
    4 * forward.lse_len() as u64
}

/// Where what is behind delta begins.
pub(super) fn behind_delta(forward: &Problem) -> u64 {
    delta_bytes(forward).next_multiple_of(ALIGNMENT)
}

/// How dS lies at this address.
pub(super) fn layout(forward: &Problem, address: u64) -> StoredDs {
    // `fitting` has fewer pieces than 2^32.
    let of_head = head_bytes(forward) / u64::from(PIECE);
    StoredDs { address, panel_pieces: (of_head / panels(forward) as u64) as u32, head_pieces: of_head as u32 }
}

/// Panels of a head of the longest sequence.
pub(super) fn panels(forward: &Problem) -> usize {
    forward.seqlen_q().div_ceil(PANEL as usize)
}

/// Rows of a panel: keys of the longest sequence, in whole granules.
pub(super) fn key_rows(forward: &Problem) -> usize {
    forward.seqlen_k().next_multiple_of(GRANULE as usize)
}

/// Bytes of dS of a query head.
fn head_bytes(forward: &Problem) -> u64 {
    (key_rows(forward) as u64 * u64::from(ROW_BYTES)).saturating_mul(panels(forward) as u64)
}

/// Bytes of dS of a unit.
pub(super) fn unit_bytes(forward: &Problem) -> u64 {
    head_bytes(forward).saturating_mul(forward.group() as u64)
}

/// Units whose dS fits the limit, up to all.
pub(super) fn fitting(forward: &Problem, limit: u64) -> usize {
    let limit = limit.min(u64::from(PIECE) * u64::from(u32::MAX));
    let all = units(forward);
    usize::try_from(limit / unit_bytes(forward)).map_or(all, |ring| ring.min(all))
}

/// Of at most `most` units at a time, how many are estimated to be the fastest; `None` where there are none,
/// or scores may be computed `twice` and that is faster.
pub(super) fn fastest(
    problem: &BackwardProblem,
    device: &Device,
    (most, twice): (usize, bool),
) -> Option<usize> {
    if most == 0 {
        return None;
    }
    let cycles = |ring: usize| cycles(problem, device, Some(ring));
    let of_chunks = || (1..=most).min_by(|&a, &b| cycles(a).total_cmp(&cycles(b)));
    let ring = if streams(problem.forward(), device, most) { most } else { of_chunks()? };
    (!twice || cycles(ring) < self::cycles(problem, device, None)).then_some(ring)
}

/// About how many cycles the launches take that compute gradients, where dS of so many units at a time is
/// stored, or none is.
pub(super) fn cycles(problem: &BackwardProblem, device: &Device, ring: Option<usize>) -> f64 {
    let forward = problem.forward();
    let all = units(forward);
    let estimate = Estimate::new(forward, device);
    let Some(ring) = ring else { return estimate.recomputed(all) };
    if streams(forward, device, ring) {
        return estimate.streamed(all);
    }
    let (whole, rest) = (all / ring, all % ring);
    let rest = if rest > 0 { estimate.stored(rest) } else { 0.0 };
    whole as f64 * estimate.stored(ring) + rest
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
        (unit_bytes(problem.forward()), fastest(&problem, Sim::new(0).device(), (most, true)))
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
            let bytes = |units: usize| unit_bytes(problem.forward()) * units as u64;
            assert!(bytes(heads) <= limit, "{shape:?} {heads}");
            assert!(heads == shape.0 * shape.3 || bytes(heads + 1) > limit, "{shape:?}");
        }
    }
}
