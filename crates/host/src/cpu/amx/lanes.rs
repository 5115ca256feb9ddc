//! What sixteen lanes do for tiles beside arithmetic: rounding to bf16, pairing, and transposing.

use crate::cpu::lanes::Lanes;

/// Sixteen lanes, as many as a row of a tile has 32-bit words.
pub(super) trait TileLanes: Lanes {
    /// The nearest bf16 of each lane, as fp32; of two that are equally near the one farther from 0.
    fn round_to_bf16(self) -> Self;

    /// Words whose lower halves are the bf16 numbers of `self` and whose upper halves are those of `upper`.
    fn pair(self, upper: Self) -> Self;

    /// to[j, i] = from[i, j] of 16 × 16 words; strides are in words.
    ///
    /// # Safety
    /// The CPU has this type's instruction set; `from` is readable and `to` writable for 16 rows of 16 words.
    unsafe fn transpose(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize);
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod avx512 {
    use std::arch::x86_64::*;

    use super::TileLanes;
    use crate::cpu::lanes_x86::Avx512;

    /// # Safety
    /// The CPU has AVX-512F, and `from` is readable for 16 words.
    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m512i {
        // SAFETY: the caller vouches for both.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    /// # Safety
    /// The CPU has AVX-512F, and `to` is writable for 16 words.
    #[inline(always)]
    unsafe fn store(to: *mut u32, words: __m512i) {
        // SAFETY: the caller vouches for both.
        unsafe { _mm512_storeu_si512(to.cast(), words) }
    }

    impl TileLanes for Avx512 {
        #[inline(always)]
        fn round_to_bf16(self) -> Self {
            // SAFETY: a value exists only with AVX-512F.
            Self(unsafe {
                let bits = _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(0x8000));
                _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
            })
        }

        #[inline(always)]
        fn pair(self, upper: Self) -> Self {
            // SAFETY: a value exists only with AVX-512F.
            Self(unsafe {
                let lower = _mm512_srli_epi32::<16>(_mm512_castps_si512(self.0));
                _mm512_castsi512_ps(_mm512_or_si512(lower, _mm512_castps_si512(upper.0)))
            })
        }

        /// Words within quarters of 128 bits first, then the quarters.
        #[inline(always)]
        unsafe fn transpose(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            // SAFETY: the caller vouches for AVX-512F and 16 rows of 16 words on either side.
            unsafe {
                let mut columns = [_mm512_setzero_si512(); 16];
                for four in 0..4 {
                    let row = from.add(4 * four * from_stride);
                    let (a, b) = (load(row), load(row.add(from_stride)));
                    let (c, d) = (load(row.add(2 * from_stride)), load(row.add(3 * from_stride)));
                    let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                    let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
                    columns[four] = _mm512_unpacklo_epi64(ab_low, cd_low);
                    columns[4 + four] = _mm512_unpackhi_epi64(ab_low, cd_low);
                    columns[8 + four] = _mm512_unpacklo_epi64(ab_high, cd_high);
                    columns[12 + four] = _mm512_unpackhi_epi64(ab_high, cd_high);
                }
                for j in 0..4 {
                    let [a, b, c, d] =
                        [columns[4 * j], columns[4 * j + 1], columns[4 * j + 2], columns[4 * j + 3]];
                    let (ab_even, ab_odd) = (
                        _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                        _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
                    );
                    let (cd_even, cd_odd) = (
                        _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d),
                        _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d),
                    );
                    let row = to.add(j * to_stride);
                    store(row, _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_even, cd_even));
                    store(row.add(4 * to_stride), _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_odd, cd_odd));
                    store(row.add(8 * to_stride), _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_even, cd_even));
                    store(row.add(12 * to_stride), _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_odd, cd_odd));
                }
            }
        }
    }
}
