//! Whether dS is stored between the tiles of keys that compute it and those of queries that multiply it with
//! K, of which queries of how many heads at a time.

mod choice;
mod division;
mod estimate;

use fa_kernels::attention::stored_ds::{GRANULE, PANEL, PIECE, ROW_BYTES};
use fa_kernels::config::BackwardSm90Config;
use fa_kernels::entries::{Algorithm, Entry, Tile};
use fa_kernels::params::{StoredDs, Tickets};

pub(super) use self::choice::{fastest, least_bytes};
use self::division::Division;
pub(super) use self::estimate::Estimate;
use crate::plan::that_hold;
use crate::{Device, Problem, TensorLayout};

/// Bytes of dS, with the sums that are kept beside it, that a backward pass stores at most, unless its
/// request says another number.
pub const DEFAULT_WORKSPACE_LIMIT: u64 = 512 << 20;

/// What the workspace's parts are multiples of, so that rows of dS are whole lines of L2.
pub(super) const ALIGNMENT: u64 = 256;

/// Tiles, 43 GB of them, beyond which their counters, fewer than eight for each, might not be numbered in 32
/// bits.
pub(super) const MOST_TILES: u128 = 1 << 29;

/// What may be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    /// Bytes.
    pub(super) limit: u64,
    /// Queries of a unit at most, if they are given.
    pub(super) unit_rows: Option<usize>,
}

/// Tiles of a kernel that stores dS and computes all gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tiles {
    /// Queries of a step of a tile of keys.
    step: usize,
    /// Rows of a tile of keys.
    keys: usize,
    /// Rows of a tile of queries.
    pub(super) queries: usize,
    /// Bytes of dK and dV of a tile of keys, between two units of its head.
    carried_bytes: u64,
}

impl Tiles {
    /// Of an entry that stores dS.
    pub(super) fn of(entry: &Entry) -> Self {
        let Tile { block_m, block_n, head_dim, .. } = entry.tile;
        let config =
            BackwardSm90Config { owns_keys: true, stores_ds: true, sums_dq: false, step: block_m, head_dim };
        let (queries, carried_bytes) = (config.queries() as usize, config.carried_bytes().into());
        Self { step: block_m as usize, keys: block_n as usize, queries, carried_bytes }
    }

    /// Of the entry of this algorithm of the least HEAD_DIM that holds the problem's; `None` where there is
    /// none.
    pub(super) fn of_problem(forward: &Problem, algorithm: Algorithm) -> Option<Self> {
        let built = that_hold(algorithm, forward.dtype(), forward.widest_head_dim());
        built.into_iter().min_by_key(|entry| entry.tile.head_dim).map(Self::of)
    }

    /// Those of keys of a head.
    fn of_keys(&self, forward: &Problem) -> usize {
        forward.seqlen_k().div_ceil(self.keys)
    }
}

/// Which queries of a key/value head are one unit of which dS is stored, of how many units at a time, and how
/// many heads take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// Units at a time.
    pub(super) ring: usize,
    pub(super) division: Division,
    tiles: Tiles,
    /// Key/value heads that take turns, unit after unit; the last of them are what is left.
    heads_of_round: usize,
}

/// Blocks of the launch that computes gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) all: u32,
    /// Those of them that take tiles of queries alone.
    pub(super) of_queries: u32,
}

impl Stored {
    /// Its blocks. All tiles are below 2^31.
    pub(super) fn blocks(&self, forward: &Problem, device: &Device) -> Blocks {
        // There are tiles of both kinds.
        let all = self.tiles(forward).min(device.multiprocessors.max(2).into()) as u32;
        let share = Estimate::new(forward, device).share_of_queries(self);
        let of_queries = (f64::from(all) * share).round() as u32;
        Blocks { all, of_queries: of_queries.clamp(1, all - 1) }
    }

    /// Units of a key/value head.
    fn units_of_head(&self, forward: &Problem) -> usize {
        self.division.units(forward)
    }

    /// All units.
    pub(super) fn units(&self, forward: &Problem) -> usize {
        kv_heads(forward) * self.units_of_head(forward)
    }

    /// Tiles of keys of a unit, and of queries.
    fn tiles_of_unit(&self, forward: &Problem) -> (usize, usize) {
        let Division { heads, rows } = self.division;
        (self.tiles.of_keys(forward), heads * rows.min(forward.seqlen_q()).div_ceil(self.tiles.queries))
    }

    /// By how many blocks its tiles are computed, and in which order.
    pub(super) fn reason(&self, forward: &Problem, device: &Device) -> String {
        let Blocks { all, of_queries } = self.blocks(forward, device);
        let turns = if self.units_of_head(forward) > 1 {
            format!("; {} key/value heads at a time take turns", self.heads_of_round)
        } else {
            String::new()
        };
        format!(
            "one launch of {all} blocks that take tiles as they come: {of_queries} of queries alone, the others first of keys{turns}"
        )
    }

    /// What of dS is stored at a time.
    pub(super) fn what(&self, forward: &Problem) -> String {
        let all = self.units(forward);
        let (ring, Division { heads, rows }) = (self.ring, self.division);
        let of = if self.units_of_head(forward) == 1 {
            "key/value heads".to_owned()
        } else if rows >= forward.seqlen_q() {
            format!("units of {heads} of the {} query heads of a key/value head", forward.group())
        } else {
            format!("units of {rows} queries of a head")
        };
        format!("dS of {ring} of {all} {of} at a time is stored, {} bytes", self.limited_bytes(forward))
    }

