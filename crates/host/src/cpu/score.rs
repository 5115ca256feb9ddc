//! What happens to a panel's scores between Q·Kᵀ and the mask.

use std::f32::consts::LOG2_E;

use fa_kernels::score::{TANH_COEFFICIENTS, TANH_SMALL};

use super::exp::exp2;
use super::lanes::Lanes;

/// Replaces `scores` [keys, N registers] by factor · tanh(score).
///
/// # Safety
/// The CPU has the instruction set of `L`; `scores` is readable and writable for `keys` rows.
#[inline(always)]
pub(super) unsafe fn softcap<L: Lanes, const N: usize>(scores: *mut f32, keys: usize, factor: f32) {
    // SAFETY: all offsets stay inside the rows that the caller vouches for.
    unsafe {
        let factor = L::splat(factor);
        for key in 0..keys {
            for n in 0..N {
                let at = scores.add((key * N + n) * L::WIDTH);
                tanh(L::load(at)).mul(factor).store(at);
            }
        }
    }
}

/// ALiBi of the queries of one panel against a block of keys, each a row of N registers.
#[derive(Clone, Copy)]
pub(super) struct Alibi {
    /// −slope, in units of log2.
    pub(super) slopes: *const f32,
    /// Index of the key on the query's diagonal, counted from the block's first.
    pub(super) diagonals: *const f32,
}

/// Adds −slope · |diagonal − key| to `scores` [keys, N registers].
///
/// # Safety
/// As [`softcap`], and both parts of `alibi` are readable for one row.
#[inline(always)]
pub(super) unsafe fn alibi<L: Lanes, const N: usize>(scores: *mut f32, keys: usize, alibi: Alibi) {
    // SAFETY: all offsets stay inside the rows that the caller vouches for.
    unsafe {
        for key in 0..keys {
            let index = L::splat(key as f32);
            for n in 0..N {
                let at = scores.add((key * N + n) * L::WIDTH);
                let offset = L::load(alibi.diagonals.add(n * L::WIDTH)).sub(index);
                let distance = offset.max(index.sub(L::load(alibi.diagonals.add(n * L::WIDTH))));
                distance.mul_add(L::load(alibi.slopes.add(n * L::WIDTH)), L::load(at)).store(at);
            }
        }
    }
}

/// tanh(x) to about 3 ulp.
///
/// # Safety
/// The CPU has the instruction set of `L`.
#[inline(always)]
unsafe fn tanh<L: Lanes>(x: L) -> L {
    // SAFETY: the caller vouches for the instruction set.
    let constant = |value| unsafe { L::splat(value) };
    let (zero, one) = (constant(0.0), constant(1.0));
    let square = x.mul(x);
    let mut small = constant(TANH_COEFFICIENTS[4]);
    small = small.mul_add(square, constant(TANH_COEFFICIENTS[3]));
    small = small.mul_add(square, constant(TANH_COEFFICIENTS[2]));
    small = small.mul_add(square, constant(TANH_COEFFICIENTS[1]));
    small = small.mul_add(square, constant(TANH_COEFFICIENTS[0]));
    small = small.mul(square).mul_add(x, x);
    let magnitude = x.max(zero.sub(x));
    // SAFETY: the caller vouches for the instruction set.
    let decayed = unsafe { exp2(magnitude.mul(constant(-2.0 * LOG2_E))) };
    let large = one.sub(decayed).div(one.add(decayed));
    small.where_below(magnitude, constant(TANH_SMALL), large.where_below(zero, x, zero.sub(large)))
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;

    #[test]
    fn tanh_is_good_to_three_ulp_on_each_instruction_set() {
        for isa in Isa::available() {
            let kernels = isa.kernels();
            let lanes = kernels.panel.lanes;
            let mut x = 1e-6_f32;
            while x < 40.0 {
                let inputs: Vec<f32> =
                    (0..lanes).map(|lane| x * [1.0, -1.0, 1.01, -1.02][lane % 4]).collect();
                let mut values = inputs.clone();
                // SAFETY: the instruction set is available, and the panel is one register wide.
                unsafe { kernels.softcap(lanes, values.as_mut_ptr(), 1, 1.0) };
                for (x, y) in inputs.into_iter().zip(values) {
                    let error = (f64::from(y) / f64::from(x).tanh() - 1.0).abs();
                    assert!(
                        error < 3.0 * f64::from(f32::EPSILON),
                        "{isa}: tanh({x}) = {y}, off by {error:e}"
                    );
                }
                x *= 1.003;
            }
        }
    }

    #[test]
    fn the_ends_are_exact_and_nan_stays() {
        for isa in Isa::available() {
            let kernels = isa.kernels();
            let lanes = kernels.panel.lanes;
            let ends = [(0.0, 0.0), (f32::INFINITY, 5.0), (f32::NEG_INFINITY, -5.0), (f32::NAN, f32::NAN)];
            let mut values: Vec<f32> = (0..lanes).map(|lane| ends[lane % 4].0).collect();
            // SAFETY: the instruction set is available, and the panel is one register wide.
            unsafe { kernels.softcap(lanes, values.as_mut_ptr(), 1, 5.0) };
            for (lane, value) in values.into_iter().enumerate() {
                assert_eq!(value.to_bits() << 1, ends[lane % 4].1.to_bits() << 1, "{isa} {lane}");
            }
        }
    }
}
