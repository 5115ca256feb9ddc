//! What queries see of neighbouring blocks of keys, found for 32 blocks at once.

use super::Visible;
use crate::ptx::{index, warp};

/// Blocks that are looked at together, by a lane of a warp each.
const TOGETHER: u32 = 32;

/// What is seen of 32 blocks of keys, a bit each.
///
/// All lanes of a warp have the same, and go through a tile's blocks together.
#[derive(Clone, Copy)]
pub struct SeenBlocks {
    /// The first of them.
    first: u32,
    /// Of which the tile's queries see something.
    seen: u32,
    /// Of which the warp's queries see all.
    whole: u32,
}

impl SeenBlocks {
    /// None have been looked at.
    pub const UNKNOWN: Self = Self { first: u32::MAX, seen: 0, whole: 0 };

    /// The end of the first `end` blocks without the last ones of which nothing is seen. `visible` says what the
    /// tile's queries, and the warp's, see of a block, which may lie behind the keys.
    ///
    /// # Safety
    /// All lanes of the warp call this together, with the same number.
    #[inline(always)]
    pub unsafe fn end(&mut self, end: u32, visible: impl Fn(u32) -> [Visible; 2]) -> u32 {
        let mut end = end;
        while end > 0 {
            let last = (end - 1) % TOGETHER;
            let first = end - 1 - last;
            // SAFETY: all lanes are here.
            unsafe { self.look_at(first, &visible) };
            let seen = self.seen << (TOGETHER - 1 - last);
            if seen != 0 {
                return end - seen.leading_zeros();
            }
            end = first;
        }
        0
    }

    /// The first block from `block` on of which something is seen, or one from `end` on.
    ///
    /// # Safety
    /// As [`Self::end`].
    #[inline(always)]
    pub unsafe fn next(&mut self, block: u32, end: u32, visible: impl Fn(u32) -> [Visible; 2]) -> u32 {
        let mut block = block;
        while block < end {
            let place = block % TOGETHER;
            // SAFETY: all lanes are here.
            unsafe { self.look_at(block - place, &visible) };
            let seen = self.seen >> place;
            if seen != 0 {
                return block + seen.trailing_zeros();
            }
            block += TOGETHER - place;
        }
        block
    }

    /// Whether the warp's queries see all of a block, one of those that were looked at last.
    #[inline(always)]
    pub const fn is_whole(&self, block: u32) -> bool {
        self.whole >> (block % TOGETHER) & 1 != 0
    }

    /// Looks at the blocks from `first` on, unless that was done last.
    ///
    /// # Safety
    /// As [`Self::end`].
    #[inline(always)]
    unsafe fn look_at(&mut self, first: u32, visible: &impl Fn(u32) -> [Visible; 2]) {
        if self.first != first {
            let [of_tile, of_warp] = visible(first + index::thread() % TOGETHER);
            // SAFETY: all lanes are here.
            let (seen, whole) =
                unsafe { (warp::ballot(of_tile != Visible::Nothing), warp::ballot(of_warp == Visible::All)) };
            *self = Self { first, seen, whole };
        }
    }
}
