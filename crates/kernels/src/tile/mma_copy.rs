//! Streaming the rows of a matrix into shared memory, one tile after another, with asynchronous copies.
//!
//! There are three ways, and a kernel chooses one for all of its matrices, by a uniform branch outside of its
//! loop: [`ChunkCopy`] where every row starts at a multiple of 16 bytes; the same, `SHIFTED`, where all rows
//! of a matrix start at the same distance from one; [`WordCopy`] for any rows. All leave zeros where no row
//! is.

use core::marker::PhantomData;

use crate::element::Element;
use crate::ptx::{cp_async, index, shared, warp};
use crate::registers::Width;
use crate::tile::mma::{CHUNK, MmaTile, QUAD};
use crate::tile::simt::GlobalTile;

/// What a block copies in one turn.
pub trait Copied {
    /// Columns of a tile.
    type Columns: Width;
    /// Its rows.
    const ROWS: u32;
    /// Threads of a block.
    const THREADS: u32;
}

/// The rows of one matrix on their way into tiles of [`Width::COLUMNS`] columns, from its first row on.
pub trait TileCopy<W>: Sized {
    /// Columns that this way copies anew for each row of `head_dim`; what lies behind them in a tile has to
    /// be cleared once.
    fn copied_columns(head_dim: u32) -> u32;

    /// Of the matrix `source`.
    fn new<E: Element>(source: &GlobalTile) -> Self;

    /// Begins to copy the next rows into `tile`, of which there are `rows`, and zeros for the others. The
    /// caller commits.
    ///
    /// # Safety
    /// All threads of the block call this together. The rows are readable from the last multiple of 16 bytes
    /// before each where they are copied as they lie, else from the last one of 4 bytes. The tile fits at its
    /// address, and no thread still reads it.
    unsafe fn copy(&mut self, rows: u32, tile: MmaTile<W>);

    /// Passes over so many rows, of which the last may not exist.
    fn skip(&mut self, rows: u32);

    /// Brings into place what this warp's copies brought to `tile`; a barrier must follow before others read
    /// it.
    ///
    /// # Safety
    /// All threads of the block call this together, after [`cp_async::wait_group`] covered the tile's copies.
    unsafe fn settle(&self, tile: MmaTile<W>);
}

/// Whether all rows of `source` start at multiples of 16 bytes and are whole chunks.
#[inline(always)]
pub fn is_aligned(source: &GlobalTile) -> bool {
    (source.address | (2 * source.columns as u64)).is_multiple_of(CHUNK as u64) && shifts_alike(source)
}

/// Whether all rows of `source` start at the same distance from a multiple of 16 bytes.
#[inline(always)]
pub fn shifts_alike(source: &GlobalTile) -> bool {
    (2 * source.stride).is_multiple_of(CHUNK as u64)
}

/// Elements between the last multiple of 16 bytes and the first row of `source`.
#[inline(always)]
pub fn shift(source: &GlobalTile) -> u32 {
    (source.address % CHUNK as u64) as u32 / 2
}

/// Copies of 16 bytes. Each thread stays in its column of chunks, so that its addresses advance by constants.
///
/// `SHIFTED`, a row's first elements are preceded by what lies before them in their 16 bytes, and all columns
/// come [`shift`] later; what is multiplied over the columns has to leave the foreign ones out
/// ([`keep_columns`]).
pub struct ChunkCopy<const SHIFTED: bool, C> {
    /// Byte address of this thread's chunk in its first row of the next tile.
    source: u64,
    /// Bytes from one row to the next.
    stride: u64,
    /// Offset of its first chunk in a tile.
    target: u32,
    /// Bytes that there are of its chunks.
    bytes: u32,
    /// Whether the thread copies at all.
    active: bool,
    copied: PhantomData<C>,
}

/// Which of its two columns of the first eight of an `mma` operand this lane keeps, as a mask, if `shift` are
/// foreign.
#[inline(always)]
pub fn keep_columns(shift: u32) -> u32 {
    let column = index::thread() % QUAD * 2;
    if column >= shift {
        !0
    } else if column + 1 >= shift {
        0xffff_0000
    } else {
        0
    }
}

