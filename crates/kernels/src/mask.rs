//! Which keys a query sees.

use crate::params::AttentionParams;
use crate::registers::Matrix;
use crate::scheduler::WorkTile;

/// A side of the window that hides nothing: sequences are at most this long.
pub const UNLIMITED: u32 = 1 << 30;

/// The keys from `first` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub first: u32,
    /// One past the last key; not above `first` where there is none.
    pub end: u32,
}

impl KeyRange {
    /// Whether there is a key.
    #[inline(always)]
    pub const fn has_keys(self) -> bool {
        self.first < self.end
    }

    /// What query `row` sees.
    ///
    /// The window is aligned bottom-right (FlashAttention-2.1): query i sees key j if
    /// i + Sk − Sq − left ≤ j ≤ i + Sk − Sq + right, so that rows may see none. Rows past Sq (tile
    /// padding) see at most what exists.
    #[inline(always)]
    pub fn of_row(params: &AttentionParams, work: &WorkTile, row: u32) -> Self {
        // Lengths and both sides are at most 2^30, so that no sum overflows.
        let (seqlen_q, seqlen_k) = (work.queries.len, work.keys.len);
        let diagonal = row + seqlen_k;
        let right = params.window_span - params.window_left;
        Self {
            first: diagonal.saturating_sub(seqlen_q + params.window_left),
            end: (diagonal + 1 + right).saturating_sub(seqlen_q).min(seqlen_k),
        }
    }
}

/// The queries from `first` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRange {
    /// The first query.
    pub first: u32,
    /// One past the last query; not above `first` where there is none.
    pub end: u32,
}

impl QueryRange {
    /// Those that see at least one of the `keys` keys from `first_key` on, which is one of the sequence's.
    /// The last of them may lie past Sk (tile padding).
    #[inline(always)]
    pub fn of_keys(params: &AttentionParams, work: &WorkTile, first_key: u32, keys: u32) -> Self {
        // As in `KeyRange::of_row`, with three summands of which none is above 2^30.
        let (seqlen_q, seqlen_k) = (work.queries.len, work.keys.len);
        let right = params.window_span - params.window_left;
        let last = (first_key + keys).min(seqlen_k);
        Self {
            first: (first_key + seqlen_q).saturating_sub(seqlen_k + right),
            end: (last + params.window_left + seqlen_q).saturating_sub(seqlen_k).min(seqlen_q),
        }
    }

    /// As [`KeyRange::from_multiple`].
    #[inline(always)]
    pub fn from_multiple(self, of: u32) -> Self {
        Self { first: multiple_before((self.first, self.end), of), ..self }
    }
}

/// Rows whose products tensor cores add up at once. A sum has the same bits wherever blocks of rows begin, as
/// long as that is at multiples of these.
pub const ADDED_AT_ONCE: u32 = 16;

/// The last multiple of a number up to where a range begins that has rows.
#[inline(always)]
fn multiple_before((first, end): (u32, u32), of: u32) -> u32 {
    if first < end { first - first % of } else { first }
}

impl KeyRange {
    /// With those before it from a multiple of a number on, none of which is seen.
    #[inline(always)]
    pub fn from_multiple(self, of: u32) -> Self {
        Self { first: multiple_before((self.first, self.end), of), ..self }
    }
}

/// The mask of a tile of queries against blocks of keys.
///
/// One register tells most of it: how far a key lies to the right of the first one in the window of the
/// tile's first row. Other rows and keys follow by constants, where a range for each row would cost the
/// loop over blocks two registers a row.
#[derive(Clone, Copy)]
pub struct TileMask {
    /// What at least one row of the tile sees.
    pub seen: KeyRange,
    /// What to add to a key, modulo 2^32.
    offset: u32,
    /// In how many places, from where the last row's window begins, a block of keys may begin so that all
    /// rows see it whole. 0 makes [`Self::hides`] always true.
    pub whole: u32,
}

