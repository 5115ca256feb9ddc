//! Merging partial results of attention over parts of the keys (Flash-Decoding; Dao 2023,
//! arXiv:2307.08691, section 3.1 has the algebra).
//!
//! A part gives its own normalised output Oᵢ and log-sum-exp lseᵢ. With m = max lseᵢ, the whole is
//! O = Σ 2^(lseᵢ − m)·Oᵢ / Σ 2^(lseᵢ − m), here with the natural exponential. A part without keys has
//! lseᵢ = −∞ and no weight; where all are empty, O is 0 and the lse −∞.
//!
//! Parts of the keys are taken in one after the other, in their order, so that a block which has all parts of
//! a row gets the bits that this launch gets from several blocks.

use core::f32::consts::{LN_2, LOG2_E};

use crate::attention::split_work::QueryRow;
use crate::attention::splits::{self, Splits, used_keys};
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
pub(super) const COLUMNS: u32 = 4;

/// Splits whose values a lane loads before it adds the first: enough to hide the latency of L2.
const LOADS_IN_FLIGHT: usize = 8;

/// Lanes of a warp, which has a row.
const LANES: u32 = 32;

/// Splits that each lane of a warp looks at.
const LANE_SPLITS: u32 = MAX_SPLITS / LANES;

/// The weight 2^x of a part, x its log-sum-exp to base 2, as fraction · 2^exponent.
///
/// Powers of two divide sums of such weights without rounding. So these have the same bits whether the
/// largest exponent is known beforehand, or only that of the parts that were taken in.
#[derive(Clone, Copy)]
struct Weight {
    fraction: f32,
    /// A whole number.
    exponent: f32,
}

impl Weight {
    /// The exponent of parts without keys.
    const LEAST: f32 = f32::MIN / 2.0;

    /// Of a part with this log-sum-exp.
    #[inline(always)]
    fn of(lse: f32) -> Self {
        let x = lse * LOG2_E;
        let exponent = math::max(math::round(x), Self::LEAST);
        Self { fraction: math::exp2(x - exponent), exponent }
    }

    /// It, divided by 2^exponent of one that is not smaller.
    #[inline(always)]
    fn over(self, exponent: f32) -> f32 {
        self.fraction * power(self.exponent - exponent)
    }
}

/// 2^x of a whole number that is not positive, or 0 where that is no normal number.
#[inline(always)]
fn power(x: f32) -> f32 {
    f32::from_bits(((math::max(x, -127.0) as i32 + 127) << 23) as u32)
}

/// The factor 1/sum, and the log-sum-exp of the whole: 0 and −∞ where no part has a key.
#[inline(always)]
fn finish(exponent: f32, sum: f32) -> (f32, f32) {
    if sum == 0.0 {
        return (0.0, f32::NEG_INFINITY);
    }
    (math::reciprocal(sum), (math::log2(sum) + exponent) * LN_2)
}

/// What has been taken in of the parts of a row.
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[derive(Clone, Copy)]
pub(super) struct Running {
    /// The largest exponent of a weight.
    pub(super) exponent: f32,
    /// The sum of the weights, divided by 2^exponent.
    pub(super) sum: f32,
}

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
impl Running {
    /// No part.
    pub(super) const NONE: Self = Self { exponent: Weight::LEAST, sum: 0.0 };

    /// Takes a part in, and says what brings O to the new exponent and what the part's counts.
    #[inline(always)]
    pub(super) fn take(&mut self, lse: f32) -> Share {
        let weight = Weight::of(lse);
        let exponent = math::max(self.exponent, weight.exponent);
        let share = Share { kept: power(self.exponent - exponent), weight: weight.over(exponent) };
        *self = Self { exponent, sum: self.sum * share.kept + share.weight };
        share
    }

    /// The factor and the log-sum-exp of the whole.
    #[inline(always)]
    pub(super) fn finish(self) -> (f32, f32) {
        finish(self.exponent, self.sum)
    }
}

/// What parts count in a sum: those that it has, and the next.
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) kept: f32,
    pub(super) weight: f32,
}

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
impl Share {
    /// A sum with the value of the next part.
    #[inline(always)]
    pub(super) fn add(self, sum: f32, value: f32) -> f32 {
        math::fma(self.weight, value, sum * self.kept)
    }
}

/// The columns of some parts of a row, each times its weight, and the sum of the weights, all divided by
/// 2^exponent.
pub(super) struct Sums {
    exponent: f32,
    columns: [f32; COLUMNS as usize],
    weights: f32,
}

impl Sums {
    /// Of no part.
    #[inline(always)]
    fn new(exponent: f32) -> Self {
        Self { exponent, columns: [0.0; COLUMNS as usize], weights: 0.0 }
    }

    /// Of all parts of a row: those that do not exist have a log-sum-exp of −∞, and 0.
    #[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
    #[inline(always)]
    pub(super) fn of<const N: usize>(lses: &[f32; N], values: &[[f32; COLUMNS as usize]; N]) -> Self {
        let mut exponent = Weight::LEAST;
        let mut i = 0;
        while i < N {
            exponent = math::max(exponent, Weight::of(lses[i]).exponent);
            i += 1;
        }
        let mut sums = Self::new(exponent);
        sums.add(lses, values);
        sums
    }

