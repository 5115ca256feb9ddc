//! Elements as the bytes that they are.

use flash_attention::Element;

/// The bytes of elements.
pub(crate) fn of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: the bytes are those of the slice; elements are numbers (f32, f16, bf16, e4m3) without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// As [`of`], to be written.
pub(crate) fn of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `of`; any bytes are elements, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn elements_are_their_bytes() {
        let mut values = [bf16::ONE, bf16::NAN];
        assert_eq!(of(&values)[..2], bf16::ONE.to_ne_bytes());
        of_mut(&mut values)[2..].copy_from_slice(&bf16::ONE.to_ne_bytes());
        assert_eq!(values, [bf16::ONE; 2]);
    }
}
