//! Merging partial results of attention over parts of the keys (Flash-Decoding; Dao 2023,
//! arXiv:2307.08691, section 3.1 has the algebra).
//!
//! A part gives its own normalised output Oᵢ and log-sum-exp lseᵢ. With m = max lseᵢ, the whole is
//! O = Σ 2^(lseᵢ − m)·Oᵢ / Σ 2^(lseᵢ − m), here with the natural exponential. A part without keys has
//! lseᵢ = −∞ and no weight; where all are empty, O is 0 and the lse −∞. Splits are added up in their order, m
//! growing on the way, as a block does that computes all of them.

use core::f32::consts::{LN_2, LOG2_E};
use core::hint::assert_unchecked;

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use crate::attention::pieces::Pieces;
use crate::attention::split_work::QueryRow;
use crate::attention::splits::{self, used_keys};
use crate::element::Element;
use crate::params::{CacheParams, DecodeParams, MAX_SPLITS};
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use crate::ptx::grid;
use crate::ptx::{global, index, math, warp};
use crate::softmax::with_sink;

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Rows of a block, one for each warp.
pub const ROWS: u32 = THREADS / 32;

/// Columns that a lane adds up at a time.
const COLUMNS: u32 = 4;

/// Splits whose values a lane loads before it adds the first: enough to hide the latency of L2.
const LOADS_IN_FLIGHT: usize = 8;

/// Splits that each lane of a warp looks at.
const LANE_SPLITS: usize = (MAX_SPLITS / 32) as usize;

/// In place of a row's first log-sum-exp: its result is stored. No arithmetic gives this NaN.
pub(super) const STORED: u32 = 0x7fc0_fa01;

/// Weights of partial results by their log-sum-exp.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// The largest log-sum-exp, or 0 where there is none: −∞ − (−∞) would be NaN.
    shift: f32,
}

impl Weights {
    /// For parts of which the largest log-sum-exp is `max`.
    #[inline(always)]
    pub(super) fn new(max: f32) -> Self {
        Self { shift: if max == f32::NEG_INFINITY { 0.0 } else { max } }
    }

    /// The weight of a part, before division by the sum of all.
    #[inline(always)]
    pub(super) fn of(self, lse: f32) -> f32 {
        math::exp2((lse - self.shift) * LOG2_E)
    }

    /// The factor 1/sum, and the log-sum-exp of the whole: 0 and −∞ where no part has a key.
    #[inline(always)]
    pub(super) fn finish(self, sum: f32) -> (f32, f32) {
        if sum == 0.0 {
            return (0.0, f32::NEG_INFINITY);
        }
        (math::reciprocal(sum), math::fma(math::log2(sum), LN_2, self.shift))
    }
}

/// What an output and those before it are multiplied by when they are added up, by their log-sum-exps.
#[derive(Clone, Copy)]
pub(super) struct Fold {
    /// What is kept of the outputs so far.
    kept: f32,
    /// The weight of the output that is added.
    added: f32,
}

impl Fold {
    /// That of a result with the log-sum-exp `lse`, where `max` is the largest before, and the largest with
    /// it; one without keys, of −∞, leaves all as it is.
    #[inline(always)]
    pub(super) fn new(max: f32, lse: f32) -> (Self, f32) {
        if lse == f32::NEG_INFINITY {
            return (Self { kept: 1.0, added: 0.0 }, max);
        }
        let larger = math::max(max, lse);
        let weight = |lse: f32| math::exp2((lse - larger) * LOG2_E);
        (Self { kept: weight(max), added: weight(lse) }, larger)
    }

    /// A sum with one more term.
    #[inline(always)]
    pub(super) fn add(self, sum: f32, term: f32) -> f32 {
        math::fma(self.added, term, sum * self.kept)
    }
}

/// O and lse from those of the splits.
///
/// Launch: ⌈B·H·Sq / [`ROWS`]⌉ blocks of [`THREADS`] threads, without shared memory.
///
/// # Safety
/// `params` describes valid device memory, `attention::decode` has run before with the same, and the
/// launch is as above.
#[inline(always)]
pub unsafe fn combine<E: Element>(params: &DecodeParams) {
    let row = index::block() * ROWS + index::thread() / 32;
    if row as u64 >= params.cache.rows {
        return;
    }
    // SAFETY: valid parameters have no empty axis.
    let (batch, at) = unsafe {
        assert_unchecked(params.seqlen_q > 0 && params.heads > 0);
        let sequence_head = row / params.seqlen_q;
        let at = QueryRow { position: row % params.seqlen_q, head: sequence_head % params.heads };
        (sequence_head / params.heads, at)
    };
    // SAFETY: the number of keys is readable.
    let splits = unsafe { count(params, used_keys(params, batch)) };
    if splits == 1 {
        return; // Its block has stored O and lse.
    }
    // SAFETY: the splits' results are written; whole warps run this alike.
    unsafe { merge_row::<E>(params, splits, batch, &at) }
}

