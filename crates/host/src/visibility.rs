//! Which keys the queries of a problem see, and how many.

use fa_kernels::functions::Position;
use std::ops::Range;

use crate::Problem;

impl Problem {
    /// Keys that query `row` of a sequence sees.
    #[inline]
    pub fn visible_keys(&self, batch: usize, row: usize) -> Range<usize> {
        let (sq, sk) = (self.query_rows(batch).len(), self.key_rows(batch).len());
        let (left, right) = self.window();
        let first = left.map_or(0, |left| (row + sk).saturating_sub(left.saturating_add(sq)));
        let end = right.map_or(sk, |right| right.saturating_add(row + 1 + sk).saturating_sub(sq).min(sk));
        first..end
    }

    /// Queries of a sequence that see key `key`; not above its start where there are none.
    #[inline]
    pub fn seeing_queries(&self, batch: usize, key: usize) -> Range<usize> {
        let (sq, sk) = (self.query_rows(batch).len(), self.key_rows(batch).len());
        let (left, right) = self.window();
        let first = right.map_or(0, |right| (key + sq).saturating_sub(right.saturating_add(sk)));
        let end = left.map_or(sq, |left| left.saturating_add(key + 1 + sq).saturating_sub(sk).min(sq));
        first..end
    }

    /// Multiplications and additions of the two matrix products, by FlashAttention's convention:
    /// 2·B·H·Sq·Sk·(D + Dv), of which only the visible pairs of query and key count.
    pub fn flops(&self) -> f64 {
        let pairs: i128 = (0..self.batch()).map(|batch| self.visible_pairs(batch)).sum();
        2.0 * (self.heads() * (self.head_dim() + self.head_dim_v())) as f64 * pairs as f64
    }

    /// Pairs of query and key of a sequence that see each other.
    pub(crate) fn visible_pairs(&self, batch: usize) -> i128 {
        let (left, right) = self.window();
        let (sq, sk) = (self.query_rows(batch).len() as i128, self.key_rows(batch).len() as i128);
        // Row i sees the keys from clamp(i + first) to before clamp(i + end), each clamped to 0..=Sk.
        let clamped_sum = |shift: i128| {
            let up_to = |n: i128| {
                let (rising, flat) = (n.clamp(0, sk), (n - sk).max(0));
                rising * (rising + 1) / 2 + flat * sk
            };
            up_to(sq - 1 + shift) - up_to(shift - 1)
        };
        let ends = right.map_or(sq * sk, |right| clamped_sum(right as i128 + 1 + sk - sq));
        let firsts = left.map_or(0, |left| clamped_sum(sk - sq - left as i128));
        ends - firsts
    }

    /// i + Sk − Sq of query i: the key on its diagonal, which may lie before the first or past the last.
    #[inline]
    pub fn diagonal(&self, batch: usize, row: usize) -> isize {
        (row + self.key_rows(batch).len()) as isize - self.query_rows(batch).len() as isize
    }

    /// Where query i and key j are, as functions of scores are told.
    pub(crate) fn position(&self, batch: usize, head: usize, row: usize, key: usize) -> Position {
        let [batch, head, query, key] = [batch, head, row, key].map(|index| index as u32);
        Position { batch, head, query, key }
    }

    /// |i + Sk − Sq − j| of query i and key j.
    #[inline]
    pub fn distance(&self, batch: usize, row: usize, key: usize) -> f64 {
        self.diagonal(batch, row).abs_diff(key as isize) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options, TensorLayout, Tensors};

    fn masked(sq: usize, sk: usize, causal: bool, window: (Option<usize>, Option<usize>)) -> Problem {
        let options = Options { causal, window, ..Options::default() };
        let (q, k) = (TensorLayout::bshd(2, sq, 4, 8), TensorLayout::bshd(2, sk, 2, 8));
        Problem::new(Tensors { q, k, v: k, o: q }, DType::F32, options).unwrap()
    }

    #[test]
    fn causal_is_aligned_bottom_right() {
        let seen = |sq, sk| {
            let problem = masked(sq, sk, true, (None, Some(9)));
            (0..sq).map(|row| problem.visible_keys(0, row)).collect::<Vec<_>>()
        };
        assert_eq!(seen(3, 3), [0..1, 0..2, 0..3]);
        assert_eq!(seen(2, 4), [0..3, 0..4]);
        assert_eq!(seen(4, 2), [0..0, 0..0, 0..1, 0..2]);
    }

    #[test]
    fn windows_follow_the_definition_and_flops_count_their_pairs() {
        let sides = [None, Some(0), Some(1), Some(4), Some(usize::MAX)];
        for (sq, sk) in [(3, 3), (2, 4), (4, 2), (7, 1), (5, 11)] {
            for (left, right) in sides.into_iter().flat_map(|left| sides.map(|right| (left, right))) {
                let problem = masked(sq, sk, false, (left, right));
                let sees = |row: usize, key: usize| {
                    let offset = (row + sk) as i64 - (sq + key) as i64;
                    left.is_none_or(|left| offset <= left.min(99) as i64)
                        && right.is_none_or(|right| -offset <= right.min(99) as i64)
                };
                let mut pairs = 0;
                for row in 0..sq {
                    let seen = problem.visible_keys(0, row);
                    assert!((0..sk).all(|key| seen.contains(&key) == sees(row, key)), "{problem:?} {row}");
                    pairs += seen.len();
                }
                for key in 0..sk {
                    let seeing = problem.seeing_queries(0, key);
                    assert!((0..sq).all(|row| seeing.contains(&row) == sees(row, key)), "{problem:?} {key}");
                }
                assert_eq!(problem.flops(), (4 * 2 * 4 * 8 * pairs) as f64, "{problem:?}");
            }
        }
    }
}
