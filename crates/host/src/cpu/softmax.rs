//! The running softmax of one panel: a block of scores, keys down and queries across.

#![expect(
    clippy::needless_range_loop,
    reason = "iterators would be calls compiled without the instruction set wherever they are not inlined"
)]

use super::exp::exp2;
use super::lanes::Lanes;

/// Running state of the queries of one panel, each a row of N registers.
#[derive(Clone, Copy)]
pub(super) struct State {
    /// Largest score so far, in units of log2; the most negative finite float before the first, so
    /// that −∞ minus it is −∞ and not NaN.
    pub(super) max: *mut f32,
    /// Sum of exponentials so far, relative to `max`.
    pub(super) sum: *mut f32,
    /// Factor on earlier results since the last block: 2^(old max − new max).
    pub(super) rescale: *mut f32,
}

/// Exponentials that are summed among themselves before they join the running sum: with one long
/// chain of additions, the rounding of a sum over 100,000 keys would show in the lse.
const SUMMED_AT_ONCE: usize = 128;

/// Replaces `scores` [keys, N registers] by 2^(score − max) and updates the state.
///
/// # Safety
/// The CPU has the instruction set of `L`; `scores` is readable and writable for `keys` rows, the
/// state's three rows likewise.
#[inline(always)]
pub(super) unsafe fn update<L: Lanes, const N: usize>(scores: *mut f32, keys: usize, state: State) {
    // SAFETY: all offsets stay inside the rows that the caller vouches for.
    unsafe {
        let mut max = [L::splat(0.0); N];
        for n in 0..N {
            max[n] = L::load(state.max.add(n * L::WIDTH));
        }
        let mut row = scores.cast_const();
        for _ in 0..keys {
            for n in 0..N {
                max[n] = L::load(row.add(n * L::WIDTH)).max(max[n]);
            }
            row = row.add(N * L::WIDTH);
        }
        let mut sum = [L::splat(0.0); N];
        for n in 0..N {
            let rescale = exp2(L::load(state.max.add(n * L::WIDTH)).sub(max[n]));
            rescale.store(state.rescale.add(n * L::WIDTH));
            max[n].store(state.max.add(n * L::WIDTH));
            sum[n] = L::load(state.sum.add(n * L::WIDTH)).mul(rescale);
        }
        let mut row = scores;
        let mut left = keys;
        while left > 0 {
            let run = left.min(SUMMED_AT_ONCE);
            let mut partial = [L::splat(0.0); N];
            for _ in 0..run {
                for n in 0..N {
                    let at = row.add(n * L::WIDTH);
                    let weight = exp2(L::load(at).sub(max[n]));
                    weight.store(at);
                    partial[n] = partial[n].add(weight);
                }
                row = row.add(N * L::WIDTH);
            }
            for n in 0..N {
                sum[n] = sum[n].add(partial[n]);
            }
            left -= run;
        }
        for n in 0..N {
            sum[n].store(state.sum.add(n * L::WIDTH));
        }
    }
}

/// Which of a block's keys each query of a panel sees, each a row of N registers.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Index of the key before the first one seen, counted from the block's first; −1 where that is it.
    pub(super) before: *const f32,
    /// Index of the key after the last one seen.
    pub(super) end: *const f32,
}

/// Writes −∞ over the scores of keys that a query does not see.
///
/// # Safety
/// As [`update`], and the limits are readable for one row each.
#[inline(always)]
pub(super) unsafe fn mask<L: Lanes, const N: usize>(scores: *mut f32, keys: usize, limits: Limits) {
    // SAFETY: all offsets stay inside the rows that the caller vouches for.
    unsafe {
        let hidden = L::splat(f32::NEG_INFINITY);
        for key in 0..keys {
            // Blocks are far shorter than 2²⁴ keys, so the index is exact.
            let index = L::splat(key as f32);
            for n in 0..N {
                let at = scores.add((key * N + n) * L::WIDTH);
                let before = L::load(limits.before.add(n * L::WIDTH));
                let end = L::load(limits.end.add(n * L::WIDTH));
                L::load(at).where_below(index, end, hidden).where_below(before, index, hidden).store(at);
            }
        }
    }
}
