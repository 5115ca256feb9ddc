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

use core::hint::assert_unchecked;

use crate::attention::stored_ds;
use crate::mask::{KeyRange, QueryRange};
use crate::params::{AttentionParams, BackwardParams, Tickets};
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

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    /// Its number among all.
    number: u32,
    /// Its key/value head, of those of all sequences.
    head: u32,
    /// That head's number in its round.
    head_of_round: u32,
    /// Which of the head's units it is.
    part: u32,
}

impl Unit {
    /// The unit with this number.
    ///
    /// # Safety
    /// Rounds have heads, heads have units, and the number is below that of all units.
    #[inline(always)]
    unsafe fn new(tickets: &Tickets, number: u32) -> Self {
        // SAFETY: rounds have units, and so has this one a head.
        unsafe {
            let units = tickets.heads_of_round * tickets.units_of_head;
            assert_unchecked(units > 0);
            let (round, of_round) = (number / units, number % units);
            let first = round * tickets.heads_of_round;
            let heads = tickets.heads_of_round.min(tickets.heads - first);
            assert_unchecked(heads > 0);
            let head_of_round = of_round % heads;
            Self { number, head: first + head_of_round, head_of_round, part: of_round / heads }
        }
    }

    /// The counter of its tiles of keys, or of queries, that are done.
    #[inline(always)]
    const fn counter(number: u32, of_keys: bool) -> u32 {
        2 * number + !of_keys as u32
    }

    /// Its first query head, counted from the first of the key/value head's, and its first query; with them
    /// how many runs of queries a head has.
    ///
    /// # Safety
    /// Units have rows.
    #[inline(always)]
    unsafe fn begin(self, params: &AttentionParams, tickets: &Tickets) -> (u32, u32, u32) {
        // SAFETY: units have rows, and sequences too.
        unsafe {
            assert_unchecked(tickets.unit_rows > 0);
            let runs = params.seqlen_q.div_ceil(tickets.unit_rows);
            assert_unchecked(runs > 0);
            (self.part / runs * tickets.unit_heads, self.part % runs * tickets.unit_rows, runs)
        }
    }

    /// Whether dS of it is stored: some of its queries see keys. Else its tiles are done without waiting.
    ///
    /// # Safety
    /// As [`Self::new`], of a unit that there is; `params` is valid.
    #[inline(always)]
    unsafe fn stores(self, params: &AttentionParams, tickets: &Tickets) -> bool {
        // SAFETY: units have rows.
        let (work, (_, row, _)) =
            unsafe { (WorkTile::of_unit(params, self.head), self.begin(params, tickets)) };
        let rows = work.queries.len.saturating_sub(row).min(tickets.unit_rows);
        rows > 0 && {
            let first = KeyRange::of_row(params, &work, row).first;
            KeyRange { first, ..KeyRange::of_row(params, &work, row + rows - 1) }.has_keys()
        }
    }

    /// The unit before it in whose memory it stores dS, and whose queries it waits for; `None` where nobody
    /// stored any.
    ///
    /// # Safety
    /// As [`Self::stores`]; the ring has units.
    #[inline(always)]
    unsafe fn overwritten(self, params: &AttentionParams, tickets: &Tickets) -> Option<Self> {
        let mut unit = self;
        while unit.number >= tickets.ring {
            // SAFETY: it is a unit.
            unsafe {
                unit = Self::new(tickets, unit.number - tickets.ring);
                if unit.stores(params, tickets) {
                    return Some(unit);
                }
            }
        }
        None
    }
}

/// A tile of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    unit: Unit,
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
        let all_of_keys = tickets.all_of_keys();
        let of_keys = tile < all_of_keys;
        let (tile, tiles) =
            if of_keys { (tile, tickets.key_tiles) } else { (tile - all_of_keys, query_tiles) };
        // SAFETY: units have tiles.
        unsafe {
            assert_unchecked(tiles > 0);
            Self { unit: Unit::new(tickets, tile / tiles), index: tile % tiles, of_keys }
        }
    }

    /// The counter that this tile waits for, and how many it waits for there; 0 for none.
    ///
    /// # Safety
    /// As [`Unit::overwritten`].
    #[inline(always)]
    unsafe fn awaited(self, params: &AttentionParams, tickets: &Tickets, query_tiles: u32) -> (u32, u32) {
        if !self.of_keys {
            return (Unit::counter(self.unit.number, true), tickets.key_tiles);
        }
        // SAFETY: the caller's promise is this function's.
        match unsafe { self.unit.overwritten(params, tickets) } {
            Some(unit) => (Unit::counter(unit.number, false), query_tiles),
            None => (0, 0),
        }
    }
}

