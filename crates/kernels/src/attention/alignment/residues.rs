//! Rows that lie no multiple of 16 bytes apart, by how far behind such a multiple they start.

use crate::attention::alignment::head_offset::HeadOffset;
use crate::ptx::index;

/// Elements of 16 bytes.
const CHUNK: u32 = 8;

/// Classes of rows of a [B, S, H, D] view.
///
/// Boxes of tensor maps start at multiples of 16 bytes, and rows that lie `stride` elements apart need not.
/// Those whose index is equal modulo n = 8 / gcd(stride, 8) start equally far behind such a multiple, and lie
/// a multiple of it apart. They are a class, which has a map of its own, as a class of heads has
/// ([`HeadOffset`]): the view as [B, H, S / n, n, D], of which the map has one index of n.
///
/// Attention takes the classes of keys in turns. Each turn's rows start [`Self::step`] elements further
/// behind than those of the turn before, and those of the first start at the multiple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residues {
    stride: u32,
    log_count: u32,
}

impl Residues {
    /// Of rows that lie so many elements apart.
    #[inline(always)]
    pub fn of(stride: u64) -> Self {
        // What follows from it would otherwise be computed once, and kept in registers over all tiles.
        let stride = index::unknown(stride as u32);
        Self { stride, log_count: CHUNK.trailing_zeros() - (stride | CHUNK).trailing_zeros() }
    }

    /// How many there are: 1, 2, 4 or 8.
    #[inline(always)]
    pub fn count(self) -> u32 {
        1 << self.log_count
    }

    /// How many of `rows` rows, a multiple of [`Self::count`], are of each class.
    #[inline(always)]
    pub fn rows(self, rows: u32) -> u32 {
        rows >> self.log_count
    }

    /// Index of the `index`-th row of a class.
    #[inline(always)]
    pub fn row(self, class: u32, index: u32) -> u32 {
        (index << self.log_count) + class
    }

    /// Class, and index in it, of the `place`-th of `rows` rows, a power of two, that lie class by class.
    #[inline(always)]
    pub fn at_place(self, rows: u32, place: u32) -> (u32, u32) {
        let of_class = self.rows(rows);
        (place >> of_class.trailing_zeros(), place & (of_class - 1))
    }

    /// Elements from the shift of one turn's rows to those of the next.
    #[inline(always)]
    pub fn step(self) -> u32 {
        CHUNK >> self.log_count
    }

    /// How many elements behind a multiple of 16 bytes the rows of a class start, below 8.
    #[inline(always)]
    pub fn shift(self, class: u32) -> u32 {
        class.wrapping_mul(self.stride) % CHUNK
    }

    /// The class of a turn, as the maps of all rows of a head have it.
    #[inline(always)]
    pub fn in_turn(self, turn: u32, head: u32) -> HeadOffset {
        // The stride is an odd multiple of the step, and odd numbers are their own inverses modulo 8.
        let odd = self.stride >> (CHUNK.trailing_zeros() - self.log_count);
        HeadOffset { class: turn.wrapping_mul(odd) % self.count(), head, shift: turn * self.step() }
    }

    /// The shift of the last turn's rows.
    #[inline(always)]
    pub fn last_shift(self) -> u32 {
        CHUNK - self.step()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    #[test]
    fn rows_of_a_class_are_shifted_alike_and_turns_step_through_all() {
        for stride in [1_u64, 2, 3, 4, 5, 6, 7, 9, 10, 12, 20, 65, 129, 130, 131, 132, 133, 134, 135, 1 << 40]
        {
            let classes = Residues::of(stride);
            assert_eq!(classes.count() as usize, HeadOffset::classes(stride), "{stride}");
            for row in 0..64 {
                let class = row % classes.count();
                assert_eq!(u64::from(classes.shift(class)), u64::from(row) * stride % 8);
                assert_eq!(classes.row(class, classes.rows(row - class)), row);
            }
            let mut places: Vec<_> = (0..64).map(|place| classes.at_place(64, place)).collect();
            assert!(places.is_sorted());
            places.sort_by_key(|&(class, index)| classes.row(class, index));
            assert!(places.iter().zip(0..).all(|(&(class, index), row)| classes.row(class, index) == row));
            let mut seen = 0;
            for turn in 0..classes.count() {
                let start = classes.in_turn(turn, 5);
                assert_eq!((start.head, start.shift), (5, classes.shift(start.class)));
                assert_eq!((start.shift, start.outside()), (turn * classes.step(), 0));
                seen |= 1 << start.class;
            }
            assert_eq!(seen, (1_u32 << classes.count()) - 1);
            assert_eq!(classes.last_shift(), classes.in_turn(classes.count() - 1, 0).shift);
        }
    }
}
