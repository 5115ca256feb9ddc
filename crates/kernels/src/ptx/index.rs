//! Where a thread stands in its block and a block in its grid (PTX ISA, special registers).
//!
//! Launches are one-dimensional: kernels decompose the linear block index themselves,
//! because `gridDim.y` and `.z` end at 65,535 and `gridDim.x` at 2^31 − 1.

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

/// [`block`], but read anew: the compiler may not keep an earlier answer in a register instead.
#[inline(always)]
pub fn block_again() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let x: u32;
            // SAFETY: reads a special register. It is not `pure`, so that two reads are not made one.
            unsafe { core::arch::asm!("mov.u32 {0}, %ctaid.x;", out(reg32) x, options(nomem, nostack)) }
            x
        }
        _ => { block() }
    }
}
