//! Where a thread stands in its block and a block in its grid (PTX ISA, special registers).

use crate::context;

/// Index of this thread in its block (`%tid.x`).
///
/// # Panics
/// Outside a kernel.
#[inline]
pub fn thread() -> u32 {
    context::with(|block| block.current as u32)
}

/// Index of this block in the grid (`%ctaid.x`).
///
/// # Panics
/// Outside a kernel.
#[inline]
pub fn block() -> u32 {
    context::with(|block| block.index)
}

/// Number of blocks of the grid (`%nctaid.x`).
///
/// # Panics
/// Outside a kernel.
#[inline]
pub fn blocks() -> u32 {
    context::with(|block| block.grid)
}
