//! What happens to a score between Q·Kᵀ and the mask, beside the factor softmax_scale.

use crate::params::AttentionParams;
use crate::ptx::math;

/// s ← softcap · tanh(softmax_scale · s / softcap), or softmax_scale · s where there is no softcap.
///
/// Scores come out scaled, so that the softmax after it has a scale of 1.
#[derive(Clone, Copy)]
pub struct ScoreMod {
    softcap: f32,
    scale: f32,
}

impl ScoreMod {
    /// Whether a launch changes scores at all.
    #[inline(always)]
    pub fn is_needed(params: &AttentionParams) -> bool {
        params.softcap != 0.0
    }

    /// What a launch does to scores.
    #[inline(always)]
    pub fn new(params: &AttentionParams) -> Self {
        Self { softcap: params.softcap, scale: params.softmax_scale }
    }

    /// Changes a thread's scores.
    #[inline(always)]
    pub fn apply<const ROWS: usize, const COLS: usize>(self, s: &mut [[f32; COLS]; ROWS]) {
        if self.softcap == 0.0 {
            for_each(s, |score| score * self.scale);
        } else {
            let scale = self.scale * math::reciprocal(self.softcap);
            for_each(s, |score| self.softcap * tanh(score * scale));
        }
    }
}

#[inline(always)]
fn for_each<const ROWS: usize, const COLS: usize>(s: &mut [[f32; COLS]; ROWS], change: impl Fn(f32) -> f32) {
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < COLS {
            s[i][j] = change(s[i][j]);
            j += 1;
        }
        i += 1;
    }
}

/// Below it tanh(x) is a polynomial; above it 1 − 2/(e^2|x| + 1) loses no more than a bit to cancellation.
pub const TANH_SMALL: f32 = 0.6;

/// (tanh(x)/x − 1)/x² as a polynomial in x² up to [`TANH_SMALL`], interpolated at Chebyshev nodes, from the
/// constant term up; the error of tanh, relatively 1.5e-8, is below the rounding of the evaluation.
pub const TANH_COEFFICIENTS: [f32; 5] =
    [-0.333_333_3, 0.133_329_15, -0.053_873_95, 0.021_110_96, -0.006_269_119];

/// tanh(x) to about 3 ulp, from the device's 2^x and 1/x; `tanh.approx` would be good to 11 bits only.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let square = x * x;
    let mut small = TANH_COEFFICIENTS[4];
    let mut i = TANH_COEFFICIENTS.len() - 1;
    while i > 0 {
        i -= 1;
        small = math::fma(small, square, TANH_COEFFICIENTS[i]);
    }
    small = math::fma(small * square, x, x);
    let magnitude = x.abs();
    let large = math::fma(
        -2.0,
        math::reciprocal(math::exp2(magnitude * (2.0 * core::f32::consts::LOG2_E)) + 1.0),
        1.0,
    );
    if magnitude < TANH_SMALL { small } else { large.copysign(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_good_to_three_ulp() {
        let mut x = 1e-6_f32;
        while x < 30.0 {
            let exact = f64::from(x).tanh();
            for (y, exact) in [(tanh(x), exact), (tanh(-x), -exact)] {
                let error = (f64::from(y) / exact - 1.0).abs();
                assert!(error < 3.0 * f64::from(f32::EPSILON), "tanh({x}) = {y}, off by {error:e}");
            }
            x *= 1.001;
        }
    }

    #[test]
    fn tanh_at_the_ends() {
        assert_eq!([tanh(0.0), tanh(100.0), tanh(f32::INFINITY), tanh(-1e30)], [0.0, 1.0, 1.0, -1.0]);
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn without_a_softcap_scores_are_scaled() {
        let params = AttentionParams { softmax_scale: 0.5, ..AttentionParams::default() };
        let mut s = [[3.0, -1.0]];
        ScoreMod::new(&params).apply(&mut s);
        assert_eq!((s, ScoreMod::is_needed(&params)), ([[1.5, -0.5]], false));
        ScoreMod::new(&AttentionParams { softcap: 0.75, ..params }).apply(&mut s);
        assert!((s[0][0] - 0.75 * 1.0_f32.tanh()).abs() < 1e-6);
    }
}
