//! Where the results of rows go whose keys may be split.

use super::combine::{lse_row, partial_lse, partial_o};
use super::split_work::{QueryRow, Work};
use crate::element::Element;
use crate::params::DecodeParams;

/// Where a row of the result goes.
pub(super) struct Target<'a> {
    work: &'a Work,
    at: QueryRow,
    /// Index of the row in lse, [B, H, Sq].
    row: u64,
    of_split: bool,
}

impl<'a> Target<'a> {
    /// Of a row of `work`, whose result is merged with others' where it is `of_split`.
    #[inline(always)]
    pub(super) fn new(params: &DecodeParams, work: &'a Work, at: QueryRow, of_split: bool) -> Self {
        Self { work, row: lse_row(params, work.batch, &at), at, of_split }
    }

    /// Stores one element.
    ///
    /// # Safety
    /// It exists, and no other thread stores it.
    #[inline(always)]
    pub(super) unsafe fn store_o<E: Element>(&self, params: &DecodeParams, column: u32, value: f32) {
        // SAFETY: the element exists, and no other thread stores it.
        unsafe {
            if self.of_split {
                return f32::store(partial_o(&params.cache, self.work.split, self.row, column), value);
            }
            let row = params.o_strides.offset(self.work.batch, self.at.position, self.at.head);
            let element = row + column as u64;
            E::store(params.o + E::BYTES * element, value);
        }
    }

    /// Stores the log-sum-exp, where it is wanted.
    ///
    /// # Safety
    /// As [`Self::store_o`].
    #[inline(always)]
    pub(super) unsafe fn store_lse(&self, params: &DecodeParams, lse: f32) {
        // SAFETY: the row exists, and no other thread stores its log-sum-exp.
        unsafe {
            if self.of_split {
                f32::store(partial_lse(&params.cache, self.work.split, self.row), lse);
            } else if params.lse != 0 {
                f32::store(params.lse + 4 * self.row, lse);
            }
        }
    }
}
