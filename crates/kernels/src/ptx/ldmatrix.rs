//! Matrices of 8 × 8 16-bit elements from shared memory to registers (PTX ISA, `ldmatrix`).
//!
//! Lane 8·m + r names row r of matrix m. Of each matrix, lane l gets the elements (l / 4, 2·(l % 4)) in
//! the lower and (l / 4, 2·(l % 4) + 1) in the upper half of a register: a quarter of `mma`'s operand A, or,
//! where shared memory holds B's columns as rows, half of its operand B. Transposed, it gets
//! (2·(l % 4), l / 4) and (2·(l % 4) + 1, l / 4): half of operand B from rows of B.
//!
//! Inline assembly, because LLVM's intrinsics take generic pointers: ptxas then spends three or four moves on
//! each address of an unrolled loop, where it folds constants into a shared one. It is not `pure`, so
//! that it stays where it is written.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Loads four matrices, whose rows all 32 lanes name (`ldmatrix.sync.aligned.m8n8.x4.b16`).
///
/// # Safety
/// All 32 lanes of the warp execute this call together. The 16 bytes at each `address` are aligned to
/// 16, inside the block's shared memory, written before, and not written by another thread
/// without a barrier between.
#[inline(always)]
#[track_caller]
pub unsafe fn load_x4(address: u32) -> [u32; 4] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b, c, d): (u32, u32, u32, u32);
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
                    options(readonly, nostack));
            }
            [a, b, c, d]
        }
        _ => { twin!(fa_sim::ldmatrix::load::<4>(address, false)) }
    }
}

/// As [`load_x4`], transposed (`.trans`).
///
/// # Safety
/// As [`load_x4`].
#[inline(always)]
#[track_caller]
pub unsafe fn load_x4_transposed(address: u32) -> [u32; 4] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b, c, d): (u32, u32, u32, u32);
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
                    options(readonly, nostack));
            }
            [a, b, c, d]
        }
        _ => { twin!(fa_sim::ldmatrix::load::<4>(address, true)) }
    }
}

/// Loads two matrices, whose rows lanes 0 to 15 name; the others' addresses do not matter
/// (`ldmatrix.sync.aligned.m8n8.x2.b16`).
///
/// # Safety
/// As [`load_x4`], of the addresses of lanes 0 to 15.
#[inline(always)]
#[track_caller]
pub unsafe fn load_x2(address: u32) -> [u32; 2] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b): (u32, u32);
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{{0}, {1}}}, [{2}];",
                    out(reg32) a, out(reg32) b, in(reg32) address, options(readonly, nostack));
            }
            [a, b]
        }
        _ => { twin!(fa_sim::ldmatrix::load::<2>(address, false)) }
    }
}

/// As [`load_x2`], transposed (`.trans`).
///
/// # Safety
/// As [`load_x2`].
#[inline(always)]
#[track_caller]
pub unsafe fn load_x2_transposed(address: u32) -> [u32; 2] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b): (u32, u32);
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{{0}, {1}}}, [{2}];",
                    out(reg32) a, out(reg32) b, in(reg32) address, options(readonly, nostack));
            }
            [a, b]
        }
        _ => { twin!(fa_sim::ldmatrix::load::<2>(address, true)) }
    }
}
