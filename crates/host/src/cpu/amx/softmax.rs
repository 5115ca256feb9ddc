//! The running softmax of one panel, whose weights come out in pairs of bf16: an operand of the product with
//! V.

#![expect(
    clippy::needless_range_loop,
    reason = "iterators would be calls compiled without the instruction set wherever they are not inlined"
)]

use super::lanes::TileLanes;
use super::product::STEP;
use crate::cpu::exp::exp2;
use crate::cpu::softmax::State;

/// How far scores may exceed the maximum, in units of log2, before O and the sum are rescaled. Weights are at
/// most 2⁸ then, and as exact, while rescaling is left out of nearly all blocks (FlashAttention-4).
const SLACK: f32 = 8.0;

/// Pairs of weights that are summed among themselves before they join the running sum.
const SUMMED_AT_ONCE: usize = 64;

/// Replaces `scores` [keys, N registers] by 2^(factor · score − max), as bf16 in pairs of neighbouring keys,
/// and updates the state.
///
/// Row `PARTS`·j then has the pairs of keys 2j and 2j + 1. With two parts the next row has what those lack of
/// the exact weights. Keys up to a multiple of [`STEP`] have the weight 0.
///
/// # Safety
/// The CPU has the instruction set of `L`; `scores` is readable and writable for as many rows as `keys` in
/// whole steps, the state's three rows likewise.
#[inline(always)]
pub(super) unsafe fn update<L: TileLanes, const N: usize, const PARTS: usize>(
    scores: *mut f32,
    keys: usize,
    factor: f32,
    state: State,
) {
    // SAFETY: all offsets stay inside the rows that the caller vouches for.
    unsafe {
        let scale = L::splat(factor);
        let (max, mut sum) = advance::<L, N>(scores, keys, scale, state);
        let mut minus_max = max;
        for n in 0..N {
            minus_max[n] = L::splat(0.0).sub(max[n]);
        }
        let row = N * L::WIDTH;
        let mut pair = 0;
        while pair < keys / 2 {
            let end = (pair + SUMMED_AT_ONCE).min(keys / 2);
            let mut partial = [L::splat(0.0); N];
            while pair < end {
                for n in 0..N {
                    let from = scores.add(2 * pair * row + n * L::WIDTH);
                    let lower = weight(from, scale, minus_max[n]);
                    let upper = weight(from.add(row), scale, minus_max[n]);
                    partial[n] = partial[n].add(lower).add(upper);
                    store::<L, PARTS>(lower, upper, scores.add(PARTS * pair * row + n * L::WIDTH), row);
                }
                pair += 1;
            }
            for n in 0..N {
                sum[n] = sum[n].add(partial[n]);
            }
        }
        if keys % 2 == 1 {
            for n in 0..N {
                let from = scores.add((keys - 1) * row + n * L::WIDTH);
                let lower = weight(from, scale, minus_max[n]);
                sum[n] = sum[n].add(lower);
                store::<L, PARTS>(lower, L::splat(0.0), scores.add(PARTS * pair * row + n * L::WIDTH), row);
            }
            pair += 1;
        }
        let rows = PARTS * (keys.next_multiple_of(STEP) / 2 - pair);
        scores.add(PARTS * pair * row).write_bytes(0, rows * row);
        for n in 0..N {
            sum[n].store(state.sum.add(n * L::WIDTH));
        }
    }
}

/// Updates the maximum, where it has grown by more than [`SLACK`], and writes the factors on what was
/// relative to the old one; returns the maximum and the sum, which is relative to it.
///
/// # Safety
/// As [`update`].
#[inline(always)]
unsafe fn advance<L: TileLanes, const N: usize>(
    scores: *const f32,
    keys: usize,
    scale: L,
    state: State,
) -> ([L; N], [L; N]) {
    // SAFETY: all offsets stay inside the rows that the caller vouches for.
    unsafe {
        let mut top = [L::splat(f32::NEG_INFINITY); N];
        for key in 0..keys {
            for n in 0..N {
                top[n] = L::load(scores.add((key * N + n) * L::WIDTH)).max(top[n]);
            }
        }
        let (mut max, mut sum) = (top, top);
        for n in 0..N {
            let at = n * L::WIDTH;
            let (reached, old) = (top[n].mul(scale), L::load(state.max.add(at)));
            max[n] = reached.where_below(old.add(L::splat(SLACK)), reached, old);
            let rescale = exp2(old.sub(max[n]));
            rescale.store(state.rescale.add(at));
            max[n].store(state.max.add(at));
            sum[n] = L::load(state.sum.add(at)).mul(rescale);
        }
        (max, sum)
    }
}

/// 2^(scale · score − max) of the register of scores at `score`.
///
/// # Safety
/// The CPU has the instruction set of `L`; the register is readable.
#[inline(always)]
unsafe fn weight<L: TileLanes>(score: *const f32, scale: L, minus_max: L) -> L {
    // SAFETY: the caller vouches for the instruction set and the register.
    unsafe { exp2(L::load(score).mul_add(scale, minus_max)) }
}

/// Writes the weights of two keys as pairs of bf16, in `PARTS` rows that lie `row` elements apart.
///
/// # Safety
/// `to` is writable for a register in each row.
#[inline(always)]
unsafe fn store<L: TileLanes, const PARTS: usize>(lower: L, upper: L, to: *mut f32, row: usize) {
    let nearest = (lower.round_to_bf16(), upper.round_to_bf16());
    // SAFETY: the caller vouches for the rows.
    unsafe {
        nearest.0.pair(nearest.1).store(to);
        if PARTS == 2 {
            let rest = (lower.sub(nearest.0).round_to_bf16(), upper.sub(nearest.1).round_to_bf16());
            rest.0.pair(rest.1).store(to.add(row));
        }
    }
}

/// Multiplies `results` [rows, N registers] by one row of factors.
///
/// # Safety
/// The CPU has the instruction set of `L`; `results` is readable and writable for `rows` rows, `factors`
/// readable for one.
#[inline(always)]
pub(super) unsafe fn rescale<L: TileLanes, const N: usize>(
    results: *mut f32,
    rows: usize,
    factors: *const f32,
) {
    // SAFETY: all offsets stay inside the rows that the caller vouches for.
    unsafe {
        for n in 0..N {
            let factor = L::load(factors.add(n * L::WIDTH));
            for row in 0..rows {
                let at = results.add((row * N + n) * L::WIDTH);
                L::load(at).mul(factor).store(at);
            }
        }
    }
}
