//! Conversions between fp32 and fp16 by bit pattern (PTX ISA, `cvt`).

use half::f16;

/// fp16 bits to fp32, exact (`cvt.f32.f16`).
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// fp32 to fp16 bits, to nearest even (`cvt.rn.f16.f32`); each NaN becomes the canonical 0x7fff.
#[inline]
pub fn f32_to_f16(x: f32) -> u16 {
    if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fp16_numbers_come_back() {
        for bits in 0..=u16::MAX {
            let x = f16_to_f32(bits);
            let expected = if x.is_nan() { 0x7fff } else { bits };
            assert_eq!(f32_to_f16(x), expected, "bits {bits:#06x}");
        }
    }

    #[test]
    fn ties_go_to_even_and_overflow_to_infinity() {
        assert_eq!(f32_to_f16(1.0 + 1.0 / 2048.0), 0x3c00);
        assert_eq!(f32_to_f16(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(65519.0), 0x7bff);
    }
}
