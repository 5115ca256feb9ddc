//! fp32 arithmetic with the special cases of the device's fast instructions.
//!
//! Results are correctly rounded or nearly so, that is, more accurate than the device's; what
//! is reproduced exactly is what happens to subnormals, zeros, infinities and NaN.

fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// 2^x (PTX ISA, `ex2.approx.ftz.f32`): subnormal results are +0, 2^−∞ is +0.
#[inline]
pub fn exp2(x: f32) -> f32 {
    flush(x.exp2())
}

/// tanh(x) (PTX ISA, `tanh.approx.f32`) to a relative error of 2^−16, which is a third more than an H200's.
#[inline]
pub fn tanh(x: f32) -> f32 {
    f32::from_bits(x.tanh().to_bits() & !0x7f)
}

/// The nearest whole number, the even one of two (PTX ISA, `cvt.rni.f32.f32`).
#[inline]
pub fn round(x: f32) -> f32 {
    x.round_ties_even()
}

/// log2(x) (PTX ISA, `lg2.approx.f32`): −∞ at ±0, NaN below.
#[inline]
pub fn log2(x: f32) -> f32 {
    x.log2()
}

/// 1/x (PTX ISA, `rcp.approx.ftz.f32`): subnormal inputs and results are zeros of their sign.
#[inline]
pub fn reciprocal(x: f32) -> f32 {
    flush(flush(x).recip())
}

/// a·b + c with one rounding (PTX ISA, `fma.rn.f32`).
#[inline]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp2_flushes_subnormal_results() {
        assert_eq!(exp2(-126.0), f32::MIN_POSITIVE);
        assert_eq!(exp2(-127.0).to_bits(), 0);
        assert_eq!(exp2(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp2(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp2(3.0), 8.0);
        assert!(exp2(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_as_good_as_a_device_is() {
        let mut x = 1e-30_f32;
        while x < 30.0 {
            let exact = f64::from(x).tanh();
            for error in [f64::from(tanh(x)) / exact - 1.0, f64::from(tanh(-x)) / -exact - 1.0] {
                assert!(error.abs() <= 1.0 / 65_536.0, "tanh({x}) is off by {error:e}");
            }
            x *= 1.01;
        }
        assert_eq!([tanh(0.0), tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)], [0.0, 1.0, -1.0]);
        assert!(tanh(-0.0).is_sign_negative() && tanh(f32::NAN).is_nan());
    }

    #[test]
    fn log2_at_the_edges() {
        assert_eq!(log2(0.0), f32::NEG_INFINITY);
        assert_eq!(log2(8.0), 3.0);
        assert!(log2(-1.0).is_nan());
        assert_eq!(log2(f32::from_bits(1)), -149.0);
    }

    #[test]
    fn reciprocal_flushes_both_ways() {
        assert_eq!(reciprocal(4.0), 0.25);
        assert_eq!(reciprocal(f32::from_bits(1)), f32::INFINITY);
        assert_eq!(reciprocal(-f32::MAX).to_bits(), (-0.0_f32).to_bits());
    }

    #[test]
    fn fma_rounds_once() {
        let x = 1.0 + f32::EPSILON;
        assert_eq!(fma(x, x, -(x * x)), f32::EPSILON * f32::EPSILON);
    }
}