/// Splits, or pieces, of a sequence with `used` keys.
#[inline(always)]
fn count(params: &DecodeParams, used: u32) -> u32 {
    #[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
    if params.pieces.step_bits > 0 {
        // SAFETY: steps have keys.
        return unsafe { Pieces::of(params, used).count };
    }
    splits::count(&params.cache, used)
}

/// As [`combine`], in a launch that may begin before the one that gives the splits' results has ended.
///
/// # Safety
/// As [`combine`], but for what has run before, which may still run.
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[inline(always)]
pub unsafe fn combine_dependent<E: Element>(params: &DecodeParams) {
    grid::wait();
    // SAFETY: the launch in front of this one has ended.
    unsafe { combine::<E>(params) }
}

/// O and lse of a row from those of so many splits.
///
/// # Safety
/// The splits' results are readable, and the row is this warp's; all of its lanes call this together.
#[inline(always)]
unsafe fn merge_row<E: Element>(params: &DecodeParams, splits: u32, batch: u32, at: &QueryRow) {
    let row = lse_row(params, batch, at);
    // SAFETY: the splits' log-sum-exps are readable, and all lanes are here.
    let Some(folds) = (unsafe { LaneFolds::of(params, splits, row) }) else {
        return; // Its block has stored O and lse.
    };
    let first = params.o_strides.offset(batch, at.position, at.head);
    let lane = index::thread() % 32;
    let mut column = COLUMNS * lane;
    // All lanes, of which the last may have no columns, hold weights for the others.
    let mut of_warp = 0;
    while of_warp < params.cache.head_dim_v {
        // SAFETY: the sinks are readable, and the head is one of the launch's; the columns below the head's
        // exist, and each is one thread's; all lanes are here.
        unsafe {
            let (sums, sum) = folds.sums(params, splits, (row, column));
            let row_end = Weights::new(folds.max).finish(sum);
            let (inverse_sum, lse) = with_sink(row_end, &params.per_head.sinks, (batch, at.head));
            let mut i = 0;
            while i < COLUMNS {
                if column + i < params.cache.head_dim_v {
                    let address = params.o + E::BYTES * (first + (column + i) as u64);
                    E::store(address, sums[i as usize] * inverse_sum);
                }
                i += 1;
            }
            if params.lse != 0 && column == 0 {
                f32::store(params.lse + 4 * row, lse);
            }
        }
        column += 32 * COLUMNS;
        of_warp += 32 * COLUMNS;
    }
}

/// Index of a row in lse, [B, H, Sq].
#[inline(always)]
pub(super) fn lse_row(params: &DecodeParams, batch: u32, at: &QueryRow) -> u64 {
    let sequence_head = batch as u64 * params.heads as u64 + at.head as u64;
    sequence_head * params.seqlen_q as u64 + at.position as u64
}

/// Address of the log-sum-exp of a row in a split.
#[inline(always)]
pub(super) fn partial_lse(cache: &CacheParams, split: u32, row: u64) -> u64 {
    cache.partial_lse + 4 * (split as u64 * cache.rows + row)
}

/// Address of an element of a row in a split.
#[inline(always)]
pub(super) fn partial_o(cache: &CacheParams, split: u32, row: u64, column: u32) -> u64 {
    let row = split as u64 * cache.rows + row;
    let stride = cache.head_dim_v.next_multiple_of(COLUMNS) as u64;
    cache.partial_o + 4 * (row * stride + column as u64)
}

/// How a row's splits are taken in one after the other: a lane has every 32nd.
struct LaneFolds {
    lses: [f32; LANE_SPLITS],
    /// What is kept of those before.
    kept: [f32; LANE_SPLITS],
    /// The weight of each.
    added: [f32; LANE_SPLITS],
    /// The largest log-sum-exp of all.
    max: f32,
}

