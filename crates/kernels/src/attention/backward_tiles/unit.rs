//! Units, and the tiles of them in the order in which they are taken.

use core::hint::assert_unchecked;

use crate::mask::KeyRange;
use crate::params::{AttentionParams, Tickets};
use crate::scheduler::WorkTile;

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Its number among all.
    pub(super) number: u32,
    /// Its key/value head, of those of all sequences.
    pub(super) head: u32,
    /// That head's number in its round.
    pub(super) head_of_round: u32,
    /// Which of the head's units it is.
    pub(super) part: u32,
}

impl Unit {
    /// The unit with this number.
    ///
    /// # Safety
    /// Rounds have heads, heads have units, and the number is below that of all units.
    #[inline(always)]
    pub(super) unsafe fn new(tickets: &Tickets, number: u32) -> Self {
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
    pub(super) const fn counter(number: u32, of_keys: bool) -> u32 {
        2 * number + !of_keys as u32
    }

    /// Its first query head, counted from the first of the key/value head's, and its first query; with them
    /// how many runs of queries a head has.
    ///
    /// # Safety
    /// Units have rows.
    #[inline(always)]
    pub(super) unsafe fn begin(self, params: &AttentionParams, tickets: &Tickets) -> (u32, u32, u32) {
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
    pub(super) unsafe fn stores(self, params: &AttentionParams, tickets: &Tickets) -> bool {
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
    pub(super) unsafe fn overwritten(self, params: &AttentionParams, tickets: &Tickets) -> Option<Self> {
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
pub(super) struct Place {
    pub(super) unit: Unit,
    /// Index among the unit's tiles of keys, or of queries.
    pub(super) index: u32,
    pub(super) of_keys: bool,
}

impl Place {
    /// What the `tile`-th tile is: those of keys come first.
    ///
    /// # Safety
    /// There are tiles of both kinds, so many of queries in a unit, and all of them are below 2^31.
    #[inline(always)]
    pub(super) unsafe fn of_tile(tickets: &Tickets, query_tiles: u32, tile: u32) -> Self {
        if tickets.steps_of_head > 0 {
            // SAFETY: the caller's promise is this function's.
            return unsafe { Self::of_turn(tickets, tile) };
        }
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

    /// As [`Self::of_tile`] where dQ is summed over tiles of keys in turn: heads of a round have one each in
    /// turn too, so that few of a head are computed at a time.
    ///
    /// # Safety
    /// As [`Self::of_tile`]; heads are units.
    #[inline(always)]
    unsafe fn of_turn(tickets: &Tickets, tile: u32) -> Self {
        // SAFETY: rounds have tiles, and so has this one a head.
        unsafe {
            let tiles = tickets.heads_of_round * tickets.key_tiles;
            assert_unchecked(tiles > 0);
            let (round, of_round) = (tile / tiles, tile % tiles);
            let first = round * tickets.heads_of_round;
            let heads = tickets.heads_of_round.min(tickets.heads - first);
            assert_unchecked(heads > 0);
            let unit = Unit::new(tickets, first + of_round % heads);
            Self { unit, index: of_round / heads, of_keys: true }
        }
    }

    /// The counter that this tile waits for, and how many it waits for there; 0 for none.
    ///
    /// # Safety
    /// As [`Unit::overwritten`].
    #[inline(always)]
    pub(super) unsafe fn awaited(
        self,
        params: &AttentionParams,
        tickets: &Tickets,
        query_tiles: u32,
    ) -> (u32, u32) {
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
    fn heads_of_a_round_have_tiles_of_keys_in_turn() {
        let tickets = Tickets {
            heads: 5,
            heads_of_round: 2,
            units_of_head: 1,
            key_tiles: 3,
            steps_of_head: 7,
            ..Tickets::default()
        };
        // SAFETY: there are tiles, and rounds have heads.
        let place = |tile| unsafe { Place::of_tile(&tickets, 0, tile) };
        let order: Vec<_> = (0..15).map(|tile| (place(tile).unit.head, place(tile).index)).collect();
        let round = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)];
        assert_eq!((&order[..6], &order[12..]), (&round[..], &[(4, 0), (4, 1), (4, 2)][..]));
        for (at, &(head, index)) in order.iter().enumerate() {
            // Whom a tile waits for has an earlier ticket.
            assert!(index == 0 || order[..at].contains(&(head, index - 1)), "{head} {index}");
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
}
