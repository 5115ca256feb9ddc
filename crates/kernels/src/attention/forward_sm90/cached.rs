//! Queries against a K/V cache: keys in pages, keys split over blocks, and heads that share keys as rows of
//! one tile.
//!
//! 2^`head_bits` query heads are one head of the launch, a pack of them: row r of its tiles is query
//! r >> `head_bits` of the pack's head r mod 2^`head_bits`. Packs have at most eight heads, so that a
//! thread's two rows, eight apart, are of one head, and a constant number of queries apart.

pub(super) mod epilogue;
pub(super) mod producer;

use super::tile::Tile;
use crate::attention::alignment::Alignment;
use crate::attention::splits::Splits;
use crate::mask::KeyRange;
use crate::params::PersistentParams;
use crate::ptx::index;
use crate::scheduler::{Tiles, WorkTile};
use crate::tile::mma::Lane;

/// Rows and heads of a cache: all start at multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cached;

impl Alignment for Cached {
    const IN_CACHE: bool = true;
}

/// log2 of the rows of a tile that each query has.
#[inline(always)]
pub(super) fn head_bits<T: Tile>(params: &PersistentParams) -> u32 {
    if T::IN_CACHE { params.cache.head_bits } else { 0 }
}

/// The query head of a row of a pack's tile.
#[inline(always)]
pub(super) fn query_head(params: &PersistentParams, pack: u32, row: u32) -> u32 {
    let bits = params.cache.head_bits;
    (pack << bits) + row % (1 << bits)
}

/// Factors of a sequence's key/value head: on Q·Kᵀ with what K was divided by, which entries that change no
/// scores do not read, and what V was divided by.
///
/// # Safety
/// The factors that `params` describes are readable, and the head is one of theirs.
#[inline(always)]
pub(super) unsafe fn factors(params: &PersistentParams, batch: u32, kv_head: u32) -> [f32; 2] {
    let (attention, cache) = (&params.attention, &params.cache);
    // SAFETY: as the caller says.
    let [k, v] = unsafe { [cache.k_descale.of(batch, kv_head), cache.v_descale.of(batch, kv_head)] };
    [attention.softmax_scale * k, v]
}

/// ALiBi's slope of a thread's rows; 0 where there is none.
///
/// # Safety
/// The slopes that `params` describes are readable.
#[inline(always)]
pub(super) unsafe fn alibi_slope(params: &PersistentParams, work: &WorkTile) -> f32 {
    let head = query_head(params, work.head, Lane::reread(2).row(0));
    // SAFETY: the head is one of the launch's.
    unsafe { params.attention.per_head.alibi_slopes.of(work.batch, head) }
}

/// The next tile of this block, and which part of its keys.
///
/// # Safety
/// As [`Tiles::next`].
#[inline(always)]
pub(super) unsafe fn next<T: Tile>(tiles: &mut Tiles, params: &PersistentParams) -> Option<(WorkTile, u32)> {
    // SAFETY: as the caller says.
    unsafe {
        if T::IN_CACHE {
            return tiles.next_of_splits(params, T::BLOCK_M >> index::unknown(params.cache.head_bits));
        }
        Some((tiles.next(params, T::BLOCK_M)?, 0))
    }
}

/// The keys of a split, of those `seen` of a sequence with `used` keys.
#[inline(always)]
pub(super) fn part_of<T: Tile>(
    params: &PersistentParams,
    (split, used): (u32, u32),
    seen: KeyRange,
) -> KeyRange {
    if T::IN_CACHE { Splits::of_cache(&params.cache).part(split, used, seen, T::BLOCK_N) } else { seen }
}