impl LaneFolds {
    /// Of so many splits of a row; `None` where its result is stored already.
    ///
    /// # Safety
    /// The splits' log-sum-exps are readable; all 32 lanes of the warp call this together.
    #[inline(always)]
    unsafe fn of(params: &DecodeParams, splits: u32, row: u64) -> Option<Self> {
        let lane = index::thread() % 32;
        let [mut lses, kept, added] = [[f32::NEG_INFINITY; LANE_SPLITS]; 3];
        let mut i = 0;
        while i < LANE_SPLITS {
            let split = lane + 32 * i as u32;
            if split < splits {
                // SAFETY: the split exists, and its log-sum-exp is readable.
                lses[i] = unsafe { f32::load(partial_lse(&params.cache, split, row)) };
            }
            i += 1;
        }
        // SAFETY: all lanes of the warp are here.
        if unsafe { warp::broadcast(lses[0].to_bits(), 0) } == STORED {
            return None;
        }
        let mut folds = Self { lses, kept, added, max: f32::NEG_INFINITY };
        let mut i = 0;
        while i < LANE_SPLITS {
            if 32 * (i as u32) < splits {
                // SAFETY: all lanes of the warp are here.
                unsafe { folds.take_lanes(i) };
            }
            i += 1;
        }
        Some(folds)
    }

    /// Weighs the splits that lanes have at `i`, behind those before.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    unsafe fn take_lanes(&mut self, i: usize) {
        // The largest of the lanes before this one, and of all.
        let (mut before, mut largest) = (f32::NEG_INFINITY, self.lses[i]);
        let mut distance = 1;
        while distance < 32 {
            // SAFETY: all lanes of the warp are here.
            let others = unsafe { warp::shuffle_xor(largest, distance) };
            if index::thread() % 32 & distance != 0 {
                before = math::max(before, others);
            }
            largest = math::max(largest, others);
            distance *= 2;
        }
        let (fold, _) = Fold::new(math::max(self.max, before), self.lses[i]);
        (self.kept[i], self.added[i]) = (fold.kept, fold.added);
        self.max = math::max(self.max, largest);
    }

    /// The sums of the columns from `column` on, a multiple of [`COLUMNS`], over so many splits of a row, and
    /// that of their weights; of columns that do not exist they are anything.
    ///
    /// # Safety
    /// The splits' results are readable; all 32 lanes of the warp call this together.
    #[inline(always)]
    unsafe fn sums(
        &self,
        params: &DecodeParams,
        splits: u32,
        (row, column): (u64, u32),
    ) -> ([f32; COLUMNS as usize], f32) {
        let (mut sums, mut sum) = ([0.0; COLUMNS as usize], 0.0);
        let column_exists = column < params.cache.head_dim_v;
        let mut i = 0;
        while i < LANE_SPLITS {
            let of_lanes = splits.saturating_sub(32 * i as u32).min(32);
            let mut first = 0;
            while first < of_lanes {
                let mut values = [[0; COLUMNS as usize]; LOADS_IN_FLIGHT];
                let mut j = 0;
                while j < LOADS_IN_FLIGHT {
                    let (lane, split) = (first + j as u32, 32 * i as u32 + first + j as u32);
                    // SAFETY: all lanes are here. Splits with keys have O, whose rows have a multiple of so
                    // many columns; nothing else is loaded.
                    values[j] = unsafe {
                        let has_keys = warp::shuffle(self.lses[i], lane) > f32::NEG_INFINITY;
                        let address = partial_o(&params.cache, split, row, column);
                        global::load4_if(has_keys && column_exists, address)
                    };
                    j += 1;
                }
                let mut j = 0;
                while j < LOADS_IN_FLIGHT {
                    let lane = first + j as u32;
                    // SAFETY: all lanes are here.
                    let [kept, added] =
                        unsafe { [self.kept[i], self.added[i]].map(|value| warp::shuffle(value, lane)) };
                    let fold = Fold { kept, added };
                    sum = fold.add(sum, 1.0);
                    let mut k = 0;
                    while k < COLUMNS as usize {
                        // Behind the last column lies what nobody has written, and nobody stores.
                        sums[k] = fold.add(sums[k], f32::from_bits(values[j][k]));
                        k += 1;
                    }
                    j += 1;
                }
                first += LOADS_IN_FLIGHT as u32;
            }
            i += 1;
        }
        (sums, sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_without_keys_changes_nothing() {
        let (fold, max) = Fold::new(3.0, f32::NEG_INFINITY);
        assert_eq!((max, fold.add(2.5, 0.0)), (3.0, 2.5));
        let (first, max) = Fold::new(f32::NEG_INFINITY, -7.0);
        assert_eq!((max, first.add(0.0, 2.5)), (-7.0, 2.5));
    }
}
