//! Lanes of 64-bit Arm: NEON, which every such CPU has.

use std::arch::aarch64::*;

use super::lanes::Lanes;

/// Four lanes of NEON.
#[derive(Clone, Copy)]
pub(super) struct Neon(float32x4_t);

impl Lanes for Neon {
    const WIDTH: usize = 4;
    // 24 accumulators, four operands and a broadcast of the 32 registers.
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: NEON is part of the architecture.
        Self(unsafe { vdupq_n_f32(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for four readable elements.
        Self(unsafe { vld1q_f32(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for four writable elements.
        unsafe { vst1q_f32(to, self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: NEON is part of the architecture.
        Self(unsafe { vfmaq_f32(addend.0, self.0, factor.0) })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: NEON is part of the architecture.
        Self(unsafe { vaddq_f32(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: NEON is part of the architecture.
        Self(unsafe { vsubq_f32(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: NEON is part of the architecture.
        Self(unsafe { vmulq_f32(self.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: NEON is part of the architecture. Its maximum propagates NaN from either side.
        Self(unsafe { vmaxq_f32(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: NEON is part of the architecture.
        Self(unsafe { vdivq_f32(self.0, other.0) })
    }

    #[inline(always)]
    fn where_below(self, index: Self, limit: Self, otherwise: Self) -> Self {
        // SAFETY: NEON is part of the architecture.
        Self(unsafe { vbslq_f32(vcltq_f32(index.0, limit.0), self.0, otherwise.0) })
    }

    #[inline(always)]
    fn exponent_from_low_bits(self) -> Self {
        // SAFETY: NEON is part of the architecture.
        Self(unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(self.0))) })
    }
}
