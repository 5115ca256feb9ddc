//! The rows of O that an item gives, and where they go.

use crate::attention::combine::Running;
use crate::attention::split_output::Target;
use crate::params::DecodeParams;
use crate::registers::{Matrix, Registers as _};
use crate::softmax::with_sink;
use crate::tile::mma::Lane;

use super::consumer::{Column, register};
use super::fragments::column_of;
use super::tile::Tile;
use crate::attention::work_items::Item;

/// Rows of Oᵀ before they are normalised.
pub(super) struct Rows<T: Tile> {
    o: T::O,
    /// What the elements of each row are multiplied by, and all of them behind that.
    factors: Column<T>,
    factor: f32,
    /// Their log-sum-exps.
    lse: Column<T>,
}

impl<T: Tile> Rows<T> {
    const COUNT: usize = <T::Scores as Matrix>::ROWS;

    /// Those of which products have added up `o`; `finish` gives a row's factor and its log-sum-exp.
    #[inline(always)]
    pub(super) fn new(o: &T::O, v_descale: f32, finish: impl Fn(usize) -> (f32, f32)) -> Self {
        let [mut factors, mut lse] = [Column::<T>::splat(0.0); 2];
        let mut i = 0;
        while i < Self::COUNT {
            let (factor, of_row) = finish(i);
            (factors[i], lse[i]) = (factor / T::WEIGHT_SCALE, of_row);
            i += 1;
        }
        Self { o: *o, factors, factor: v_descale, lse }
    }

    /// An element of a row, of its first or second column of a panel.
    #[inline(always)]
    fn element(&self, panel: usize, row: usize, second: usize) -> f32 {
        let value = self.o[panel][register(row, second)] * self.factors[row];
        if T::WIDENS { value * self.factor } else { value }
    }

    /// Stores the rows that exist: as O and lse, or as those of a split, of which nothing reads O unless it
    /// has keys.
    ///
    /// # Safety
    /// All threads of the warpgroup call this together; the rows of O and lse are this block's.
    #[inline(always)]
    pub(super) unsafe fn store(mut self, params: &DecodeParams, item: &Item, lane: Lane) {
        let Item { work, of_split, rows, keys, .. } = item;
        let stores_o = keys.has_keys() || !of_split;
        let mut i = 0;
        while i < Self::COUNT {
            let row = lane.column(i);
            if row < *rows {
                let at = work.query_row(params, work.first_row + row);
                // Of several splits, who merges them takes the sink in.
                if !of_split {
                    let (sinks, head) = (&params.per_head.sinks, (work.batch, at.head));
                    // SAFETY: the sinks are readable, and the head is one of the launch's.
                    (self.factors[i], self.lse[i]) =
                        unsafe { with_sink((self.factors[i], self.lse[i]), sinks, head) };
                }
                let target = Target::new(params, work, at, *of_split);
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
                    unsafe { target.store_lse(params, self.lse[i]) };
                }
            }
            i += 1;
        }
    }
}

/// The rows of the splits that were taken in, as [`combine`](crate::attention::combine) takes them in.
pub(super) struct AddedUp<T: Tile> {
    o: T::O,
    max: Column<T>,
    sum: Column<T>,
}

impl<T: Tile> AddedUp<T> {
    /// Of no split.
    #[inline(always)]
    pub(super) fn none() -> Self {
        let Running { max, sum } = Running::NONE;
        Self { o: T::O::zero(), max: Column::<T>::splat(max), sum: Column::<T>::splat(sum) }
    }

    /// Takes the next split's in.
    #[inline(always)]
    pub(super) fn take(&mut self, rows: &Rows<T>) {
        let mut i = 0;
        while i < Rows::<T>::COUNT {
            let mut running = self.running(i);
            let share = running.take(rows.lse[i]);
            (self.max[i], self.sum[i]) = (running.max, running.sum);
            let mut panel = 0;
            while panel < T::O::ROWS {
                let mut j = 0;
                while j < 2 {
                    let at = register(i, j);
                    self.o[panel][at] = share.add(self.o[panel][at], rows.element(panel, i, j));
                    j += 1;
                }
                panel += 1;
            }
            i += 1;
        }
    }

    #[inline(always)]
    fn running(&self, row: usize) -> Running {
        Running { max: self.max[row], sum: self.sum[row] }
    }

    /// The rows of all of them.
    #[inline(always)]
    pub(super) fn finish(&self) -> Rows<T> {
        let [mut factors, mut lse] = [Column::<T>::splat(0.0); 2];
        let mut i = 0;
        while i < Rows::<T>::COUNT {
            (factors[i], lse[i]) = self.running(i).finish();
            i += 1;
        }
        Rows { o: self.o, factors, factor: 1.0, lse }
    }
}
