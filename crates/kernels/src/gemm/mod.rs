//! Matrix multiplication C = A·B, one algorithm per file, each generic over storage type and tile.

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod peak;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod read;
pub mod simt;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod sm80;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod sm90;

use core::hint::assert_unchecked;

use crate::params::GemmParams;

/// Rows of tiles that are gone through together.
const GROUP: u32 = 8;

/// Number of tiles of `block_m` × `block_n` of C.
#[inline(always)]
#[cfg_attr(
    target_arch = "nvptx64",
    allow(dead_code, reason = "only kernels for sm_80 go through several tiles")
)]
fn tiles(params: &GemmParams, block_m: u32, block_n: u32) -> u32 {
    params.m.div_ceil(block_m) * params.n.div_ceil(block_n)
}

/// First row and column of C of the `tile`-th tile of `block_m` × `block_n`.
///
/// Consecutive tiles go down [`GROUP`] rows of tiles before they go on to the next column, so that blocks
/// which run at the same time share rows of A and columns of B in L2.
///
/// # Safety
/// No dimension of the problem is 0, and the tile exists.
#[inline(always)]
unsafe fn corner(params: &GemmParams, tile: u32, block_m: u32, block_n: u32) -> (u32, u32) {
    let (tiles_m, tiles_n) = (params.m.div_ceil(block_m), params.n.div_ceil(block_n));
    let group_tiles = GROUP * tiles_n;
    // SAFETY: dimensions are at least 1. Without it the divisions would carry a call to the panic for a
    // zero divisor, which a kernel cannot link.
    unsafe { assert_unchecked(group_tiles > 0) };
    let (group, tile) = (tile / group_tiles, tile % group_tiles);
    let first = group * GROUP;
    let rows = (tiles_m - first).min(GROUP);
    // SAFETY: the tile's group has at least one row of tiles.
    unsafe { assert_unchecked(rows > 0) };
    ((first + tile % rows) * block_m, tile / rows * block_n)
}
