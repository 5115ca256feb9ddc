//! dS in device memory, between the tiles of keys that compute it and those of queries that multiply it with
//! K.
//!
//! Each query head has a panel for every 64 queries: a row of 128 bytes for each key, in the order of the
//! keys up to a multiple of [`GRANULE`]. A thread stores its part of a product, in which keys are rows, as it
//! is: what it holds of 32 queries of a key is one piece of 16 bytes, and so queries stand in another order
//! within their row ([`query`]). Rows of the panel, read as columns of A, then come out in that order.
//!
//! Panels are written whole granules of queries and keys at a time, where any query of the one sees any key
//! of the other; nothing is written elsewhere, but past the end of the queries.

use crate::mask::{QueryRange, TileMask};
use crate::params::{AttentionParams, StoredDs};
use crate::ptx::{global, index};
use crate::registers::Registers;
use crate::scheduler::WorkTile;

/// Queries of a panel.
pub const PANEL: u32 = 64;

/// Bytes of a key's row in a panel.
pub const ROW_BYTES: u32 = 2 * PANEL;

/// Queries, and keys, of which dS is stored all or nothing: the rows that a block owns.
pub const GRANULE: u32 = 128;

/// Bytes of a thread's piece.
pub const PIECE: u32 = 16;

/// Queries among which those of a piece are: half a panel.
pub const PIECE_QUERIES: u32 = 32;

/// Which query of its panel stands at `place` in a row.
#[inline(always)]
pub fn query(place: u32) -> u32 {
    place / 32 * 32 + place % 8 / 2 * 8 + place / 8 % 4 * 2 + place % 2
}

/// The queries of which dS with `key`, one of the sequence's, is stored: the granules of those that see any
/// key of its granule, up to the end of the sequence.
#[inline(always)]
pub fn queries(params: &AttentionParams, work: &WorkTile, key: u32) -> QueryRange {
    let seen = QueryRange::of_keys(params, work, key / GRANULE * GRANULE, GRANULE);
    QueryRange {
        first: seen.first / GRANULE * GRANULE,
        end: seen.end.next_multiple_of(GRANULE).min(work.queries.len),
    }
}

/// The first and one past the last key of which dS is stored with the granule of queries that begins with
/// `first_row`, a query of the sequence's: whole granules, up to the last 64 keys that begin in the sequence.
/// None are stored of a row that sees none.
#[inline(always)]
pub fn keys(params: &AttentionParams, work: &WorkTile, first_row: u32) -> (u32, u32) {
    let seen = TileMask::new(params, work, first_row, GRANULE, GRANULE).seen;
    if seen.first < seen.end {
        let end = work.keys.len.next_multiple_of(PANEL);
        (seen.first / GRANULE * GRANULE, seen.end.next_multiple_of(GRANULE).min(end))
    } else {
        (0, 0)
    }
}

/// The first piece that a thread stores of a block of keys, of all pieces that are stored: of the panel of
/// the `head`-th head that begins with query `row`, and of its key `key`, the first of two eight rows apart.
#[inline(always)]
pub fn piece(ds: &StoredDs, head: u32, (row, key): (u32, u32)) -> u32 {
    let lane = index::reread_thread() % 4;
    head * ds.head_pieces + row / PANEL * ds.panel_pieces + key * (ROW_BYTES / PIECE) + lane
}

/// Pieces from those of a panel's first queries to those so many queries behind, a multiple of
/// [`PIECE_QUERIES`].
#[inline(always)]
pub fn behind(ds: &StoredDs, queries: u32) -> u32 {
    let of_piece = ROW_BYTES * PIECE_QUERIES / PANEL / PIECE;
    queries / PANEL * ds.panel_pieces + queries % PANEL / PIECE_QUERIES * of_piece
}

/// Stores a thread's part of a panel, of its half, or of two, rounded and packed as A, from the `first` piece
/// on.
///
/// # Safety
/// The panel's rows are writable, and nobody else accesses this thread's pieces.
#[inline(always)]
#[track_caller]
pub unsafe fn store<P: Registers<Value = u32>>(ds: &StoredDs, first: u32, packed: &P) {
    let address = ds.address + PIECE as u64 * first as u64;
    let mut piece = 0;
    while piece < P::LEN / 4 {
        let (row, half) = (piece % 2, piece / 2);
        let word = |i: usize| packed[2 * (4 * half + i) + row];
        let behind = 8 * row as u32 * ROW_BYTES + half as u32 % 2 * (ROW_BYTES / 2);
        let panel = PIECE as u64 * (half as u32 / 2 * ds.panel_pieces) as u64;
        // SAFETY: the piece is this thread's, in a row that is writable.
        unsafe { global::store4(address + panel + behind as u64, [word(0), word(1), word(2), word(3)]) };
        piece += 1;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::mask::UNLIMITED;
    use crate::scheduler::Rows;
    use std::vec::Vec;

    #[test]
    fn every_query_stands_in_one_place() {
        let mut queries: Vec<u32> = (0..PANEL).map(query).collect();
        assert_eq!(queries[..10], [0, 1, 8, 9, 16, 17, 24, 25, 2, 3]);
        queries.sort_unstable();
        assert!(queries.into_iter().eq(0..PANEL));
    }

    /// Whether dS of a granule of queries and one of keys is stored, and whether it is read.
    fn sides(params: &AttentionParams, work: &WorkTile, (row, key): (u32, u32)) -> (bool, bool) {
        let QueryRange { first, end } = queries(params, work, key);
        let (first_key, end_key) = keys(params, work, row);
        (first < end && (first..end).contains(&row), (first_key..end_key).contains(&key))
    }

    #[test]
    fn what_is_read_was_stored() {
        let windows =
            [(UNLIMITED, UNLIMITED), (UNLIMITED, 0), (0, 0), (100, 0), (130, 64), (1, UNLIMITED), (0, 300)];
        let lengths = [1, 63, 128, 129, 300, 512, 700];
        for (seqlen_q, seqlen_k) in lengths.into_iter().flat_map(|q| lengths.map(|k| (q, k))) {
            for (left, right) in windows {
                let window_span = if right == UNLIMITED { left + UNLIMITED } else { left + right };
                let params = AttentionParams {
                    seqlen_q,
                    seqlen_k,
                    window_left: left,
                    window_span,
                    heads: 1,
                    group: 1,
                    ..AttentionParams::default()
                };
                let queries = Rows { first: 0, len: seqlen_q };
                let keys = Rows { first: 0, len: seqlen_k };
                let work = WorkTile { tile: 0, head: 0, batch: 0, queries, keys };
                for row in (0..seqlen_q).step_by(GRANULE as usize) {
                    for key in (0..seqlen_k).step_by(PANEL as usize) {
                        let (stored, read) = sides(&params, &work, (row, key));
                        assert_eq!(stored, read, "{params:?} {row} {key}");
                    }
                }
            }
        }
    }
}
