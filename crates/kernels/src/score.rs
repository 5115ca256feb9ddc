//! What happens to a score between Q·Kᵀ and the mask, beside the factor softmax_scale.

use core::f32::consts::LOG2_E;

use crate::params::AttentionParams;
use crate::ptx::math;
use crate::registers::Matrix;
use crate::scheduler::WorkTile;

/// s ← softcap · tanh(softmax_scale · s / softcap), or softmax_scale · s where there is no softcap; then the
/// bias of ALiBi (Press et al. 2022, arXiv:2108.12409), −slope · |i + Sk − Sq − j| for query i and key j.
///
/// Scores come out scaled, so that the softmax after it has a scale of 1.
#[derive(Clone, Copy, Default)]
pub struct CapAndBias {
    slope: f32,
}

impl CapAndBias {
    /// Whether a launch changes scores, or scales them by what the softmax cannot take: 0 or less.
    #[inline(always)]
    pub fn is_needed(params: &AttentionParams) -> bool {
        let positive = params.softmax_scale > 0.0;
        params.softcap != 0.0 || params.per_head.alibi_slopes.are_there() || !positive
    }

    /// What happens to the scores of a tile's head.
    ///
    /// # Safety
    /// The slopes that `params` describes are readable.
    #[inline(always)]
    pub unsafe fn of_head(params: &AttentionParams, work: &WorkTile) -> Self {
        // SAFETY: the head's slope is readable.
        Self { slope: unsafe { params.per_head.alibi_slopes.of(work.batch, work.head) } }
    }

    /// What happens to the scores of a head with this slope; 0 where there is none.
    #[inline(always)]
    pub const fn with_slope(slope: f32) -> Self {
        Self { slope }
    }

    /// Changes a thread's scores: `row` and `key` say which row of the tile and which key of the block its
    /// score `[i][j]` belongs to, and rise by constants. `diagonal` is how far the key on the diagonal of the
    /// tile's first row lies to the right of the block's first, modulo 2^32.
    #[inline(always)]
    pub fn apply<S: Matrix>(
        self,
        params: &AttentionParams,
        s: &mut S,
        diagonal: u32,
        row: impl Fn(usize) -> u32,
        key: impl Fn(usize) -> u32,
    ) {
        Self::bend(params, s);
        let corner = diagonal.wrapping_add(row(0)).wrapping_sub(key(0));
        self.add_bias(s, corner, |i, j| (row(i) - row(0)) as f32 - (key(j) - key(0)) as f32);
    }

    /// The first half of [`Self::apply`]: scale and softcap.
    #[inline(always)]
    pub fn bend<S: Matrix>(params: &AttentionParams, s: &mut S) {
        if params.softcap == 0.0 {
            for_each(s, |score, _, _| score * params.softmax_scale);
        } else {
            let scale = params.softmax_scale * math::reciprocal(params.softcap);
            for_each(s, |score, _, _| params.softcap * tanh(score * scale));
        }
    }

    /// How fast a score that [`Self::bend`] gave rises with softmax_scale·q·k where there is a softcap: 1 −
    /// tanh².
    #[inline(always)]
    pub fn slope(params: &AttentionParams, bent: f32) -> f32 {
        let tanh = bent * math::reciprocal(params.softcap);
        math::fma(-tanh, tanh, 1.0)
    }

    /// 1 / softcap; 0 where there is none.
    #[inline(always)]
    pub fn inverse_softcap(params: &AttentionParams) -> f32 {
        if params.softcap == 0.0 { 0.0 } else { math::reciprocal(params.softcap) }
    }

    /// As [`Self::slope`], also of a masked score, which is −∞; 1 where there is no softcap. Never negative.
    /// `inverse` is [`Self::inverse_softcap`].
    #[inline(always)]
    pub fn slope_of_masked(bent: f32, inverse: f32) -> f32 {
        let tanh = bent * inverse;
        // Of −∞ it is −∞ or NaN before, and a maximum with NaN is the other number.
        math::max(math::fma(-tanh, tanh, 1.0), 0.0)
    }

