//! Which tile comes next in a launch that computes all gradients: blocks take tickets, one after the other.
//!
//! The first launch has written all tiles down ([`backward_tiles`]). Most blocks take tiles of keys, and the
//! others those of queries; who is done with keys goes on to queries. A tile waits for tiles that come before
//! it in the order of units, and blocks of both kinds arrive one after the other: so two blocks, whichever
//! run first, come to an end.

use core::marker::PhantomData;

use super::Pipeline;
use super::block::{Block, Source};
use super::tile::{OwnedStages, Tile};
use crate::attention::backward_tiles::{self as tiles, EMPTY, KIND, NO_COUNTER, OF_KEYS, OF_QUERIES};
use crate::config::BackwardSm90Config;
use crate::hopper::epilogue::wait_read;
use crate::hopper::scheduler::{Announced, Slots};
use crate::params::{BackwardParams, Tickets};
use crate::ptx::{fence, global, index, shared};
use crate::scheduler::{Rows, WorkTile};

/// The words of a tile, as the first launch has written them.
#[derive(Clone, Copy)]
pub(super) struct TileWords<T>(PhantomData<T>);

impl<T: Tile> Announced for TileWords<T> {
    const BYTES: u32 = Tickets::TILE_BYTES as u32;
    const EXISTS: u32 = KIND;
}

/// What stands in a slot between the tiles of keys of a block and those of queries.
const END_OF_KEYS: u32 = OF_QUERIES + 1;

/// The slots that tiles are announced in.
pub(super) type TileSlots<T> = Slots<TileWords<T>>;

impl<T: Tile> TileSlots<T> {
    /// Waits for the next tile, and says whether it is one of keys.
    #[inline(always)]
    pub(super) fn wait_for_keys(&self) -> bool {
        self.wait() && self.word(KIND) == OF_KEYS
    }

    /// Waits for the next tile of keys, if there is one, and for what it owns, and gives the stage of that.
    #[inline(always)]
    pub(super) fn next_of_keys(&self, pipeline: Pipeline<T>) -> Option<u32> {
        if !self.wait_for_keys() {
            return None;
        }
        // SAFETY: the ring's barriers are made, and each warp leaves its stages, one for each tile.
        let owned = unsafe { self.ring::<OwnedStages<T>>(pipeline.owned_barriers()) };
        owned.wait();
        Some(owned.stage())
    }

    /// Leaves the tile of keys at hand, and the stage of what it owns, which gradients have left through. All
    /// lanes of the warp call this together.
    #[inline(always)]
    pub(super) fn leave_keys(&mut self, pipeline: Pipeline<T>) {
        // The stage's memory is read by stores until then. All lanes have read the slot.
        // SAFETY: all lanes of the warp are here.
        unsafe { wait_read() };
        let leads = index::reread_thread().is_multiple_of(32);
        if leads {
            // SAFETY: the ring's barriers are made, and each warp leaves its stages, one for each tile.
            unsafe { self.ring::<OwnedStages<T>>(pipeline.owned_barriers()) }.release();
        }
        self.leave(leads);
    }

    /// Waits for the next tile of queries, and says whether there is one.
    #[inline(always)]
    pub(super) fn wait_for_queries(&self) -> bool {
        self.wait() && self.word(KIND) == OF_QUERIES
    }

    /// Waits until the tiles that the tile at hand depends on are done; what they stored is there for copies
    /// by tensor maps, and what they read may be overwritten by who learns of this.
    #[inline(always)]
    pub(super) fn wait_for_others(&self, params: &BackwardParams) {
        // SAFETY: blocks that run have taken the awaited tiles, or will without waiting for this one.
        let wait = |counter, awaited| unsafe {
            global::wait_at_least(params.tickets.counter(self.word(counter)), awaited);
        };
        let (awaited, before) = (self.word(tiles::AWAITED + 1), self.word(tiles::PLACE) / 4);
        if before > 0 {
            wait(tiles::UNITS_DONE, before);
        }
        if awaited > 0 {
            wait(tiles::AWAITED, awaited);
            fence::proxy_async_global();
        }
    }

    /// Whether the tile of keys at hand was in units before this one: they have left dK and dV of it.
    #[inline(always)]
    pub(super) fn began_before(&self) -> bool {
        self.word(tiles::PLACE) & tiles::BEGAN_BEFORE != 0
    }

    /// Whether the tile of keys at hand is in units behind this one: who go on with dK and dV of it.
    #[inline(always)]
    pub(super) fn goes_on(&self) -> bool {
        self.word(tiles::PLACE) & tiles::GOES_ON != 0
    }

    /// Which tile of keys of its round's heads the one at hand is.
    #[inline(always)]
    pub(super) fn column(&self) -> u32 {
        self.word(tiles::COLUMN)
    }
}

impl<T: Tile> Source<T> for &TileSlots<T> {
    /// The tile at hand, read again by each call.
    #[inline(always)]
    fn block(self) -> Block<T> {
        let word = |index: u32| self.word(index);
        Block {
            work: WorkTile {
                tile: 0,
                head: word(0),
                batch: word(1),
                queries: Rows { first: word(4), len: word(5) },
                keys: Rows { first: word(6), len: word(7) },
            },
            kv_head: word(2),
            owned: word(8),
            first: word(9),
            end: word(10),
            heads: word(11),
            ds_head: word(12),
            unit_row: word(tiles::UNIT_ROW),
            tile: PhantomData,
        }
    }
}

