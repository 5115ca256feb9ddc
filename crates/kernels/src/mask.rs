//! Which keys a query sees.

use crate::params::AttentionParams;

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
    /// What query `row` sees.
    ///
    /// The window is aligned bottom-right (FlashAttention-2.1): query i sees key j if
    /// i + Sk − Sq − left ≤ j ≤ i + Sk − Sq + right, so that rows may see none. Rows past Sq (tile
    /// padding) see at most what exists.
    #[inline(always)]
    pub fn of_row(params: &AttentionParams, row: u32) -> Self {
        // Lengths and both sides are at most 2^30, so that no sum overflows.
        let diagonal = row + params.seqlen_k;
        let right = params.window_span - params.window_left;
        Self {
            first: diagonal.saturating_sub(params.seqlen_q + params.window_left),
            end: (diagonal + 1 + right).saturating_sub(params.seqlen_q).min(params.seqlen_k),
        }
    }

    /// What at least one of the `rows` rows from `first_row` on sees.
    #[inline(always)]
    pub fn of_any(params: &AttentionParams, first_row: u32, rows: u32) -> Self {
        let last = Self::of_row(params, first_row + rows - 1);
        Self { first: Self::of_row(params, first_row).first, end: last.end }
    }

    /// Whether `key` is in it.
    #[inline(always)]
    pub fn contains(self, key: u32) -> bool {
        key >= self.first && key < self.end
    }
}

/// The mask of a tile of queries against blocks of keys.
///
/// One register tells all: how far a key lies to the right of the first one in the window of the tile's
/// first row. Other rows and keys follow by constants, where a range for each row would cost the loop
/// over blocks two registers a row.
#[derive(Clone, Copy)]
pub struct TileMask {
    /// What to add to a key, modulo 2^32.
    offset: u32,
}

impl TileMask {
    /// The mask of the tile that begins at `first_row`.
    #[inline(always)]
    pub fn new(params: &AttentionParams, first_row: u32) -> Self {
        Self { offset: (params.seqlen_q + params.window_left).wrapping_sub(first_row + params.seqlen_k) }
    }

    /// Whether one of the tile's `rows` rows does not see one of the `keys` keys from `first_key` on.
    #[inline(always)]
    pub fn hides(self, params: &AttentionParams, rows: u32, first_key: u32, keys: u32) -> bool {
        let from_left = self.offset.wrapping_add(first_key);
        // The last row's window begins furthest to the right, the first row's ends furthest to the left.
        (from_left.wrapping_sub(rows - 1) as i32) < 0
            || from_left.wrapping_add(keys - 1) > params.window_span
            || first_key + keys > params.seqlen_k
    }

    /// Sets the scores of keys that their row does not see to −∞: `row` and `key` say which row of the
    /// tile and which key after `first_key` a thread's score [i][j] belongs to, and rise by constants.
    #[inline(always)]
    pub fn apply<const ROWS: usize, const COLS: usize>(
        self,
        params: &AttentionParams,
        s: &mut [[f32; COLS]; ROWS],
        first_key: u32,
        row: impl Fn(usize) -> u32,
        key: impl Fn(usize) -> u32,
    ) {
        let corner = self.offset.wrapping_add(first_key + key(0)).wrapping_sub(row(0));
        let keys = params.seqlen_k.saturating_sub(first_key + key(0));
        let mut i = 0;
        while i < ROWS {
            let mut j = 0;
            while j < COLS {
                let step = key(j) - key(0);
                // Left of the window this wraps round to above any span.
                let from_left = corner.wrapping_add(step).wrapping_sub(row(i) - row(0));
                if from_left > params.window_span || step >= keys {
                    s[i][j] = f32::NEG_INFINITY;
                }
                j += 1;
            }
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(seqlen_q: u32, seqlen_k: u32, window_left: u32, window_right: u32) -> AttentionParams {
        let window_span = window_left + window_right;
        AttentionParams { seqlen_q, seqlen_k, window_left, window_span, ..AttentionParams::default() }
    }

    #[test]
    fn ranges_follow_the_definition() {
        let sides = [0, 1, 3, 7, UNLIMITED];
        for (sq, sk) in [(1, 1), (5, 5), (3, 9), (9, 3)] {
            for (left, right) in sides.into_iter().flat_map(|left| sides.map(|right| (left, right))) {
                let params = params(sq, sk, left, right);
                let sees = |row: u32, key: u32| {
                    let offset = i64::from(row) + i64::from(sk) - i64::from(sq) - i64::from(key);
                    key < sk && -i64::from(right) <= offset && offset <= i64::from(left)
                };
                for row in 0..sq {
                    let seen = KeyRange::of_row(&params, row);
                    assert!((0..2 * sk).all(|key| seen.contains(key) == sees(row, key)), "{params:?} {row}");
                }
                for (first, rows) in [(0, sq), (sq / 2, 1), (sq / 2, sq - sq / 2)] {
                    let any = KeyRange::of_any(&params, first, rows);
                    for key in 0..sk {
                        let seen = (first..first + rows).any(|row| sees(row, key));
                        assert!(any.contains(key) || !seen, "{params:?} {first} {rows} {key}");
                    }
                }
                for (row, key) in (0..sq).flat_map(|row| (0..sk + 3).map(move |key| (row, key))) {
                    let mask = TileMask::new(&params, row);
                    let mut scores = [[0.0; 3]; 2];
                    mask.apply(&params, &mut scores, key, |i| 2 * i as u32, |j| j as u32);
                    let sees = |i: usize, j: usize| sees(row + i as u32, key + j as u32);
                    for (i, j) in (0..2).flat_map(|i| (0..3).map(move |j| (i, j))) {
                        let masked = scores[i][j] == f32::NEG_INFINITY;
                        assert_eq!(masked, !sees(2 * i, j), "{params:?} {row} {key} {i} {j}");
                    }
                    let all = (0..2).all(|i| (0..3).all(|j| sees(i, j)));
                    assert_eq!(mask.hides(&params, 2, key, 3), !all, "{params:?} {row} {key}");
                }
            }
        }
    }

    #[test]
    fn the_longest_sequences_do_not_overflow() {
        let longest = UNLIMITED;
        let row = longest + 126;
        let seen = KeyRange::of_row(&params(longest, longest, UNLIMITED, UNLIMITED), row);
        assert_eq!(seen.end, longest);
        assert_eq!(
            KeyRange::of_row(&params(1, longest, 5, 0), 0),
            KeyRange { first: longest - 6, end: longest }
        );
    }
}
