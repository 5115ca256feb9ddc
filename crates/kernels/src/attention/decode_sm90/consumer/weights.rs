//! From scores to weights, and what becomes of the rows.

use crate::attention::tree_mask;
use crate::attention::work_items::Item;
use crate::config::DecodeSm90Config;
use crate::hopper::roles::WARPS;
use crate::params::DecodeParams;
use crate::ptx::{index, math, shared, stmatrix, warp};
use crate::registers::{Matrix as _, Registers as _};
use crate::score::{CapAndBias, for_each};
use crate::tile::mma::{Lane, MmaElement as _, QUAD};

use super::super::rows::Ends;
use super::super::tile::Tile;
use super::{BARRIER, Column, Consumer, register};

impl<T: Tile> Consumer<T> {
    /// Scales, bends and biases the scores of the keys from `first_key` on where they are `changed`, and sets
    /// those of keys to −∞ that a row does not see, or that lie behind the item's.
    #[inline(always)]
    pub(super) fn apply(
        &self,
        params: &DecodeParams,
        item: &Item,
        s: &mut T::Scores,
        first_key: u32,
        changed: bool,
    ) {
        let lane = self.lane;
        let row = |i: usize| self.memory.row(self.queries.stage(), lane.column(i));
        if changed {
            CapAndBias::bend(&params.attention(), s);
            if params.per_head.alibi_slopes.are_there() {
                for_each(s, |score, i, j| {
                    // SAFETY: the words are the row's, and were written before Q was handed on.
                    let (diagonal, slope) = unsafe { (shared::load_b32(row(i)), shared::load(row(i) + 4)) };
                    let distance = diagonal.wrapping_sub(first_key + key_of(lane, j)) as i32;
                    CapAndBias::with_slope(slope).biased(score, distance as f32)
                });
            }
        }
        let end = item.whole.end.min(item.keys.end);
        if first_key < item.whole.first || first_key + T::BLOCK_N > end {
            for_each(s, |score, i, j| {
                let key = first_key + key_of(lane, j);
                // SAFETY: as above.
                let diagonal = unsafe { shared::load_b32(row(i)) };
                // One comparison for both sides of the window.
                let place = key.wrapping_sub(diagonal).wrapping_add(params.window_left);
                if place > params.window_span || key >= item.keys.end { f32::NEG_INFINITY } else { score }
            });
        }
        // Positions, which take a division, would be kept in registers over all steps.
        let first_row = index::unknown(item.work.first_row);
        let position = |i| item.work.query_row(params, first_row + lane.column(i)).position;
        let (of, step_keys) = ((item.work.batch, item.used), (first_key, T::BLOCK_N));
        // SAFETY: the mask has the item's sequence.
        unsafe { tree_mask::hide(params, s, of, step_keys, position, |j| key_of(lane, j)) };
    }

    /// P in place of the scores, and the factors that bring O to the new m.
    #[inline(always)]
    pub(super) fn exponentiate(&mut self, s: &mut T::Scores) -> Column<T> {
        let (lane, warp) = (self.lane, index::thread() / 32);
        let mut i = 0;
        while i < Self::ROWS {
            // SAFETY: all lanes of the warp are here; nobody has read the word since the last barrier.
            unsafe {
                let mut max = s[i][0];
                let mut j = 1;
                while j < T::Scores::COLS {
                    max = math::max(max, s[i][j]);
                    j += 1;
                }
                let max = reduce_keys(max, math::max);
                if lane.group == 0 {
                    shared::store(self.memory.max(warp, lane.column(i)), max);
                }
            }
            i += 1;
        }
        // SAFETY: all threads of the warpgroup are here, and no others come to the barrier.
        unsafe { self.warpgroup.sync(BARRIER) };
        let mut rescale = Column::<T>::splat(1.0);
        let mut i = 0;
        while i < Self::ROWS {
            let at = |warp| self.memory.max(warp, lane.column(i));
            // SAFETY: all warps have written their words, with a barrier between.
            let max = unsafe { of_warps(at, math::max) };
            rescale[i] = self.softmax.raise_max_to(i, max);
            self.softmax.exponentiate(i, &mut s[i]);
            i += 1;
        }
        rescale
    }

