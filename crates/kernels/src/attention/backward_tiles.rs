//! The tiles of a backward pass that stores dS, written down by its first launch for the one that computes
//! all gradients: finding one takes more registers than the thread that takes tickets has.
//!
//! A unit is a key/value head of a sequence with its query heads. Its tiles of keys store dS, and its tiles
//! of queries wait for all of them. The memory of dS is taken again by a later unit, whose tiles of keys wait
//! for those queries. Tiles of either kind are taken in the order of their units.

use core::hint::assert_unchecked;

use crate::attention::stored_ds;
use crate::params::{BackwardParams, Tickets};
use crate::ptx::{global, index};
use crate::scheduler::WorkTile;

/// The word of a tile that says what it is, [`EMPTY`], [`OF_KEYS`] or [`OF_QUERIES`].
pub const KIND: u32 = 3;
/// The word with the counter that a tile waits for; behind it stands how many it waits for there.
pub const AWAITED: u32 = 13;
/// The word with the counter that a tile adds to when it is done.
pub const DONE: u32 = 15;

/// A tile without rows, of a sequence that is shorter than others.
pub const EMPTY: u32 = 0;
/// A tile of keys: dK and dV of them, and dS.
pub const OF_KEYS: u32 = 1;
/// A tile of queries: dQ of them.
pub const OF_QUERIES: u32 = 2;

/// Blocks that write tiles.
const WRITERS: u32 = 1024;

/// A tile of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    unit: u32,
    /// Index among the unit's tiles of keys, or of queries.
    index: u32,
    of_keys: bool,
}

impl Place {
    /// What the `tile`-th tile is: those of keys come first.
    ///
    /// # Safety
    /// There are tiles of both kinds, so many of queries in a unit, and all of them are below 2^31.
    #[inline(always)]
    unsafe fn of_tile(tickets: &Tickets, query_tiles: u32, tile: u32) -> Self {
        let of_keys = tile < tickets.units * tickets.key_tiles;
        let (tile, tiles) = if of_keys {
            (tile, tickets.key_tiles)
        } else {
            (tile - tickets.units * tickets.key_tiles, query_tiles)
        };
        // SAFETY: units have tiles.
        unsafe { assert_unchecked(tiles > 0) };
        Self { unit: tile / tiles, index: tile % tiles, of_keys }
    }

    /// The counter of this unit's tiles of keys, or of queries, that are done.
    #[inline(always)]
    const fn counter(unit: u32, of_keys: bool) -> u32 {
        2 * unit + !of_keys as u32
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
    let query_tiles = tickets.query_tiles * params.attention.group;
    let mut tile = first;
    while tile < tickets.units * (tickets.key_tiles + query_tiles) {
        // SAFETY: the tile is this thread's, and units have tiles.
        unsafe {
            let place = Place::of_tile(tickets, query_tiles, tile);
            write_tile(params, place, tickets.tile(tile));
        }
        tile += all;
    }
}

/// Writes a tile's words, of which [`KIND`], [`AWAITED`] and [`DONE`] name some.
///
/// # Safety
/// The tile's bytes at `address` are this thread's; it is one of the launch.
#[inline(always)]
unsafe fn write_tile(params: &BackwardParams, place: Place, address: u64) {
    let (attention, tickets) = (&params.attention, &params.tickets);
    let Place { unit, index, of_keys } = place;
    let (counter, tiles) = place.awaited(tickets, tickets.query_tiles * attention.group);
    // SAFETY: the bytes are this thread's; heads have tiles, groups have heads, and the ring has units.
    unsafe {
        assert_unchecked(tickets.ring > 0);
        let work = WorkTile::of_unit(attention, unit);
        let (head, tile) = if of_keys {
            (work.head, index)
        } else {
            work.of_query_tile(attention, tickets.query_tiles, index)
        };
        let owned = tile * if of_keys { tickets.key_rows } else { tickets.query_rows };
        let exists = owned < if of_keys { work.keys.len } else { work.queries.len };
        let kind = match (exists, of_keys) {
            (false, _) => EMPTY,
            (true, true) => OF_KEYS,
            (true, false) => OF_QUERIES,
        };
        let (first, end) = if of_keys && exists {
            let seen = stored_ds::queries(attention, &work, owned);
            (seen.first, seen.end)
        } else {
            (0, 0)
        };
        let ds_head = unit % tickets.ring * attention.group + head - work.head;
        let heads = if of_keys { attention.group } else { 1 };
        let (queries, keys) = (work.queries, work.keys);
        global::store4(address, [head, work.batch, work.kv_head(attention), kind]);
        global::store4(address + 16, [queries.first, queries.len, keys.first, keys.len]);
        global::store4(address + 32, [owned, first, end, heads]);
        global::store4(address + 48, [ds_head, counter, tiles, Place::counter(unit, of_keys)]);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// What is done of each unit: its tiles of keys, and of queries.
    type Done = Vec<[u32; 2]>;

    /// Whether a tile finds what it reads, and overwrites nothing that is still read.
    fn may_begin(place: Place, tickets: &Tickets, query_tiles: u32, done: &Done) -> bool {
        let unit = place.unit as usize;
        if place.of_keys {
            unit.checked_sub(tickets.ring as usize).is_none_or(|before| done[before][1] == query_tiles)
        } else {
            done[unit][0] == tickets.key_tiles
        }
    }

    /// As two blocks go on side by side, one of each kind.
    #[test]
    fn every_tile_comes_once_and_waits_for_what_it_needs() {
        for (units, ring) in [(1, 1), (7, 7), (7, 3), (7, 1), (3, 2)] {
            for (key_tiles, query_tiles) in [(1, 1), (3, 4), (5, 2)] {
                let tickets = Tickets { units, ring, key_tiles, ..Tickets::default() };
                let ends = [units * key_tiles, units * (key_tiles + query_tiles)];
                let mut next = [0, ends[0]];
                let mut done: Done = vec![[0; 2]; units as usize];
                while next != ends {
                    let before = next;
                    for (next, end) in next.iter_mut().zip(ends) {
                        if *next == end {
                            continue;
                        }
                        // SAFETY: there are tiles of both kinds.
                        let place = unsafe { Place::of_tile(&tickets, query_tiles, *next) };
                        let (counter, tiles) = place.awaited(&tickets, query_tiles);
                        let counted = done[counter as usize / 2][counter as usize % 2];
                        if counted >= tiles {
                            assert!(may_begin(place, &tickets, query_tiles, &done), "{tickets:?} {place:?}");
                            done[place.unit as usize][!place.of_keys as usize] += 1;
                            *next += 1;
                        }
                    }
                    assert_ne!(next, before, "{tickets:?} waits for ever");
                }
                assert!(done.iter().all(|done| *done == [key_tiles, query_tiles]));
            }
        }
    }
}
