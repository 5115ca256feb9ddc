//! Bytes and halves of words.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Four of the eight bytes of `low` and `high` (PTX ISA, `prmt`): digit `i` of the hexadecimal `selector`,
/// 0 to 7, says which is byte `i`.
#[inline(always)]
pub fn permute(low: u32, high: u32, selector: u32) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let bytes: u32;
            // SAFETY: register arithmetic only.
            unsafe {
                asm!(
                    "prmt.b32 {0}, {1}, {2}, {3};",
                    out(reg32) bytes, in(reg32) low, in(reg32) high, in(reg32) selector,
                    options(pure, nomem, nostack),
                )
            }
            bytes
        }
        _ => { twin!(fa_sim::bytes::permute(low, high, selector)) }
    }
}

/// All ones in each half of which the fp16 number of `a` is not less than that of `b`, else zeros (PTX ISA,
/// `set.ge.u32.f16x2`).
#[inline(always)]
pub fn halves_at_least(a: u32, b: u32) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let mask: u32;
            // SAFETY: register arithmetic only.
            unsafe {
                asm!(
                    "set.ge.u32.f16x2 {0}, {1}, {2};",
                    out(reg32) mask, in(reg32) a, in(reg32) b,
                    options(pure, nomem, nostack),
                )
            }
            mask
        }
        _ => { twin!(fa_sim::bytes::halves_at_least(a, b)) }
    }
}