    /// Writes P, rounded, to shared memory.
    #[inline(always)]
    pub(super) fn write_weights(&self, s: &T::Scores) {
        let (thread, p) = (index::thread(), self.memory.p());
        // Of the rows of four 8×8 matrices: eight rows of P with the warp's first and second eight keys, and
        // the next eight rows.
        let (row, chunk) = (thread / 16 % 2 * 8 + thread % 8, thread / 32 * 2 + thread / 8 % 2);
        let mut i = 0;
        while i < Self::ROWS {
            let mut j = 0;
            while j < T::Scores::COLS {
                let pair = |i: usize, j: usize| {
                    T::Operand::pack(s[i][j] * T::WEIGHT_SCALE, s[i + 1][j] * T::WEIGHT_SCALE)
                };
                let matrices = [pair(i, j), pair(i, j + 1), pair(i + 2, j), pair(i + 2, j + 1)];
                let chunk = DecodeSm90Config::PRODUCT_KEYS / 8 * (j / 2) as u32 + chunk;
                // SAFETY: all lanes are here; the elements are the warp's, and products that read them over.
                unsafe { stmatrix::store_x4_transposed(p.at(4 * i as u32 + row, chunk), matrices) };
                j += 2;
            }
            i += 4;
        }
    }

    /// Brings O to the new m, where it is another.
    #[inline(always)]
    pub(super) fn rescale(&mut self, factors: &Column<T>) {
        let mut needed = false;
        let mut i = 0;
        while i < Self::ROWS {
            needed |= factors[i] != 1.0;
            i += 1;
        }
        if self.warpgroup.any_of_warp(needed) {
            let mut panel = 0;
            while panel < T::O::ROWS {
                let mut i = 0;
                while i < Self::ROWS {
                    self.o[panel][register(i, 0)] *= factors[i];
                    self.o[panel][register(i, 1)] *= factors[i];
                    i += 1;
                }
                panel += 1;
            }
        }
    }

    /// Writes this warp's sums of weights to shared memory.
    #[inline(always)]
    pub(super) fn write_sums(&self) {
        let (lane, warp) = (self.lane, index::thread() / 32);
        let mut i = 0;
        while i < Self::ROWS {
            // SAFETY: all lanes of the warp are here; the last words were read before the barriers of the
            // steps behind them.
            unsafe {
                let sum = reduce_keys(self.softmax.sum(i), |a, b| a + b);
                if lane.group == 0 {
                    shared::store(self.memory.sum(warp, lane.column(i)), sum);
                }
            }
            i += 1;
        }
    }

    /// What becomes of the rows, by the sums that all warps have written in front of the last barrier.
    #[inline(always)]
    pub(super) fn ends(&mut self, item: &Item) -> Ends<T> {
        let mut ends = Ends::<T>::none();
        let mut i = 0;
        while i < Self::ROWS {
            let at = |warp| self.memory.sum(warp, self.lane.column(i));
            // SAFETY: all warps have written their words, with a barrier between.
            let sum = unsafe { of_warps(at, |a, b| a + b) };
            let (factor, lse) = self.softmax.finish_beside_others(i, sum);
            (ends.factors[i], ends.lse[i]) = (factor / T::WEIGHT_SCALE, lse);
            i += 1;
        }
        if T::ADDS_UP && !item.of_split {
            self.added_up.weigh(&mut ends);
        }
        ends
    }
}

/// Which key of a step is a thread's `j`-th.
#[inline(always)]
fn key_of(lane: Lane, j: usize) -> u32 {
    DecodeSm90Config::PRODUCT_KEYS * (j / 2) as u32 + lane.row(j % 2)
}

/// Combines a value over the lanes that have the same rows of Q.
///
/// # Safety
/// All 32 lanes of the warp call this together.
#[inline(always)]
unsafe fn reduce_keys(mut value: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut distance = QUAD;
    while distance < 32 {
        // SAFETY: all lanes of the warp are here.
        value = combine(value, unsafe { warp::shuffle_xor(value, distance) });
        distance *= 2;
    }
    value
}

/// Combines the words that the warps have written, in their order.
///
/// # Safety
/// They have, with a barrier between.
#[inline(always)]
unsafe fn of_warps(at: impl Fn(u32) -> u32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    // SAFETY: as the caller says.
    unsafe {
        let mut value = shared::load(at(0));
        let mut warp = 1;
        while warp < WARPS {
            value = combine(value, shared::load(at(warp)));
            warp += 1;
        }
        value
    }
}
