//! Matrix multiplication C = A·B, one algorithm per file, each generic over storage type and tile.

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod peak;
pub mod simt;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod sm80;

use core::hint::assert_unchecked;

use crate::params::GemmParams;
use crate::ptx::index;

/// Rows of tiles that blocks go through together.
const GROUP: u32 = 8;

/// First row and column of C of this block's tile of `block_m` × `block_n`.
///
/// Consecutive blocks go down [`GROUP`] rows of tiles before they go on to the next column, so that those which
/// run at the same time share rows of A and columns of B in L2.
///
/// # Safety
/// No dimension of the problem is 0, and the grid has one block for each tile.
#[inline(always)]
unsafe fn tile_of_block(params: &GemmParams, block_m: u32, block_n: u32) -> (u32, u32) {
    let (tiles_m, tiles_n) = (params.m.div_ceil(block_m), params.n.div_ceil(block_n));
    let group_blocks = GROUP * tiles_n;
    // SAFETY: dimensions are at least 1. Without it the divisions would carry a call to the panic for a
    // zero divisor, which a kernel cannot link.
    unsafe { assert_unchecked(group_blocks > 0) };
    let (group, block) = (index::block() / group_blocks, index::block() % group_blocks);
    let first = group * GROUP;
    let rows = (tiles_m - first).min(GROUP);
    // SAFETY: the block's group has at least one row of tiles.
    unsafe { assert_unchecked(rows > 0) };
    ((first + block % rows) * block_m, block / rows * block_n)
}
