//! Conversions between fp32 and smaller types by bit pattern (PTX ISA, `cvt`).

use float8::F8E4M3;
use half::{bf16, f16};

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

/// Two fp32 to fp16, to nearest even, `low` in the lower half (`cvt.rn.f16x2.f32`); NaN as in [`f32_to_f16`].
#[inline]
pub fn pack_f16x2(low: f32, high: f32) -> u32 {
    pack(f32_to_f16(low), f32_to_f16(high))
}

/// Two fp32 to bf16, to nearest even, `low` in the lower half (`cvt.rn.bf16x2.f32`); each NaN
/// becomes the canonical 0x7fff.
#[inline]
pub fn pack_bf16x2(low: f32, high: f32) -> u32 {
    let round = |x: f32| if x.is_nan() { 0x7fff } else { bf16::from_f32(x).to_bits() };
    pack(round(low), round(high))
}

/// Four fp32 to e4m3, to nearest even, the first in the lowest byte (two `cvt.rn.satfinite.e4m3x2.f32`): what
/// is too large, or infinite, becomes the largest, 448, and each NaN the canonical 0x7f.
#[inline]
pub fn pack_e4m3x4(values: [f32; 4]) -> u32 {
    let round = |x: f32| if x.is_nan() { 0x7f } else { F8E4M3::from_f32(x).to_bits() };
    u32::from_le_bytes(values.map(round))
}

/// Four e4m3 numbers, the first in the lowest byte, to fp16, exact (two `cvt.rn.f16x2.e4m3x2`); each NaN
/// becomes the canonical 0x7fff.
#[inline]
pub fn e4m3x4_to_f16x4(bits: u32) -> [u32; 2] {
    let [a, b, c, d] = bits.to_le_bytes().map(|byte| f32_to_f16(F8E4M3::from_bits(byte).to_f32()));
    [pack(a, b), pack(c, d)]
}

fn pack(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
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
    fn e4m3_saturates_and_keeps_nan() {
        assert_eq!(pack_e4m3x4([1.0, -2.5, 448.0, 0.0]), 0x007e_c238);
        assert_eq!(pack_e4m3x4([500.0, f32::NEG_INFINITY, f32::NAN, -f32::NAN]), 0x7f7f_fe7e);
        // Ties between neighbours, of which one is 0, and subnormal ones.
        assert_eq!(pack_e4m3x4([1.0625, 1.1875, 2.0_f32.powi(-10), 3.0 * 2.0_f32.powi(-10)]), 0x0200_3a38);
    }

    #[test]
    fn all_e4m3_numbers_come_back() {
        for bits in 0..=u8::MAX {
            let [pair, other] = e4m3x4_to_f16x4(u32::from_le_bytes([bits, 0x38, 0xb8, bits]));
            assert_eq!((pair >> 16, other & 0xffff), (0x3c00, 0xbc00));
            assert_eq!(pair & 0xffff, other >> 16);
            let x = f16_to_f32(pair as u16);
            match bits & 0x7f {
                0x7f => assert_eq!(pair & 0xffff, 0x7fff),
                _ => assert_eq!(pack_e4m3x4([x, 0.0, 0.0, 0.0]) as u8, bits, "bits {bits:#04x}"),
            }
        }
        // The largest, and the smallest but 0.
        assert_eq!(e4m3x4_to_f16x4(0x0000_017e), [0x1800_5f00, 0]);
    }

    #[test]
    fn ties_go_to_even_and_overflow_to_infinity() {
        assert_eq!(f32_to_f16(1.0 + 1.0 / 2048.0), 0x3c00);
        assert_eq!(f32_to_f16(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(65519.0), 0x7bff);
    }
}
