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
        _ => { twin!(fa_sim::index::thread()) }
    }
}

/// As [`thread`], read anew by each call, so that what depends on it need not be kept in registers over a
/// loop.
#[inline(always)]
pub fn reread_thread() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let index: u32;
            // SAFETY: reads a special register.
            unsafe { core::arch::asm!("mov.u32 {0}, %tid.x;", out(reg32) index, options(nomem, nostack)) }
            index
        }
        _ => { twin!(fa_sim::index::thread()) }
    }
}

/// Index of this block in the grid (`%ctaid.x`).
///
/// Read anew by each call, as [`reread_thread`].
#[inline(always)]
pub fn block() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let index: u32;
            // SAFETY: reads a special register.
            unsafe { core::arch::asm!("mov.u32 {0}, %ctaid.x;", out(reg32) index, options(nomem, nostack)) }
            index
        }
        _ => { twin!(fa_sim::index::block()) }
    }
}

/// `value`, as if it were read from somewhere: a loop up to it stays a loop, where unrolling buys nothing.
#[inline(always)]
pub fn unknown(value: u32) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let unknown: u32;
            // SAFETY: moves a register.
            unsafe { core::arch::asm!("mov.u32 {0}, {1};", out(reg32) unknown, in(reg32) value, options(nomem, nostack)) }
            unknown
        }
        _ => { value }
    }
}

/// 0, which machine code has to read (`%ctaid.z`). What is combined with it comes before an instruction that
/// takes the result, and behind which ptxas would otherwise move it.
#[inline(always)]
pub fn zero() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let index: u32;
            // SAFETY: reads a special register.
            unsafe { core::arch::asm!("mov.u32 {0}, %ctaid.z;", out(reg32) index, options(nomem, nostack)) }
            index
        }
        _ => { 0 }
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
        _ => { twin!(fa_sim::index::blocks()) }
    }
}
