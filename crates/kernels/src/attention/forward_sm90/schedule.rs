//! How all warps learn which tile comes next.
//!
//! Finding a tile, and where its rows of O and lse are, takes many multiplications and divisions; one thread
//! does it long before the others are there, which have no registers for what that depends on.

use core::marker::PhantomData;

use super::first_row;
use super::key_blocks::KeyBlocks;
use super::tile::Tile;
use crate::params::{AttentionParams, PersistentParams};
use crate::ptx::{index, shared};
use crate::scheduler::{Rows, Tiles, WorkTile};
use crate::tile::head_start::HeadStart;
use crate::tile::ring::{Count, Ring};
use crate::tile::simt::GlobalTile;

/// Slots: one for the tile that is multiplied, one for that which is copied.
const SLOTS: u32 = 2;

/// Bytes of a slot: the fields of a tile, and the addresses of its rows.
const SLOT: u32 = 80;

/// The blocks of keys that a tile meets, as the threads see them that copy.
pub(super) struct Keys {
    /// How many there are.
    pub(super) blocks: u32,
    /// First row of the first, along the tensors' sequence axis.
    pub(super) row: u32,
    /// Key/value head.
    pub(super) head: u32,
    /// Index along the tensors' batch axis.
    pub(super) batch: u32,
}

impl Keys {
    /// Those of a tile.
    ///
    /// # Safety
    /// As [`WorkTile::kv_head`].
    #[inline(always)]
    pub(super) unsafe fn of_tile<T: Tile>(params: &PersistentParams, work: &WorkTile) -> Self {
        let attention = &params.attention;
        let first_row = first_row::<T>(params, work.tile);
        let blocks = KeyBlocks::<T>::of_tile(attention, work, first_row);
        Self {
            blocks: blocks.count,
            row: work.keys.first + blocks.first_key(0),
            // SAFETY: the caller's contract.
            head: unsafe { work.kv_head(attention) },
            batch: work.batch_index(attention),
        }
    }

    /// First row of a block.
    #[inline(always)]
    pub(super) fn row_of<T: Tile>(&self, block: u32) -> u32 {
        self.row + block * T::BLOCK_N
    }
}

/// The thread that announces the tiles of its block.
pub(super) struct Announcer<T> {
    schedule: Schedule,
    tiles: Tiles,
    tile: PhantomData<T>,
}

impl<T: Tile> Announcer<T> {
    /// In the slots at `address`.
    #[inline(always)]
    pub(super) fn new(address: u32) -> Self {
        Self { schedule: Schedule::producer(address), tiles: Tiles::default(), tile: PhantomData }
    }

    /// Announces the next tile, if there is one, which it says.
    ///
    /// # Safety
    /// One thread of the block calls this, in a launch as [`forward_sm90`](super::forward_sm90) says.
    #[inline(always)]
    pub(super) unsafe fn announce(&mut self, params: &PersistentParams) -> bool {
        let params = anew(params);
        // SAFETY: the caller's contract.
        unsafe {
            let Some(work) = self.tiles.next(&params, T::BLOCK_M) else { return false };
            self.schedule.announce::<T>(&params, Some(&work));
        }
        true
    }

    /// Announces that there is no further tile.
    ///
    /// # Safety
    /// As [`Self::announce`].
    #[inline(always)]
    pub(super) unsafe fn end(mut self, params: &PersistentParams) {
        // SAFETY: the caller's contract.
        unsafe { self.schedule.announce::<T>(params, None) }
    }
}

/// The same parameters: what follows from their window would otherwise be computed once, and kept in
/// registers by all.
#[inline(always)]
pub(super) fn anew(params: &PersistentParams) -> PersistentParams {
    let [window_left, window_span] =
        [params.attention.window_left, params.attention.window_span].map(index::unknown);
    let attention = AttentionParams { window_left, window_span, ..params.attention };
    PersistentParams { attention, ..*params }
}

/// A place in the ring of slots.
pub(super) struct Schedule {
    /// Its barriers count from the slots.
    ring: Ring<Count<SLOTS>>,
    slots: u32,
}

impl Schedule {
    /// Bytes of slots and barriers.
    pub(super) const BYTES: u32 = SLOTS * SLOT + Ring::<Count<SLOTS>>::BYTES;

    /// Makes the barriers behind the slots at `address`.
    ///
    /// # Safety
    /// As [`Ring::init`].
    #[inline(always)]
    pub(super) unsafe fn init(address: u32, warps: u32) {
        // SAFETY: the caller's contract.
        unsafe { Ring::<Count<SLOTS>>::init(address + SLOTS * SLOT, warps) }
    }

    #[inline(always)]
    pub(super) fn producer(address: u32) -> Self {
        Self { ring: Ring::producer(SLOTS * SLOT), slots: address }
    }

    #[inline(always)]
    pub(super) fn consumer(address: u32) -> Self {
        Self { ring: Ring::consumer(SLOTS * SLOT), slots: address }
    }

    #[inline(always)]
    fn slot(&self) -> u32 {
        self.slots + SLOT * self.ring.stage()
    }

    /// Parity of what happens once for each tile: there are two slots.
    #[inline(always)]
    pub(super) fn phase(&self) -> u32 {
        const { assert!(SLOTS == 2) };
        self.ring.stage()
    }

