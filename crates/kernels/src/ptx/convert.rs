//! Conversions between fp32 and the smaller storage types, by bit pattern (PTX ISA, `cvt`).

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// fp16 bits to fp32, exact (`cvt.f32.f16`).
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let y: f32;
            // SAFETY: register arithmetic only.
            unsafe { asm!("cvt.f32.f16 {0}, {1};", out(reg32) y, in(reg16) bits, options(pure, nomem, nostack)) }
            y
        }
        _ => { twin!(fa_sim::convert::f16_to_f32(bits)) }
    }
}

/// fp32 to fp16 bits, to nearest even (`cvt.rn.f16.f32`).
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let bits: u16;
            // SAFETY: register arithmetic only.
            unsafe { asm!("cvt.rn.f16.f32 {0}, {1};", out(reg16) bits, in(reg32) x, options(pure, nomem, nostack)) }
            bits
        }
        _ => { twin!(fa_sim::convert::f32_to_f16(x)) }
    }
}

/// bf16 bits to fp32, exact: bf16 is the upper half of an fp32.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// fp32 to bf16 bits, to nearest even.
///
/// In integer arithmetic, because `cvt.rn.bf16.f32` needs sm_90 and these kernels run from sm_75 on.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    // Half of the last kept place, less one where that place is even, so that ties go to even.
    let rounding = 0x7fff + ((bits >> 16) & 1);
    ((bits + rounding) >> 16) as u16
}

/// Two fp32 to fp16, to nearest even, `low` in the lower half (`cvt.rn.f16x2.f32`, from sm_80 on).
#[inline(always)]
pub fn pack_f16x2(low: f32, high: f32) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let bits: u32;
            // SAFETY: register arithmetic only. The instruction names the upper half first.
            unsafe {
                asm!("cvt.rn.f16x2.f32 {0}, {1}, {2};",
                    out(reg32) bits, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
            }
            bits
        }
        _ => { twin!(fa_sim::convert::pack_f16x2(low, high)) }
    }
}

/// Two fp32 to bf16, to nearest even, `low` in the lower half (`cvt.rn.bf16x2.f32`, from sm_80 on).
#[inline(always)]
pub fn pack_bf16x2(low: f32, high: f32) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let bits: u32;
            // SAFETY: register arithmetic only. The instruction names the upper half first.
            unsafe {
                asm!("cvt.rn.bf16x2.f32 {0}, {1}, {2};",
                    out(reg32) bits, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
            }
            bits
        }
        _ => { twin!(fa_sim::convert::pack_bf16x2(low, high)) }
    }
}

/// Four fp32 to e4m3, to nearest even, the first in the lowest byte; what is too large becomes the largest,
/// 448 (`cvt.rn.satfinite.e4m3x2.f32`, on sm_90 from PTX ISA 7.8 on).
#[inline(always)]
pub fn pack_e4m3x4(values: [f32; 4]) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let bits: u32;
            // SAFETY: register arithmetic only. The instruction names the upper of two first.
            unsafe {
                asm!("{{", ".reg .b16 low, high;", "cvt.rn.satfinite.e4m3x2.f32 low, {2}, {1};",
                    "cvt.rn.satfinite.e4m3x2.f32 high, {4}, {3};", "mov.b32 {0}, {{low, high}};", "}}",
                    out(reg32) bits, in(reg32) values[0], in(reg32) values[1], in(reg32) values[2],
                    in(reg32) values[3], options(pure, nomem, nostack))
            }
            bits
        }
        _ => { twin!(fa_sim::convert::pack_e4m3x4(values)) }
    }
}

/// Four e4m3 numbers, the first in the lowest byte, to fp16, exact; NaN becomes NaN
/// (`cvt.rn.f16x2.e4m3x2`, on sm_90 from PTX ISA 7.8 on).
#[inline(always)]
pub fn e4m3x4_to_f16x4(bits: u32) -> [u32; 2] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (low, high): (u32, u32);
            // SAFETY: register arithmetic only.
            unsafe {
                asm!("{{", ".reg .b16 low, high;", "mov.b32 {{low, high}}, {2};", "cvt.rn.f16x2.e4m3x2 {0}, low;",
                    "cvt.rn.f16x2.e4m3x2 {1}, high;", "}}",
                    out(reg32) low, out(reg32) high, in(reg32) bits, options(pure, nomem, nostack))
            }
            [low, high]
        }
        _ => { twin!(fa_sim::convert::e4m3x4_to_f16x4(bits)) }
    }
}
