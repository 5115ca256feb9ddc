//! Pieces of a sequence's keys, which are the same whatever else is in the batch.
//!
//! A sequence is cut as if it were alone: its length and what the launch has for all decide. The pieces'
//! results are taken in one after the other ([`Fold`](super::combine::Fold)), by a block that has all of them
//! in turn, or by [`combine`](super::combine) from where several blocks left them. So bits do not depend on
//! who computes.

use core::num::NonZero;

use super::split_work::seen_by;
use crate::params::DecodeParams;

/// The pieces of a sequence: equal parts, in steps, of the keys that any of its rows sees, but for the last.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    /// Steps of all pieces, at least 1.
    pub(super) steps: u32,
    /// Steps of each piece but the last, at least 1.
    length: NonZero<u32>,
    /// How many pieces there are, at least 1.
    pub(super) count: u32,
}

impl Pieces {
    /// Of a sequence with `used` keys.
    ///
    /// # Safety
    /// `params` are those of a launch whose sequences have pieces.
    #[inline(always)]
    pub(super) unsafe fn of(params: &DecodeParams, used: u32) -> Self {
        let steps = steps(params, used);
        let most = NonZero::new(params.cache.num_splits).unwrap_or(NonZero::<u32>::MIN);
        let length = NonZero::new(div_ceil(steps, most)).unwrap_or(NonZero::<u32>::MIN);
        Self { steps, length, count: div_ceil(steps, length) }
    }

    /// The step with which a piece begins, or that behind the last.
    #[inline(always)]
    pub(super) fn first_step(&self, piece: u32) -> u32 {
        (piece * self.length.get()).min(self.steps)
    }

    /// Steps of each piece but the last.
    #[inline(always)]
    pub(super) fn length(&self) -> u32 {
        self.length.get()
    }

    /// The piece with which work ends, or begins, that is to be divided before step `step`: all before it is
    /// one block's, and what follows another's. Ends of a sequence are preferred within `tolerance` steps.
    #[inline(always)]
    pub(super) fn cut(&self, step: u32, tolerance: u32) -> u32 {
        let left = self.steps - step;
        if step == 0 || step <= tolerance.min(left) {
            0
        } else if left <= tolerance {
            self.count
        } else {
            step / self.length
        }
    }
}

/// The first key of a sequence's steps, of `used` keys: a multiple of a step's.
#[inline(always)]
pub(super) fn first_key(params: &DecodeParams, used: u32) -> u32 {
    seen_by(params, used, 0).first >> params.pieces.step_bits << params.pieces.step_bits
}

/// Steps of a sequence, at least 1.
#[inline(always)]
pub(super) fn steps(params: &DecodeParams, used: u32) -> u32 {
    let bits = params.pieces.step_bits;
    let end = seen_by(params, used, params.seqlen_q - 1).end;
    ((end.saturating_sub(first_key(params, used)) + (1 << bits) - 1) >> bits).max(1)
}

/// Rounded up. A divisor of this type, so that no division carries a call to the panic for a zero divisor,
/// which a kernel cannot link.
#[inline(always)]
fn div_ceil(value: u32, divisor: NonZero<u32>) -> u32 {
    (value + divisor.get() - 1) / divisor
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn pieces(used: u32, most: u32) -> Pieces {
        let mut params = DecodeParams { seqlen_q: 1, group: 4, ..DecodeParams::default() };
        (params.window_left, params.window_span) = (crate::mask::UNLIMITED, crate::mask::UNLIMITED);
        (params.pieces.step_bits, params.cache.num_splits) = (7, most);
        // SAFETY: steps have 128 keys.
        unsafe { Pieces::of(&params, used) }
    }

    #[test]
    fn pieces_are_equal_and_no_more_than_help() {
        for (used, most, count) in [(0, 16, 1), (1, 16, 1), (129, 16, 2), (2176, 16, 9), (131_072, 16, 16)] {
            let pieces = pieces(used, most);
            assert_eq!(pieces.count, count, "{used} keys");
            let ends: Vec<_> = (0..=count).map(|piece| pieces.first_step(piece)).collect();
            assert!(ends.windows(2).all(|ends| ends[0] < ends[1]), "{used} keys: {ends:?}");
            assert!(128 * ends[count as usize] >= used);
        }
    }

    #[test]
    fn cuts_are_where_pieces_begin_and_ends_are_preferred() {
        let pieces = pieces(33 * 128, 16);
        assert_eq!((pieces.steps, pieces.count), (33, 11));
        let cuts: Vec<_> = (0..=33).map(|step| pieces.cut(step, 4)).collect();
        assert_eq!(cuts[..5], [0; 5]);
        assert_eq!(cuts[5..9], [1, 2, 2, 2]);
        assert_eq!(cuts[28], 9);
        assert_eq!(cuts[29..], [11; 5]);
        assert!(cuts.is_sorted());
        // Where both ends are near, each has its half.
        assert_eq!((0..=33).map(|step| pieces.cut(step, 99)).filter(|&cut| cut == 0).count(), 17);
    }
}