    /// Adds the next parts.
    #[inline(always)]
    fn add<const N: usize>(&mut self, lses: &[f32; N], values: &[[f32; COLUMNS as usize]; N]) {
        let mut i = 0;
        while i < N {
            let weight = Weight::of(lses[i]).over(self.exponent);
            self.weights += weight;
            let mut j = 0;
            while j < COLUMNS as usize {
                // Behind the last column lies what nobody has written, and nobody stores.
                self.columns[j] = math::fma(weight, values[i][j], self.columns[j]);
                j += 1;
            }
            i += 1;
        }
    }

    /// Stores the columns that the row has from `column` on, a multiple of so many, and, with the first, its
    /// log-sum-exp.
    ///
    /// # Safety
    /// O, lse and sinks are valid; the columns are this thread's, of a head and a row of the launch.
    #[inline(always)]
    pub(super) unsafe fn store<E: Element>(
        &self,
        params: &DecodeParams,
        batch: u32,
        at: &QueryRow,
        column: u32,
    ) {
        let row = lse_row(params, batch, at);
        let first = params.o_strides.offset(batch, at.position, at.head);
        // SAFETY: as the caller says.
        unsafe {
            let whole = finish(self.exponent, self.weights);
            let (inverse_sum, lse) = with_sink(whole, &params.per_head.sinks, (batch, at.head));
            let mut i = 0;
            while i < COLUMNS {
                if column + i < params.cache.head_dim_v {
                    let address = params.o + E::BYTES * (first + (column + i) as u64);
                    E::store(address, self.columns[i as usize] * inverse_sum);
                }
                i += 1;
            }
            if params.lse != 0 && column == 0 {
                f32::store(params.lse + 4 * row, lse);
            }
        }
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
    let sequence_head = row / params.seqlen_q;
    let at = QueryRow { position: row % params.seqlen_q, head: sequence_head % params.heads };
    let batch = sequence_head / params.heads;
    // SAFETY: the number of keys is readable.
    let splits = Splits::of(params).count(unsafe { used_keys(params, batch) });
    // SAFETY: the splits' results are written; whole warps run this alike.
    unsafe {
        if splits == 1 || splits::are_of_one_block(params) {
            return; // Their block has stored O and lse.
        }
        merge_row::<E>(params, splits, batch, &at)
    }
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
    let lane = index::thread() % LANES;
    // SAFETY: as the caller says.
    let exponent = unsafe { largest_exponent(&params.cache, splits, row, lane) };
    let mut column = COLUMNS * lane;
    while column < params.cache.head_dim_v {
        // SAFETY: as the caller says; the column exists, and is this thread's.
        unsafe {
            add_up(&params.cache, splits, (row, column), exponent).store::<E>(params, batch, at, column)
        };
        column += LANES * COLUMNS;
    }
}

/// Index of a row in lse, [B, H, Sq].
#[inline(always)]
pub(super) fn lse_row(params: &DecodeParams, batch: u32, at: &QueryRow) -> u64 {
    let sequence_head = batch as u64 * params.heads.get() as u64 + at.head as u64;
    sequence_head * params.seqlen_q.get() as u64 + at.position as u64
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

/// The largest exponent of the weights of so many splits.
///
/// # Safety
/// The splits' log-sum-exps are readable; all 32 lanes of the warp call this together.
#[inline(always)]
unsafe fn largest_exponent(cache: &CacheParams, splits: u32, row: u64, lane: u32) -> f32 {
    let mut exponent = Weight::LEAST;
    let mut i = 0;
    while i < LANE_SPLITS {
        let (split, exists) = (lane + LANES * i, lane + LANES * i < splits);
        // SAFETY: as the caller says.
        let lse = unsafe { f32::load_if(exists, partial_lse(cache, split, row)) };
        let own = if exists { lse } else { f32::NEG_INFINITY };
        exponent = math::max(exponent, Weight::of(own).exponent);
        i += 1;
    }
    // SAFETY: all lanes are here.
    unsafe { reduce::<LANES>(exponent, math::max) }
}

/// The columns from `column` on, a multiple of [`COLUMNS`], of so many splits of a row.
///
/// # Safety
/// The splits' results are readable, and the first column exists.
#[inline(always)]
unsafe fn add_up(cache: &CacheParams, splits: u32, (row, column): (u64, u32), exponent: f32) -> Sums {
    let mut sums = Sums::new(exponent);
    let mut first = 0;
    while first < splits {
        let mut lses = [f32::NEG_INFINITY; LOADS_IN_FLIGHT];
        let mut values = [[0.0; COLUMNS as usize]; LOADS_IN_FLIGHT];
        let mut i = 0;
        while i < LOADS_IN_FLIGHT {
            let split = first + i as u32;
            let exists = split < splits;
            // SAFETY: splits that exist have a log-sum-exp, and those with keys O, whose rows have a multiple
            // of so many columns; nothing else is loaded.
            unsafe {
                let lse = f32::load_if(exists, partial_lse(cache, split, row));
                lses[i] = if exists { lse } else { f32::NEG_INFINITY };
                let has_keys = lses[i] > f32::NEG_INFINITY;
                values[i] =
                    global::load4_if(has_keys, partial_o(cache, split, row, column)).map(f32::from_bits);
            }
            i += 1;
        }
        sums.add(&lses, &values);
        first += LOADS_IN_FLIGHT as u32;
    }
    sums
}
