//! Operands of `wgmma` in shared memory: how tensor maps bring them there, and how descriptors name them.
//!
//! A step of A or B is a [`Panel`] of `SPAN` rows of A, or columns of B, by 64 of K. It lies in lines of 64
//! elements along the direction of its consecutive ones, 128 bytes, whose 16-byte chunks are swizzled: chunk
//! c of line r stands at c ^ (r % 8), so that the eight lines that the tensor cores read at once lie in
//! different banks. Along K, there is one line for each of the span. Along the span, there are boxes of 64
//! lines, one for each of K, box after box (PTX ISA, "Asynchronous warpgroup level majorness and canonical
//! layouts", 128-byte swizzle).

use crate::ptx::{index, tma};
use crate::tile::mma_block::Panel;

/// Bytes of a line: the span of the swizzle.
pub const LINE: u32 = 128;

/// Elements of a line.
pub const LINE_ELEMENTS: u32 = LINE / 2;

/// Bytes of eight lines, after which the swizzle repeats: shared addresses of panels are multiples of it.
pub const PATTERN: u32 = 8 * LINE;

/// Bytes of 64 lines: a box of a panel along the span, or 64 of the span of a panel along K.
pub const BOX_BYTES: u32 = 64 * LINE;

/// Begins to copy the panel that begins at `first` of the span and `k` of K to `shared`.
///
/// # Safety
/// As [`tma::load_2d`]: `map` is a tensor map of the operand, whose innermost dimension is that of its
/// consecutive elements, with boxes of 64 × SPAN along K and of 64 × 64 along the span, swizzled.
#[inline(always)]
#[track_caller]
pub unsafe fn load<P: Panel>(map: u64, shared: u32, barrier: u32, (first, k): (u32, u32)) {
    if P::ALONG_K {
        // SAFETY: the map is the operand's, and no thread accesses the panel before the barrier's phase ends.
        return unsafe { tma::load_2d(shared, map, barrier, [k as i32, first as i32]) };
    }
    let mut part = 0;
    while part < P::SPAN / LINE_ELEMENTS {
        let first = first + part * LINE_ELEMENTS;
        // SAFETY: the map is the operand's, and no thread accesses the box before the barrier's phase ends.
        unsafe { tma::load_2d(shared + part * BOX_BYTES, map, barrier, [first as i32, k as i32]) };
        part += 1;
    }
}

/// The part of a descriptor that differs between the panels of an operand: address and leading byte offset.
#[derive(Clone, Copy)]
pub struct Descriptor(u32);

impl Descriptor {
    /// Swizzle of 128 bytes, and the stride from eight lines to the next eight.
    const HIGH: u64 = ((1 << 30) | (PATTERN as u64 / 16)) << 32;

    /// Of the panel at `shared`.
    #[inline(always)]
    pub fn new<P: Panel>(shared: u32) -> Self {
        const { assert!(P::DEPTH == LINE_ELEMENTS, "a line along K is a line of the swizzle") };
        Self::of_boxes(shared, BOX_BYTES)
    }

    /// Of lines at `shared` in boxes of `box_bytes`, the leading byte offset along the span; along K it is
    /// not used.
    #[inline(always)]
    pub fn of_boxes(shared: u32, box_bytes: u32) -> Self {
        Self(((shared & 0x3ffff) / 16) | ((box_bytes / 16) << 16))
    }

    /// The same, as if it were read from somewhere: a loop would else keep all of those behind it in
    /// registers.
    #[inline(always)]
    pub fn reread(self) -> Self {
        Self(index::unknown(self.0))
    }

    /// Of what lies `bytes` bytes, a multiple of 16, behind.
    #[inline(always)]
    pub fn behind(self, bytes: u32) -> Self {
        Self(self.0 + bytes / 16)
    }

    /// The descriptor.
    #[inline(always)]
    pub fn bits(self) -> u64 {
        Self::HIGH | self.0 as u64
    }

    /// The descriptor of the `step`-th sixteen of K.
    #[inline(always)]
    pub fn at<P: Panel>(self, step: u32) -> u64 {
        let step_bytes = if P::ALONG_K { 2 * 16 } else { 16 * LINE };
        self.behind(step * step_bytes).bits()
    }
}

/// Address of the 16-byte chunk `chunk` of line `line` of swizzled lines at `shared`.
#[inline(always)]
pub fn chunk(shared: u32, line: u32, chunk: u32) -> u32 {
    shared + line * LINE + 16 * (chunk ^ (line % 8))
}
