//! What queries see of neighbouring blocks of keys, found for 32 blocks at once.

use crate::functions::Visible;
use crate::ptx::{index, warp};

/// Blocks that are looked at together, by a lane of a warp each.
const TOGETHER: u32 = 32;

/// What is seen of 32 blocks of keys, a bit each.
///
/// All lanes of a warp have the same, and go through a tile's blocks together.
#[derive(Clone, Copy)]
pub(super) struct SeenBlocks {
    /// The first of them.
    first: u32,
    /// Of which the tile's queries see something.
    seen: u32,
    /// Of which they see all.
    whole: u32,
}

impl SeenBlocks {
    /// None have been looked at.
    pub(super) const UNKNOWN: Self = Self { first: u32::MAX, seen: 0, whole: 0 };

    /// The first block from `block` on of which something is seen, or one from `end` on. `visible` says what
    /// the tile's queries see of a block, which may lie behind the keys.
    ///
    /// # Safety
    /// All lanes of the warp call this together, with the same numbers.
    #[inline(always)]
    pub(super) unsafe fn next(&mut self, block: u32, end: u32, visible: impl Fn(u32) -> Visible) -> u32 {
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

    /// Whether all of a block is seen, one of those that were looked at last.
    #[inline(always)]
    pub(super) const fn is_whole(&self, block: u32) -> bool {
        self.whole >> (block % TOGETHER) & 1 != 0
    }

    /// Looks at the blocks from `first` on, unless that was done last.
    ///
    /// # Safety
    /// As [`Self::next`].
    #[inline(always)]
    unsafe fn look_at(&mut self, first: u32, visible: &impl Fn(u32) -> Visible) {
        if self.first != first {
            let visible = visible(first + index::thread() % TOGETHER);
            // SAFETY: all lanes are here.
            *self = unsafe {
                let (seen, whole) = (visible != Visible::Nothing, visible == Visible::All);
                Self { first, seen: warp::ballot(seen), whole: warp::ballot(whole) }
            };
        }
    }
}