/// Announces all tiles of this block, and counts those that are done.
///
/// # Safety
/// One thread of the block calls this, in a launch as [`backward_sm90`](super::backward_sm90) says; the
/// slots' barriers are made.
#[inline(always)]
pub(super) unsafe fn announce<T: Tile>(params: &BackwardParams, mut slots: TileSlots<T>) {
    const { assert!(TileSlots::<T>::BYTES == BackwardSm90Config::SCHEDULE_BYTES) };
    let tickets = &params.tickets;
    // SAFETY: a slot is this thread's from `acquire` to `fill`, and all warps have left the tile that it
    // holds; blocks access counters by atomics alone.
    unsafe {
        slots.set_all(tiles::DONE, NO_COUNTER);
        let arrived = global::fetch_add(tickets.counter(tickets.arrivals()), 1);
        if tickets.takes_keys(arrived, index::blocks()) {
            announce_all(tickets, OF_KEYS, &mut slots);
        }
        // Queries that the last keys wait for may be the next ones: who has such keys must not take them.
        announce_end(&mut slots, END_OF_KEYS);
        announce_all(tickets, OF_QUERIES, &mut slots);
        announce_end(&mut slots, EMPTY);
        count_left(tickets, &slots);
    }
}

/// Announces the next tile of keys, or that there is none, of a launch whose blocks all take tiles of keys.
///
/// # Safety
/// As [`announce`]; nothing was announced behind an end.
#[inline(always)]
pub(super) unsafe fn announce_next<T: Tile>(tickets: &Tickets, slots: &mut TileSlots<T>) {
    let slot = slots.acquire();
    // SAFETY: the slot is this thread's from `acquire` to `fill`.
    unsafe {
        if !take(tickets, OF_KEYS, slot) {
            shared::store_b32(slot + 4 * KIND, EMPTY);
        }
    }
    slots.fill();
}

/// Announces tiles of a kind, as long as there are tickets for them.
///
/// # Safety
/// As [`announce`].
#[inline(always)]
unsafe fn announce_all<T: Tile>(tickets: &Tickets, kind: u32, slots: &mut TileSlots<T>) {
    // SAFETY: a slot is this thread's from `acquire` to `fill`.
    unsafe {
        while take(tickets, kind, count_left(tickets, slots)) {
            slots.fill();
        }
    }
}

/// Waits until all have left the slot at hand, counts the tile that was there, and gives the slot's address.
///
/// # Safety
/// As [`announce`].
#[inline(always)]
unsafe fn count_left<T: Tile>(tickets: &Tickets, slots: &TileSlots<T>) -> u32 {
    let slot = slots.acquire();
    // SAFETY: the slot is this thread's, and all warps have left the tile that it holds.
    unsafe { count_in(tickets, slot) };
    slot
}

/// Announces in the slot at hand, which all have left, that there are no more tiles of some kind.
///
/// # Safety
/// As [`announce`].
#[inline(always)]
unsafe fn announce_end<T: Tile>(slots: &mut TileSlots<T>, kind: u32) {
    // SAFETY: the slot is this thread's.
    unsafe { shared::store_b32(slots.acquire() + 4 * KIND, kind) };
    slots.fill();
}

/// Adds the tile in a slot, if there is one, to its counters: it is done.
///
/// # Safety
/// The slot is this thread's, and what the tile stored and read has been.
#[inline(always)]
unsafe fn count_in(tickets: &Tickets, slot: u32) {
    // SAFETY: the slot is this thread's, and blocks access counters by atomics alone.
    unsafe {
        let counter = shared::load_b32(slot + 4 * tiles::DONE);
        if counter != NO_COUNTER {
            fence::proxy_async_global();
            global::add_release(tickets.counter(counter), 1);
            let units_done = shared::load_b32(slot + 4 * tiles::UNITS_DONE);
            if units_done != NO_COUNTER {
                global::add_release(tickets.counter(units_done), 1);
            }
            shared::store_b32(slot + 4 * tiles::DONE, NO_COUNTER);
        }
    }
}

/// Takes the next ticket of a kind whose tile has rows, and copies that to a slot; says whether there is one.
///
/// # Safety
/// The slot is this thread's; `tickets` is valid.
#[inline(always)]
unsafe fn take(tickets: &Tickets, kind: u32, slot: u32) -> bool {
    let all_of_keys = tickets.all_of_keys();
    let (first, end) = if kind == OF_KEYS { (0, all_of_keys) } else { (all_of_keys, tickets.all_tiles()) };
    loop {
        // SAFETY: blocks access counters by atomics alone, tiles are written, and the slot is this thread's.
        unsafe {
            let tile = first + global::fetch_add(tickets.counter(tickets.arrivals() + kind), 1);
            if tile >= end {
                return false;
            }
            let address = tickets.tile(tile);
            let mut at = 0;
            while at < Tickets::TILE_BYTES {
                shared::store4(slot + at as u32, global::load4_if(true, address + at));
                at += 16;
            }
            if shared::load_b32(slot + 4 * KIND) != EMPTY {
                return true;
            }
            count_in(tickets, slot);
        }
    }
}
