//! Fast fp32 arithmetic on the special function unit and the FMA pipe.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// 2^x to about 2 ulp (PTX ISA, `ex2.approx.ftz.f32`); 2^−∞ is +0.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let y: f32;
            // SAFETY: register arithmetic only.
            unsafe { asm!("ex2.approx.ftz.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) }
            y
        }
        _ => { twin!(fa_sim::math::exp2(x)) }
    }
}

/// The nearest whole number, the even one of two (PTX ISA, `cvt.rni.f32.f32`).
#[inline(always)]
pub fn round(x: f32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let y: f32;
            // SAFETY: register arithmetic only.
            unsafe { asm!("cvt.rni.f32.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) }
            y
        }
        _ => { twin!(fa_sim::math::round(x)) }
    }
}

/// log2(x) to about 1 ulp away from 1 (PTX ISA, `lg2.approx.f32`).
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let y: f32;
            // SAFETY: register arithmetic only.
            unsafe { asm!("lg2.approx.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) }
            y
        }
        _ => { twin!(fa_sim::math::log2(x)) }
    }
}

/// 1/x to 1 ulp (PTX ISA, `rcp.approx.ftz.f32`).
#[inline(always)]
pub fn reciprocal(x: f32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let y: f32;
            // SAFETY: register arithmetic only.
            unsafe { asm!("rcp.approx.ftz.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) }
            y
        }
        _ => { twin!(fa_sim::math::reciprocal(x)) }
    }
}

/// a·b + c with one rounding (PTX ISA, `fma.rn.f32`).
///
/// rustc never contracts `a * b + c`, so each multiply-add of a kernel asks for it here.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let y: f32;
            // SAFETY: register arithmetic only.
            unsafe { asm!("fma.rn.f32 {0}, {1}, {2}, {3};", out(reg32) y, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack)) }
            y
        }
        _ => { twin!(fa_sim::math::fma(a, b, c)) }
    }
}

/// The larger of two numbers; a NaN loses to a number (PTX ISA, `max.f32`).
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    a.max(b)
}

/// The largest of three numbers by their bits as integers with a sign.
#[inline(always)]
pub fn max3_bits(a: f32, b: f32, c: f32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let d: u32;
            // SAFETY: register arithmetic only.
            unsafe {
                asm!("{{", ".reg .s32 t;", "max.s32 t, {1}, {2};", "max.s32 {0}, t, {3};", "}}",
                    out(reg32) d, in(reg32) a.to_bits(), in(reg32) b.to_bits(), in(reg32) c.to_bits(),
                    options(pure, nomem, nostack))
            }
            f32::from_bits(d)
        }
        _ => {
            let bits = |x: f32| x.to_bits() as i32;
            f32::from_bits(bits(a).max(bits(b)).max(bits(c)) as u32)
        }
    }
}

/// tanh(x) to a relative error of 2^−11 (PTX ISA, `tanh.approx.f32`), and of 1.2e-5 on an H200, where all
/// numbers were tried.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let y: f32;
            // SAFETY: register arithmetic only.
            unsafe { asm!("tanh.approx.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) }
            y
        }
        _ => { twin!(fa_sim::math::tanh(x)) }
    }
}