impl TileMask {
    /// The mask of the tile of `rows` rows that begins at `first_row`, which is one of the sequence's,
    /// against blocks of `keys` keys.
    #[inline(always)]
    pub fn new(params: &AttentionParams, work: &WorkTile, first_row: u32, rows: u32, keys: u32) -> Self {
        let last = KeyRange::of_row(params, work, first_row + rows - 1);
        let first = KeyRange::of_row(params, work, first_row);
        let offset = (work.queries.len + params.window_left).wrapping_sub(first_row + work.keys.len);
        let mut mask = Self { seen: KeyRange { first: first.first, end: last.end }, offset, whole: 0 };
        // The first row's window ends furthest to the left.
        let places = mask.place(rows, (first.end + 1).wrapping_sub(keys)) as i32;
        mask.whole = places.max(0) as u32;
        mask
    }

    /// How far `key` lies to the right of where the window of the last of the tile's `rows` rows begins,
    /// modulo 2^32. A loop over blocks counts in these places, and needs no register for the keys' own
    /// numbers.
    #[inline(always)]
    pub fn place(self, rows: u32, key: u32) -> u32 {
        self.offset.wrapping_add(key).wrapping_sub(rows - 1)
    }

    /// How far the key on the first row's diagonal lies to the right of the key at `place`, modulo 2^32.
    #[inline(always)]
    pub fn diagonal_from(params: &AttentionParams, rows: u32, place: u32) -> u32 {
        params.window_left.wrapping_sub(rows - 1).wrapping_sub(place)
    }

    /// Whether one of the tile's rows may not see one of a block of keys from `place` on.
    #[inline(always)]
    pub fn hides(self, place: u32) -> bool {
        place >= self.whole
    }

    /// Sets the scores of keys that their row does not see to −∞, of a block from `place` on, which is `keys`
    /// before the end of what the tile sees. `row` and `key` say which row of the tile and which key of the
    /// block a thread's score `[i][j]` belongs to, and rise by constants.
    #[inline(always)]
    pub fn apply<S: Matrix>(
        params: &AttentionParams,
        s: &mut S,
        rows: u32,
        (place, keys): (u32, u32),
        row: impl Fn(usize) -> u32,
        key: impl Fn(usize) -> u32,
    ) {
        let near = MaskCorner {
            from_left: place.wrapping_add(rows - 1 + key(0)).wrapping_sub(row(0)),
            keys: keys.saturating_sub(key(0)),
        };
        near.apply(params, s, |i, j| (key(j) - key(0), row(i) - row(0)));
    }

    /// The mask from a key and a row of the tile on.
    #[inline(always)]
    pub fn near(self, key: u32, row: u32) -> MaskCorner {
        MaskCorner {
            from_left: self.offset.wrapping_add(key).wrapping_sub(row),
            keys: self.seen.end.saturating_sub(key),
        }
    }
}

/// The mask of the scores of one thread, seen from the first of them.
#[derive(Clone, Copy, Default)]
pub struct MaskCorner {
    /// How far its key lies to the right of the first in its row's window, modulo 2^32.
    from_left: u32,
    /// Keys from its own on.
    keys: u32,
}

impl MaskCorner {
    /// The mask from a query and a key of the sequence on.
    #[inline(always)]
    pub fn new(params: &AttentionParams, work: &WorkTile, row: u32, key: u32) -> Self {
        let left = work.queries.len + params.window_left;
        Self {
            from_left: (left + key).wrapping_sub(row + work.keys.len),
            keys: work.keys.len.saturating_sub(key),
        }
    }

    /// As two words, for [`Self::of_parts`].
    #[inline(always)]
    pub const fn parts(self) -> (u32, u32) {
        (self.from_left, self.keys)
    }

    /// The mask whose [`Self::parts`] these are.
    #[inline(always)]
    pub const fn of_parts(from_left: u32, keys: u32) -> Self {
        Self { from_left, keys }
    }

    /// The mask from so many keys and rows further on.
    #[inline(always)]
    pub fn behind(self, keys: u32, rows: u32) -> Self {
        Self {
            from_left: self.from_left.wrapping_add(keys).wrapping_sub(rows),
            keys: self.keys.saturating_sub(keys),
        }
    }

