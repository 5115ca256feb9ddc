//! What sums of 8-bit products may lose, and rounding P to 8 bits.
//!
//! Hopper's tensor cores cut each addend of a sum of 32 products, the sum so far among them, at 13 bits below the largest, and
//! the sum at 13 bits after its first (`fa_sim::wgmma`). Of Q·Kᵀ, a sum over head_dim ≤ 256 from zero, that is at most
//! head_dim · 2⁻¹³ of the largest product or partial sum, and of normal Q and K some 2⁻¹¹ of Σ |q · k|. Of P·V, summed from
//! zero over at most 128 keys and in fp32 beyond, it is at most [`SUMMED`] of Σ p |v|. The factor that P has keeps
//! weights down to 2⁻¹⁷ of the largest from vanishing; each is off by up to 2⁻⁴ of itself, independently of the others.

/// Products that are aligned together.
const GROUP: usize = 32;

/// Bits behind the first that a sum keeps.
const FRACTION: f64 = 13.0;

/// What a sum over at most 128 keys from zero loses of its terms: 0.2 % where all have one sign.
const SUMMED: f64 = 1.0 / 256.0;

/// Largest relative rounding of a weight.
const WEIGHT: f64 = 1.0 / 16.0;

/// What a sum of these products may lose: all that stands below what is kept of the largest.
pub(super) fn cut(products: &[f64]) -> f64 {
    let (mut sum, mut lost) = (0.0_f64, 0.0);
    for group in products.chunks(GROUP) {
        let largest = group.iter().fold(sum.abs(), |largest, product| largest.max(product.abs()));
        lost += group.iter().map(|product| below(*product, largest)).sum::<f64>() + below(sum, largest);
        sum += group.iter().sum::<f64>();
        lost += kept_below(sum);
    }
    lost
}

/// The part of `value` that is cut beside something as large as `largest`.
fn below(value: f64, largest: f64) -> f64 {
    if largest == 0.0 { 0.0 } else { value.abs() % kept_below(largest) }
}

/// The least that a sum keeps whose largest addend is this.
fn kept_below(largest: f64) -> f64 {
    if largest == 0.0 { 0.0 } else { (largest.abs().log2().floor() - FRACTION).exp2() }
}

/// How far an element of O may be off: by what P·V loses, and by the roundings of the weights, all but the largest's, which is
/// exact. `terms` are weights and elements of V.
pub(super) fn moved(terms: impl Iterator<Item = (f64, f64)>, largest: f64) -> f64 {
    let (mut magnitude, mut squares) = (0.0, 0.0);
    for (weight, v) in terms {
        let term = (weight * v).abs();
        magnitude += term;
        squares += if weight < largest { term * term } else { 0.0 };
    }
    SUMMED * magnitude + WEIGHT * f64::sqrt(squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_products_are_lost_beside_a_large_one() {
        let mut products = [0.25; 32];
        products[7] = 4096.0;
        // What stands below 2^(12 − 13).
        assert_eq!(cut(&products), 31.0 * 0.25 + 0.5);
        assert_eq!(cut(&[0.0; 64]), 0.0);
    }

    #[test]
    fn the_largest_weight_is_exact() {
        assert_eq!(moved([(1.0, -3.0)].into_iter(), 1.0), 3.0 / 256.0);
        assert_eq!(moved([(0.75, 1.0), (0.25, 4.0)].into_iter(), 0.75), 1.75 / 256.0 + 1.0 / 16.0);
    }
}
