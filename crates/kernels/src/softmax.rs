//! Online softmax: the running max and sum of FlashAttention (Dao et al. 2022, Algorithm 1, lines 10–13).

use core::f32::consts::{LN_2, LOG2_E};
use core::hint::select_unpredictable;
use core::marker::PhantomData;

use crate::params::HeadValues;
use crate::ptx::{math, warp};
use crate::registers::{Matrix, Registers};

/// Running max m and sum l of `R::LEN` rows, each shared by `LANES` neighbouring lanes.
///
/// m is of unscaled scores and the same in all lanes, the max or up to 2^`GROWTH` less; l is this lane's part
/// of the sum, reduced over the lanes once at the end. P and l have a factor 2^`P::EXPONENT`, which cancels.
///
/// `P` is what P is rounded to.
pub struct OnlineSoftmax<R: Registers<Value = f32>, const LANES: u32, P: Weight = Unscaled> {
    scale: Scale,
    max: R,
    sum: R,
    weight: PhantomData<P>,
}

/// The power of 2 that P stays below: far below the largest fp16 (2^16), and below the largest e4m3 (448).
pub(crate) const P_LIMIT: f32 = 8.0;

/// What P is rounded to.
pub trait Weight {
    /// P's factor as a power of 2, from 0 to 8.
    const EXPONENT: f32;
    /// Whether the maximum of a thread's 64 scores or more is found by their bits, in fewer instructions of a
    /// step and a longer kernel.
    const MAX_BY_BITS: bool = false;
}

/// A type with P's relative precision however small P is.
#[derive(Clone, Copy, Debug)]
pub struct Unscaled;

impl Weight for Unscaled {
    const EXPONENT: f32 = 0.0;
}

/// softmax_scale·log2(e), so that each exponential is one multiply-add and a bare 2^x.
#[derive(Clone, Copy)]
struct Scale {
    /// The factor on scores as they come; 1 unless the scale is positive.
    early: f32,
    /// The factor inside the exponential.
    late: f32,
}

impl Scale {
    /// A scale inside the exponential must be positive: the max of unscaled scores would otherwise
    /// not be that of the scaled ones, and 0·(−∞) would turn masked scores into NaN.
    #[inline(always)]
    fn new(softmax_scale: f32) -> Self {
        let scale = softmax_scale * core::f32::consts::LOG2_E;
        if scale > 0.0 { Self { early: 1.0, late: scale } } else { Self { early: scale, late: 1.0 } }
    }
}

impl<R: Registers<Value = f32>, const LANES: u32, P: Weight> OnlineSoftmax<R, LANES, P> {
    /// How far a row's scores may exceed its m, as a power of 2, before m follows, so that O rarely needs
    /// rescaling (FlashAttention-4's conditional rescaling). P and O keep their relative precision whatever m
    /// is.
    const GROWTH: f32 = P_LIMIT - P::EXPONENT;

    /// No key seen yet: m = −∞, l = 0.
    #[inline(always)]
    pub fn new(softmax_scale: f32) -> Self {
        Self {
            scale: Scale::new(softmax_scale),
            max: R::splat(f32::NEG_INFINITY),
            sum: R::splat(0.0),
            weight: PhantomData,
        }
    }

    /// Whether [`Self::prescale`] does anything.
    #[inline(always)]
    pub fn prescales(&self) -> bool {
        self.scale.early != 1.0
    }

    /// [`Self::new`] for a scale that is positive: then [`Self::prescale`] has nothing to do, and no register
    /// is kept for it.
    #[inline(always)]
    pub fn with_positive_scale(softmax_scale: f32) -> Self {
        let scale = Scale { early: 1.0, late: softmax_scale * core::f32::consts::LOG2_E };
        Self { scale, max: R::splat(f32::NEG_INFINITY), sum: R::splat(0.0), weight: PhantomData }
    }

    /// What must be done to scores before they are masked and handed to [`Self::step`]: nothing where
    /// the scale is positive.
    #[inline(always)]
    pub fn prescale<S: Matrix<Column<f32> = R>>(&self, scores: &mut S) {
        if self.scale.early != 1.0 {
            let mut i = 0;
            while i < S::ROWS {
                let mut j = 0;
                while j < S::COLS {
                    scores[i][j] *= self.scale.early;
                    j += 1;
                }
                i += 1;
            }
        }
    }

