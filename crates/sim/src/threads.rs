//! How the threads of a block are grouped.

use std::ops::Range;

/// Threads of a warp.
pub const WARP: u32 = 32;

/// [`WARP`], for indices.
pub(crate) const LANES: usize = WARP as usize;

/// Warps of a warpgroup.
pub(crate) const WARPGROUP_WARPS: usize = 4;

/// Threads of a warpgroup.
pub(crate) const WARPGROUP: u32 = WARPGROUP_WARPS as u32 * WARP;

/// The threads of a warp.
#[inline]
pub(crate) fn lanes(warp: usize) -> Range<usize> {
    warp * LANES..(warp + 1) * LANES
}
