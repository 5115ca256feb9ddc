//! Merging partial results of attention over parts of the keys (Flash-Decoding; Dao 2023,
//! arXiv:2307.08691, section 3.1 has the algebra).
//!
//! A part gives its own normalised output Oᵢ and log-sum-exp lseᵢ. With m = max lseᵢ, the whole is
//! O = Σ 2^(lseᵢ − m)·Oᵢ / Σ 2^(lseᵢ − m), here with the natural exponential. A part without keys has
//! lseᵢ = −∞ and no weight; where all are empty, O is 0 and the lse −∞.

use core::f32::consts::{LN_2, LOG2_E};
use core::hint::assert_unchecked;

use crate::attention::split_work::QueryRow;
use crate::attention::splits::{self, used_keys};
use crate::element::Element;
use crate::params::{CacheParams, DecodeParams, MAX_SPLITS};
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use crate::ptx::grid;
use crate::ptx::{global, index, math};
use crate::softmax::{reduce, with_sink};

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
    let splits = splits::count(&params.cache, unsafe { used_keys(params, batch) });
    if splits == 1 {
        return; // Its block has stored O and lse.
    }
    // SAFETY: the splits' results are written; whole warps run this alike.
    unsafe { merge_row::<E>(params, splits, batch, &at) }
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
    let (weights, row_end) = unsafe { weigh(params, splits, row) };
    // SAFETY: the sinks are readable, and the head is one of the launch's.
    let (inverse_sum, lse) = unsafe { with_sink(row_end, &params.per_head.sinks, (batch, at.head)) };
    let first = params.o_strides.offset(batch, at.position, at.head);
    let lane = index::thread() % 32;
    let mut column = COLUMNS * lane;
    while column < params.cache.head_dim_v {
        // SAFETY: the columns below the head's exist; each is one thread's.
        unsafe {
            let sums = weighted_sums(params, splits, (row, column), weights);
            let mut i = 0;
            while i < COLUMNS {
                if column + i < params.cache.head_dim_v {
                    let address = params.o + E::BYTES * (first + (column + i) as u64);
                    E::store(address, sums[i as usize] * inverse_sum);
                }
                i += 1;
            }
        }
        column += 32 * COLUMNS;
    }
    if params.lse != 0 && lane == 0 {
        // SAFETY: the entry is this warp's own.
        unsafe { f32::store(params.lse + 4 * row, lse) };
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

/// The weights of so many splits of a row, 1/sum of them, and the log-sum-exp of the whole.
///
/// # Safety
/// The splits' log-sum-exps are readable; all 32 lanes of the warp call this together.
#[inline(always)]
unsafe fn weigh(params: &DecodeParams, splits: u32, row: u64) -> (Weights, (f32, f32)) {
    let lane = index::thread() % 32;
    let mut lses = [f32::NEG_INFINITY; LANE_SPLITS];
    let mut max = f32::NEG_INFINITY;
    let mut i = 0;
    while i < LANE_SPLITS {
        let split = lane + 32 * i as u32;
        if split < splits {
            // SAFETY: the split exists, and its log-sum-exp is readable.
            lses[i] = unsafe { f32::load(partial_lse(&params.cache, split, row)) };
        }
        max = math::max(max, lses[i]);
        i += 1;
    }
    // SAFETY: all lanes of the warp are here.
    let weights = Weights::new(unsafe { reduce::<32>(max, math::max) });
    let mut sum = 0.0;
    let mut i = 0;
    while i < LANE_SPLITS {
        sum += weights.of(lses[i]);
        i += 1;
    }
    // SAFETY: all lanes of the warp are here.
    let row_end = weights.finish(unsafe { reduce::<32>(sum, |a, b| a + b) });
    (weights, row_end)
}

/// Σ weight·O of the columns from `column` on, a multiple of [`COLUMNS`], over so many splits of a row.
///
/// # Safety
/// The splits' results are readable and the first column exists.
#[inline(always)]
unsafe fn weighted_sums(
    params: &DecodeParams,
    splits: u32,
    (row, column): (u64, u32),
    weights: Weights,
) -> [f32; COLUMNS as usize] {
    let mut sums = [0.0; COLUMNS as usize];
    let mut first = 0;
    while first < splits {
        let mut lses = [f32::NEG_INFINITY; LOADS_IN_FLIGHT];
        let mut values = [[0; COLUMNS as usize]; LOADS_IN_FLIGHT];
        let mut i = 0;
        while i < LOADS_IN_FLIGHT {
            let split = first + i as u32;
            let exists = split < splits;
            // SAFETY: splits that exist have a log-sum-exp, and those with keys O, whose rows have a multiple
            // of so many columns; nothing else is loaded.
            unsafe {
                let lse = f32::load_if(exists, partial_lse(&params.cache, split, row));
                lses[i] = if exists { lse } else { f32::NEG_INFINITY };
                let has_keys = lses[i] > f32::NEG_INFINITY;
                values[i] = global::load4_if(has_keys, partial_o(&params.cache, split, row, column));
            }
            i += 1;
        }
        let mut i = 0;
        while i < LOADS_IN_FLIGHT {
            let weight = weights.of(lses[i]);
            let mut j = 0;
            while j < COLUMNS as usize {
                // Behind the last column lies what nobody has written, and nobody stores.
                sums[j] = math::fma(weight, f32::from_bits(values[i][j]), sums[j]);
                j += 1;
            }
            i += 1;
        }
        first += LOADS_IN_FLIGHT as u32;
    }
    sums
}
