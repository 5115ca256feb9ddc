//! How all warps of a block learn which tile comes next.
//!
//! Finding a tile takes many multiplications and divisions. One thread does it long before the others are
//! there, and writes what it finds to slots in shared memory; the others read a word again whenever they need
//! it, in place of a register over a loop.

use core::marker::PhantomData;

use super::ring::{Count, Ring, Stages};
use crate::ptx::{index, shared};

/// Slots: one for the tile that is multiplied, one for that which is copied.
const SLOTS: u32 = 2;

/// What is announced of a tile: words of a slot.
pub trait Announced: Copy {
    /// Bytes of a slot, a multiple of 16.
    const BYTES: u32;
    /// Index of the word that is 0 where there is no further tile.
    const EXISTS: u32;
}

/// A place in the ring of slots: of the thread that announces tiles, or of one that reads them.
pub struct Slots<A> {
    /// Its barriers count from the slots.
    ring: Ring<Count<SLOTS>>,
    address: u32,
    announced: PhantomData<A>,
}

impl<A: Announced> Slots<A> {
    /// Bytes of slots and barriers.
    pub const BYTES: u32 = SLOTS * A::BYTES + Ring::<Count<SLOTS>>::BYTES;

    /// Makes the barriers behind the slots at `address`, which so many warps leave.
    ///
    /// # Safety
    /// As [`Ring::init`].
    #[inline(always)]
    pub unsafe fn init(address: u32, warps: u32) {
        // SAFETY: the caller's thread is the only one, and a block barrier follows.
        unsafe { Ring::<Count<SLOTS>>::init(address + SLOTS * A::BYTES, warps) }
    }

    /// The place of the thread that announces, in the slots at `address`.
    ///
    /// # Safety
    /// One thread announces. [`Self::init`] has made the barriers, or will have before the first wait.
    #[inline(always)]
    pub unsafe fn producer(address: u32) -> Self {
        // SAFETY: the slots' barriers are the ring's, and one thread is its producer.
        Self { ring: unsafe { Ring::producer(SLOTS * A::BYTES) }, address, announced: PhantomData }
    }

    /// The place of a warp, or one of its threads, that reads.
    ///
    /// # Safety
    /// [`Self::init`] has made the barriers for as many warps as read, or will have before the first wait.
    /// The lanes that take part call everything together, and read words of a tile between [`Self::wait`],
    /// where that says that there is one, and [`Self::leave`].
    #[inline(always)]
    pub unsafe fn consumer(address: u32) -> Self {
        // SAFETY: the slots' barriers are the ring's, whose stages are released by leaving them.
        Self { ring: unsafe { Ring::consumer(SLOTS * A::BYTES) }, address, announced: PhantomData }
    }

    /// Parity of what happens once for each tile: there are two slots.
    #[inline(always)]
    pub fn phase(&self) -> u32 {
        const { assert!(SLOTS == 2) };
        self.ring.stage()
    }

    /// A reader's place in a ring of one or two stages of which each tile takes one.
    ///
    /// # Safety
    /// As [`Ring::consumer`].
    #[inline(always)]
    pub unsafe fn ring<S: Stages>(&self, barriers: u32) -> Ring<S> {
        // SAFETY: readers go around both rings tile by tile.
        unsafe { self.ring.beside(barriers) }
    }

    /// Announces what `write` stores to the slot at the address that it is given.
    #[inline(always)]
    pub fn announce(&mut self, write: impl FnOnce(u32)) {
        let (slot, ring) = self.wait_empty();
        write(slot);
        ring.fill();
        self.ring.advance();
    }

    /// Waits until all have left the slot at hand, and gives its address, and the ring where it is.
    #[inline(always)]
    fn wait_empty(&self) -> (u32, Ring<Count<SLOTS>>) {
        // What follows from the address would otherwise be computed once, and kept in registers.
        let slots = index::unknown(self.address);
        // SAFETY: the ring's barriers count from the slots.
        let ring = unsafe { self.ring.behind(slots) };
        ring.wait_empty();
        (slots + A::BYTES * ring.stage(), ring)
    }

    /// Waits until all have left the slot at hand, and gives its address, for [`Self::fill`] after it is
    /// written.
    #[inline(always)]
    pub fn acquire(&self) -> u32 {
        self.wait_empty().0
    }

    /// Writes a word of all slots.
    ///
    /// # Safety
    /// One thread announces, and has announced nothing yet.
    #[inline(always)]
    pub unsafe fn set_all(&self, index: u32, value: u32) {
        let mut slot = 0;
        while slot < SLOTS {
            // SAFETY: the slots are this thread's until it announces.
            unsafe { shared::store_b32(self.address + A::BYTES * slot + 4 * index, value) };
            slot += 1;
        }
    }

    /// Announces what was written to the slot at hand.
    #[inline(always)]
    pub fn fill(&mut self) {
        // SAFETY: the ring's barriers count from the slots.
        unsafe { self.ring.behind(index::unknown(self.address)) }.fill();
        self.ring.advance();
    }

    /// As [`Self::fill`], of a warp whose lanes have acquired the slot together, and of which one `leads`.
    #[inline(always)]
    pub fn fill_by(&mut self, leads: bool) {
        if leads {
            // SAFETY: the ring's barriers count from the slots.
            unsafe { self.ring.behind(index::unknown(self.address)) }.fill();
        }
        self.ring.advance();
    }

    /// Announces that there is no further tile.
    #[inline(always)]
    pub fn announce_end(&mut self) {
        // SAFETY: the word is the slot's, which is this thread's.
        self.announce(|slot| unsafe { shared::store_b32(slot + 4 * A::EXISTS, 0) });
    }

    /// Waits for the next tile, and says whether there is one.
    #[inline(always)]
    pub fn wait(&self) -> bool {
        // SAFETY: the ring's barriers count from the slots.
        unsafe { self.ring.behind(self.address) }.wait();
        self.word(A::EXISTS) != 0
    }

    /// Where the tile at hand was announced.
    #[inline(always)]
    pub fn address(&self) -> u32 {
        self.address + A::BYTES * self.ring.stage()
    }

    /// A word of the tile at hand, read again by each call.
    #[inline(always)]
    pub fn word(&self, index: u32) -> u32 {
        // SAFETY: the slot holds this tile until all warps have left it.
        unsafe { shared::load_b32(self.address() + 4 * index) }
    }

    /// Two words, the lower one first, as [`Self::word`].
    #[inline(always)]
    pub fn word2(&self, index: u32) -> u64 {
        self.word(index) as u64 | (self.word(index + 1) as u64) << 32
    }

    /// Leaves the tile at hand, by the lane of the warp that `leads`.
    #[inline(always)]
    pub fn leave(&mut self, leads: bool) {
        if leads {
            // The barrier's address would otherwise be kept in a register over the tile.
            // SAFETY: the ring's barriers count from the slots.
            unsafe { self.ring.behind(index::unknown(self.address)) }.release();
        }
        self.ring.advance();
    }
}