    /// A score that [`Self::bend`] gave with ALiBi's bias. `distance` is how far the diagonal's key of its
    /// row lies to the right of its own.
    #[inline(always)]
    pub fn biased(self, bent: f32, distance: f32) -> f32 {
        math::fma(-self.slope, distance.abs(), bent)
    }

    /// The second half of [`Self::apply`]: ALiBi's bias. `corner` is how far the diagonal's key of the row of
    /// score `[0][0]` lies to the right of its own, modulo 2^32, and `step` how much further that of score
    /// `[i][j]`.
    #[inline(always)]
    pub fn add_bias<S: Matrix>(self, s: &mut S, corner: u32, step: impl Fn(usize, usize) -> f32) {
        if self.slope != 0.0 {
            // Exact to 2^24, and beyond as exact as fp32 can be.
            let corner = corner as i32 as f32;
            for_each(s, |score, i, j| self.biased(score, corner + step(i, j)));
        }
    }
}

/// As [`CapAndBias`] for a softmax that takes a factor, and may shift each row: scores times `unit`, less
/// what their row has lost, are what they are to be, so that neither costs an instruction a score. tanh is
/// the device's own.
#[derive(Clone, Copy, Default)]
pub struct FoldedCapAndBias {
    /// In units.
    slope: f32,
}

/// On which side of the diagonal a block's keys lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Left of it in every row, or on it.
    Left,
    /// Right of it in every row, or on it.
    Right,
    /// Here some and there others.
    Either,
}

impl Side {
    /// That of `keys` keys for `rows` rows: the first row's diagonal lies `diagonal` to the right of the
    /// first key, modulo 2^32.
    #[inline(always)]
    pub const fn of(diagonal: u32, rows: u32, keys: u32) -> Self {
        if diagonal as i32 >= keys as i32 - 1 {
            Self::Left
        } else if diagonal as i32 <= 1 - rows as i32 {
            Self::Right
        } else {
            Self::Either
        }
    }
}

impl FoldedCapAndBias {
    /// The factor on scores, which is positive.
    #[inline(always)]
    pub fn unit(params: &AttentionParams) -> f32 {
        if params.softcap != 0.0 {
            params.softcap
        } else if params.softmax_scale > 0.0 {
            params.softmax_scale
        } else {
            1.0
        }
    }

    /// What happens to the scores of a head with this slope; 0 where there is none.
    #[inline(always)]
    pub fn with_slope(params: &AttentionParams, slope: f32) -> Self {
        Self { slope: slope * math::reciprocal(Self::unit(params)) }
    }

    /// Scale and softcap.
    #[inline(always)]
    pub fn bend<S: Matrix>(params: &AttentionParams, s: &mut S) {
        if params.softcap == 0.0 && params.softmax_scale > 0.0 {
            return;
        }
        if params.softcap == 0.0 {
            for_each(s, |score, _, _| score * params.softmax_scale);
        } else {
            let scale = params.softmax_scale * math::reciprocal(params.softcap);
            for_each(s, |score, _, _| math::tanh(score * scale));
        }
    }

    /// ALiBi's bias, but for what all of a row's scores lose, which is returned. `corner` is how far the
    /// diagonal's key of the row of score `[0][0]` lies to the right of its own, modulo 2^32, and the second
    /// row's lies `rows` further; `column` is how many keys score `[i][j]` lies behind the first.
    ///
    /// Both parts are no larger than the bias itself, so that neither loses more digits.
    #[inline(always)]
    pub fn add_bias<S: Matrix>(
        self,
        s: &mut S,
        side: Side,
        (corner, rows): (u32, u32),
        column: impl Fn(usize) -> u32,
    ) -> [f32; 2] {
        if self.slope == 0.0 {
            return [0.0; 2];
        }
        match side {
            Side::Either => {
                let corner = corner as i32 as f32;
                let corners = [corner, corner + rows as f32];
                let distance = |i: usize, j: usize| corners[i] - column(j) as f32;
                for_each(s, |score, i, j| math::fma(-self.slope, distance(i, j).abs(), score));
                [0.0; 2]
            }
            Side::Left => {
                let last = column(S::COLS - 1);
                lean(s, self.slope, |j| column(j) as f32 - last as f32);
                lost(self.slope, corner.wrapping_sub(last), rows)
            }
            Side::Right => {
                lean(s, -self.slope, |j| column(j) as f32);
                lost(-self.slope, corner, rows)
            }
        }
    }
}