    /// Takes one block of scores in, turns them into P = 2^(scale·(S − m)), and returns the factor
    /// 2^(scale·(m_old − m_new)) by which what was accumulated so far must be rescaled.
    ///
    /// Masked scores are −∞ and give exactly 0, also in a row that has seen no key yet.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn step<S: Matrix<Column<f32> = R>>(&mut self, scores: &mut S) -> R {
        let mut rescale = R::splat(1.0);
        let mut i = 0;
        while i < S::ROWS {
            // SAFETY: all lanes of the warp are here.
            rescale[i] = unsafe { self.raise_max(i, &scores[i]) };
            self.exponentiate(i, &mut scores[i]);
            i += 1;
        }
        rescale
    }

    /// The first half of [`Self::step`] for row `i`: m, and the factor by which the row must be rescaled.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn raise_max<S: Registers<Value = f32>>(&mut self, i: usize, scores: &S) -> f32 {
        let mut max = self.max[i];
        let mut j = 0;
        while j < S::LEN {
            max = math::max(max, scores[j]);
            j += 1;
        }
        // SAFETY: all lanes of the warp are here.
        max = unsafe { reduce::<LANES>(max, math::max) };
        self.raise_max_to(i, max)
    }

    /// [`Self::raise_max`] of a row whose largest score so far is `max`.
    #[inline(always)]
    pub fn raise_max_to(&mut self, i: usize, max: f32) -> f32 {
        // The old max is as good while nothing exceeds 2^GROWTH; −∞ always gives way.
        let growth = (max - self.max[i]) * self.scale.late;
        if growth > Self::GROWTH {
            self.max[i] = max;
            self.sum[i] *= math::exp2(-growth);
            math::exp2(-growth)
        } else {
            1.0
        }
    }

    /// The second half of [`Self::step`] for row `i`: P and l.
    #[inline(always)]
    pub fn exponentiate<S: Registers<Value = f32>>(&mut self, i: usize, scores: &mut S) {
        let shift = self.shift(self.max[i]);
        let mut sum = self.sum[i];
        let mut j = 0;
        while j < S::LEN {
            let p = math::exp2(math::fma(scores[j], self.scale.late, -shift));
            scores[j] = p;
            sum += p;
            j += 1;
        }
        self.sum[i] = sum;
    }

    /// What is subtracted from scaled scores. A row with no visible key keeps m = −∞; −∞ − (−∞) would be NaN.
    #[inline(always)]
    fn shift(&self, max: f32) -> f32 {
        if max == f32::NEG_INFINITY { 0.0 } else { self.shift_of_seen(max) }
    }

    /// [`Self::shift`] of a row that has seen a key.
    #[inline(always)]
    fn shift_of_seen(&self, max: f32) -> f32 {
        let shift = max * self.scale.late;
        if P::EXPONENT == 0.0 { shift } else { shift - P::EXPONENT }
    }

    /// The factor 1/l of row `i`'s output and its log-sum-exp in natural log: 0 and −∞ for a row that saw no
    /// key.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn finish(&self, i: usize) -> (f32, f32) {
        // SAFETY: all lanes of the warp are here.
        self.finish_with(i, unsafe { reduce::<LANES>(self.sum[i], |a, b| a + b) })
    }

    /// This lane's part of row `i`'s sum.
    #[inline(always)]
    pub fn sum(&self, i: usize) -> f32 {
        self.sum[i]
    }

    /// [`Self::finish`] of a row whose whole sum is `sum`.
    #[inline(always)]
    pub fn finish_with(&self, i: usize, sum: f32) -> (f32, f32) {
        // The row's largest score alone adds 1, so a sum of 0 means that there was none.
        if sum == 0.0 {
            return (0.0, f32::NEG_INFINITY);
        }
        self.finish_seen(i, sum)
    }

    /// [`Self::finish_with`] without a jump, so that several rows are finished beside one another.
    #[inline(always)]
    pub fn finish_beside_others(&self, i: usize, sum: f32) -> (f32, f32) {
        let (factor, lse) = self.finish_seen(i, sum);
        let is_empty = sum == 0.0;
        (select_unpredictable(is_empty, 0.0, factor), select_unpredictable(is_empty, f32::NEG_INFINITY, lse))
    }

    /// [`Self::finish_with`] of a row that has seen a key.
    #[inline(always)]
    fn finish_seen(&self, i: usize, sum: f32) -> (f32, f32) {
        let lse = self.shift_of_seen(self.max[i]) + math::log2(sum);
        (math::reciprocal(sum), lse * core::f32::consts::LN_2)
    }
}

