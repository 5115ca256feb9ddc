//! Matrix multiply-accumulate of a warp on the tensor cores: D (16 × 8) += A (16 × 16) · B (16 × 8), A and
//! B of 16-bit elements and D of fp32 (PTX ISA, `mma.sync.aligned.m16n8k16`, from sm_80 on).
//!
//! With g = lane / 4 and t = lane % 4, a lane holds, the lower half of a register first (PTX ISA, "Matrix
//! Fragments for mma.m16n8k16 with floating point type"):
//! * of A in `a[0]` (g, 2t) and (g, 2t + 1), in `a[1]` the same of row g + 8, in `a[2]` and `a[3]` columns 2t
//!   + 8 and 2t + 9 of these two rows;
//! * of B in `b[0]` (2t, g) and (2t + 1, g), in `b[1]` (2t + 8, g) and (2t + 9, g);
//! * of D in `acc[0]` and `acc[1]` (g, 2t) and (g, 2t + 1), in `acc[2]` and `acc[3]` the same of row g + 8.
//!
//! Two neighbouring D fragments, rounded and packed, are thus the A fragment of a product over their
//! 16 columns: `a[0]` and `a[1]` come of the first, `a[2]` and `a[3]` of the second.
//!
//! Inline assembly, because LLVM's intrinsics take fp16 as vectors, which rustc passes to no function on
//! this target, and because they are not `convergent` either: assembly that is not `pure` at least stays
//! where it is written.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Adds the product of fp16 fragments to `acc` (`mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`). The
/// order in which products are summed, and the rounding of each sum, are the hardware's own.
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn m16n8k16_f16(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    cfg_select! {
        target_arch = "nvptx64" => {
            let [c0, c1, c2, c3] = acc;
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 \
                    {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};",
                    inout(reg32) *c0, inout(reg32) *c1, inout(reg32) *c2, inout(reg32) *c3,
                    in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
                    options(nomem, nostack))
            }
        }
        _ => { twin!(fa_sim::mma::m16n8k16_f16(acc, a, b)) }
    }
}

/// As [`m16n8k16_f16`], of bf16 fragments (`mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`).
///
/// # Safety
/// As [`m16n8k16_f16`].
#[inline(always)]
#[track_caller]
pub unsafe fn m16n8k16_bf16(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    cfg_select! {
        target_arch = "nvptx64" => {
            let [c0, c1, c2, c3] = acc;
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 \
                    {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};",
                    inout(reg32) *c0, inout(reg32) *c1, inout(reg32) *c2, inout(reg32) *c3,
                    in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
                    options(nomem, nostack))
            }
        }
        _ => { twin!(fa_sim::mma::m16n8k16_bf16(acc, a, b)) }
    }
}
