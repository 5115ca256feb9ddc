//! Where an item's results go.

use crate::attention::combine::{Fold, Weights};
use crate::attention::split_output::Target;
use crate::attention::split_work::{Work, packed_rows};
use crate::params::DecodeParams;
use crate::registers::{Matrix, Registers as _};
use crate::softmax::with_sink;
use crate::tile::mma::Lane;

use super::consumer::{Column, register};
use super::fragments::column_of;
use super::items::{Destination, Item};
use super::tile::Tile;

/// Rows of Oᵀ, what normalises them, and their log-sum-exps.
pub(super) struct Rows<'a, T: Tile> {
    o: &'a T::O,
    /// What the elements of each row are multiplied by, and those of all rows behind that.
    factors: Column<T>,
    factor: f32,
    lse: Column<T>,
}

impl<'a, T: Tile> Rows<'a, T> {
    const COUNT: usize = <T::Scores as Matrix>::ROWS;

    /// Those of a piece, of what its products have added up; `finish` gives a row's factor and its
    /// log-sum-exp. Who takes several pieces in takes the sink in.
    ///
    /// # Safety
    /// The sinks are readable, and the item is one of the launch's.
    #[inline(always)]
    pub(super) unsafe fn of_piece(
        params: &DecodeParams,
        item: &Item,
        lane: Lane,
        o: &'a T::O,
        finish: impl Fn(usize) -> (f32, f32),
    ) -> Self {
        let [mut factors, mut lse] = [Column::<T>::splat(0.0); 2];
        let mut i = 0;
        while i < Self::COUNT {
            let mut finished = finish(i);
            if item.destination == Destination::Output {
                // SAFETY: as the caller says.
                finished = unsafe { of_whole_row(params, item, lane.column(i), finished) };
            }
            (factors[i], lse[i]) = (finished.0 / T::WEIGHT_SCALE, finished.1);
            i += 1;
        }
        Self { o, factors, factor: if T::WIDENS { item.v_descale } else { 1.0 }, lse }
    }

    /// An element of a row, of its first or second column of a panel.
    #[inline(always)]
    fn element(&self, panel: usize, row: usize, second: usize) -> f32 {
        let value = self.o[panel][register(row, second)] * self.factors[row];
        if T::WIDENS { value * self.factor } else { value }
    }

    /// Stores the rows that exist as O and lse.
    ///
    /// # Safety
    /// All threads of the warpgroup call this together; the rows of O and lse are this block's.
    #[inline(always)]
    pub(super) unsafe fn store(&self, params: &DecodeParams, item: &Item, lane: Lane) {
        // SAFETY: as the caller says.
        unsafe { self.store_at(params, item, lane, &item.work, true) }
    }

    /// Stores them as those of a piece, of which nothing reads O unless it has keys.
    ///
    /// # Safety
    /// As [`Self::store`], of the piece's rows.
    #[inline(always)]
    pub(super) unsafe fn store_piece(
        &self,
        params: &DecodeParams,
        item: &Item,
        lane: Lane,
        piece: u32,
        has_keys: bool,
    ) {
        // SAFETY: as the caller says.
        unsafe { self.store_at(params, item, lane, &Work { split: piece, ..item.work }, has_keys) }
    }

    #[inline(always)]
    unsafe fn store_at(&self, params: &DecodeParams, item: &Item, lane: Lane, work: &Work, stores_o: bool) {
        let of_piece = item.destination == Destination::Pieces;
        let mut i = 0;
        while i < Self::COUNT {
            let row = lane.column(i);
            if item.work.first_row + row < packed_rows(params) {
                let at = work.query_row(params, work.first_row + row);
                let target = Target::new(params, work, at, of_piece);
                let mut panel = 0;
                while panel < T::O::ROWS {
                    let mut j = 0;
                    while j < 2 {
                        let of_panel = if T::WIDENS { column_of(lane, j) } else { lane.row(j) };
                        let column = 64 * panel as u32 + of_panel;
                        if stores_o && column < params.cache.head_dim_v {
                            let value = self.element(panel, i, j);
                            // SAFETY: the element exists and is this thread's.
                            unsafe { target.store_o::<T::Element>(params, column, value) };
                        }
                        j += 1;
                    }
                    panel += 1;
                }
                if lane.row(0) == 0 {
                    // SAFETY: the row exists and is this thread's.
                    unsafe {
                        target.store_lse(params, self.lse[i]);
                        if item.destination == Destination::Folded && params.pieces.cuts_tiles == 1 {
                            target.mark_stored(params);
                        }
                    }
                }
            }
            i += 1;
        }
    }
}

/// The rows of pieces that were taken in so far, as [`combine`](crate::attention::combine) takes them.
pub(super) struct Folded<T: Tile> {
    o: T::O,
    max: Column<T>,
    sum: Column<T>,
}

impl<T: Tile> Folded<T> {
    /// Of no piece.
    #[inline(always)]
    pub(super) fn none() -> Self {
        Self { o: T::O::zero(), max: Column::<T>::splat(f32::NEG_INFINITY), sum: Column::<T>::splat(0.0) }
    }

    /// Takes the next piece's in.
    #[inline(always)]
    pub(super) fn add(&mut self, piece: &Rows<'_, T>) {
        let mut i = 0;
        while i < Rows::<'_, T>::COUNT {
            let (fold, max) = Fold::new(self.max[i], piece.lse[i]);
            self.max[i] = max;
            self.sum[i] = fold.add(self.sum[i], 1.0);
            let mut panel = 0;
            while panel < T::O::ROWS {
                let mut j = 0;
                while j < 2 {
                    let at = register(i, j);
                    self.o[panel][at] = fold.add(self.o[panel][at], piece.element(panel, i, j));
                    j += 1;
                }
                panel += 1;
            }
            i += 1;
        }
    }

    /// All rows of all pieces.
    ///
    /// # Safety
    /// As [`Rows::of_piece`].
    #[inline(always)]
    pub(super) unsafe fn finish(&self, params: &DecodeParams, item: &Item, lane: Lane) -> Rows<'_, T> {
        let mut rows = Rows::<T> { o: &self.o, factors: self.sum, factor: 1.0, lse: self.max };
        let mut i = 0;
        while i < Rows::<'_, T>::COUNT {
            let finished = Weights::new(self.max[i]).finish(self.sum[i]);
            // SAFETY: as the caller says.
            let finished = unsafe { of_whole_row(params, item, lane.column(i), finished) };
            (rows.factors[i], rows.lse[i]) = finished;
            i += 1;
        }
        rows
    }
}

/// A row's factor and log-sum-exp with its sink; those of a row of padding are another's.
///
/// # Safety
/// The sinks are readable, and the item is one of the launch's.
#[inline(always)]
unsafe fn of_whole_row(params: &DecodeParams, item: &Item, row: u32, finished: (f32, f32)) -> (f32, f32) {
    if !params.per_head.sinks.are_there() {
        return finished; // Before a division.
    }
    // A row of padding has a head of the group too.
    let head = item.work.query_row(params, item.work.first_row + row).head;
    // SAFETY: the sinks are readable, and the head is one of the launch's.
    unsafe { with_sink(finished, &params.per_head.sinks, (item.work.batch, head)) }
}