    /// All tiles.
    pub(super) fn tiles(&self, forward: &Problem) -> u128 {
        let (of_keys, of_queries) = self.tiles_of_unit(forward);
        self.units(forward) as u128 * (of_keys as u128 + of_queries as u128)
    }

    /// The tickets of the launch that has these blocks, in a workspace whose counters begin at this address;
    /// of none for the first launch, which writes tiles down.
    pub(super) fn tickets(&self, forward: &Problem, blocks: Blocks, counters: u64) -> Tickets {
        // The plan checked that all tiles are below 2^31, and so are units.
        Tickets {
            counters,
            tiles: counters + self.counter_bytes(forward),
            carried: counters + self.bytes_before_carried(forward),
            query_blocks: blocks.of_queries,
            ..self.all_tickets(forward)
        }
    }

    /// The tickets of any launch in any workspace.
    fn all_tickets(&self, forward: &Problem) -> Tickets {
        let Division { heads, rows } = self.division;
        let (of_keys, of_queries) = self.tiles_of_unit(forward);
        Tickets {
            heads: kv_heads(forward) as u32,
            heads_of_round: self.heads_of_round as u32,
            units_of_head: self.units_of_head(forward) as u32,
            unit_heads: heads as u32,
            unit_rows: rows as u32,
            ring: self.ring as u32,
            key_tiles: of_keys as u32,
            query_tiles: (of_queries / heads) as u32,
            key_rows: self.tiles.keys as u32,
            query_rows: self.tiles.queries as u32,
            ..Tickets::default()
        }
    }

    fn counter_bytes(&self, forward: &Problem) -> u64 {
        let counters = u64::from(self.all_tickets(forward).counter_count());
        (Tickets::COUNTER_BYTES * counters).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of counters and tiles, in front of what is limited.
    fn bytes_before_carried(&self, forward: &Problem) -> u64 {
        let tiles = self.tiles(forward);
        if tiles > MOST_TILES {
            return u64::MAX;
        }
        let bytes = tiles as u64 * Tickets::TILE_BYTES;
        self.counter_bytes(forward) + bytes.next_multiple_of(ALIGNMENT)
    }

    /// Bytes of counters, tiles, and dK and dV between units, in front of dS.
    pub(super) fn bytes_before_ds(&self, forward: &Problem) -> u64 {
        self.bytes_before_carried(forward).saturating_add(self.carried_bytes(forward))
    }

    /// Bytes of dK and dV between units, of heads that take turns.
    fn carried_bytes(&self, forward: &Problem) -> u64 {
        let of_head = self.division.carried_bytes(forward, &self.tiles);
        of_head.saturating_mul(self.heads_of_round as u64)
    }

    /// Bytes of dS, and of dK and dV between units.
    fn limited_bytes(&self, forward: &Problem) -> u64 {
        let of_ds = self.division.unit_bytes(forward, &self.tiles).saturating_mul(self.ring as u64);
        of_ds.saturating_add(self.carried_bytes(forward))
    }

    /// Bytes of all that is stored.
    pub(super) fn bytes(&self, forward: &Problem) -> u64 {
        self.bytes_before_carried(forward).saturating_add(self.limited_bytes(forward))
    }

    /// How dS lies at this address.
    pub(super) fn layout(&self, forward: &Problem, address: u64) -> StoredDs {
        // All that is stored has fewer pieces than 2^32.
        let of_panel = panel_bytes(forward) / u64::from(PIECE);
        let of_head = of_panel * self.division.panels(forward, &self.tiles) as u64;
        StoredDs { address, panel_pieces: of_panel as u32, head_pieces: of_head as u32, first_unit: 0 }
    }

    /// dS of all query heads of units that there is room for, as a view whose heads are panels, and how many
    /// of its rows are loaded at a time.
    pub(super) fn view(&self, forward: &Problem) -> (TensorLayout, u32) {
        let heads = self.ring * self.division.heads;
        let panels = self.division.panels(forward, &self.tiles);
        let view = TensorLayout::bhsd(heads, key_rows(forward), panels, PANEL as usize);
        (view, BackwardSm90Config::KEYS)
    }
}

/// Bytes of counters and tiles at most, however units are made.
pub(super) fn most_bytes_before_carried(forward: &Problem) -> u64 {
    let (step, queries) = (PANEL as usize, GRANULE as usize);
    let tiles = Tiles { step, keys: step, queries, carried_bytes: 0 };
    let stored = Stored { ring: 1, division: Division::LEAST, tiles, heads_of_round: kv_heads(forward) };
    stored.bytes_before_carried(forward)
}

/// Key/value heads of all sequences.
pub(super) fn kv_heads(forward: &Problem) -> usize {
    forward.kv_heads() * forward.batch()
}

/// Bytes of the workspace's first part: delta.
pub(super) fn delta_bytes(forward: &Problem) -> u64 {
    4 * forward.lse_len() as u64
}

/// Where what is behind delta begins.
pub(super) fn behind_delta(forward: &Problem) -> u64 {
    delta_bytes(forward).next_multiple_of(ALIGNMENT)
}

/// Bytes of a panel.
pub(super) fn panel_bytes(forward: &Problem) -> u64 {
    key_rows(forward) as u64 * u64::from(ROW_BYTES)
}

/// Rows of a panel: keys of the longest sequence, in whole granules.
pub(super) fn key_rows(forward: &Problem) -> usize {
    forward.seqlen_k().next_multiple_of(GRANULE as usize)
}
