//! Division by a number that a launch has all over.

use core::ops::{Div, Rem};

/// A divisor of at least 1, with what makes division by it a multiplication and two shifts, where a GPU takes
/// some twenty instructions: the host divides once, for all.
///
/// Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994), figure 4.1.
/// Exact for all dividends.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    value: u32,
    multiplier: u32,
    shifts: [u32; 2],
}

impl Divisor {
    /// Of `value`, which is at least 1.
    #[must_use]
    #[inline]
    pub const fn new(value: u32) -> Self {
        assert!(value > 0);
        let bits = 32 - (value - 1).leading_zeros();
        let above = (1 << bits) - value as u64;
        let multiplier = (above << 32) / value as u64 + 1;
        let first = if bits > 0 { 1 } else { 0 };
        Self { value, multiplier: multiplier as u32, shifts: [first, bits - first] }
    }

    /// The number itself.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.value
    }
}

impl Default for Divisor {
    #[inline]
    fn default() -> Self {
        Self::new(1)
    }
}

impl Div<Divisor> for u32 {
    type Output = Self;

    #[inline(always)]
    fn div(self, by: Divisor) -> Self {
        let high = ((by.multiplier as u64 * self as u64) >> 32) as u32;
        (high + ((self - high) >> by.shifts[0])) >> by.shifts[1]
    }
}

impl Rem<Divisor> for u32 {
    type Output = Self;

    #[inline(always)]
    fn rem(self, by: Divisor) -> Self {
        self - self / by * by.value
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    #[test]
    fn quotients_are_those_of_the_operator() {
        let edges = |x: u32| [x.wrapping_sub(1), x, x.wrapping_add(1)];
        let values = || {
            let powers = (0..32).flat_map(move |bit| edges(1 << bit));
            powers.chain([7, 10, 12, 641, 1_000_003, u32::MAX / 3, u32::MAX])
        };
        for value in values().filter(|&value| value > 0) {
            let divisor = Divisor::new(value);
            let multiples = (0..40).flat_map(|i| edges(value.wrapping_mul(i * i + 1)));
            for dividend in multiples.chain(values()) {
                let found = [dividend / divisor, dividend % divisor];
                let right = [dividend / value, dividend % value];
                assert_eq!(found, right, "{dividend} by {value}");
            }
        }
    }
}
