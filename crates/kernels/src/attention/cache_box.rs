//! Where boxes of the keys of a step lie: in a sequence, or in pages.

use crate::config::DecodeSm90Config;
use crate::params::Pages;
use crate::ptx::index;

/// Where a box of a step's keys lies.
#[derive(Clone, Copy)]
pub(super) struct CacheBox {
    /// Sequence, or page.
    pub(super) batch: u32,
    pub(super) row: u32,
}

/// Where this lane's box of `rows` rows lies, of the step from `key` on. In pages, a box of no key before
/// `end` lies behind the rows of a page, where tensor maps read zeros; of contiguous keys, a step is one box.
///
/// # Safety
/// The page table, where there is one, has an entry for each of the sequence's keys before `end`.
#[inline(always)]
pub(super) unsafe fn locate(pages: &Pages, batch: u32, key: u32, rows: u32, end: u32) -> CacheBox {
    if pages.table == 0 {
        return CacheBox { batch, row: key };
    }
    let key = key + index::thread() % 32 * rows;
    let is_used = key < end;
    // SAFETY: the table has an entry for each key before the end.
    let (page, row) = unsafe { pages.locate(pages.of_sequence(batch), key, is_used) };
    CacheBox { batch: page, row: if is_used { row } else { pages.page_size } }
}

/// Rows of the boxes that a step of `block_n` keys is copied in.
#[inline(always)]
pub(super) fn rows(pages: &Pages, block_n: u32) -> u32 {
    DecodeSm90Config::box_rows(block_n, if pages.table == 0 { 0 } else { pages.page_size })
}
