//! In which units of its head a tile of keys is, and whose memory dK and dV have between these.

use core::hint::assert_unchecked;

use super::unit::Unit;
use super::{BEGAN_BEFORE, GOES_ON};
use crate::attention::stored_ds;
use crate::mask::QueryRange;
use crate::params::{AttentionParams, Tickets};
use crate::scheduler::WorkTile;

/// A tile of keys in a unit, of those units that it has queries in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Whether it is in the unit at all.
    pub(super) exists: bool,
    /// The first and one past the last of its queries there.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Units that it was in before.
    pub(super) before: u32,
    /// All units that it is in.
    pub(super) units: u32,
}

impl Part {
    /// Of the tile whose keys are seen by these queries of each head. One that nobody sees is in the last
    /// unit, without queries: its gradients are 0.
    ///
    /// # Safety
    /// As [`Unit::begin`].
    #[inline(always)]
    pub(super) unsafe fn new(
        params: &AttentionParams,
        tickets: &Tickets,
        unit: Unit,
        seen: QueryRange,
    ) -> Self {
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

    /// The word [`PLACE`](super::PLACE) of the `index`-th tile of keys of a unit, which is in several: all
    /// tiles that had its memory in earlier rounds have to be done too.
    ///
    /// # Safety
    /// As [`Unit::stores`]; rounds have heads.
    #[inline(always)]
    pub(super) unsafe fn place_word(
        self,
        params: &AttentionParams,
        tickets: &Tickets,
        (unit, index): (Unit, u32),
    ) -> u32 {
        let (mut head, mut units, owned) = (unit.head, self.before, index * tickets.key_rows);
        while head >= tickets.heads_of_round {
            head -= tickets.heads_of_round;
            // SAFETY: it is a head of the problem, and units have rows.
            unsafe {
                let work = WorkTile::of_unit(params, head);
                if owned < work.keys.len {
                    let seen = stored_ds::queries(params, &work, owned);
                    let of_head = Self::new(params, tickets, Unit { head, ..unit }, seen).units;
                    // One that is in a single unit keeps nothing, and does not count.
                    units += if of_head > 1 { of_head } else { 0 };
                }
            }
        }
        let began_before = if self.before > 0 { BEGAN_BEFORE } else { 0 };
        4 * units + began_before + if self.before + 1 < self.units { GOES_ON } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::mask::UNLIMITED;
    use std::vec::Vec;

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
                part.place_word(&params, &tickets, (unit, index))
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
                    assert_eq!((part.before, before < units), (before, before > 0), "{first} {end} {number}");
                    rows.extend(part.first..part.end);
                    (before, units) = (before + 1, part.units);
                }
            }
            assert!(before > 0 && before == units, "{first} {end}");
            assert!(rows.into_iter().eq((first..end).chain(first..end)), "{first} {end}");
        }
    }
}
