//! What a launch does to scores and weights: nothing, but in tiles that can.

use super::Tile;
use crate::dropout::{KEY_MULTIPLE, QUERY_MULTIPLE};
use crate::mask::{ADDED_AT_ONCE, KeyRange, QueryRange, TileMask};
use crate::params::AttentionParams;
use crate::scheduler::WorkTile;
use crate::score::CapAndBias;

/// The queries that a block which owns the keys from `first_key` on goes over, from where a step may begin.
#[inline(always)]
pub(super) fn queries<T: Tile>(params: &AttentionParams, work: &WorkTile, first_key: u32) -> QueryRange {
    let multiple = if T::DROPOUT { QUERY_MULTIPLE } else { ADDED_AT_ONCE };
    QueryRange::of_keys(params, work, first_key, T::OWNED).from_multiple(multiple)
}

/// The keys that a block which owns the queries from `first_row` on goes over, from where a step may begin.
#[inline(always)]
pub(super) fn keys<T: Tile>(params: &AttentionParams, work: &WorkTile, first_row: u32) -> KeyRange {
    let multiple = if T::DROPOUT { KEY_MULTIPLE } else { ADDED_AT_ONCE };
    TileMask::new(params, work, first_row, T::OWNED, T::STEP).seen.from_multiple(multiple)
}

/// What happens to the scores of a head.
///
/// # Safety
/// The ALiBi slopes that `params` describes are readable.
#[inline(always)]
pub(super) unsafe fn score_mod<T: Tile>(params: &AttentionParams, work: &WorkTile) -> CapAndBias {
    // SAFETY: the head's slope is readable.
    if T::SCORE_MOD { unsafe { CapAndBias::of_head(params, work) } } else { CapAndBias::default() }
}

/// Which of a thread's weights are kept where rows are keys, each at
/// [`kept_bit`](crate::dropout::fragment::kept_bit). `first` is the query and the key of its first one.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
pub(super) unsafe fn kept_of_keys<T: Tile>(
    params: &AttentionParams,
    work: &WorkTile,
    first: (u32, u32),
) -> u32 {
    if !drops::<T>(params) {
        return !0;
    }
    let head = work.batch * params.heads + work.head;
    // SAFETY: the warp's lanes are together, for all of them drop weights.
    unsafe { params.dropout.kept_of_keys(head, first, (T::STEP, T::WARP_ROWS)) }
}

/// As [`kept_of_keys`], where rows are queries.
#[inline(always)]
pub(super) fn kept_of_queries<T: Tile>(params: &AttentionParams, work: &WorkTile, first: (u32, u32)) -> u32 {
    if !drops::<T>(params) {
        return !0;
    }
    let head = work.batch * params.heads + work.head;
    params.dropout.kept_of_queries(head, first, (T::WARP_ROWS, T::STEP))
}

/// Whether a launch drops weights.
#[inline(always)]
fn drops<T: Tile>(params: &AttentionParams) -> bool {
    T::DROPOUT && params.dropout.threshold != 0
}
