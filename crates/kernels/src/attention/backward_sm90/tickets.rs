//! Which tile comes next in a launch that computes all gradients: blocks take tickets, one after the other.
//!
//! A unit is a key/value head of a sequence with its query heads. Its tiles of keys store dS, and its tiles of
//! queries, some units later, wait for all of them. The memory of dS is taken again by a later unit, whose
//! tiles of keys wait for those queries. A ticket waits only for lower ones, each of which a block that runs
//! has taken: so any number of blocks comes to an end.

use core::hint::assert_unchecked;
use core::marker::PhantomData;

use super::block::{Block, Source};
use super::tile::Tile;
use crate::attention::stored_ds;
use crate::config::BackwardSm90Config;
use crate::hopper::scheduler::{Announced, Slots};
use crate::params::{BackwardParams, Tickets};
use crate::ptx::{fence, global, index, shared};
use crate::scheduler::{Rows, WorkTile};

/// A tile of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    unit: u32,
    /// Index among the unit's tiles of keys, or of queries.
    index: u32,
    of_keys: bool,
}

impl Place {
    /// What a ticket is for.
    ///
    /// # Safety
    /// There are tiles of that kind, and all of them are below 2^31.
    #[inline(always)]
    unsafe fn of_ticket(tickets: &Tickets, tiles: u32, (ticket, of_keys): (u32, bool)) -> Option<Self> {
        // SAFETY: units have tiles.
        unsafe { assert_unchecked(tiles > 0) };
        let unit = ticket / tiles;
        if unit < tickets.units { Some(Self { unit, index: ticket % tiles, of_keys }) } else { None }
    }

    /// The counter of this unit's tiles of keys, or of queries, that are done.
    #[inline(always)]
    const fn counter(unit: u32, of_keys: bool) -> u32 {
        2 * (2 + unit) + !of_keys as u32
    }

    /// The counter that this tile waits for, and how many it waits for there; 0 for none.
    #[inline(always)]
    fn awaited(self, tickets: &Tickets, query_tiles: u32) -> (u32, u32) {
        if !self.of_keys {
            (Self::counter(self.unit, true), tickets.key_tiles)
        } else if self.unit >= tickets.ring {
            (Self::counter(self.unit - tickets.ring, false), query_tiles)
        } else {
            (0, 0)
        }
    }
}

/// Address of a counter.
#[inline(always)]
const fn address_of(tickets: &Tickets, counter: u32) -> u64 {
    tickets.counters + Tickets::COUNTER_BYTES * counter as u64
}

/// The words that [`write`] writes.
#[derive(Clone, Copy)]
pub(super) struct TileWords<T>(PhantomData<T>);

impl<T: Tile> Announced for TileWords<T> {
    const BYTES: u32 = 64;
    const EXISTS: u32 = 3;
}

/// The word of the counter that a tile adds to when it is done.
const DONE: u32 = 15;

/// A counter that is never read, which the tile before a slot's first adds to.
const UNREAD: u32 = 1;

/// The slots that tiles are announced in.
pub(super) type TileSlots<T> = Slots<TileWords<T>>;

impl<T: Tile> TileSlots<T> {
    /// Whether the tile at hand is one of keys.
    #[inline(always)]
    pub(super) fn is_of_keys(&self) -> bool {
        self.word(TileWords::<T>::EXISTS) == 1
    }

    /// Waits until the tiles that the tile at hand depends on are done; what they stored is there for copies
    /// by tensor maps, and what they read may be overwritten by who learns of this.
    #[inline(always)]
    pub(super) fn wait_for_others(&self, params: &BackwardParams) {
        let (counter, tiles) = (self.word(13), self.word(14));
        if tiles > 0 {
            // SAFETY: blocks that run have taken the awaited tiles, whose tickets are lower.
            unsafe { global::wait_at_least(address_of(&params.tickets, counter), tiles) };
            fence::proxy_async_global();
        }
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
            tile: PhantomData,
        }
    }

    #[inline(always)]
    fn is_of_queries(self) -> bool {
        false
    }
}

