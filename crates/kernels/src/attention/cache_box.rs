//! Where boxes of the keys of a step lie: in a sequence, or in pages.

use core::hint::assert_unchecked;

use crate::config::DecodeSm90Config;
use crate::params::CacheParams;
use crate::ptx::{global, index};

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
pub(super) unsafe fn locate(cache: &CacheParams, batch: u32, key: u32, rows: u32, end: u32) -> CacheBox {
    if cache.page_table == 0 {
        return CacheBox { batch, row: key };
    }
    let key = key + index::thread() % 32 * rows;
    let is_used = key < end;
    let table = cache.page_table + 4 * batch as u64 * cache.max_pages as u64;
    // SAFETY: pages of valid parameters have a row, and the table has an entry for each key before the end.
    unsafe {
        assert_unchecked(cache.page_size > 0);
        let page = global::load_b32_if(is_used, table + 4 * (key / cache.page_size) as u64);
        CacheBox { batch: page, row: if is_used { key % cache.page_size } else { cache.page_size } }
    }
}

/// Rows of the boxes that a step of `block_n` keys is copied in.
#[inline(always)]
pub(super) fn rows(cache: &CacheParams, block_n: u32) -> u32 {
    DecodeSm90Config::box_rows(block_n, if cache.page_table == 0 { 0 } else { cache.page_size })
}