    /// Announces the next tile, or that there is none.
    ///
    /// # Safety
    /// One thread calls this.
    #[inline(always)]
    unsafe fn announce<T: Tile>(
        &mut self,
        params: &PersistentParams,
        work: Option<&WorkTile>,
    ) {
        // SAFETY: the slot is this thread's from the wait until the arrival.
        unsafe {
            // What follows from these would otherwise be computed once, and kept in registers.
            let slots = index::unknown(self.slots);
            let ring = self.ring.behind(slots);
            let slot = slots + SLOT * ring.stage();
            ring.wait_empty();
            match work {
                Some(work) => {
                    let WorkTile { tile, head, batch, queries, keys } = *work;
                    let PersistentParams { attention, o_by_rows, .. } = params;
                    let first_row = first_row::<T>(params, tile);
                    let place = Keys::of_tile::<T>(params, work);
                    shared::store4(slot + 64, [place.blocks, place.row, place.head, place.batch]);
                    let o = attention.o
                        + 2 * (work.offset(&attention.o_strides, queries, head)
                            + first_row as u64 * attention.o_strides.row);
                    let lse = attention.lse + 4 * work.lse_index(attention, first_row);
                    let lse = if attention.lse == 0 { 0 } else { lse };
                    shared::store4(slot, [tile, head, batch, 1 + o_by_rows]);
                    shared::store4(slot + 16, [queries.first, queries.len, keys.first, keys.len]);
                    let stride = attention.o_strides.row;
                    let columns = attention.head_dim_v;
                    let first_column =
                        HeadStart::of(attention.v_strides.head, place.head, params.v_margin).shift;
                    shared::store4(slot + 48, [stride as u32, (stride >> 32) as u32, columns, first_column]);
                    shared::store4(slot + 32, [o as u32, (o >> 32) as u32, lse as u32, (lse >> 32) as u32]);
                }
                None => shared::store_b32(slot + 12, 0),
            }
            ring.fill();
        }
        self.ring.advance();
    }

    /// Waits for the next tile, and says whether there is one.
    ///
    /// # Safety
    /// The lanes of a warp that take part all call this together.
    #[inline(always)]
    pub(super) unsafe fn wait(&self) -> bool {
        // SAFETY: the slot was written before the phase completed, and is until it is released.
        unsafe {
            self.ring.behind(self.slots).wait();
            self.word(3) != 0
        }
    }

    /// # Safety
    /// As [`Self::work`], for words other than the fourth.
    #[inline(always)]
    unsafe fn word(&self, index: u32) -> u32 {
        // SAFETY: as for `wait`.
        unsafe { shared::load_b32(self.slot() + 4 * index) }
    }

    /// The tile at hand; read anew by each call, so that nothing of it need be kept in registers over a loop.
    ///
    /// # Safety
    /// [`Self::wait`] has said that there is one, and it has not been left.
    #[inline(always)]
    pub(super) unsafe fn work(&self) -> WorkTile {
        // SAFETY: the caller's contract.
        let word = |index: u32| unsafe { self.word(index) };
        WorkTile {
            tile: word(0),
            head: word(1),
            batch: word(2),
            queries: Rows { first: word(4), len: word(5) },
            keys: Rows { first: word(6), len: word(7) },
        }
    }

    /// The blocks of keys of the tile at hand; read anew as [`Self::work`].
    ///
    /// # Safety
    /// As [`Self::work`].
    #[inline(always)]
    pub(super) unsafe fn keys(&self) -> Keys {
        // SAFETY: the caller's contract.
        unsafe {
            Keys { blocks: self.word(16), row: self.word(17), head: self.word(18), batch: self.word(19) }
        }
    }

    /// [`PersistentParams::o_by_rows`], read anew as the tile at hand.
    ///
    /// # Safety
    /// As [`Self::work`].
    #[inline(always)]
    pub(super) unsafe fn o_by_rows(&self) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { self.word(3) - 1 }
    }

    /// The tile at hand in O; read anew as [`Self::work`].
    ///
    /// # Safety
    /// As [`Self::work`].
    #[inline(always)]
    pub(super) unsafe fn o(&self, rows: u32) -> GlobalTile {
        // SAFETY: the caller's contract.
        unsafe { GlobalTile { address: self.word2(8), stride: self.word2(12), rows, columns: self.word(14) } }
    }

    /// Column of the product with V that is O's first; read anew as [`Self::work`].
    ///
    /// # Safety
    /// As [`Self::work`].
    #[inline(always)]
    pub(super) unsafe fn first_column(&self) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { self.word(15) }
    }

    /// Address of the first row of the tile at hand in lse, 0 where that is not wanted; read anew as
    /// [`Self::work`].
    ///
    /// # Safety
    /// As [`Self::work`].
    #[inline(always)]
    pub(super) unsafe fn lse(&self) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { self.word2(10) }
    }

    /// # Safety
    /// As [`Self::work`].
    #[inline(always)]
    unsafe fn word2(&self, index: u32) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { self.word(index) as u64 | (self.word(index + 1) as u64) << 32 }
    }

    /// Leaves the tile at hand.
    ///
    /// # Safety
    /// The lanes of a warp that take part all call this together, with `leads` in one of them.
    #[inline(always)]
    pub(super) unsafe fn leave(&mut self, leads: bool) {
        if leads {
            // The barrier's address would otherwise be kept in a register over the tile.
            let ring = self.ring.behind(index::unknown(self.slots));
            // SAFETY: the caller's contract.
            unsafe { ring.release() };
        }
        self.ring.advance();
    }
}
