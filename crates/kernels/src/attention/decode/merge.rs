//! Merging the results of a block's warps, and where they go.

use core::marker::PhantomData;

use crate::attention::merge::Weights;
use crate::attention::split_output::Target;
use crate::attention::split_work::Work;
use crate::params::DecodeParams;
use crate::ptx::{index, math, shared};
use crate::registers::{Matrix, Registers as _, Width as _};
use crate::softmax::with_sink;
use crate::tile::mma::Lane;

use super::tile::{Softmax, Tile};

/// The warps' normalised O and their log-sum-exps, fp32, each where the warp's ring was.
pub(super) struct Partials<T> {
    /// Of the first warp.
    address: u32,
    /// Whether they are those of a split, which a launch after this one merges with others.
    of_split: bool,
    tile: PhantomData<T>,
}

impl<T: Tile> Partials<T> {
    /// Those whose rings begin at `address`.
    #[inline(always)]
    pub(super) fn new(address: u32, of_split: bool) -> Self {
        Self { address, of_split, tile: PhantomData }
    }

    /// Address of an element of a warp's O.
    #[inline(always)]
    fn o(&self, warp: u32, row: u32, column: u32) -> u32 {
        self.address + warp * T::CONFIG.ring_bytes() + 4 * (row * T::CONFIG.partial_stride() + column)
    }

    /// Address of a warp's log-sum-exp of a row.
    #[inline(always)]
    fn lse(&self, warp: u32, row: u32) -> u32 {
        self.o(warp, T::BLOCK_M, row)
    }

    /// Writes this warp's result.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together, its copies have arrived and its tiles have been read.
    #[inline(always)]
    pub(super) unsafe fn write(&self, warp: u32, lane: Lane, acc: &T::O, softmax: &Softmax<T>) {
        let mut i = 0;
        while i < T::O::ROWS {
            let row = lane.row(i);
            // SAFETY: all lanes are here, each element is one lane's, and the warp is done with its ring.
            unsafe {
                let (inverse_sum, lse) = softmax.finish(i);
                let mut j = 0;
                while j < T::O::COLS {
                    shared::store(self.o(warp, row, lane.column(j)), acc[i][j] * inverse_sum);
                    j += 1;
                }
                if lane.pair == 0 {
                    shared::store(self.lse(warp, row), lse);
                }
            }
            i += 1;
        }
    }

    /// Merges the warps' results and stores the rows that exist: as O and lse, or as those of a split, of
    /// which nothing reads O unless it has keys.
    ///
    /// # Safety
    /// All threads of the block call this together, behind a barrier after [`Self::write`].
    #[inline(always)]
    pub(super) unsafe fn merge(&self, params: &DecodeParams, work: &Work, last_row: u32, has_keys: bool) {
        let lane = index::thread() % 32;
        let mut row = index::thread() / 32;
        while work.first_row + row <= last_row {
            let at = work.query_row(params, work.first_row + row);
            // SAFETY: all warps have written their results, with a barrier between; the sinks are readable.
            let (shares, lse) = unsafe { self.shares(row, params, (work.batch, at.head)) };
            let target = Target::new(params, work, at, self.of_split);
            let mut column = lane;
            let mut part = if has_keys || !self.of_split { 0 } else { T::HeadDim::COLUMNS / 32 };
            while part < T::HeadDim::COLUMNS / 32 {
                let mut value = 0.0;
                let mut warp = 0;
                while warp < T::Warps::LEN {
                    // SAFETY: all warps have written this element, with a barrier between.
                    let share = unsafe { shared::load(self.o(warp as u32, row, column)) };
                    value = math::fma(shares[warp], share, value);
                    warp += 1;
                }
                if column < params.cache.head_dim_v {
                    // SAFETY: the element exists and is this lane's.
                    unsafe { target.store_o::<T::Element>(params, column, value) };
                }
                column += 32;
                part += 1;
            }
            if lane == 0 {
                // SAFETY: the row exists and is this warp's.
                unsafe { target.store_lse(params, lse) };
            }
            row += T::CONFIG.warps;
        }
    }

    /// The warps' shares in a row of a head, and its log-sum-exp.
    ///
    /// # Safety
    /// As [`Self::merge`].
    #[inline(always)]
    unsafe fn shares(&self, row: u32, params: &DecodeParams, head: (u32, u32)) -> (T::Warps, f32) {
        let mut shares = T::Warps::splat(0.0);
        let mut max = f32::NEG_INFINITY;
        let mut warp = 0;
        while warp < T::Warps::LEN {
            // SAFETY: all warps have written their log-sum-exps, with a barrier between.
            shares[warp] = unsafe { shared::load(self.lse(warp as u32, row)) };
            max = math::max(max, shares[warp]);
            warp += 1;
        }
        let weights = Weights::new(max);
        let mut sum = 0.0;
        let mut warp = 0;
        while warp < T::Warps::LEN {
            shares[warp] = weights.of(shares[warp]);
            sum += shares[warp];
            warp += 1;
        }
        let row_end = weights.finish(sum);
        // Of several splits, the last launch merges the sink.
        let (inverse_sum, lse) = if !self.of_split {
            // SAFETY: the sinks are readable, and the head is one of the launch's.
            unsafe { with_sink(row_end, &params.per_head.sinks, head) }
        } else {
            row_end
        };
        let mut warp = 0;
        while warp < T::Warps::LEN {
            shares[warp] *= inverse_sum;
            warp += 1;
        }
        (shares, lse)
    }
}