/// Adds `rise` for each of the keys that a score lies behind another.
#[inline(always)]
fn lean<S: Matrix>(s: &mut S, rise: f32, behind: impl Fn(usize) -> f32) {
    for_each(s, |score, _, j| if behind(j) == 0.0 { score } else { math::fma(rise, behind(j), score) });
}

/// `rise` for each of the keys from that which others lie behind to the diagonal, in both rows.
#[inline(always)]
fn lost(rise: f32, corner: u32, rows: u32) -> [f32; 2] {
    let first = rise * (corner as i32 as f32);
    [first, math::fma(rise, rows as f32, first)]
}

/// Changes each element of a thread's part of a tile.
#[inline(always)]
pub fn for_each<S: Matrix>(s: &mut S, change: impl Fn(f32, usize, usize) -> f32) {
    let mut i = 0;
    while i < S::ROWS {
        let mut j = 0;
        while j < S::COLS {
            s[i][j] = change(s[i][j], i, j);
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
    let large = math::fma(-2.0, math::reciprocal(math::exp2(magnitude * (2.0 * LOG2_E)) + 1.0), 1.0);
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

    fn applied(params: &AttentionParams, slope: f32, mut s: [[f32; 3]; 2]) -> [[f32; 3]; 2] {
        CapAndBias { slope }.apply(params, &mut s, -3_i32 as u32, |i| 8 * i as u32 + 1, |j| 5 * j as u32 + 2);
        s
    }

    #[test]
    fn without_a_softcap_scores_are_scaled() {
        let params = AttentionParams { softmax_scale: 0.5, ..AttentionParams::default() };
        assert!(!CapAndBias::is_needed(&params));
        assert_eq!(applied(&params, 0.0, [[3.0, -1.0, 0.0]; 2]), [[1.5, -0.5, 0.0]; 2]);
        let capped = AttentionParams { softcap: 0.75, ..params };
        assert!(CapAndBias::is_needed(&capped));
        assert!((applied(&capped, 0.0, [[3.0; 3]; 2])[1][2] - 0.75 * 2.0_f32.tanh()).abs() < 1e-6);
    }

    #[test]
    fn slopes_are_those_of_the_softcap() {
        let params = AttentionParams { softmax_scale: 0.5, softcap: 0.75, ..AttentionParams::default() };
        let score = |x: f64| 0.75 * (0.5 * x / 0.75).tanh();
        for x in [-4.0, -0.3, 0.0, 0.1, 2.0] {
            let mut s = [[x as f32; 3]; 2];
            CapAndBias::bend(&params, &mut s);
            let slope = (score(x + 1e-5) - score(x - 1e-5)) / 1e-5;
            assert!((f64::from(CapAndBias::slope(&params, s[1][2])) - slope).abs() < 1e-6, "{x}");
        }
    }

    #[test]
    fn slopes_of_masked_scores_are_numbers() {
        let capped = AttentionParams { softcap: 0.75, ..AttentionParams::default() };
        for params in [AttentionParams::default(), capped] {
            let slope = CapAndBias::slope_of_masked(f32::NEG_INFINITY, CapAndBias::inverse_softcap(&params));
            assert!(slope.abs() < f32::INFINITY && slope >= 0.0, "{slope}");
        }
        assert_eq!(CapAndBias::inverse_softcap(&AttentionParams::default()), 0.0);
        assert_eq!(CapAndBias::slope_of_masked(0.5, 0.0), 1.0);
        let inverse = CapAndBias::inverse_softcap(&capped);
        assert_eq!(CapAndBias::slope_of_masked(0.5, inverse), CapAndBias::slope(&capped, 0.5));
        assert!(CapAndBias::slope_of_masked(-0.75, inverse).is_sign_positive());
    }

    #[test]
    fn the_bias_grows_with_the_distance_from_the_diagonal() {
        let params = AttentionParams { softmax_scale: 1.0, ..AttentionParams::default() };
        let mut expected = [[0.0; 3]; 2];
        for (i, j) in (0..2).flat_map(|i| (0..3).map(move |j| (i, j))) {
            let (row, key) = (1 + 8 * i as i32, 2 + 5 * j as i32);
            expected[i][j] = 1.0 - 0.25 * (-3 + row - key).abs() as f32;
        }
        assert_eq!(applied(&params, 0.25, [[1.0; 3]; 2]), expected);
    }

    /// A thread's scores as [`FoldedCapAndBias`] and as [`CapAndBias`] change them, its first row `row` below
    /// a tile's first, its first key `key` behind a block's.
    fn both_ways(
        params: &AttentionParams,
        slope: f32,
        diagonal: u32,
        (row, key): (u32, u32),
    ) -> [[[f32; 4]; 2]; 2] {
        let column = |j: usize| 8 * (j as u32 / 2) + j as u32 % 2;
        let products = [[3.0, -1.0, 0.25, -4.0], [0.5, 2.0, -2.5, 1.0]];
        let (mut folded, mut whole) = (products, products);
        FoldedCapAndBias::bend(params, &mut folded);
        let corner = diagonal.wrapping_add(row).wrapping_sub(key);
        let side = Side::of(diagonal, 64, 16);
        let lost =
            FoldedCapAndBias::with_slope(params, slope).add_bias(&mut folded, side, (corner, 8), column);
        for_each(&mut folded, |score, i, _| FoldedCapAndBias::unit(params) * (score - lost[i]));
        CapAndBias::with_slope(slope).apply(
            params,
            &mut whole,
            diagonal,
            |i| row + 8 * i as u32,
            |j| key + column(j),
        );
        [folded, whole]
    }

    #[test]
    fn folded_scores_are_the_same_in_units() {
        let scales = [(0.088, 0.0), (-0.25, 0.0), (0.0, 0.0), (0.5, 0.75), (-0.5, 30.0)];
        for (softmax_scale, softcap) in scales {
            let params = AttentionParams { softmax_scale, softcap, ..AttentionParams::default() };
            for slope in [0.0, 0.25, 1.0, -0.125] {
                for diagonal in [-700, -64, -63, -62, -9, 0, 3, 14, 15, 16, 700_i32] {
                    let [folded, whole] = both_ways(&params, slope, diagonal as u32, (37, 4));
                    for (folded, whole) in folded.as_flattened().iter().zip(whole.as_flattened()) {
                        let bound = 4.0 * f32::EPSILON * (1.0 + whole.abs()) + softcap / 32_768.0;
                        assert!(
                            (folded - whole).abs() <= bound,
                            "{folded} for {whole}: scale {softmax_scale}, softcap {softcap}, slope {slope}, \
                             diagonal {diagonal}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_side_is_that_of_all_keys_and_rows() {
        for diagonal in -80..80_i32 {
            let distances = (0..64).flat_map(|row| (0..16).map(move |key| diagonal + row - key));
            let expected = match (distances.clone().min(), distances.max()) {
                (Some(0..), _) => Side::Left,
                (_, Some(..=0)) => Side::Right,
                _ => Side::Either,
            };
            assert_eq!(Side::of(diagonal as u32, 64, 16), expected, "{diagonal}");
        }
    }
}