impl<const LANES: u32, P: Weight> OnlineSoftmax<[f32; 2], LANES, P> {
    /// As [`Self::step`] of scores that lie in turn, two of the one row and two of the other: both rows at
    /// once, so that no instruction waits for the one before. The scale is positive.
    ///
    /// Unless the rows are `MASKED`, both have seen a key when this returns. This thread's scores of a row
    /// are what it has `lost` too high.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn step_in_turn<S: Registers<Value = f32>, const MASKED: bool>(
        &mut self,
        scores: &mut S,
        lost: Option<[f32; 2]>,
    ) -> [f32; 2] {
        // SAFETY: all lanes of the warp are here.
        let max = unsafe {
            match lost {
                None if P::MAX_BY_BITS && !MASKED && S::LEN >= 64 => self.max_with(scores),
                _ => {
                    let mut max = max_of_rows(scores);
                    if let Some(lost) = lost {
                        max = [max[0] - lost[0], max[1] - lost[1]];
                    }
                    reduce_rows::<LANES>(max, math::max)
                }
            }
        };
        let mut rescale = [1.0; 2];
        let mut shift = [0.0; 2];
        let mut i = 0;
        while i < 2 {
            // As in `raise_max`, without a branch.
            let old = self.max[i];
            let growth = (max[i] - old) * self.scale.late;
            let (new, growth) = if growth > Self::GROWTH { (max[i], growth) } else { (old, 0.0) };
            self.max[i] = new;
            rescale[i] = math::exp2(-growth);
            self.sum[i] *= rescale[i];
            let of_scores = lost.map_or(new, |lost| new + lost[i]);
            shift[i] = if MASKED { self.shift(of_scores) } else { self.shift_of_seen(of_scores) };
            i += 1;
        }
        let mut sum = [self.sum[0], 0.0, self.sum[1], 0.0];
        let mut j = 0;
        while j < S::LEN {
            let p = math::exp2(math::fma(scores[j], self.scale.late, -shift[j / 2 % 2]));
            scores[j] = p;
            sum[j % 4] += p;
            j += 1;
        }
        self.sum = [sum[0] + sum[1], sum[2] + sum[3]];
        rescale
    }

    /// The larger of m and of the scores of each row.
    ///
    /// As integers, the bits of numbers from 0 on have their order, and those of numbers below have the
    /// opposite one. Two maxima of integers are one instruction on Hopper, and those of floats are two. Rows
    /// without a number from 0 on are looked at once more, for the least integer.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    unsafe fn max_with<S: Registers<Value = f32>>(&self, scores: &S) -> [f32; 2] {
        // SAFETY: all lanes of the warp are here.
        unsafe {
            let mut max = self.max;
            let mut j = 0;
            while j < S::LEN {
                max[0] = math::max3_bits(max[0], scores[j], scores[j + 1]);
                max[1] = math::max3_bits(max[1], scores[j + 2], scores[j + 3]);
                j += 4;
            }
            let mut max = reduce_rows::<LANES>(max, largest);
            if warp::vote_any((max[0].to_bits() | max[1].to_bits()) >> 31 != 0) {
                let mut lowest = self.max;
                let mut j = 0;
                while j < S::LEN {
                    lowest[j / 2 % 2] = least(lowest[j / 2 % 2], scores[j]);
                    j += 1;
                }
                let lowest = reduce_rows::<LANES>(lowest, least);
                let mut i = 0;
                while i < 2 {
                    max[i] = if max[i].to_bits() >> 31 != 0 { lowest[i] } else { max[i] };
                    i += 1;
                }
            }
            max
        }
    }

    /// m of both rows.
    #[inline(always)]
    pub fn max(&self) -> [f32; 2] {
        self.max
    }

    /// Takes over `max` from threads that have raised m of the same rows since, and says by what is rescaled
    /// what was accumulated: the bits that [`Self::step_in_turn`] has given them.
    #[inline(always)]
    pub fn follow(&mut self, max: [f32; 2]) -> [f32; 2] {
        let mut rescale = [1.0; 2];
        let mut i = 0;
        while i < 2 {
            let growth = (max[i] - self.max[i]) * self.scale.late;
            // Of two rows without keys it is no number.
            if growth > 0.0 {
                self.max[i] = max[i];
                rescale[i] = math::exp2(-growth);
                self.sum[i] *= rescale[i];
            }
            i += 1;
        }
        rescale
    }
}

