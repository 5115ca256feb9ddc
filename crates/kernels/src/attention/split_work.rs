//! Which rows and keys are computed together, where the keys of each sequence are split.

use crate::mask::KeyRange;
use crate::params::DecodeParams;
use crate::scheduler::{Rows, WorkTile};

/// A tile of packed rows and a split of its sequence's keys.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// The first row.
    pub(super) first_row: u32,
    pub(super) kv_head: u32,
    pub(super) split: u32,
    pub(super) batch: u32,
}

/// A row of Q, O and lse.
pub(super) struct QueryRow {
    pub(super) position: u32,
    pub(super) head: u32,
}

impl Work {
    /// Splits an index into (split, head, tile of `block_m` rows) of a sequence, the tile fastest, so that
    /// what is computed at the same time reads the same keys, or those of neighbouring heads.
    #[inline(always)]
    pub(super) fn of_sequence(params: &DecodeParams, block_m: u32, batch: u32, index: u32) -> Self {
        let (tile, rest) = (index % params.tiles, index / params.tiles);
        let (kv_head, split) = (rest % params.kv_heads, rest / params.kv_heads);
        Self { first_row: tile * block_m, kv_head, split, batch }
    }

    /// As [`Self::of_sequence`], of an index that begins with the sequence, each of which has `num_splits`.
    #[inline(always)]
    pub(super) fn of_batch(params: &DecodeParams, block_m: u32, index: u32) -> Self {
        let work = Self::of_sequence(params, block_m, 0, index);
        let splits = params.cache.num_splits;
        Self { split: work.split % splits, batch: work.split / splits, ..work }
    }

    /// The row of the sequence and the query head that a packed row is.
    #[inline(always)]
    pub(super) fn query_row(&self, params: &DecodeParams, packed: u32) -> QueryRow {
        let (position, of_group) = (packed / params.group, packed % params.group);
        QueryRow { position, head: self.kv_head * params.group.get() + of_group }
    }
}

/// Packed rows of a key/value head.
#[inline(always)]
pub(super) fn packed_rows(params: &DecodeParams) -> u32 {
    params.seqlen_q.get() * params.group.get()
}

/// What a packed row sees of the sequence's `used` keys. Rows past the last see at most what exists.
#[inline(always)]
pub(super) fn seen_keys(params: &DecodeParams, used: u32, packed: u32) -> KeyRange {
    let rows = |len| Rows { first: 0, len };
    let sequence =
        WorkTile { tile: 0, head: 0, batch: 0, queries: rows(params.seqlen_q.get()), keys: rows(used) };
    KeyRange::of_row(&params.attention(), &sequence, packed / params.group)
}
