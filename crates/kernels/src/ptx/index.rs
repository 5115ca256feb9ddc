//! Where a thread stands in its block and a block in its grid (PTX ISA, special registers).
//!
//! Launches are one-dimensional: kernels decompose the linear block index themselves,
//! because `gridDim.y` and `.z` end at 65,535 and `gridDim.x` at 2^31 − 1.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Index of this thread in its block (`%tid.x`).
#[inline(always)]
pub fn thread() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: reads a special register.
            (unsafe { core::arch::nvptx::_thread_idx_x() }) as u32
        }
        _ => { fa_sim::index::thread() }
    }
}

/// As [`thread`], read again wherever it stands: a loop does not keep in registers, from turn to turn, what
/// can be computed from it once more.
#[inline(always)]
pub fn thread_again() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let thread: u32;
            // SAFETY: reads a special register.
            unsafe { asm!("mov.u32 {0}, %tid.x;", out(reg32) thread, options(nomem, nostack)) }
            thread
        }
        _ => { fa_sim::index::thread() }
    }
}

/// Index of this block in the grid (`%ctaid.x`).
#[inline(always)]
pub fn block() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: reads a special register.
            (unsafe { core::arch::nvptx::_block_idx_x() }) as u32
        }
        _ => { fa_sim::index::block() }
    }
}

/// Number of blocks of the grid (`%nctaid.x`).
#[inline(always)]
pub fn blocks() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: reads a special register.
            (unsafe { core::arch::nvptx::_grid_dim_x() }) as u32
        }
        _ => { fa_sim::index::blocks() }
    }
}
