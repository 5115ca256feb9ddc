//! How dS is stored between the tiles of keys that compute it and the tiles of queries that multiply it with K.

use fa_kernels::attention::stored_ds::{GRANULE, PANEL, PIECE, ROW_BYTES};
use fa_kernels::config::BackwardSm90Config;
use fa_kernels::entries::Entry;
use fa_kernels::params::{StoredDs, Tickets};

use crate::{Device, Problem};

/// Bytes of dS that a backward pass stores at most, unless its request says another number.
pub const DEFAULT_WORKSPACE_LIMIT: u64 = 512 << 20;

/// What the workspace's parts are multiples of, so that rows of dS are whole lines of L2.
const ALIGNMENT: u64 = 256;

/// Units, each a key/value head of a sequence, whose dS is stored at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// How many there is room for.
    pub(super) ring: usize,
    /// Units of keys that come before the queries of the first one.
    pub(super) lag: usize,
    /// Tiles of keys of a unit.
    pub(super) key_tiles: usize,
}

impl Stored {
    /// As many units as fit the limit, and queries so far behind their keys that these are done when a block
    /// comes to them; `None` where not even one fits.
    pub(super) fn within(forward: &Problem, device: &Device, entry: &Entry, limit: u64) -> Option<Self> {
        let units = units(forward);
        let limit = limit.min(u64::from(PIECE) * u64::from(u32::MAX));
        let ring = usize::try_from(limit / unit_bytes(forward)).map_or(units, |ring| ring.min(units));
        if ring == 0 {
            return None;
        }
        let blocks = blocks(forward, device, entry);
        let key_tiles = key_tiles(forward, entry);
        let lag = ((blocks as usize) * 18 / 100).clamp(1, blocks as usize - 1);
        Some(Self { ring, lag, key_tiles })
    }
}

/// Key/value heads of all sequences.
fn units(forward: &Problem) -> usize {
    forward.kv_heads() * forward.batch()
}

/// Tiles of keys of a unit.
fn key_tiles(forward: &Problem, entry: &Entry) -> usize {
    forward.seqlen_k().div_ceil(entry.tile.block_n as usize)
}

/// Tiles of queries of a query head.
fn query_tiles(forward: &Problem) -> usize {
    forward.seqlen_q().div_ceil(if forward.widest_head_dim() > 128 { 128 } else { 256 })
}

/// All tiles of a launch that computes all gradients.
pub(super) fn tiles(forward: &Problem, entry: &Entry) -> u128 {
    let of_unit = key_tiles(forward, entry) + query_tiles(forward) * forward.group();
    units(forward) as u128 * of_unit as u128
}

/// Blocks of a launch that computes all gradients: one for each multiprocessor.
pub(super) fn blocks(forward: &Problem, device: &Device, entry: &Entry) -> u128 {
    tiles(forward, entry).min(device.multiprocessors.max(1).into())
}

/// Bytes of the workspace's first part: delta.
pub(super) fn delta_bytes(forward: &Problem) -> u64 {
    4 * forward.lse_len() as u64
}

/// Where the counters begin, and dS, in a workspace that starts at 0.
fn offsets(forward: &Problem) -> (u64, u64) {
    let counters = delta_bytes(forward).next_multiple_of(ALIGNMENT);
    (counters, counters + Tickets::bytes(units(forward) as u64).next_multiple_of(ALIGNMENT))
}

/// Bytes of a workspace with dS of these units.
pub(super) fn workspace_bytes(forward: &Problem, stored: Option<Stored>) -> u64 {
    match stored {
        Some(Stored { ring, .. }) => {
            offsets(forward).1.saturating_add(unit_bytes(forward).saturating_mul(ring as u64))
        }
        None => delta_bytes(forward),
    }
}

/// Where dS lies in a workspace at this address, and how.
pub(super) fn layout(forward: &Problem, workspace: u64) -> StoredDs {
    // `Stored::within` has fewer pieces than 2^32.
    let of_head = head_bytes(forward) / u64::from(PIECE);
    StoredDs {
        address: workspace + offsets(forward).1,
        panel_pieces: (of_head / panels(forward) as u64) as u32,
        head_pieces: of_head as u32,
    }
}

/// The order of tiles, in a workspace at this address.
pub(super) fn tickets(forward: &Problem, stored: Stored, workspace: u64) -> Tickets {
    // The plan checked that all tiles are below 2^31, and so are units.
    Tickets {
        counters: workspace + offsets(forward).0,
        units: units(forward) as u32,
        ring: stored.ring as u32,
        query_blocks: stored.lag as u32,
        key_tiles: stored.key_tiles as u32,
        query_tiles: query_tiles(forward) as u32,
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

/// Bytes of dS of a query head.
fn head_bytes(forward: &Problem) -> u64 {
    (key_rows(forward) as u64 * u64::from(ROW_BYTES)).saturating_mul(panels(forward) as u64)
}

/// Bytes of dS of a unit: of the query heads that share a key/value head.
pub(super) fn unit_bytes(forward: &Problem) -> u64 {
    head_bytes(forward).saturating_mul(forward.group() as u64)
}
