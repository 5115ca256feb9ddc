//! 2^x on vector lanes, for the exponents of a softmax: x ≤ 0, or little above.

use super::lanes::Lanes;

/// 1.5 · 2²³ + 127. Added to x, it leaves in the low bits round(x) plus the exponent's bias.
const ROUND_AND_BIAS: f32 = 12_583_039.0;

/// Below this, 2^x is subnormal; its rounded exponent plus the bias is 0, whose float is 0.
const LOWEST: f32 = -127.0;

/// Minimax in relative error for 2^f, |f| ≤ 1/2, with the constant term 1 kept exact so that 2^0 is;
/// from the linear term up. The approximation error, 2e-9, is below the rounding of the evaluation.
const COEFFICIENTS: [f32; 6] =
    [std::f32::consts::LN_2, 0.240_226_48, 0.055_503_324, 0.009_618_437, 0.001_339_887_4, 0.000_153_533_62];

/// 2^x with a relative error of at most 1.5e-7 for −126 ≤ x ≤ 8; exactly 1 for 0, exactly 0 below
/// −127 and for −∞, and NaN for NaN. No subnormal is made on the way, so that flushing them to zero
/// changes nothing.
///
/// # Safety
/// The CPU has the instruction set of `L`.
#[inline(always)]
pub(super) unsafe fn exp2<L: Lanes>(x: L) -> L {
    // SAFETY: the caller vouches for the instruction set.
    let constant = |value| unsafe { L::splat(value) };
    let magic = constant(ROUND_AND_BIAS);
    let x = constant(LOWEST).max(x);
    let rounded = x.add(magic);
    let fraction = x.sub(rounded.sub(magic));
    let mut sum = constant(COEFFICIENTS[5]);
    sum = sum.mul_add(fraction, constant(COEFFICIENTS[4]));
    sum = sum.mul_add(fraction, constant(COEFFICIENTS[3]));
    sum = sum.mul_add(fraction, constant(COEFFICIENTS[2]));
    sum = sum.mul_add(fraction, constant(COEFFICIENTS[1]));
    sum = sum.mul_add(fraction, constant(COEFFICIENTS[0]));
    sum = sum.mul_add(fraction, constant(1.0));
    sum.mul(rounded.exponent_from_low_bits())
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;

    fn on_each_isa(input: &[f32; 16], check: impl Fn(Isa, &[f32; 16])) {
        for isa in Isa::available() {
            let mut values = *input;
            // SAFETY: the instruction set is available.
            unsafe { (isa.kernels().exp2)(&mut values) };
            check(isa, &values);
        }
    }

    #[test]
    fn relative_error_is_below_the_documented_one() {
        for step in 0..134 * 64 {
            let input: [f32; 16] =
                std::array::from_fn(|lane| 8.0 - step as f32 / 64.0 - lane as f32 * (0.993 / 1024.0));
            on_each_isa(&input, |isa, output| {
                for (x, y) in input.iter().zip(output) {
                    if *x < -126.0 {
                        continue;
                    }
                    let exact = f64::from(*x).exp2();
                    let error = (f64::from(*y) - exact).abs() / exact;
                    assert!(error <= 1.5e-7, "{isa}: 2^{x} = {y}, off by {error:e}");
                    assert!(y.is_normal());
                }
            });
        }
    }

    #[test]
    fn the_ends_are_exact() {
        let input = std::array::from_fn(|lane| match lane % 4 {
            0 => 0.0,
            1 => -127.5 - 1000.0 * lane as f32,
            2 => f32::NEG_INFINITY,
            _ => f32::NAN,
        });
        on_each_isa(&input, |isa, output| {
            for quad in output.chunks_exact(4) {
                assert_eq!(quad[..3], [1.0, 0.0, 0.0], "{isa}");
                assert!(quad[3].is_nan(), "{isa}");
            }
        });
    }
}
