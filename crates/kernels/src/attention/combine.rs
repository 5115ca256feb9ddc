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
use core::hint::assert_unchecked;

use crate::attention::split_work::QueryRow;
use crate::attention::splits::{self, used_keys};
use crate::element::Element;
use crate::params::{CacheParams, DecodeParams};
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

/// Splits whose values a lane loads before it adds the first: as many as one sequence is mostly split into.
const LOADS_IN_FLIGHT: usize = 16;

/// Splits whose log-sum-exps a warp loads at a time.
const LANES: u32 = 32;

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

/// What has been taken in of the parts of a row.
#[derive(Clone, Copy)]
pub(super) struct Running {
    /// The largest log-sum-exp.
    pub(super) max: f32,
    /// Σ 2^(lseᵢ − m).
    pub(super) sum: f32,
}

impl Running {
    /// No part.
    pub(super) const NONE: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Takes a part in, and says what brings O to the new m and what the part's counts.
    #[inline(always)]
    pub(super) fn take(&mut self, lse: f32) -> Share {
        let max = math::max(self.max, lse);
        let weights = Weights::new(max);
        let share = Share { kept: weights.of(self.max), weight: weights.of(lse) };
        *self = Self { max, sum: share.add(self.sum, 1.0) };
        share
    }

    /// As [`Weights::finish`].
    #[inline(always)]
    pub(super) fn finish(self) -> (f32, f32) {
        Weights::new(self.max).finish(self.sum)
    }
}

/// What parts count in a sum: those that it has, and the next.
#[derive(Clone, Copy)]
pub(super) struct Share {
    kept: f32,
    weight: f32,
}

impl Share {
    /// A sum with the value of the next part.
    #[inline(always)]
    pub(super) fn add(self, sum: f32, value: f32) -> f32 {
        math::fma(self.weight, value, sum * self.kept)
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
    let first = params.o_strides.offset(batch, at.position, at.head);
    let lane = index::thread() % 32;
    let mut pass = 0;
    while pass < params.cache.head_dim_v {
        let column = pass + COLUMNS * lane;
        // SAFETY: the splits' results and the sinks are readable, the head is one of the launch's, and all
        // lanes are here. The columns below the head's exist; each is one thread's.
        unsafe {
            let (sums, running) = add_up(params, splits, row, column);
            let (inverse_sum, lse) = with_sink(running.finish(), &params.per_head.sinks, (batch, at.head));
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
        pass += 32 * COLUMNS;
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

/// The columns from `column` on, a multiple of [`COLUMNS`], of so many splits of a row, which are taken in.
///
/// # Safety
/// The splits' results are readable; all 32 lanes of the warp call this together.
#[inline(always)]
unsafe fn add_up(
    params: &DecodeParams,
    splits: u32,
    row: u64,
    column: u32,
) -> ([f32; COLUMNS as usize], Running) {
    let (mut sums, mut running) = ([0.0; COLUMNS as usize], Running::NONE);
    let mut first = 0;
    while first < splits {
        let split = first + index::thread() % LANES;
        // SAFETY: a split that exists has a log-sum-exp.
        let lse = unsafe { f32::load_if(split < splits, partial_lse(&params.cache, split, row)) };
        let own = if split < splits { lse } else { f32::NEG_INFINITY };
        let end = (first + LANES).min(splits);
        while first < end {
            let mut lses = [0.0; LOADS_IN_FLIGHT];
            let mut values = [[0; COLUMNS as usize]; LOADS_IN_FLIGHT];
            let mut i = 0;
            while i < LOADS_IN_FLIGHT {
                let split = first + i as u32;
                // SAFETY: all lanes are here. Splits with keys have O, whose rows have a multiple of so many
                // columns; nothing else is loaded.
                unsafe {
                    lses[i] = warp::shuffle(own, split % LANES);
                    let is_there = lses[i] > f32::NEG_INFINITY && column < params.cache.head_dim_v;
                    values[i] = global::load4_if(is_there, partial_o(&params.cache, split, row, column));
                }
                i += 1;
            }
            let mut i = 0;
            while i < LOADS_IN_FLIGHT {
                let share = running.take(lses[i]);
                let mut j = 0;
                while j < COLUMNS as usize {
                    // Behind the last column lies what nobody has written, and nobody stores.
                    sums[j] = share.add(sums[j], f32::from_bits(values[i][j]));
                    j += 1;
                }
                i += 1;
            }
            first += LOADS_IN_FLIGHT as u32;
        }
    }
    const { assert!((LANES as usize).is_multiple_of(LOADS_IN_FLIGHT)) };
    (sums, running)
}