/// Announces all tiles of this block, and counts those that are done.
///
/// # Safety
/// One thread of the block calls this, in a launch as [`backward_sm90`](super::backward_sm90) says; the slots'
/// barriers are made.
#[inline(always)]
pub(super) unsafe fn announce<T: Tile, const OF_KEYS: bool>(params: &BackwardParams, mut slots: TileSlots<T>) {
    const { assert!(TileSlots::<T>::BYTES == BackwardSm90Config::SCHEDULE_BYTES) };
    // SAFETY: a slot is this thread's from `acquire` to `fill`, and all warps have left the tile that it holds.
    unsafe {
        slots.set_all(DONE, UNREAD);
        loop {
            let slot = slots.acquire();
            count_done(params, shared::load_b32(slot + 4 * DONE));
            let exists = write_next::<T>(params, slot, OF_KEYS);
            slots.fill();
            if !exists {
                break;
            }
        }
        // The last tile is in the other slot.
        count_done(params, shared::load_b32(slots.acquire() + 4 * DONE));
    }
}

/// Adds a tile that is done to its counter.
///
/// # Safety
/// The counter is one of the launch's, and what the tile stored and read has been.
#[inline(always)]
unsafe fn count_done(params: &BackwardParams, counter: u32) {
    fence::proxy_async_global();
    // SAFETY: blocks access counters by atomics alone.
    unsafe { global::add_release(address_of(&params.tickets, counter), 1) };
}

/// Takes the next ticket whose tile has rows, and writes that to a slot; says whether there is one.
///
/// # Safety
/// The slot is this thread's; `params` is valid.
#[inline(always)]
unsafe fn write_next<T: Tile>(params: &BackwardParams, slot: u32, of_keys: bool) -> bool {
    loop {
        let (attention, tickets) = (&params.attention, &params.tickets);
        // What follows from these would otherwise be computed once, and kept in registers.
        let [query_tiles, ring] = [tickets.query_tiles, tickets.ring].map(index::unknown);
        let query_tiles = query_tiles * attention.group;
        // SAFETY: blocks access counters by atomics alone, units have tiles, and the slot is this thread's.
        unsafe {
            let ticket = global::fetch_add(address_of(tickets, if of_keys { 0 } else { 2 }), 1);
            let tiles = if of_keys { tickets.key_tiles } else { query_tiles };
            let Some(place) = Place::of_ticket(tickets, tiles, (ticket, of_keys)) else {
                shared::store_b32(slot + 4 * TileWords::<T>::EXISTS, 0);
                return false;
            };
            let done = Place::counter(place.unit, place.of_keys);
            let (counter, tiles) = place.awaited(tickets, query_tiles);
            assert_unchecked(ring > 0);
            let ring_head = place.unit % ring * attention.group;
            shared::store4(slot + 48, [ring_head, counter, tiles, done]);
            let Place { unit, index, of_keys } = place;
            if write_block::<T>(params, slot, (WorkTile::of_unit(attention, unit), index, of_keys)) {
                return true;
            }
            count_done(params, shared::load_b32(slot + 4 * DONE));
        }
    }
}

/// Writes a tile of a unit to a slot, where the unit's first head whose dS is stored already stands; says
/// whether it has rows.
///
/// # Safety
/// The slot is this thread's; the unit is one of the launch.
#[inline(always)]
unsafe fn write_block<T: Tile>(
    params: &BackwardParams,
    slot: u32,
    (work, index, of_keys): (WorkTile, u32, bool),
) -> bool {
    let attention = &params.attention;
    // SAFETY: the slot is this thread's, heads have tiles, and groups have heads.
    unsafe {
        let (of_queries_rows, keys) = (work.queries, work.keys);
        shared::store4(slot + 16, [of_queries_rows.first, of_queries_rows.len, keys.first, keys.len]);
        let kv_head = work.kv_head(attention);
        if of_keys {
            let owned = index * T::CONFIG.owned();
            if owned >= keys.len {
                return false;
            }
            let seen = stored_ds::queries(attention, &work, owned);
            shared::store4(slot, [work.head, work.batch, kv_head, 1]);
            shared::store4(slot + 32, [owned, seen.first, seen.end, attention.group]);
        } else {
            let (head, tile) = work.of_query_tile(attention, params.tickets.query_tiles, index);
            let owned = tile * const { T::CONFIG.queries() };
            if owned >= of_queries_rows.len {
                return false;
            }
            let stored = slot + 48;
            shared::store_b32(stored, shared::load_b32(stored) + head - work.head);
            shared::store4(slot, [head, work.batch, kv_head, 2]);
            shared::store4(slot + 32, [owned, 0, 0, 1]);
        }
        true
    }
}