/// A tile of keys in a unit, of those units that it has queries in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Whether it is in the unit at all.
    exists: bool,
    /// The first and one past the last of its queries there.
    first: u32,
    end: u32,
    /// Units that it was in before.
    before: u32,
    /// All units that it is in.
    units: u32,
}

impl Part {
    /// Of the tile whose keys are seen by these queries of each head. One that nobody sees is in the last
    /// unit, without queries: its gradients are 0.
    ///
    /// # Safety
    /// As [`Unit::begin`].
    #[inline(always)]
    unsafe fn new(params: &AttentionParams, tickets: &Tickets, unit: Unit, seen: QueryRange) -> Self {
        let is_last = unit.part + 1 == tickets.units_of_head;
        if seen.first >= seen.end {
            return Self { exists: is_last, first: 0, end: 0, before: 0, units: 1 };
        }
        // SAFETY: units have rows.
        unsafe {
            let (_, row, runs) = unit.begin(params, tickets);
            assert_unchecked(tickets.unit_rows > 0);
            let (first_run, last_run) = (seen.first / tickets.unit_rows, (seen.end - 1) / tickets.unit_rows);
            let (run, runs_seen) = (unit.part % runs, last_run - first_run + 1);
            let exists = run >= first_run && run <= last_run;
            Self {
                exists,
                first: seen.first.max(row),
                end: seen.end.min(row + tickets.unit_rows),
                before: if exists { unit.part / runs * runs_seen + run - first_run } else { 0 },
                units: tickets.units_of_head / runs * runs_seen,
            }
        }
    }
}

