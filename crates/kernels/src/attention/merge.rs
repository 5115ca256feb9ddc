//! Merging results of attention over disjoint parts of the keys that calls have given, such as a shared
//! prefix and what follows it: the algebra of [`combine`](super::combine), over tensors of any layout.

use core::f32::consts::{LN_2, LOG2_E};
use core::hint::assert_unchecked;

use crate::element::Element;
use crate::params::{MAX_PARTS, MergeParams, Strides};
use crate::ptx::{index, math};

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Rows of a block, one for each warp.
pub const ROWS: u32 = THREADS / 32;

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

/// A row of O by its indices.
#[derive(Clone, Copy)]
struct At {
    batch: u32,
    position: u32,
    head: u32,
}

impl At {
    /// Elements from the first of a tensor with these strides to the row's.
    #[inline(always)]
    fn of(self, strides: &Strides) -> u64 {
        strides.offset(self.batch, self.position, self.head)
    }
}

/// O and lse from those of the parts.
///
/// Launch: ⌈B·H·Sq / [`ROWS`]⌉ blocks of [`THREADS`] threads, without shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn merge<E: Element>(params: &MergeParams) {
    let row = index::block() * ROWS + index::thread() / 32;
    if row as u64 >= params.rows {
        return;
    }
    // SAFETY: valid parameters have no empty axis.
    let at = unsafe {
        assert_unchecked(params.seqlen_q > 0 && params.heads > 0);
        let sequence_head = row / params.seqlen_q;
        At {
            batch: sequence_head / params.heads,
            position: row % params.seqlen_q,
            head: sequence_head % params.heads,
        }
    };
    // SAFETY: the parts are readable.
    let (factors, lse) = unsafe { weigh(params, at) };
    let lane = index::thread() % 32;
    let mut column = lane;
    while column < params.head_dim {
        // SAFETY: the column exists, and is this thread's.
        unsafe {
            let sum = weighted_sum::<E>(params, at, column, &factors);
            E::store(params.o + E::BYTES * (at.of(&params.o_strides) + column as u64), sum);
        }
        column += 32;
    }
    if params.lse != 0 && lane == 0 {
        // SAFETY: the entry is this warp's own.
        unsafe { f32::store(params.lse + 4 * row as u64, lse) };
    }
}

/// The factor of each part's O, 0 of those without keys, and the log-sum-exp of the whole.
///
/// # Safety
/// The parts' log-sum-exps are readable.
#[inline(always)]
unsafe fn weigh(params: &MergeParams, at: At) -> ([f32; MAX_PARTS], f32) {
    let mut lses = [f32::NEG_INFINITY; MAX_PARTS];
    let mut max = f32::NEG_INFINITY;
    let mut i = 0;
    while i < MAX_PARTS {
        let (part, exists) = (&params.parts[i], (i as u32) < params.count);
        // SAFETY: a part that exists has a log-sum-exp for each row.
        let lse = unsafe { f32::load_if(exists, part.lse + 4 * at.of(&part.lse_strides)) };
        lses[i] = if exists { lse } else { f32::NEG_INFINITY };
        max = math::max(max, lses[i]);
        i += 1;
    }
    let weights = Weights::new(max);
    let mut factors = [0.0; MAX_PARTS];
    let mut sum = 0.0;
    let mut i = 0;
    while i < MAX_PARTS {
        factors[i] = weights.of(lses[i]);
        sum += factors[i];
        i += 1;
    }
    let (inverse_sum, lse) = weights.finish(sum);
    let mut i = 0;
    while i < MAX_PARTS {
        factors[i] *= inverse_sum;
        i += 1;
    }
    (factors, lse)
}

/// Σ factor·O of a column, in the order of the parts.
///
/// # Safety
/// The parts' O is readable where a factor is not 0, and the column exists.
#[inline(always)]
unsafe fn weighted_sum<E: Element>(
    params: &MergeParams,
    at: At,
    column: u32,
    factors: &[f32; MAX_PARTS],
) -> f32 {
    let mut sum = 0.0;
    let mut i = 0;
    while i < MAX_PARTS {
        let part = &params.parts[i];
        let address = part.o + E::BYTES * (at.of(&part.o_strides) + column as u64);
        // Where a log-sum-exp is infinite all factors are NaN, those of parts that are not there too.
        let has_keys = (i as u32) < params.count && factors[i] != 0.0;
        // SAFETY: the part exists; O of one without keys is not read.
        let value = unsafe { E::load_if(has_keys, address) };
        sum = math::fma(factors[i], value, sum);
        i += 1;
    }
    sum
}
