//! Whether dQ is summed over tiles of keys where these are computed, each in its turn, and of how many heads
//! at a time.

use fa_kernels::attention::stored_ds::PIECE;
use fa_kernels::config::BackwardSm90Config;
use fa_kernels::entries::{Entry, Tile};
use fa_kernels::params::{StoredDs, Tickets};

use super::stored::{ALIGNMENT, Blocks, MOST_TILES, kv_heads};
use crate::plan::cached_kv_heads;
use crate::{Device, Problem, TensorLayout};

/// Whether rows see some of the keys.
fn is_limited(forward: &Problem) -> bool {
    forward.window() != (None, None)
}

/// How dQ is summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summed {
    /// Keys of a tile.
    keys: usize,
    config: BackwardSm90Config,
    /// Key/value heads that have a tile of keys in turn.
    heads_of_round: usize,
}

impl Summed {
    /// By the tiles of an entry.
    pub(super) fn new(forward: &Problem, device: &Device, entry: &Entry) -> Self {
        let Tile { block_m, block_n, head_dim, .. } = entry.tile;
        let config =
            BackwardSm90Config { owns_keys: true, stores_ds: false, sums_dq: true, step: block_m, head_dim };
        // As measured: few heads stay in L2 with their sums, and tiles of many wait less for each other.
        // Those with limits begin later than the ones before them, and it takes twice as many.
        let times = if is_limited(forward) { 2 } else { 1 };
        let key_tiles = forward.seqlen_k().div_ceil(block_n as usize).max(1);
        let enough = 2 * times * (device.multiprocessors as usize).div_ceil(key_tiles);
        let cached = (cached_kv_heads(forward) * forward.group()).min(32) * times;
        let heads_of_round = enough.max(cached).clamp(1, kv_heads(forward));
        Self { keys: block_n as usize, config, heads_of_round }
    }

    /// Why dQ of a problem is not summed in a workspace of so many bytes, if so.
    pub(super) fn refusal(&self, forward: &Problem, limit: u64) -> Option<String> {
        if forward.is_packed() {
            return Some("sequences are packed".to_owned());
        }
        if forward.has_seqused_k() {
            return Some("sequences may use fewer keys than they have".to_owned());
        }
        let bytes = self.sum_bytes(forward);
        if bytes > limit || bytes > u64::from(PIECE) * u64::from(u32::MAX) {
            return Some(format!("dQ in fp32 takes {bytes} bytes, and workspace_limit is {limit}"));
        }
        (self.tiles(forward) + self.steps(forward) > MOST_TILES)
            .then(|| "there are too many tiles".to_owned())
    }

    /// Whether that was faster than the other ways for problems like this one, on an H100 and an H200.
    pub(super) fn is_fastest(&self, forward: &Problem, device: &Device) -> bool {
        let (heads, tiles) = (kv_heads(forward), self.tiles(forward));
        let blocks = u128::from(device.multiprocessors);
        // The first tiles of a head wait for each other; many tiles make up for that.
        let (least_heads, many) = if is_limited(forward) { (16, 6) } else { (1, 3) };
        heads >= 32 && 2 * tiles >= 3 * blocks || heads >= least_heads && tiles >= many * blocks
    }

    /// Tiles of keys.
    pub(super) fn tiles(&self, forward: &Problem) -> u128 {
        forward.seqlen_k().div_ceil(self.keys) as u128 * kv_heads(forward) as u128
    }

    /// Steps of a query head.
    fn steps_of_head(&self, forward: &Problem) -> usize {
        forward.seqlen_q().div_ceil(self.config.step as usize)
    }

    /// Steps of all query heads.
    fn steps(&self, forward: &Problem) -> u128 {
        self.steps_of_head(forward) as u128 * (forward.heads() * forward.batch()) as u128
    }

    /// Its blocks.
    pub(super) fn blocks(&self, forward: &Problem, device: &Device) -> Blocks {
        // There are tiles, and fewer of them than 2^31.
        let all = self.tiles(forward).min(device.multiprocessors.max(1).into()) as u32;
        Blocks { all, of_queries: 0 }
    }

    /// What is summed, and in which order.
    pub(super) fn reason(&self, forward: &Problem, device: &Device) -> String {
        let (bytes, Blocks { all, .. }) = (self.sum_bytes(forward), self.blocks(forward, device));
        format!(
            "dQ is summed in fp32 where dS is made, in the order of keys, in {bytes} bytes; one launch of {all} blocks that take tiles of keys as they come, of {} key/value heads in turn",
            self.heads_of_round
        )
    }

    /// The tickets of its launch, in a workspace whose counters begin at this address.
    pub(super) fn tickets(&self, forward: &Problem, counters: u64) -> Tickets {
        Tickets { counters, tiles: counters + self.counter_bytes(forward), ..self.all_tickets(forward) }
    }

    /// The tickets in any workspace.
    fn all_tickets(&self, forward: &Problem) -> Tickets {
        let units = kv_heads(forward) as u32;
        Tickets {
            heads: units,
            heads_of_round: self.heads_of_round as u32,
            units_of_head: 1,
            unit_heads: forward.group() as u32,
            unit_rows: forward.seqlen_q().next_multiple_of(self.keys) as u32,
            ring: units,
            key_tiles: forward.seqlen_k().div_ceil(self.keys) as u32,
            key_rows: self.keys as u32,
            query_rows: self.config.step,
            steps_of_head: self.steps_of_head(forward) as u32,
            ..Tickets::default()
        }
    }

    fn counter_bytes(&self, forward: &Problem) -> u64 {
        let counters = u64::from(self.all_tickets(forward).counter_count());
        (Tickets::COUNTER_BYTES * counters).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of counters and tiles, in front of sums.
    pub(super) fn bytes_before_sums(&self, forward: &Problem) -> u64 {
        let bytes = self.tiles(forward) as u64 * Tickets::TILE_BYTES;
        self.counter_bytes(forward) + bytes.next_multiple_of(ALIGNMENT)
    }

    fn sum_bytes(&self, forward: &Problem) -> u64 {
        let bytes = self.steps(forward).saturating_mul(self.config.sum_bytes().into());
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self, forward: &Problem) -> u64 {
        self.bytes_before_sums(forward).saturating_add(self.sum_bytes(forward))
    }

    /// How sums lie at this address.
    pub(super) fn layout(&self, forward: &Problem, address: u64) -> StoredDs {
        // All sums have fewer pieces than 2^32.
        let of_step = self.config.sum_bytes() / PIECE;
        let head_pieces = of_step * self.steps_of_head(forward) as u32;
        StoredDs { address, panel_pieces: of_step, head_pieces, first_unit: 0 }
    }

    /// Sums as a view, and how many of its rows are a step's: lines of 128 bytes, whose heads are steps.
    pub(super) fn view(&self, forward: &Problem) -> (TensorLayout, u32) {
        let (heads, lines) = (forward.heads() * forward.batch(), self.config.sum_bytes() / 128);
        (TensorLayout::bhsd(heads, lines as usize, self.steps_of_head(forward), 64), lines)
    }
}
