//! How the thread that copies tells the others which tile comes next.
//!
//! Finding a tile takes several divisions; the thread that copies does it long before the others are there.

use crate::ptx::shared;
use crate::scheduler::{Rows, WorkTile};
use crate::tile::ring::Ring;

/// Slots: one for the tile that is multiplied, one for that which is copied.
const SLOTS: u32 = 2;

/// Bytes of a slot: the fields of a tile.
const SLOT: u32 = 32;

/// A place in the ring of slots.
pub(super) struct Schedule {
    ring: Ring<SLOTS>,
    slots: u32,
}

impl Schedule {
    /// Bytes of slots and barriers.
    pub(super) const BYTES: u32 = SLOTS * SLOT + Ring::<SLOTS>::BYTES;

    /// Makes the barriers behind the slots at `address`.
    ///
    /// # Safety
    /// As [`Ring::init`].
    #[inline(always)]
    pub(super) unsafe fn init(address: u32, warps: u32) {
        // SAFETY: the caller's contract.
        unsafe { Ring::<SLOTS>::init(address + SLOTS * SLOT, warps) }
    }

    #[inline(always)]
    pub(super) fn producer(address: u32) -> Self {
        Self { ring: Ring::producer(address + SLOTS * SLOT), slots: address }
    }

    #[inline(always)]
    pub(super) fn consumer(address: u32) -> Self {
        Self { ring: Ring::consumer(address + SLOTS * SLOT), slots: address }
    }

    #[inline(always)]
    fn slot(&self) -> u32 {
        self.slots + SLOT * self.ring.stage()
    }

    /// Announces the next tile, or that there is none.
    ///
    /// # Safety
    /// The thread that copies calls this.
    #[inline(always)]
    pub(super) unsafe fn announce(&mut self, work: Option<&WorkTile>) {
        // SAFETY: the slot is this thread's from the wait until the arrival.
        unsafe {
            self.ring.wait_empty();
            match work {
                Some(work) => {
                    let WorkTile { tile, head, batch, queries, keys } = *work;
                    shared::store4(self.slot(), [tile, head, batch, 1]);
                    shared::store4(self.slot() + 16, [queries.first, queries.len, keys.first, keys.len]);
                }
                None => shared::store_b32(self.slot() + 12, 0),
            }
            self.ring.fill();
        }
        self.ring.advance();
    }

    /// Waits for the next tile, and says whether there is one.
    ///
    /// # Safety
    /// All lanes of a warp that multiplies call this together.
    #[inline(always)]
    pub(super) unsafe fn wait(&self) -> bool {
        // SAFETY: the slot was written before the phase completed, and is until it is released.
        unsafe {
            self.ring.wait();
            shared::load_b32(self.slot() + 12) == 1
        }
    }

    /// The tile at hand; read anew by each call, so that nothing of it need be kept in registers over a loop.
    ///
    /// # Safety
    /// [`Self::wait`] has said that there is one, and it has not been left.
    #[inline(always)]
    pub(super) unsafe fn work(&self) -> WorkTile {
        // SAFETY: as for `wait`.
        let word = |index: u32| unsafe { shared::load_b32(self.slot() + 4 * index) };
        WorkTile {
            tile: word(0),
            head: word(1),
            batch: word(2),
            queries: Rows { first: word(4), len: word(5) },
            keys: Rows { first: word(6), len: word(7) },
        }
    }

    /// Leaves the tile at hand.
    ///
    /// # Safety
    /// All lanes of a warp that multiplies call this together, with `leads` in one of them.
    #[inline(always)]
    pub(super) unsafe fn leave(&mut self, leads: bool) {
        // SAFETY: the caller's contract.
        unsafe { self.ring.leave(leads) };
    }
}
