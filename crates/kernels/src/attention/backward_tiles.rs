//! The tiles of a backward pass that stores dS, written down by its first launch for the one that computes
//! all gradients: finding one takes more registers than the thread that takes tickets has.
//!
//! A unit is a key/value head of a sequence with its query heads, or a part of that: one of the query heads,
//! or a run of its queries. Its tiles of keys store dS, and its tiles of queries wait for all of them. The
//! memory of dS is taken again by a later unit, whose tiles of keys wait for those queries. Tiles of either
//! kind are taken in the order of their units, in which the heads of a round take turns.
//!
//! Where a head has several units, a tile of keys is in each that it has queries in, and goes on with dK and
//! dV where it stopped. So sums have the same order however units are made. The memory of these sums is that
//! of a round, and the next round's tiles wait until those before have taken theirs from there.

mod part;
mod unit;

use core::hint::assert_unchecked;

use self::part::Part;
use self::unit::{Place, Unit};
use crate::attention::stored_ds;
use crate::params::BackwardParams;
use crate::ptx::{global, index};
use crate::scheduler::WorkTile;

/// The word of a tile that says what it is, [`EMPTY`], [`OF_KEYS`] or [`OF_QUERIES`].
pub const KIND: u32 = 3;
/// The word with the counter that a tile waits for; behind it stands how many it waits for there.
pub const AWAITED: u32 = 13;
/// The word with the counter that a tile adds to when it is done.
pub const DONE: u32 = 15;
/// The word with the first query of its unit.
pub const UNIT_ROW: u32 = 16;
/// The word that says which tile of keys of its round's heads it is.
pub const COLUMN: u32 = 17;
/// The word with the counter of units in which this tile of keys is done, and those of earlier rounds whose
/// dK and dV had its memory between units; [`NO_COUNTER`] where it is in one unit. Behind it stands
/// [`PLACE`].
pub const UNITS_DONE: u32 = 18;
/// The word with four times the number of those units that have to be done before it, with
/// [`BEGAN_BEFORE`] and [`GOES_ON`].
pub const PLACE: u32 = 19;
/// The tile goes on with dK and dV of a unit before.
pub const BEGAN_BEFORE: u32 = 2;
/// Another unit goes on with its dK and dV.
pub const GOES_ON: u32 = 1;

/// In place of a counter: there is none.
pub const NO_COUNTER: u32 = u32::MAX;

/// A tile without rows, of a sequence that is shorter than others, or without queries in its unit.
pub const EMPTY: u32 = 0;
/// A tile of keys: dK and dV of them, and dS.
pub const OF_KEYS: u32 = 1;
/// A tile of queries: dQ of them.
pub const OF_QUERIES: u32 = 2;

/// Blocks that write tiles.
const WRITERS: u32 = 1024;

/// Sets all counters to 0 and writes down all tiles, if the backward pass stores dS.
///
/// # Safety
/// All blocks of a launch with `threads` threads each call this; `params` is valid.
#[inline(always)]
pub unsafe fn write(params: &BackwardParams, threads: u32) {
    let tickets = &params.tickets;
    if tickets.counters == 0 || index::block() >= WRITERS {
        return;
    }
    let all = index::blocks().min(WRITERS) * threads;
    let first = index::block() * threads + index::thread();
    let mut counter = first;
    while counter < tickets.counter_count() {
        // SAFETY: the counter is this thread's.
        unsafe { global::store_b32(tickets.counter(counter), 0) };
        counter += all;
    }
    let query_tiles = tickets.query_tiles_of_unit();
    let mut tile = first;
    while tile < tickets.all_tiles() {
        // SAFETY: the tile is this thread's, and units have tiles.
        unsafe {
            let place = Place::of_tile(tickets, query_tiles, tile);
            write_tile(params, place, tickets.tile(tile));
        }
        tile += all;
    }
}

/// Writes a tile's words, of which [`KIND`], [`AWAITED`] and others are the names.
///
/// # Safety
/// The tile's bytes at `address` are this thread's; it is one of the launch.
#[inline(always)]
unsafe fn write_tile(params: &BackwardParams, place: Place, address: u64) {
    let (attention, tickets) = (&params.attention, &params.tickets);
    let Place { unit, index, of_keys } = place;
    // SAFETY: the bytes are this thread's; units have rows and tiles, and the ring has units.
    unsafe {
        assert_unchecked(tickets.ring > 0);
        let (counter, tiles) = place.awaited(attention, tickets, tickets.query_tiles_of_unit());
        let work = WorkTile::of_unit(attention, unit.head);
        let kv_head = work.kv_head(attention);
        let (head, row, _) = unit.begin(attention, tickets);
        let work = WorkTile { head: work.head + head, ..work };
        let (head, owned) = if of_keys {
            (work.head, index * tickets.key_rows)
        } else {
            let (head, tile) = work.of_query_tile(attention, tickets.query_tiles, index);
            (head, row + tile * tickets.query_rows)
        };
        let mut exists = owned < if of_keys { work.keys.len } else { work.queries.len };
        let mut part = Part { exists, first: 0, end: 0, before: 0, units: 1 };
        if of_keys && exists {
            part = Part::new(attention, tickets, unit, stored_ds::queries(attention, &work, owned));
            exists = part.exists;
        }
        let kind = match (exists, of_keys) {
            (false, _) => EMPTY,
            (true, true) => OF_KEYS,
            (true, false) => OF_QUERIES,
        };
        let ds_head = unit.number % tickets.ring * tickets.unit_heads + head - work.head;
        let heads = if of_keys { tickets.unit_heads } else { 1 };
        let (queries, keys) = (work.queries, work.keys);
        let has_others = of_keys && exists && part.units > 1;
        let column = unit.head_of_round * tickets.key_tiles + index;
        let units_done = if has_others { tickets.units_done(column) } else { NO_COUNTER };
        let place = if has_others { part.place_word(attention, tickets, (unit, index)) } else { 0 };
        global::store4(address, [head, work.batch, kv_head, kind]);
        global::store4(address + 16, [queries.first, queries.len, keys.first, keys.len]);
        global::store4(address + 32, [owned, part.first, part.end, heads]);
        global::store4(address + 48, [ds_head, counter, tiles, Unit::counter(unit.number, of_keys)]);
        global::store4(address + 64, [row, column, units_done, place]);
    }
}
