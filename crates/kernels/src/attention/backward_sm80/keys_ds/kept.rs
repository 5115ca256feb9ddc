//! What the loop seldom needs, in shared memory.

use super::stage::Stage;
use crate::attention::backward_sm80::Tile;
use crate::mask::MaskCorner;
use crate::params::BackwardParams;
use crate::ptx::shared;
use crate::scheduler::{Rows, WorkTile};

/// What the loop seldom needs of the block's work, in shared memory: there are no registers to keep it in.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    address: u32,
}

impl Kept {
    /// Behind the stages.
    #[inline(always)]
    pub(super) fn new<T: Tile>() -> Self {
        Self { address: Stage::<T>::new(2).q.address }
    }

    /// Writes it; a barrier must follow before others read it.
    ///
    /// # Safety
    /// No thread accesses it.
    #[inline(always)]
    pub(super) unsafe fn write<T: Tile>(
        self,
        params: &BackwardParams,
        work: &WorkTile,
        (first, end): (u32, u32),
    ) {
        let attention = &params.attention;
        let (corner, keys) = MaskCorner::new(attention, work, 0, work.tile * T::OWNED).parts();
        let head = work.batch * attention.heads + work.head;
        let ds_head = head.wrapping_sub(params.ds.first_unit * attention.group);
        // SAFETY: there is room for these words, and no thread accesses them.
        unsafe {
            shared::store4(self.address, [end, work.queries.len, corner, keys]);
            shared::store4(self.address + 16, [ds_head, work.tile * T::OWNED, work.head, work.batch]);
            shared::store4(self.address + 32, [work.queries.first, first, work.keys.first, 0]);
        }
    }

    /// One past the last query that the loop goes over, and how many there are.
    ///
    /// # Safety
    /// It is written, with a barrier between.
    #[inline(always)]
    pub(super) unsafe fn end_and_queries(self) -> (u32, u32) {
        // SAFETY: it is written, with a barrier between.
        let [end, queries] = unsafe { shared::load2(self.address) };
        (end.to_bits(), queries.to_bits())
    }

    /// The mask from the sequence's first query and the block's first key on.
    ///
    /// # Safety
    /// As [`Self::end_and_queries`].
    #[inline(always)]
    pub(super) unsafe fn corner(self) -> MaskCorner {
        // SAFETY: it is written, with a barrier between.
        let [corner, keys] = unsafe { shared::load2(self.address + 8) };
        MaskCorner::of_parts(corner.to_bits(), keys.to_bits())
    }

    /// The first query that the loop goes over.
    ///
    /// # Safety
    /// As [`Self::end_and_queries`].
    #[inline(always)]
    pub(super) unsafe fn first(self) -> u32 {
        // SAFETY: it is written, with a barrier between.
        unsafe { shared::load_b32(self.address + 36) }
    }

    /// The first of the query heads that share the keys, of those that the launch stores dS of, and the first
    /// of the keys.
    ///
    /// # Safety
    /// As [`Self::end_and_queries`].
    #[inline(always)]
    pub(super) unsafe fn ds_head_and_key(self) -> (u32, u32) {
        // SAFETY: it is written, with a barrier between.
        let [head, key] = unsafe { shared::load2(self.address + 16) };
        (head.to_bits(), key.to_bits())
    }

    /// The block's work.
    ///
    /// # Safety
    /// As [`Self::end_and_queries`].
    #[inline(always)]
    pub(super) unsafe fn work<T: Tile>(self) -> WorkTile {
        // SAFETY: it is written, with a barrier between.
        unsafe {
            let [_, queries, _, keys] = shared::load4(self.address).map(f32::to_bits);
            let [_, first_key, head, batch] = shared::load4(self.address + 16).map(f32::to_bits);
            let [first_query, _, first, _] = shared::load4(self.address + 32).map(f32::to_bits);
            let queries = Rows { first: first_query, len: queries };
            let keys = Rows { first, len: first_key + keys };
            WorkTile { tile: first_key / T::OWNED, head, batch, queries, keys }
        }
    }
}
