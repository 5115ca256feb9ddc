//! What sums of 8-bit products may lose.
//!
//! Hopper's tensor cores cut each addend of a sum of 32 products, the sum so far among them, at 13 bits below
//! the largest, and the sum at 13 bits after its first (`fa_sim::wgmma`). Of Q·Kᵀ, a sum over head_dim ≤ 256
//! from zero, that is at most head_dim · 2⁻¹³ of the largest product or partial sum, and of normal Q and K
//! some 2⁻¹¹ of Σ |q · k|. Of P·V, summed from zero over at most 128 keys and in fp32 beyond, it is at most
//! [`SUMMED`] of Σ p |v| where the keys of a sum weigh about the same. Where one outweighs the others, these
//! lose up to 2⁻¹³ of it each ([`outweighed`]).

/// Products that are aligned together.
const GROUP: usize = 32;

/// Bits behind the first that a sum keeps.
const FRACTION: f64 = 13.0;

/// What a sum over at most 128 keys from zero loses of its terms where they are alike: 0.2 % of one sign.
pub(super) const SUMMED: f64 = 1.0 / 256.0;

/// Terms beside the largest of a sum over 128 keys.
const OTHERS: f64 = 127.0;

/// What the terms of a sum over any number of keys, with magnitudes of this `sum` and this `largest`, lose
/// beside the largest: all of them, or 2⁻¹³ of it for each of those that are summed with it.
pub(super) fn outweighed(sum: f64, largest: f64) -> f64 {
    (sum - largest).min(OTHERS * (-FRACTION).exp2() * largest)
}

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
    fn one_key_outweighs_the_others_of_its_sum() {
        // One weight of 256, and 127 below 2^(8 − 13), which are all lost.
        let (largest, other) = (256.0, 15.0 / 512.0);
        assert_eq!(outweighed(largest + 127.0 * other, largest), 127.0 * other);
        assert_eq!(outweighed(1e6, largest), 127.0 / 32.0);
        assert_eq!(outweighed(largest, largest), 0.0);
    }
}
