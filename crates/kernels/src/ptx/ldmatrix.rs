//! Matrices of 8 × 8 16-bit elements from shared memory to registers (PTX ISA, `ldmatrix`).
//!
//! Lane 8·m + r names row r of matrix m. Of each matrix, lane l gets the elements (l / 4, 2·(l % 4)) in
//! the lower and (l / 4, 2·(l % 4) + 1) in the upper half of a register: a quarter of `mma`'s operand A, or,
//! where shared memory holds B's columns as rows, half of its operand B. Transposed, it gets
//! (2·(l % 4), l / 4) and (2·(l % 4) + 1, l / 4): half of operand B from rows of B.

/// One register for each of four matrices.
#[cfg(target_arch = "nvptx64")]
#[repr(C)]
struct Four(u32, u32, u32, u32);

/// One register for each of two matrices.
#[cfg(target_arch = "nvptx64")]
#[repr(C)]
struct Two(u32, u32);

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p0"]
    fn ldmatrix_x4(address: *const u8) -> Four;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.trans.b16.p0"]
    fn ldmatrix_x4_trans(address: *const u8) -> Four;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.b16.p0"]
    fn ldmatrix_x2(address: *const u8) -> Two;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.trans.b16.p0"]
    fn ldmatrix_x2_trans(address: *const u8) -> Two;
}

/// The generic address of a shared one, which the intrinsics take for want of pointers to shared
/// memory. ptxas folds the conversion away, offsets included.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn generic(address: u32) -> *const u8 {
    let generic: u64;
    // SAFETY: register arithmetic only.
    unsafe {
        core::arch::asm!("{{", ".reg .b64 wide;", "cvt.u64.u32 wide, {1};", "cvta.shared.u64 {0}, wide;", "}}",
            out(reg64) generic, in(reg32) address, options(pure, nomem, nostack));
    }
    generic as *const u8
}

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
            // SAFETY: the caller's contract is the instruction's.
            let Four(a, b, c, d) = unsafe { ldmatrix_x4(generic(address)) };
            [a, b, c, d]
        }
        _ => { fa_sim::ldmatrix::load::<4>(address, false) }
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
            // SAFETY: the caller's contract is the instruction's.
            let Four(a, b, c, d) = unsafe { ldmatrix_x4_trans(generic(address)) };
            [a, b, c, d]
        }
        _ => { fa_sim::ldmatrix::load::<4>(address, true) }
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
            // SAFETY: the caller's contract is the instruction's.
            let Two(a, b) = unsafe { ldmatrix_x2(generic(address)) };
            [a, b]
        }
        _ => { fa_sim::ldmatrix::load::<2>(address, false) }
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
            // SAFETY: the caller's contract is the instruction's.
            let Two(a, b) = unsafe { ldmatrix_x2_trans(generic(address)) };
            [a, b]
        }
        _ => { fa_sim::ldmatrix::load::<2>(address, true) }
    }
}
