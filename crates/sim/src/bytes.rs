//! Bytes and halves of words.

use half::f16;

/// Four of the eight bytes of `low` and `high` (PTX ISA, `prmt` without a mode): digit `i` of the hexadecimal
/// `selector` says which is byte `i`; its highest bit fills the byte with the sign of the one chosen.
#[inline]
pub fn permute(low: u32, high: u32, selector: u32) -> u32 {
    let bytes = (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    let chosen = |i: usize| {
        let digit = selector >> (4 * i) & 15;
        let byte = bytes[(digit & 7) as usize];
        if digit & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
    };
    u32::from_le_bytes(std::array::from_fn(chosen))
}

/// All ones in each half of which the fp16 number of `a` is not less than that of `b`, else zeros (PTX ISA,
/// `set.ge.u32.f16x2`).
#[inline]
pub fn halves_at_least(a: u32, b: u32) -> u32 {
    let half = |word: u32, shift: u32| f16::from_bits((word >> shift) as u16);
    [0, 16]
        .into_iter()
        .filter(|&shift| half(a, shift) >= half(b, shift))
        .fold(0, |mask, shift| mask | 0xffff << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_chosen_by_the_digits_of_the_selector() {
        let (low, high) = (0x3322_1180, 0x7766_5544);
        assert_eq!(permute(low, high, 0x3210), low);
        assert_eq!(permute(low, high, 0x0654), 0x8066_5544);
        assert_eq!(permute(low, high, 0x98f7), 0x00ff_0077);
    }

    #[test]
    fn halves_are_compared_as_numbers() {
        let word = |low: f32, high: f32| {
            u32::from(f16::from_f32(high).to_bits()) << 16 | u32::from(f16::from_f32(low).to_bits())
        };
        assert_eq!(halves_at_least(word(1024.0, -2.0), word(1025.0, -3.0)), 0xffff_0000);
        assert_eq!(halves_at_least(word(0.0, f32::NAN), word(-0.0, 1.0)), 0xffff);
    }
}