/// The number with the larger bits, as integers with a sign.
#[inline(always)]
fn largest(a: f32, b: f32) -> f32 {
    f32::from_bits((a.to_bits() as i32).max(b.to_bits() as i32) as u32)
}

/// That with the smaller ones.
#[inline(always)]
fn least(a: f32, b: f32) -> f32 {
    f32::from_bits((a.to_bits() as i32).min(b.to_bits() as i32) as u32)
}

/// The largest of a thread's scores of each of two rows, which lie in turn, two of the one and two of the
/// other.
#[inline(always)]
fn max_of_rows<S: Registers<Value = f32>>(scores: &S) -> [f32; 2] {
    let mut max = [scores[0], scores[1], scores[2], scores[3]];
    let mut j = 4;
    while j < S::LEN {
        max[j % 4] = math::max(max[j % 4], scores[j]);
        j += 1;
    }
    [math::max(max[0], max[1]), math::max(max[2], max[3])]
}

/// [`reduce`] of two rows at once, so that no instruction waits for the one before.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn reduce_rows<const LANES: u32>(mut values: [f32; 2], combine: impl Fn(f32, f32) -> f32) -> [f32; 2] {
    let mut lane_mask = LANES / 2;
    while lane_mask > 0 {
        // SAFETY: all lanes of the warp are here.
        let other =
            unsafe { [warp::shuffle_xor(values[0], lane_mask), warp::shuffle_xor(values[1], lane_mask)] };
        values = [combine(values[0], other[0]), combine(values[1], other[1])];
        lane_mask /= 2;
    }
    values
}

/// The factor 1/l of a row and its log-sum-exp with the sink of its head, if there is one: l += e^(sink − m).
///
/// It is merged as parts of the keys are (`attention::combine`), so that P keeps its precision however large
/// it is.
///
/// # Safety
/// The sinks are readable, and the head is one of theirs.
#[inline(always)]
pub unsafe fn with_sink(
    (factor, lse): (f32, f32),
    sinks: &HeadValues,
    (batch, head): (u32, u32),
) -> (f32, f32) {
    if !sinks.are_there() {
        return (factor, lse);
    }
    // SAFETY: the head's sink is readable.
    let sink = unsafe { sinks.of(batch, head) };
    let max = math::max(lse, sink);
    let kept = math::exp2((lse - max) * LOG2_E);
    let sum = kept + math::exp2((sink - max) * LOG2_E);
    (factor * kept * math::reciprocal(sum), math::fma(math::log2(sum), LN_2, max))
}

/// Brings what was accumulated so far to the new m by the factors that [`OnlineSoftmax::step`] gave, if any
/// row of the warp needs it: m rarely gives way after the first blocks, and then the products of a whole pass
/// are saved.
///
/// # Safety
/// All 32 lanes of the warp call this together.
#[inline(always)]
pub unsafe fn rescale_where_needed<O: Matrix>(acc: &mut O, rescale: &O::Column<f32>) {
    let mut needed = false;
    let mut i = 0;
    while i < O::ROWS {
        needed |= rescale[i] != 1.0;
        i += 1;
    }
    // SAFETY: all lanes of the warp are here.
    if unsafe { warp::vote_any(needed) } {
        let mut i = 0;
        while i < O::ROWS {
            let mut j = 0;
            while j < O::COLS {
                acc[i][j] *= rescale[i];
                j += 1;
            }
            i += 1;
        }
    }
}

/// Combines a value over each aligned group of `LANES` lanes; every lane gets its group's result.
///
/// # Safety
/// All 32 lanes of the warp call this together.
#[inline(always)]
pub unsafe fn reduce<const LANES: u32>(mut value: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lane_mask = LANES / 2;
    while lane_mask > 0 {
        // SAFETY: all lanes of the warp are here.
        value = combine(value, unsafe { warp::shuffle_xor(value, lane_mask) });
        lane_mask /= 2;
    }
    value
}