impl<const SHIFTED: bool, C: Copied> ChunkCopy<SHIFTED, C> {
    /// Chunks of a row.
    const CHUNKS: u32 = C::Columns::COLUMNS * 2 / CHUNK;

    /// Bytes from one row of a tile to the next.
    const STRIDE: u32 = MmaTile::<C::Columns>::STRIDE;

    /// Rows that the block's threads copy in one turn; a few threads may have no part in it.
    const TURN: u32 = C::THREADS / Self::CHUNKS;

    /// Issues the copies of a tile of which all rows exist.
    ///
    /// # Safety
    /// As [`TileCopy::copy`].
    #[inline(always)]
    unsafe fn copy_whole(&self, target: u32) {
        let (mut source, target) = (self.source, target + self.target);
        let mut row = 0;
        while row < C::ROWS {
            // Only the last turn can reach behind the tile.
            if row + Self::TURN <= C::ROWS || self.target < (C::ROWS - row) * Self::STRIDE {
                // SAFETY: the row is readable, and no thread still reads its chunk of the tile.
                unsafe { cp_async::copy16(target + row * Self::STRIDE, source, self.bytes) };
            }
            source += Self::TURN as u64 * self.stride;
            row += Self::TURN;
        }
    }

    /// Issues the copies of a tile that has `rows` rows; the others become zeros.
    ///
    /// # Safety
    /// As [`TileCopy::copy`].
    #[inline(always)]
    unsafe fn copy_part(&self, target: u32, rows: u32) {
        let (mut source, mut offset) = (self.source, self.target);
        let end = index::unknown(C::ROWS * Self::STRIDE);
        let rows = rows * Self::STRIDE;
        while offset < end {
            let bytes = if offset < rows { self.bytes } else { 0 };
            // SAFETY: nothing is read of a row that does not exist, and no thread still reads the tile.
            unsafe { cp_async::copy16(target + offset, source, bytes) };
            source += Self::TURN as u64 * self.stride;
            offset += Self::TURN * Self::STRIDE;
        }
    }
}

impl<const SHIFTED: bool, C: Copied> TileCopy<C::Columns> for ChunkCopy<SHIFTED, C> {
    #[inline(always)]
    fn copied_columns(head_dim: u32) -> u32 {
        if SHIFTED { C::Columns::COLUMNS } else { head_dim }
    }