/// The word [`PLACE`] of the `index`-th tile of keys of a unit, which is in several: all tiles that had its
/// memory in earlier rounds have to be done too.
///
/// # Safety
/// As [`Unit::stores`]; rounds have heads.
#[inline(always)]
unsafe fn place_word(
    params: &AttentionParams,
    tickets: &Tickets,
    (unit, index, part): (Unit, u32, Part),
) -> u32 {
    let (mut head, mut units, owned) = (unit.head, part.before, index * tickets.key_rows);
    while head >= tickets.heads_of_round {
        head -= tickets.heads_of_round;
        // SAFETY: it is a head of the problem, and units have rows.
        unsafe {
            let work = WorkTile::of_unit(params, head);
            if owned < work.keys.len {
                let seen = stored_ds::queries(params, &work, owned);
                let of_head = Part::new(params, tickets, Unit { head, ..unit }, seen).units;
                // One that is in a single unit keeps nothing, and does not count.
                units += if of_head > 1 { of_head } else { 0 };
            }
        }
    }
    let began_before = if part.before > 0 { BEGAN_BEFORE } else { 0 };
    4 * units + began_before + if part.before + 1 < part.units { GOES_ON } else { 0 }
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
    let query_tiles = tickets.query_tiles * tickets.unit_heads;
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
        let (counter, tiles) = place.awaited(attention, tickets, tickets.query_tiles * tickets.unit_heads);
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
        let place = if has_others { place_word(attention, tickets, (unit, index, part)) } else { 0 };
        global::store4(address, [head, work.batch, kv_head, kind]);
        global::store4(address + 16, [queries.first, queries.len, keys.first, keys.len]);
        global::store4(address + 32, [owned, part.first, part.end, heads]);
        global::store4(address + 48, [ds_head, counter, tiles, Unit::counter(unit.number, of_keys)]);
        global::store4(address + 64, [row, column, units_done, place]);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::mask::UNLIMITED;
    use std::vec;
    use std::vec::Vec;

    /// What is done of each unit: its tiles of keys, and of queries.
    type Done = Vec<[u32; 2]>;

    /// Whether a tile finds what it reads, and overwrites nothing that is still read.
    fn may_begin(
        place: Place,
        params: &AttentionParams,
        (tickets, query_tiles): (&Tickets, u32),
        done: &Done,
    ) -> bool {
        let all = [tickets.key_tiles, query_tiles];
        if !place.of_keys {
            return done[place.unit.number as usize][0] == all[0];
        }
        let before = (0..place.unit.number).rev().skip(tickets.ring as usize - 1);
        before.step_by(tickets.ring as usize).all(|number| {
            // SAFETY: it is a unit, and units have rows.
            let stores = unsafe { Unit::new(tickets, number).stores(params, tickets) };
            !stores || done[number as usize] == all
        })
    }

    /// As two blocks go on side by side, one of each kind. Tiles of units that store no dS are done at once.
    /// Of the others those of keys are `slow`: as late as queries allow.
    fn takes_all(params: &AttentionParams, tickets: &Tickets, query_tiles: u32, slow: bool) {
        let (units, key_tiles) = (tickets.units(), tickets.key_tiles);
        let mut done: Done = vec![[0; 2]; units as usize];
        // Tiles that are taken, and those that wait or are multiplied.
        let mut next = [0, units * key_tiles];
        let ends = [units * key_tiles, units * (key_tiles + query_tiles)];
        let mut at_hand: Vec<Place> = Vec::new();
        while next != ends || !at_hand.is_empty() {
            let mut goes_on = false;
            for (next, end) in next.iter_mut().zip(ends) {
                if *next < end {
                    // SAFETY: there are tiles of both kinds, and units have rows.
                    let (place, stores) = unsafe {
                        let place = Place::of_tile(tickets, query_tiles, *next);
                        (place, place.unit.stores(params, tickets))
                    };
                    if stores {
                        at_hand.push(place);
                    } else {
                        done[place.unit.number as usize][!place.of_keys as usize] += 1;
                    }
                    (*next, goes_on) = (*next + 1, true);
                }
            }
            let can_end = |place: &Place| {
                // SAFETY: the ring has units, and units have rows.
                let (counter, tiles) = unsafe { place.awaited(params, tickets, query_tiles) };
                done[counter as usize / 2][counter as usize % 2] >= tiles
            };
            let ending = at_hand.iter().position(|place| !(slow && place.of_keys) && can_end(place));
            if let Some(place) = ending.or_else(|| at_hand.iter().position(can_end)) {
                let place = at_hand.remove(place);
                assert!(may_begin(place, params, (tickets, query_tiles), &done), "{tickets:?} {place:?}");
                done[place.unit.number as usize][!place.of_keys as usize] += 1;
                goes_on = true;
            }
            assert!(goes_on, "{tickets:?} waits for ever");
        }
        assert!(done.iter().all(|done| *done == [key_tiles, query_tiles]));
    }

    #[test]
    fn every_tile_comes_once_and_waits_for_what_it_needs() {
        for (heads, heads_of_round, units_of_head) in [(1, 1, 1), (7, 7, 1), (7, 3, 1), (3, 2, 4), (2, 2, 6)]
        {
            for ring in [1, 2, 3, 7] {
                for (key_tiles, query_tiles) in [(1, 1), (3, 4), (5, 2)] {
                    let tickets = Tickets {
                        heads,
                        heads_of_round,
                        units_of_head,
                        unit_heads: 1,
                        unit_rows: 256,
                        ring,
                        key_tiles,
                        ..Tickets::default()
                    };
                    // All queries see keys, or those of the last unit alone, or of one in the middle.
                    for (keys, left, right) in
                        [(2048, UNLIMITED, UNLIMITED), (100, UNLIMITED, 0), (256 * units_of_head, 0, 0)]
                    {
                        let params = AttentionParams {
                            seqlen_q: 256 * units_of_head,
                            seqlen_k: keys,
                            heads,
                            group: 1,
                            window_left: left,
                            window_span: left + right,
                            ..AttentionParams::default()
                        };
                        takes_all(&params, &tickets, query_tiles, false);
                        takes_all(&params, &tickets, query_tiles, true);
                    }
                }
            }
        }
    }

    #[test]
    fn a_unit_whose_queries_see_no_key_is_not_waited_for() {
        let params = AttentionParams {
            seqlen_q: 1024,
            seqlen_k: 200,
            heads: 2,
            group: 1,
            window_left: UNLIMITED,
            window_span: UNLIMITED,
            ..AttentionParams::default()
        };
        let tickets = Tickets {
            heads: 2,
            heads_of_round: 2,
            units_of_head: 4,
            unit_heads: 1,
            unit_rows: 256,
            ring: 1,
            key_tiles: 2,
            ..Tickets::default()
        };
        // SAFETY: units have rows, and the ring has units.
        let overwritten = |number| unsafe {
            let unit = Unit::new(&tickets, number);
            (unit.stores(&params, &tickets), unit.overwritten(&params, &tickets).map(|unit| unit.number))
        };
        // Two heads take turns; the last run of each sees keys.
        assert_eq!([5, 6, 7].map(overwritten), [(false, None), (true, None), (true, Some(6))]);
    }

    #[test]
    fn heads_of_a_round_take_turns() {
        let tickets = Tickets { heads: 5, heads_of_round: 3, units_of_head: 2, ..Tickets::default() };
        // SAFETY: rounds have heads, and heads have units.
        let unit = |number| unsafe { Unit::new(&tickets, number) };
        let order: Vec<_> = (0..10).map(|number| (unit(number).head, unit(number).part)).collect();
        let first = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)];
        assert_eq!((&order[..6], &order[6..]), (&first[..], &[(3, 0), (4, 0), (3, 1), (4, 1)][..]));
        assert_eq!(unit(8).head_of_round, 0);
    }

    #[test]
    fn sums_take_memory_that_those_before_have_left() {
        let params = AttentionParams {
            seqlen_q: 1024,
            seqlen_k: 700,
            heads: 5,
            group: 1,
            window_left: UNLIMITED,
            window_span: UNLIMITED + UNLIMITED,
            ..AttentionParams::default()
        };
        let tickets = Tickets {
            heads: 5,
            heads_of_round: 2,
            units_of_head: 4,
            unit_heads: 1,
            unit_rows: 256,
            ring: 3,
            key_tiles: 6,
            key_rows: 128,
            ..Tickets::default()
        };
        // The first of the numbers is that of a unit, the second of a tile of its keys.
        let placed = |number, index: u32| {
            // SAFETY: it is a unit, and units have rows.
            unsafe {
                let unit = Unit::new(&tickets, number);
                let work = WorkTile::of_unit(&params, unit.head);
                let seen = stored_ds::queries(&params, &work, index * tickets.key_rows);
                let part = Part::new(&params, &tickets, unit, seen);
                place_word(&params, &tickets, (unit, index, part))
            }
        };
        // Heads 0 and 1 take turns, then 2 and 3, then 4: four units each.
        assert_eq!([0, 2, 6].map(|number| placed(number, 0)), [GOES_ON, 4 + 3, 12 + BEGAN_BEFORE]);
        assert_eq!([8, 11, 15].map(|number| placed(number, 5)), [16 + GOES_ON, 20 + 3, 28 + BEGAN_BEFORE]);
        assert_eq!([16, 19].map(|number| placed(number, 1)), [32 + GOES_ON, 44 + BEGAN_BEFORE]);
    }

    #[test]
    fn a_tile_of_keys_goes_on_where_it_stopped() {
        let params = AttentionParams { seqlen_q: 1000, ..AttentionParams::default() };
        let tickets = Tickets {
            heads: 1,
            heads_of_round: 1,
            units_of_head: 2 * 4,
            unit_heads: 3,
            unit_rows: 256,
            ..Tickets::default()
        };
        for (first, end) in [(0, 1000), (256, 600), (128, 300), (768, 1000), (0, 128), (300, 300)] {
            let mut rows = Vec::new();
            let mut before = 0;
            let mut units = 0;
            for number in 0..8 {
                // SAFETY: units have rows.
                let part = unsafe {
                    let unit = Unit::new(&tickets, number);
                    Part::new(&params, &tickets, unit, QueryRange { first, end })
                };
                if part.exists {
                    assert_eq!((part.before, before > 0), (before, units > 0), "{first} {end} {number}");
                    rows.extend(part.first..part.end);
                    (before, units) = (before + 1, part.units);
                }
            }
            assert!(before > 0 && before == units, "{first} {end}");
            assert!(rows.into_iter().eq((first..end).chain(first..end)), "{first} {end}");
        }
    }
}