    /// Whether each of so many rows from this one on sees each of so many keys from this one on.
    #[inline(always)]
    pub fn all_see(self, params: &AttentionParams, keys: u32, rows: u32) -> bool {
        // Places in the window rise with the key and fall with the row.
        !self.hides(params, 0, rows - 1) && !self.hides(params, keys - 1, 0)
    }

    /// Sets the scores of keys that their row does not see to −∞. `behind` says how many keys and rows a
    /// thread's score `[i][j]` lies behind the first of them.
    #[inline(always)]
    pub fn apply<S: Matrix>(
        self,
        params: &AttentionParams,
        s: &mut S,
        behind: impl Fn(usize, usize) -> (u32, u32),
    ) {
        let mut i = 0;
        while i < S::ROWS {
            let mut j = 0;
            while j < S::COLS {
                let (keys, rows) = behind(i, j);
                if self.hides(params, keys, rows) {
                    s[i][j] = f32::NEG_INFINITY;
                }
                j += 1;
            }
            i += 1;
        }
    }

    /// Whether the row `rows` further down does not see the key `keys` further right.
    #[inline(always)]
    pub fn hides(self, params: &AttentionParams, keys: u32, rows: u32) -> bool {
        // Left of the window this wraps round to above any span.
        let from_left = self.from_left.wrapping_add(keys).wrapping_sub(rows);
        from_left > params.window_span || keys >= self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Rows;

    fn launch(seqlen_q: u32, seqlen_k: u32, left: u32, right: u32) -> (AttentionParams, WorkTile) {
        let params =
            AttentionParams { window_left: left, window_span: left + right, ..AttentionParams::default() };
        let rows = |len| Rows { first: 7, len };
        (params, WorkTile { tile: 0, head: 0, batch: 0, queries: rows(seqlen_q), keys: rows(seqlen_k) })
    }

    #[test]
    fn ranges_begin_earlier_and_empty_ones_stay_empty() {
        let of = |first, end| {
            let QueryRange { first, end } = QueryRange { first, end }.from_multiple(ADDED_AT_ONCE);
            assert_eq!(KeyRange { first, end }.from_multiple(ADDED_AT_ONCE), KeyRange { first, end });
            (first, end)
        };
        assert_eq!([of(17, 18), of(16, 40), of(15, 16), of(0, 1)], [(16, 18), (16, 40), (0, 16), (0, 1)]);
        assert_eq!([of(17, 17), of(21, 3)], [(17, 17), (21, 3)]);
    }

    #[test]
    fn ranges_follow_the_definition() {
        let sides = [0, 1, 3, 7, UNLIMITED];
        for (sq, sk) in [(1, 1), (5, 5), (3, 9), (9, 3), (4, 0)] {
            for (left, right) in sides.into_iter().flat_map(|left| sides.map(|right| (left, right))) {
                let (params, work) = launch(sq, sk, left, right);
                let sees = |row: u32, key: u32| {
                    let offset = i64::from(row) + i64::from(sk) - i64::from(sq) - i64::from(key);
                    key < sk && -i64::from(right) <= offset && offset <= i64::from(left)
                };
                for row in 0..sq {
                    let seen = KeyRange::of_row(&params, &work, row);
                    assert!(
                        (0..2 * sk).all(|key| (seen.first..seen.end).contains(&key) == sees(row, key)),
                        "{work:?} {row}"
                    );
                    tile_follows_the_definition(&params, &work, row, sees);
                }
            }
        }
    }

    /// A tile of the rows `first`, `first` + 1 and `first` + 2, of which the outer two are scored.
    fn tile_follows_the_definition(
        params: &AttentionParams,
        work: &WorkTile,
        first: u32,
        sees: impl Fn(u32, u32) -> bool,
    ) {
        let mask = TileMask::new(params, work, first, 3, 3);
        for key in 0..work.keys.len {
            let seen = (first..work.queries.len.min(first + 3)).any(|row| sees(row, key));
            assert!(
                (mask.seen.first..mask.seen.end).contains(&key) || !seen,
                "{params:?} {work:?} {first} {key}"
            );
        }
        for key in 0..work.keys.len + 3 {
            let mut scores = [[0.0; 3]; 2];
            let keys = mask.seen.end.saturating_sub(key);
            let place = mask.place(3, key);
            TileMask::apply(params, &mut scores, 3, (place, keys), |i| 2 * i as u32, |j| j as u32);
            let rows = |i: usize| first + 2 * i as u32;
            let mut hidden = false;
            for (i, j) in (0..2).flat_map(|i| (0..3).map(move |j| (i, j))) {
                let masked = scores[i][j] == f32::NEG_INFINITY;
                let seen = sees(rows(i), key + j as u32);
                assert!(
                    masked != seen || rows(i) >= work.queries.len,
                    "{params:?} {work:?} {first} {key} {i} {j}"
                );
                hidden |= masked;
            }
            assert!(mask.hides(mask.place(3, key)) >= hidden, "{params:?} {work:?} {first} {key}");
            let diagonal = first as i32 + work.keys.len as i32 - work.queries.len as i32;
            assert_eq!(TileMask::diagonal_from(params, 3, place) as i32, diagonal - key as i32);
        }
        let (inner, keys) = (mask.seen.first..mask.seen.end.saturating_sub(2), 0..3);
        for key in inner {
            let all = (first..first + 3).all(|row| keys.clone().all(|j| sees(row, key + j)));
            let inside = first + 2 < work.queries.len;
            assert!(!inside || mask.hides(mask.place(3, key)) != all, "{params:?} {work:?} {first} {key}");
        }
    }

    #[test]
    fn queries_of_a_block_of_keys_follow_the_definition() {
        let sides = [0, 1, 3, 7, UNLIMITED];
        for (sq, sk) in [(1, 1), (5, 5), (3, 9), (9, 3)] {
            for (left, right) in sides.into_iter().flat_map(|left| sides.map(|right| (left, right))) {
                let (params, work) = launch(sq, sk, left, right);
                let sees = |row: u32, key: u32| {
                    let seen = KeyRange::of_row(&params, &work, row);
                    (seen.first..seen.end).contains(&key)
                };
                for key in 0..sk {
                    let QueryRange { first, end } = QueryRange::of_keys(&params, &work, key, 3);
                    for row in 0..sq {
                        let seen = (key..sk.min(key + 3)).any(|key| sees(row, key));
                        assert_eq!(first <= row && row < end, seen, "{params:?} {work:?} {row} {key}");
                        let corner = MaskCorner::new(&params, &work, row, key);
                        assert!((0..3).all(|j| corner.hides(&params, j, 0) != sees(row, key + j)));
                        let origin = MaskCorner::new(&params, &work, 0, 0).behind(key, row);
                        assert!((0..3).all(|j| origin.hides(&params, j, 0) != sees(row, key + j)));
                        let all = (row..row + 2).all(|row| (key..key + 3).all(|key| sees(row, key)));
                        assert!(row + 2 > sq || corner.all_see(&params, 3, 2) == all);
                    }
                }
            }
        }
    }

    #[test]
    fn the_longest_sequences_do_not_overflow() {
        let longest = UNLIMITED;
        let (params, work) = launch(longest, longest, UNLIMITED, UNLIMITED);
        assert_eq!(KeyRange::of_row(&params, &work, longest + 126).end, longest);
        let (params, work) = launch(1, longest, 5, 0);
        assert_eq!(KeyRange::of_row(&params, &work, 0), KeyRange { first: longest - 6, end: longest });
        let (params, work) = launch(longest, longest, UNLIMITED, 0);
        let last = QueryRange::of_keys(&params, &work, longest - 1, 64);
        assert_eq!(last, QueryRange { first: longest - 1, end: longest });
        assert!(!MaskCorner::new(&params, &work, longest - 1, longest - 1).hides(&params, 0, 0));
    }
}