    #[inline(always)]
    fn new<E: Element>(source: &GlobalTile) -> Self {
        let thread = index::thread();
        let (row, column) = (thread / Self::CHUNKS, thread % Self::CHUNKS * (CHUNK / 2));
        let shift = if SHIFTED { shift(source) } else { 0 };
        let columns = (source.columns + shift).saturating_sub(column);
        Self {
            // Where the chunk does not exist, no byte of it is read.
            source: source.at::<E>(row, column) - 2 * shift as u64,
            stride: E::BYTES * source.stride,
            target: row * Self::STRIDE + 2 * column,
            bytes: if SHIFTED { (2 * columns).min(CHUNK) } else { CHUNK },
            active: thread < Self::TURN * Self::CHUNKS && (SHIFTED || columns > 0),
            copied: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn copy(&mut self, rows: u32, tile: MmaTile<C::Columns>) {
        if self.active {
            // SAFETY: all threads are here, the rows are readable, and none still reads the tile.
            unsafe {
                if rows >= C::ROWS {
                    self.copy_whole(tile.address);
                } else {
                    self.copy_part(tile.address, rows);
                }
            }
        }
        self.source += C::ROWS as u64 * self.stride;
    }

    #[inline(always)]
    fn skip(&mut self, rows: u32) {
        self.source += rows as u64 * self.stride;
    }

    #[inline(always)]
    unsafe fn settle(&self, _: MmaTile<C::Columns>) {}
}

/// Copies of 4 bytes, for rows that start at any multiple of 2 bytes; each warp copies whole rows, its lanes
/// consecutive words.
///
/// A row that starts in the middle of a word arrives one element late, with the half word before it; its
/// warp shifts it into place in [`TileCopy::settle`].
pub struct WordCopy<C> {
    /// Byte address of the next tile's first row.
    source: u64,
    /// Bytes from one row to the next.
    stride: u64,
    /// Elements of a row.
    columns: u32,
    copied: PhantomData<C>,
}

/// Rows that are read before the first of them is written: enough to cover the latency of shared memory.
const SHIFTED_TOGETHER: usize = 4;

/// [`WordCopy::PASSES`] of the widest tile, 256 columns.
const MAX_PASSES: usize = 4;

impl<C: Copied> WordCopy<C> {
    /// Bytes from one row of a tile to the next.
    const STRIDE: u32 = MmaTile::<C::Columns>::STRIDE;

    /// Rows of a tile that a warp copies; they are neighbours, and each is finished by a lane of its own.
    const WARP_ROWS: u32 = const {
        let rows = C::ROWS / (C::THREADS / 32);
        assert!(C::ROWS.is_multiple_of(C::THREADS / 32) && rows <= 32 && rows.is_multiple_of(2));
        rows
    };

    /// Times that a warp's lanes go along a row.
    const PASSES: u32 = (C::Columns::COLUMNS / 2).div_ceil(32);

    /// Words of a row that are copied whole; one more may be there in part.
    #[inline(always)]
    fn words(&self) -> u32 {
        self.columns / 2
    }

    /// Whether the row that starts at `address` starts in the middle of a word.
    #[inline(always)]
    fn is_late(address: u64) -> bool {
        address & 2 != 0
    }

    /// Issues the copies of the whole words of one row.
    ///
    /// # Safety
    /// As [`TileCopy::copy`].
    #[inline(always)]
    unsafe fn copy_row(&self, source: u64, target: u32, lane: u32) {
        let mut pass = 0;
        while pass < Self::PASSES {
            if lane + 32 * pass < self.words() {
                // SAFETY: the row is readable, and no thread still reads its words of the tile.
                unsafe { cp_async::copy4(target + 128 * pass, (source & !3) + 128 * pass as u64, 4) };
            }
            pass += 1;
        }
    }

    /// Issues the copies of the whole words of the warp's rows, all of which exist.
    ///
    /// # Safety
    /// As [`TileCopy::copy`].
    #[inline(always)]
    unsafe fn copy_whole(&self, mut source: u64, target: u32, lane: u32) {
        let mut row = 0;
        while row < Self::WARP_ROWS {
            // SAFETY: the warp's rows are all readable, and no thread still reads the tile.
            unsafe { self.copy_row(source, target + row * Self::STRIDE, lane) };
            source += self.stride;
            row += 1;
        }
    }

    /// Issues the copies of the whole words of the `rows` rows of the warp that exist, and writes zeros for
    /// the others.
    ///
    /// # Safety
    /// As [`TileCopy::copy`].
    #[inline(always)]
    unsafe fn copy_part(&self, mut source: u64, mut target: u32, lane: u32, rows: u32) {
        let end = target + index::unknown(Self::WARP_ROWS * Self::STRIDE);
        let copied = target + rows * Self::STRIDE;
        while target < end {
            if target < copied {
                // SAFETY: the row is one of those that exist, and no thread still reads the tile.
                unsafe { self.copy_row(source, target, lane) };
            } else {
                let mut word = lane;
                while word < self.words() {
                    // SAFETY: the word lies in the tile, which no thread still reads.
                    unsafe { shared::store_b32(target + 4 * (word - lane), 0) };
                    word += 32;
                }
            }
            source += self.stride;
            target += Self::STRIDE;
        }
    }

    /// Shifts every second of the warp's rows, which start at `tile`, by half a word.
    ///
    /// # Safety
    /// As [`TileCopy::settle`].
    #[inline(always)]
    unsafe fn shift(&self, tile: MmaTile<C::Columns>, lane: u32) {
        let address = tile.address + 4 * lane;
        let mut row = 0;
        while row < Self::WARP_ROWS {
            let mut words = [[0; MAX_PASSES]; SHIFTED_TOGETHER];
            self.each_word(row, lane, |i, pass| {
                let at = address + (row + 2 * i as u32) * Self::STRIDE + 128 * pass as u32;
                // SAFETY: the row's copies have arrived, and brought the next word too, if only as the last
                // one of the row.
                let (low, high) = unsafe { (shared::load_b32(at), shared::load_b32(at + 4)) };
                words[i][pass] = low >> 16 | high << 16;
            });
            // SAFETY: all lanes are here, and have read what any of them overwrites.
            unsafe { warp::sync() };
            self.each_word(row, lane, |i, pass| {
                let at = address + (row + 2 * i as u32) * Self::STRIDE + 128 * pass as u32;
                // SAFETY: the word lies in the warp's rows, and no other lane still reads it.
                unsafe { shared::store_b32(at, words[i][pass]) };
            });
            row += 2 * SHIFTED_TOGETHER as u32;
        }
    }

    /// Calls `f(i, pass)` for this lane's words in the rows `row` + 2i that are shifted together.
    #[inline(always)]
    fn each_word(&self, row: u32, lane: u32, mut f: impl FnMut(usize, usize)) {
        let mut i = 0;
        while i < SHIFTED_TOGETHER {
            let mut pass = 0;
            while pass < MAX_PASSES {
                let inside = row + 2 * (i as u32) < Self::WARP_ROWS && (pass as u32) < Self::PASSES;
                if inside && lane + 32 * (pass as u32) < self.words() {
                    f(i, pass);
                }
                pass += 1;
            }
            i += 1;
        }
    }
}

/// This thread's warp and its lane there, read anew: over the loop there are no registers to keep them in.
#[inline(always)]
fn place() -> (u32, u32) {
    let thread = index::reread_thread();
    (thread / 32, thread % 32)
}

impl<C: Copied> TileCopy<C::Columns> for WordCopy<C> {
    #[inline(always)]
    fn copied_columns(head_dim: u32) -> u32 {
        // The word behind the whole ones is always written, if only with zeros.
        2 * (head_dim / 2 + 1)
    }

    #[inline(always)]
    fn new<E: Element>(source: &GlobalTile) -> Self {
        Self {
            source: source.address,
            stride: E::BYTES * source.stride,
            columns: source.columns,
            copied: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn copy(&mut self, rows: u32, tile: MmaTile<C::Columns>) {
        let (warp, lane) = place();
        let row = warp * Self::WARP_ROWS;
        let tile = tile.from_row(row);
        // SAFETY: all threads are here, the rows are readable, and none still reads the tile.
        unsafe {
            let (source, target) =
                (self.source + row as u64 * self.stride + 4 * lane as u64, tile.address + 4 * lane);
            if row + Self::WARP_ROWS <= rows {
                self.copy_whole(source, target, lane);
            } else {
                self.copy_part(source, target, lane, rows.saturating_sub(row));
            }
            if lane < Self::WARP_ROWS {
                let exists = row + lane < rows;
                let start = self.source + if exists { row + lane } else { 0 } as u64 * self.stride;
                let bytes = 2 * (self.columns % 2) + if Self::is_late(start) { 2 } else { 0 };
                let last = (start & !3) + 4 * self.words() as u64;
                let from = if bytes == 0 { start & !3 } else { last };
                let to = tile.from_row(lane).address + 4 * self.words();
                cp_async::copy4(to, from, if exists { bytes } else { 0 });
            }
        }
        self.source += C::ROWS as u64 * self.stride;
    }

    #[inline(always)]
    fn skip(&mut self, rows: u32) {
        self.source += rows as u64 * self.stride;
    }

    #[inline(always)]
    unsafe fn settle(&self, tile: MmaTile<C::Columns>) {
        // Tiles have an even number of rows, so those of each start alike.
        let (first, all) = match (Self::is_late(self.source), Self::is_late(self.stride)) {
            (false, false) => return,
            (true, false) => (0, true),
            (start, true) => (!start as u32, false),
        };
        // SAFETY: all threads are here, and their copies of the tile have arrived.
        unsafe {
            warp::sync();
            let (warp, lane) = place();
            let tile = tile.from_row(warp * Self::WARP_ROWS);
            let finishes = lane < Self::WARP_ROWS && (all || lane % 2 == first);
            let at = tile.from_row(lane).address + 4 * self.words();
            let last = if finishes { shared::load_b32(at) } else { 0 };
            self.shift(tile.from_row(first), lane);
            if all {
                self.shift(tile.from_row(1), lane);
            }
            warp::sync();
            if finishes {
                shared::store_b32(at, if self.columns % 2 == 1 { last >> 16 } else { 0 });
            }
        }
    }
}
