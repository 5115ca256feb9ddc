//! Matrices of 8 × 8 16-bit elements from registers to shared memory (PTX ISA, `stmatrix`, from sm_90 on).
//!
//! The reverse of [`ldmatrix`](super::ldmatrix): lane 8·m + r names row r of matrix m, and lane l holds of
//! each matrix the elements (l / 4, 2·(l % 4)) and (l / 4, 2·(l % 4) + 1), the first in the lower half of a
//! register. Two neighbouring blocks of eight columns of a product, rounded and packed, are four of them.

/// Stores four matrices, whose rows all 32 lanes name (`stmatrix.sync.aligned.m8n8.x4.b16`).
///
/// # Safety
/// All 32 lanes of the warp execute this call together. The 16 bytes at each `address` are aligned to 16,
/// inside the block's shared memory, and nobody else accesses them without a barrier between.
#[inline(always)]
#[track_caller]
pub unsafe fn store_x4(address: u32, matrices: [u32; 4]) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                core::arch::asm!("stmatrix.sync.aligned.m8n8.x4.shared.b16 [{0}], {{{1}, {2}, {3}, {4}}};",
                    in(reg32) address, in(reg32) matrices[0], in(reg32) matrices[1],
                    in(reg32) matrices[2], in(reg32) matrices[3], options(nostack))
            }
        }
        _ => { twin!(fa_sim::stmatrix::store_x4(address, matrices, false)) }
    }
}

/// As [`store_x4`], transposed (`.trans`): lane l holds the elements (2·(l % 4), l / 4) and
/// (2·(l % 4) + 1, l / 4).
///
/// # Safety
/// As [`store_x4`].
#[inline(always)]
#[track_caller]
pub unsafe fn store_x4_transposed(address: u32, matrices: [u32; 4]) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                core::arch::asm!("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{0}], {{{1}, {2}, {3}, {4}}};",
                    in(reg32) address, in(reg32) matrices[0], in(reg32) matrices[1],
                    in(reg32) matrices[2], in(reg32) matrices[3], options(nostack))
            }
        }
        _ => { twin!(fa_sim::stmatrix::store_x4(address, matrices, true)) }
    }
}
