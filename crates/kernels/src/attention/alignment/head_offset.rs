//! Where heads start in tensor maps.

use crate::ptx::index;

/// Elements of 16 bytes.
const CHUNK: u32 = 8;

/// Elements of 32 bytes, which L2 moves whole.
const SECTOR: u32 = 16;

/// Where a head of a [B, S, H, D] view is in the view's tensor maps.
///
/// Boxes start at multiples of 16 bytes, and heads need not. Those that start equally far behind such a
/// multiple are a class, every 2nd, 4th or 8th head, or all where none is shifted. A class has a map of its
/// own, which starts at the multiple before its first head and ends with the heads' last columns: what a box
/// has beyond them is zeros.
///
/// A box that starts in the middle of a sector of 32 bytes takes L2 twice as many requests. Where the tile
/// has room for more columns before the head's, the box starts with the sector; if that begins before the
/// map, its columns there are zeros too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadOffset {
    /// Class, the index of its map.
    pub class: u32,
    /// Index along the heads of that map.
    pub head: u32,
    /// Columns of the box before the head's first, below 16.
    pub shift: u32,
}

impl HeadOffset {
    /// The most classes that there are.
    pub const MAX_CLASSES: usize = CHUNK as usize;

    /// Of a head, where it is so many elements from one to the next, and boxes may start up to `margin`
    /// columns before their head.
    #[inline(always)]
    pub fn of(stride: u64, head: u32, margin: u32) -> Self {
        let log_classes = Self::log_classes(stride);
        let behind = head.wrapping_mul(stride as u32) % SECTOR;
        Self {
            class: head & ((1 << log_classes) - 1),
            head: head >> log_classes,
            shift: if behind <= margin { behind } else { behind % CHUNK },
        }
    }

    /// Columns of the box before the map's first.
    #[inline(always)]
    pub fn outside(self) -> u32 {
        self.shift & CHUNK
    }

    /// Columns of the box before the head's first that are not zeros.
    #[inline(always)]
    pub fn foreign(self) -> u32 {
        self.shift % CHUNK
    }

    /// How many classes there are: so many strides are a multiple of 16 bytes.
    pub fn classes(stride: u64) -> usize {
        1 << Self::log_classes(stride)
    }

    #[inline(always)]
    fn log_classes(stride: u64) -> u32 {
        // It would otherwise be computed once, and kept in registers over all tiles.
        let stride = index::unknown(stride as u32);
        CHUNK.trailing_zeros() - (stride | CHUNK).trailing_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_a_class_are_shifted_alike_and_those_of_others_are_not() {
        for (strides, classes) in [
            (&[0, 8, 128, 1 << 40][..], 1_u32),
            (&[4, 12, 132, (1 << 33) + 4], 2),
            (&[2, 6, 130, 134], 4),
            (&[1, 3, 129, 135, u64::MAX], 8),
        ] {
            for &stride in strides {
                assert_eq!(HeadOffset::classes(stride), classes as usize, "{stride}");
                for index in 0..40 {
                    let start = HeadOffset::of(stride, index, 0);
                    assert_eq!((start.class, start.head), (index % classes, index / classes));
                    assert_eq!(u64::from(start.shift), u64::from(index).wrapping_mul(stride) % 8);
                    let of_class = HeadOffset::of(stride, start.class, 0);
                    assert_eq!((of_class.head, of_class.shift), (0, start.shift));
                    let mut others = (0..classes).filter(|&class| class != start.class);
                    assert!(others.all(|class| HeadOffset::of(stride, class, 0).shift != start.shift));
                }
            }
        }
    }

    #[test]
    fn boxes_start_with_sectors_where_there_is_room() {
        for stride in [8, 129, 130, 132, 136, 152] {
            for index in 0..40 {
                let behind = index * stride % 16;
                for margin in 0..=15 {
                    let start = HeadOffset::of(stride.into(), index, margin);
                    let first = HeadOffset::of(stride.into(), index, 0);
                    assert_eq!((start.class, start.head), (first.class, first.head));
                    assert_eq!(start.shift, if margin < behind { first.shift } else { behind });
                    assert_eq!(start.outside() + start.foreign(), start.shift);
                    assert_eq!((start.foreign(), start.outside() % 8), (first.shift, 0));
                }
            }
        }
    }
}
