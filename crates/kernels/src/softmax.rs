//! Online softmax: the running max and sum of FlashAttention (Dao et al. 2022, Algorithm 1, lines 10–13).

use crate::config::ROW_LANES;
use crate::ptx::{math, warp};

/// Running max m and sum l of `ROWS` rows that a half-warp shares.
///
/// Scores come in units of log2 (Q carries softmax_scale·log2(e)), so that each exponential is a
/// bare 2^x. m is the same in all lanes; l is this lane's part of the sum, reduced over the lanes
/// once at the end.
pub struct OnlineSoftmax<const ROWS: usize> {
    max: [f32; ROWS],
    sum: [f32; ROWS],
}

impl<const ROWS: usize> OnlineSoftmax<ROWS> {
    /// No key seen yet: m = −∞, l = 0.
    #[inline(always)]
    pub fn new() -> Self {
        Self { max: [f32::NEG_INFINITY; ROWS], sum: [0.0; ROWS] }
    }

    /// Takes one block of scores in, turns them into P = 2^(S − m), and returns the factor
    /// 2^(m_old − m_new) by which what was accumulated so far must be rescaled.
    ///
    /// Masked scores are −∞ and give exactly 0, also in a row that has seen no key yet.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn step<const COLS: usize>(&mut self, scores: &mut [[f32; COLS]; ROWS]) -> [f32; ROWS] {
        let mut rescale = [1.0; ROWS];
        let mut i = 0;
        while i < ROWS {
            let mut max = self.max[i];
            let mut j = 0;
            while j < COLS {
                max = math::max(max, scores[i][j]);
                j += 1;
            }
            // SAFETY: the caller's contract.
            max = unsafe { reduce::<ROW_LANES>(max, math::max) };
            // A row with no visible key keeps m = −∞; −∞ − (−∞) would be NaN.
            let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
            rescale[i] = math::exp2(self.max[i] - shift);
            let mut sum = self.sum[i] * rescale[i];
            let mut j = 0;
            while j < COLS {
                let p = math::exp2(scores[i][j] - shift);
                scores[i][j] = p;
                sum += p;
                j += 1;
            }
            self.max[i] = max;
            self.sum[i] = sum;
            i += 1;
        }
        rescale
    }

    /// The factor 1/l of row `i`'s output and its log-sum-exp in natural log: 0 and −∞ for a row that saw no key.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn finish(&self, i: usize) -> (f32, f32) {
        // SAFETY: the caller's contract.
        let sum = unsafe { reduce::<ROW_LANES>(self.sum[i], |a, b| a + b) };
        // The row's largest score alone adds 1, so a sum of 0 means that there was none.
        if sum == 0.0 {
            return (0.0, f32::NEG_INFINITY);
        }
        (math::reciprocal(sum), (self.max[i] + math::log2(sum)) * core::f32::consts::LN_2)
    }
}

impl<const ROWS: usize> Default for OnlineSoftmax<ROWS> {
    fn default() -> Self {
        Self::new()
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
        // SAFETY: the caller's contract.
        value = combine(value, unsafe { warp::shuffle_xor(value, lane_mask) });
        lane_mask /= 2;
    }
    value
}
