//! Where the keys of a K/V cache lie, and which part of them a block takes.

use core::hint::assert_unchecked;

use super::{Descale, Divisor};
use crate::ptx::global;

/// The most splits of a sequence's keys: four for each lane of a warp that merges them.
pub const MAX_SPLITS: u32 = 128;

/// How K and V are read, and where results go that are merged with others; of contiguous keys in one part by
/// default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheParams {
    /// Where keys lie that are not contiguous.
    pub pages: Pages,
    /// Normalised O of each split that has keys, fp32 [`num_splits`, B, H, Sq, Dv], rows a multiple of four
    /// columns apart, from a multiple of 16 on; unused with one split.
    pub partial_o: u64,
    /// Log-sum-exp of each split, fp32 [`num_splits`, B, H, Sq]; unused with one split.
    pub partial_lse: u64,
    /// Rows of O of all heads.
    pub rows: u64,
    /// The most parts that a sequence's keys are split into, 1 to [`MAX_SPLITS`].
    pub num_splits: Divisor,
    /// Keys of a split, from each sequence's first key on, so that others in the batch do not matter, rounded
    /// up to a multiple of 128; more where `num_splits` of them would end before the sequence. 0 for
    /// `num_splits` even parts of each.
    pub split_keys: u32,
    /// Columns of each row of V and O, 1 to the entry's HEAD_DIM.
    pub head_dim_v: u32,
    /// log2 of the query heads that are rows of one tile, 0 to 3: row r of a tile is query r >> `head_bits`
    /// of head r mod 2^`head_bits` of those.
    pub head_bits: u32,
    /// What K was divided by before it was rounded to 8 bits.
    pub k_descale: Descale,
    /// What V was divided by.
    pub v_descale: Descale,
}

/// A page table: key j of sequence b is row j mod `page_size` of page `table[b][j / page_size]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Pages of each sequence, int32 [B, `max_pages`], or 0 where keys are contiguous. What lies behind the
    /// pages that hold a sequence's keys is not read.
    pub table: u64,
    /// Rows of a page, at least 1.
    pub page_size: u32,
    /// Entries of a sequence in the table.
    pub max_pages: u32,
}

impl Default for Pages {
    /// Contiguous keys.
    fn default() -> Self {
        Self { table: 0, page_size: 1, max_pages: 0 }
    }
}

impl Pages {
    /// Address of the first entry of a sequence.
    #[inline(always)]
    pub fn of_sequence(&self, batch: u32) -> u64 {
        self.table + 4 * batch as u64 * self.max_pages as u64
    }

    /// Page and row of a key, where it `is_used`; a page that is not looked up is 0.
    ///
    /// # Safety
    /// A sequence's entries begin at `entries`, and one of them is that of a key which is used.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn locate(&self, entries: u64, key: u32, is_used: bool) -> (u32, u32) {
        // SAFETY: pages of valid parameters have a row, and the entry is there. Without this the division
        // would carry a call to the panic for a zero divisor, which a kernel cannot link.
        unsafe {
            assert_unchecked(self.page_size > 0);
            let (entry, row) = (key / self.page_size, key % self.page_size);
            (global::load_b32_if(is_used, entries + 4 * entry as u64), row)
        }
    }
}
