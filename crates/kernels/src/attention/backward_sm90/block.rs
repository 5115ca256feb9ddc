//! What a block owns, and what it goes over.

use core::marker::PhantomData;

use super::tile::Tile;
use crate::attention::stored_ds;
use crate::mask::{ADDED_AT_ONCE, KeyRange, QueryRange, TileMask};
use crate::params::BackwardParams;
use crate::scheduler::{Rows, WorkTile};

/// A block's rows, and the rows of the others that it goes over: once for each query head that shares them.
///
/// Of a launch that stores dS it is one tile of a block: of keys, or of queries, whose others are keys.
#[derive(Clone, Copy)]
pub(super) struct Block<T> {
    /// Sequence and heads; owning keys, the first of the query heads.
    pub(super) work: WorkTile,
    /// Its first row.
    pub(super) owned: u32,
    /// Key/value head.
    pub(super) kv_head: u32,
    /// The first row of the others that it goes over.
    pub(super) first: u32,
    /// One past the last; not above `first` where there is none.
    pub(super) end: u32,
    /// How often it goes over them.
    pub(super) heads: u32,
    /// Where dS of `work.head` is stored, among the heads whose dS is.
    pub(super) ds_head: u32,
    /// The first query of which it is stored there.
    pub(super) unit_row: u32,
    pub(super) tile: PhantomData<T>,
}

/// Reads the block at hand: from registers, or again from where it was announced.
pub(super) trait Source<T>: Copy {
    fn block(self) -> Block<T>;
}

impl<T: Tile> Source<T> for &Block<T> {
    #[inline(always)]
    fn block(self) -> Block<T> {
        *self
    }
}

impl<T: Tile> Block<T> {
    /// This block's, of a launch in which each has one.
    ///
    /// # Safety
    /// `params` is valid, in a launch as [`backward_sm90`](super::backward_sm90) says.
    #[inline(always)]
    pub(super) unsafe fn new(params: &BackwardParams) -> Self {
        let attention = &params.attention;
        let (rows, order) = (T::CONFIG.owned(), params.heads_per_swizzle);
        // SAFETY: valid parameters have no empty axis.
        unsafe {
            if T::OWNS_KEYS {
                let work = WorkTile::of_key_swizzle(attention, attention.seqlen_k.div_ceil(rows), order);
                let owned = work.tile * rows;
                let seen = QueryRange::of_keys(attention, &work, owned, rows);
                let QueryRange { first, end } = seen.from_multiple(ADDED_AT_ONCE);
                let (kv_head, heads) = (work.kv_head(attention), attention.group);
                Self { work, owned, kv_head, first, end, heads, ds_head: 0, unit_row: 0, tile: PhantomData }
            } else {
                let work = WorkTile::of_swizzle(attention, attention.seqlen_q.div_ceil(rows), order);
                let owned = work.tile * rows;
                let seen = TileMask::new(attention, &work, owned, rows, T::STEP).seen;
                let (kv_head, heads) = (work.kv_head(attention), 1);
                let KeyRange { first, end } = seen.from_multiple(ADDED_AT_ONCE);
                Self { work, owned, kv_head, first, end, heads, ds_head: 0, unit_row: 0, tile: PhantomData }
            }
        }
    }

    /// Whether its rows lie behind the sequence, which may be shorter than the longest, for which there are
    /// blocks.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.owned >= if T::OWNS_KEYS { self.work.keys.len } else { self.work.queries.len }
    }

    /// The rows of the sequence that it goes over steps of, and those that it owns some of.
    #[inline(always)]
    pub(super) fn rows(&self) -> (Rows, Rows) {
        let WorkTile { queries, keys, .. } = self.work;
        if T::OWNS_KEYS { (queries, keys) } else { (keys, queries) }
    }

    /// Steps of one head.
    #[inline(always)]
    pub(super) fn steps_of_head(&self) -> u32 {
        self.end.saturating_sub(self.first).div_ceil(T::STEP)
    }

    /// All steps.
    #[inline(always)]
    pub(super) fn steps(&self) -> u32 {
        self.steps_of_head() * self.heads
    }

    /// This thread's first piece of stored dS: of its first key, `key` of the sequence's.
    #[inline(always)]
    pub(super) fn first_piece(&self, params: &BackwardParams, key: u32) -> u32 {
        stored_ds::piece(&params.ds, self.ds_head, (self.first - self.unit_row, key))
    }

    /// First row of the step behind that which begins with `row`, of the same head or of the next.
    #[inline(always)]
    pub(super) fn after(&self, row: u32) -> u32 {
        let next = row + T::STEP;
        if next < self.end { next } else { self.first }
    }
}
