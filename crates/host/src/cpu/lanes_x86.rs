//! Lanes of x86: AVX-512 and AVX2 with FMA.

use std::arch::x86_64::*;

use super::lanes::Lanes;

/// Sixteen lanes of AVX-512F.
#[derive(Clone, Copy)]
pub(super) struct Avx512(pub(super) __m512);

/// Eight lanes of AVX2, with FMA.
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256);

// The bodies below differ in names only, but a macro would hide which instruction each one is.

impl Lanes for Avx512 {
    const WIDTH: usize = 16;
    // 24 accumulators, four operands and a broadcast of the 32 registers.
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller vouches for AVX-512F.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for AVX-512F and sixteen readable elements.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: a value exists only with AVX-512F; the caller vouches for sixteen writable elements.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: a value exists only with AVX-512F.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX-512F.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX-512F.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX-512F.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX-512F.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX-512F.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn where_below(self, index: Self, limit: Self, otherwise: Self) -> Self {
        // SAFETY: a value exists only with AVX-512F.
        Self(unsafe {
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(index.0, limit.0);
            _mm512_mask_blend_ps(below, otherwise.0, self.0)
        })
    }

    #[inline(always)]
    fn prefetch(address: *const f32) {
        // SAFETY: SSE is part of the architecture, and a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn exponent_from_low_bits(self) -> Self {
        // SAFETY: a value exists only with AVX-512F.
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self.0))) })
    }
}

impl Lanes for Avx2 {
    const WIDTH: usize = 8;
    // Twelve accumulators, two operands and a broadcast of the sixteen registers.
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 2;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller vouches for AVX2.
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for AVX2 and eight readable elements.
        Self(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: a value exists only with AVX2; the caller vouches for eight writable elements.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: a value exists only with AVX2 and FMA.
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX2.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX2.
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX2.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX2.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: a value exists only with AVX2.
        Self(unsafe { _mm256_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn where_below(self, index: Self, limit: Self, otherwise: Self) -> Self {
        // SAFETY: a value exists only with AVX2.
        Self(unsafe {
            let below = _mm256_cmp_ps::<_CMP_LT_OQ>(index.0, limit.0);
            _mm256_blendv_ps(otherwise.0, self.0, below)
        })
    }

    #[inline(always)]
    fn prefetch(address: *const f32) {
        // SAFETY: SSE is part of the architecture, and a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn exponent_from_low_bits(self) -> Self {
        // SAFETY: a value exists only with AVX2.
        Self(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(self.0))) })
    }
}
