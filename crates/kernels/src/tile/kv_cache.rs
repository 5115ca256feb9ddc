//! Tiles of K and V for one warp, copied from a contiguous or paged cache.

use crate::config::WARP_KEYS;
use crate::element::Element;
use crate::params::{DecodeParams, Strides};
use crate::ptx::{cp_async, index, shared};
use crate::registers::Width;
use crate::tile::chunk::load_chunk;
use crate::tile::mma::{CHUNK, MmaTile};

/// Lanes that copy one row: eight chunks, so that they read 128 consecutive bytes at a time.
const ROW_LANES: u32 = 8;

/// Rows of a tile that one lane copies its chunks of.
const LANE_ROWS: usize = (WARP_KEYS * ROW_LANES / 32) as usize;

/// Rows of a tile that lie between two of one lane.
const ROW_STEP: u32 = 32 / ROW_LANES;

/// K or V of one sequence and head.
pub struct KvCache<'a> {
    params: &'a DecodeParams,
    strides: &'a Strides,
    /// Columns of each row.
    head_dim: u32,
    /// First element of the head: of the sequence where it is contiguous, else of page 0.
    address: u64,
    /// First entry of the sequence in the page table, or 0.
    page_table: u64,
}

/// The rows of a tile that a lane copies, as (page, slot); without a page table (0, key).
pub struct Rows([(u32, u32); LANE_ROWS]);

impl<'a> KvCache<'a> {
    /// K of the head `kv_head` of sequence `batch`, of 16-bit elements.
    #[inline(always)]
    pub fn k(params: &'a DecodeParams, batch: u32, kv_head: u32) -> Self {
        Self::new(params, (params.k, &params.k_strides, params.head_dim), batch, kv_head)
    }

    /// V of the head `kv_head` of sequence `batch`, of 16-bit elements.
    #[inline(always)]
    pub fn v(params: &'a DecodeParams, batch: u32, kv_head: u32) -> Self {
        Self::new(params, (params.v, &params.v_strides, params.cache.head_dim_v), batch, kv_head)
    }

    #[inline(always)]
    fn new(
        params: &'a DecodeParams,
        (address, strides, head_dim): (u64, &'a Strides, u32),
        batch: u32,
        kv_head: u32,
    ) -> Self {
        let head = address + 2 * kv_head as u64 * strides.head;
        let pages = &params.cache.pages;
        if pages.table == 0 {
            let address = head + 2 * batch as u64 * strides.batch;
            return Self { params, strides, head_dim, address, page_table: 0 };
        }
        Self { params, strides, head_dim, address: head, page_table: pages.of_sequence(batch) }
    }

    /// Where the lane's rows of the tile of keys from `first` on lie; those from `end` on are not looked up.
    ///
    /// # Safety
    /// The page table, where there is one, has an entry for each key below `end`.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn locate(&self, first: u32, end: u32) -> Rows {
        let mut rows = [(0, 0); LANE_ROWS];
        let mut i = 0;
        while i < LANE_ROWS {
            // SAFETY: the page table, where there is one, has an entry for each key below `end`.
            rows[i] = unsafe { self.locate_key(first + lane_row(i), end) };
            i += 1;
        }
        Rows(rows)
    }

    /// Where a key lies, if it is below `end`.
    ///
    /// # Safety
    /// As [`Self::locate`].
    #[inline(always)]
    #[track_caller]
    unsafe fn locate_key(&self, key: u32, end: u32) -> (u32, u32) {
        if self.page_table == 0 {
            return (0, key);
        }
        // SAFETY: the table has an entry for each key below `end`.
        unsafe { self.params.cache.pages.locate(self.page_table, key, key < end) }
    }

    /// Byte address of the first column of a row.
    #[inline(always)]
    fn row(&self, (page, slot): (u32, u32)) -> u64 {
        self.address + 2 * (page as u64 * self.strides.batch + slot as u64 * self.strides.row)
    }

    /// Begins to fill a tile of [`WARP_KEYS`] rows, the keys from `first` on, of which `rows` are the
    /// lane's; what lies from `end` on, or beyond the head's columns, becomes 0.
    ///
    /// The caller commits, waits, and orders the lanes. Rows that start at multiples of 16 bytes are copied
    /// asynchronously; others pass through registers.
    ///
    /// # Safety
    /// The cache is readable up to `end`; all lanes of the warp call this together, and none still reads the
    /// tile.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn fill<E: Element, W: Width>(&self, tile: MmaTile<W>, rows: &Rows, first: u32, end: u32) {
        let strides = 2 * (self.strides.batch | self.strides.row);
        // SAFETY: the cache is readable up to `end`, all lanes are here, and none still reads the tile.
        unsafe {
            if (self.address | strides).is_multiple_of(CHUNK as u64) {
                self.copy_async(tile, rows, first, end);
            } else {
                self.copy_realigned(tile, first, end);
            }
        }
    }

    /// [`Self::fill`] of rows that start at multiples of 16 bytes.
    ///
    /// # Safety
    /// As [`Self::fill`].
    #[inline(always)]
    #[track_caller]
    unsafe fn copy_async<W: Width>(&self, tile: MmaTile<W>, rows: &Rows, first: u32, end: u32) {
        let lane_column = index::thread() % ROW_LANES * (CHUNK / 2);
        let mut i = 0;
        while i < LANE_ROWS {
            let exists = first + lane_row(i) < end;
            // Where nothing is read the address still has to be a valid one.
            let from = if exists { self.row(rows.0[i]) } else { self.address };
            let to = tile.address + lane_row(i) * MmaTile::<W>::STRIDE;
            let mut part = 0;
            while part < W::COLUMNS {
                let column = part + lane_column;
                let left = self.head_dim.saturating_sub(column);
                let bytes = if exists { (2 * left).min(CHUNK) } else { 0 };
                let offset = if left > 0 { 2 * column as u64 } else { 0 };
                if column < W::COLUMNS {
                    // SAFETY: the bytes are the cache's, and no lane still reads the chunk of the tile.
                    unsafe { cp_async::copy16(to + 2 * column, from + offset, bytes) };
                }
                part += ROW_LANES * (CHUNK / 2);
            }
            i += 1;
        }
    }

    /// [`Self::fill`] of rows that start at any multiple of 2 bytes.
    ///
    /// # Safety
    /// As [`Self::fill`].
    #[inline(always)]
    #[track_caller]
    unsafe fn copy_realigned<W: Width>(&self, tile: MmaTile<W>, first: u32, end: u32) {
        let chunks = W::COLUMNS * 2 / CHUNK;
        let mut chunk = index::thread() % 32;
        while chunk < WARP_KEYS * chunks {
            let (row, column) = (chunk / chunks, chunk % chunks * (CHUNK / 2));
            let exists = first + row < end && column < self.head_dim;
            let elements = if exists { (self.head_dim - column).min(CHUNK / 2) } else { 0 };
            // SAFETY: elements are loaded only where they exist, and no lane still reads the tile.
            unsafe {
                let from = self.row(self.locate_key(first + row, end)) + 2 * column as u64;
                let words = load_chunk(from, elements);
                shared::store4(tile.address + row * MmaTile::<W>::STRIDE + 2 * column, words);
            }
            chunk += 32;
        }
    }
}

/// Row `i` of the tile of those that the lane copies.
#[inline(always)]
fn lane_row(i: usize) -> u32 {
    index::thread() % 32 / ROW_LANES + ROW_STEP * i as u32
}
