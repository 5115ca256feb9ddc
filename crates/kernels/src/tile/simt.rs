//! fp32 tiles in shared memory, multiplied on the FMA pipe.
//!
//! A half-warp of [`ROW_LANES`] lanes owns [`THREAD_ROWS`] rows of a product. Lane x holds the
//! columns x, x + 16, x + 32, … of [`multiply_transposed`] and the column pairs 2x + {0, 1},
//! 2x + 32 + {0, 1}, … of [`multiply_accumulate`]: either way the lanes of a warp read shared
//! memory without bank conflicts.

use crate::config::{ROW_LANES, THREAD_ROWS};
use crate::element::Element;
use crate::params::Strides;
use crate::ptx::{index, math, shared};
use crate::registers::Registers;
use crate::scheduler::{Rows, WorkTile};

/// Rows of a register tile, as an array length.
pub const ROWS: usize = THREAD_ROWS as usize;

/// A row-major fp32 matrix in shared memory.
#[derive(Clone, Copy)]
pub struct SharedTile {
    /// Byte address of the first element, 16-byte aligned.
    pub address: u32,
    /// Floats from one row to the next, a multiple of 4.
    pub stride: u32,
}

impl SharedTile {
    /// Byte address of an element.
    #[inline(always)]
    pub fn at(self, row: u32, column: u32) -> u32 {
        self.address + 4 * (row * self.stride + column)
    }
}

/// A row-major matrix in device memory, of which some rows and columns exist.
#[derive(Clone, Copy)]
pub struct GlobalTile {
    /// Byte address of the first element.
    pub address: u64,
    /// Elements from one row to the next.
    pub stride: u64,
    /// Rows that exist.
    pub rows: u32,
    /// Columns that exist.
    pub columns: u32,
}

impl GlobalTile {
    /// One head of a view at `address`: `rows` of the sequence that `work` is in, and how many columns.
    #[inline(always)]
    pub fn of_head<E: Element>(
        address: u64,
        strides: &Strides,
        work: &WorkTile,
        head: u32,
        (rows, columns): (Rows, u32),
    ) -> Self {
        let address = address + E::BYTES * work.offset(strides, rows, head);
        Self { address, stride: strides.row, rows: rows.len, columns }
    }

    /// What lies from (`row`, `column`), which exists, to the end.
    #[inline(always)]
    pub fn from<E: Element>(&self, row: u32, column: u32) -> Self {
        Self {
            address: self.at::<E>(row, column),
            stride: self.stride,
            rows: self.rows - row,
            columns: self.columns - column,
        }
    }

    /// Byte address of an element of type `E`. 64-bit throughout: tensors may exceed 2^31 elements.
    #[inline(always)]
    pub fn at<E: Element>(&self, row: u32, column: u32) -> u64 {
        self.address + E::BYTES * (row as u64 * self.stride + column as u64)
    }
}

/// Where a thread stands in a SIMT tile.
#[derive(Clone, Copy)]
pub struct Lane {
    /// First of the thread's rows.
    pub row: u32,
    /// Position in the half-warp, 0 to 15.
    pub x: u32,
}

impl Lane {
    /// This thread's place.
    #[inline(always)]
    pub fn current() -> Self {
        let thread = index::thread();
        Self { row: thread / ROW_LANES * THREAD_ROWS, x: thread % ROW_LANES }
    }
}

/// Loads in flight per thread before the first value is used: enough to cover the latency of
/// device memory, few enough to stay in registers beside the accumulators.
const LOADS_IN_FLIGHT: u32 = 16;

/// What a block loads at a time.
pub trait Loaded {
    /// Rows.
    const ROWS: u32;
    /// Columns.
    const COLUMNS: u32;
    /// Threads of the block.
    const THREADS: u32;
}

/// Copies a tile into shared memory as fp32; what does not exist becomes 0.
///
/// Each warp takes whole rows, its lanes consecutive columns: coalesced, at any alignment.
/// A barrier must follow before other threads read the tile.
///
/// # Safety
/// `source` describes readable memory, the tile fits at `target`, no thread still reads it.
#[inline(always)]
#[track_caller]
pub unsafe fn load<E: Element, L: Loaded>(target: SharedTile, source: &GlobalTile) {
    // SAFETY: the source is readable, the tile fits at `target`, and no thread still reads it.
    unsafe { load_as::<E, L>(index::thread(), target, source) }
}

/// As [`load`], by the thread with this index. Where it is read anew ([`index::reread_thread`]), a loop
/// around keeps no register for what depends on it.
///
/// # Safety
/// As [`load`]; the index is the thread's.
#[inline(always)]
#[track_caller]
pub unsafe fn load_as<E: Element, L: Loaded>(thread: u32, target: SharedTile, source: &GlobalTile) {
    let (warps, segments, rows_in_flight) = const {
        let (warps, segments) = (L::THREADS / 32, L::COLUMNS / 32);
        let mut rows = 1;
        while 2 * rows * segments <= LOADS_IN_FLIGHT && (L::ROWS / warps).is_multiple_of(2 * rows) {
            rows *= 2;
        }
        assert!(
            L::COLUMNS.is_multiple_of(32) && L::ROWS.is_multiple_of(warps) && segments <= LOADS_IN_FLIGHT
        );
        (warps, segments, rows)
    };
    let lane = thread % 32;
    let mut first = thread / 32;
    while first < L::ROWS {
        let mut values = [0.0; LOADS_IN_FLIGHT as usize];
        let mut i = 0;
        while i < rows_in_flight * segments {
            let (row, column) = (first + i / segments * warps, lane + i % segments * 32);
            let exists = row < source.rows && column < source.columns;
            // SAFETY: the source is readable, and an element is loaded only where it exists.
            values[i as usize] = unsafe { E::load_if(exists, source.at::<E>(row, column)) };
            i += 1;
        }
        let mut i = 0;
        while i < rows_in_flight * segments {
            let (row, column) = (first + i / segments * warps, lane + i % segments * 32);
            // SAFETY: the element lies in the tile, which fits at `target` and which no thread still reads.
            unsafe { shared::store(target.at(row, column), values[i as usize]) };
            i += 1;
        }
        first += rows_in_flight * warps;
    }
}

/// `acc` += A·Bᵀ over the first `depth` columns (rounded up to a multiple of 4) of both tiles.
///
/// # Safety
/// Both tiles are written up to that depth, for the thread's rows of A and all columns' rows of B,
/// and a barrier stands between those writes and this call.
#[inline(always)]
pub unsafe fn multiply_transposed<R: Registers<Value = f32>>(
    acc: &mut [R; ROWS],
    a: SharedTile,
    b: SharedTile,
    lane: Lane,
    depth: u32,
) {
    let mut k = 0;
    while k < depth {
        // SAFETY: the thread's rows of A are written up to `depth`, with a barrier between.
        let rows = unsafe { load_rows(a, lane, k) };
        let mut j = 0;
        while j < R::LEN {
            // SAFETY: the columns' rows of B are written up to `depth`, with a barrier between.
            let column = unsafe { shared::load4(b.at(lane.x + ROW_LANES * j as u32, k)) };
            let mut i = 0;
            while i < ROWS {
                let mut e = 0;
                while e < 4 {
                    acc[i][j] = math::fma(rows[i][e], column[e], acc[i][j]);
                    e += 1;
                }
                i += 1;
            }
            j += 1;
        }
        k += 4;
    }
}

/// Writes a thread's part of a [`multiply_transposed`] product, so that it can be the A of another: its rows
/// are read by the half-warp that wrote them.
///
/// # Safety
/// The tile fits at `target` and no thread still reads it.
#[inline(always)]
#[track_caller]
pub unsafe fn store_product<R: Registers<Value = f32>>(target: SharedTile, lane: Lane, product: &[R; ROWS]) {
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < R::LEN {
            let (row, column) = (lane.row + i as u32, lane.x + ROW_LANES * j as u32);
            // SAFETY: the element lies in the tile, which fits at `target` and which no thread still reads.
            unsafe { shared::store(target.at(row, column), product[i][j]) };
            j += 1;
        }
        i += 1;
    }
}

/// `acc` += A·B over the first `depth` columns of A and rows of B (rounded up to a multiple of 4).
///
/// # Safety
/// As [`multiply_transposed`], with B written for that many rows.
#[inline(always)]
pub unsafe fn multiply_accumulate<P: Registers<Value = [f32; 2]>>(
    acc: &mut [P; ROWS],
    a: SharedTile,
    b: SharedTile,
    lane: Lane,
    depth: u32,
) {
    let mut k = 0;
    while k < depth {
        // SAFETY: the thread's rows of A are written up to `depth`, with a barrier between.
        let rows = unsafe { load_rows(a, lane, k) };
        let mut e = 0;
        while e < 4 {
            let mut j = 0;
            while j < P::LEN {
                // SAFETY: the first `depth` rows of B are written, with a barrier between.
                let pair = unsafe { shared::load2(b.at(k + e as u32, pair_column(lane, j))) };
                let mut i = 0;
                while i < ROWS {
                    acc[i][j][0] = math::fma(rows[i][e], pair[0], acc[i][j][0]);
                    acc[i][j][1] = math::fma(rows[i][e], pair[1], acc[i][j][1]);
                    i += 1;
                }
                j += 1;
            }
            e += 1;
        }
        k += 4;
    }
}

/// Four columns from `column` on, a multiple of 4, of each of the thread's rows.
///
/// # Safety
/// They are written, and a barrier stands between those writes and this call.
#[inline(always)]
#[track_caller]
unsafe fn load_rows(tile: SharedTile, lane: Lane, column: u32) -> [[f32; 4]; ROWS] {
    let mut rows = [[0.0; 4]; ROWS];
    let mut i = 0;
    while i < ROWS {
        // SAFETY: these columns of the thread's rows are written, with a barrier between.
        rows[i] = unsafe { shared::load4(tile.at(lane.row + i as u32, column)) };
        i += 1;
    }
    rows
}

/// First of the two columns that `lane` holds in pair `j` of a [`multiply_accumulate`] product.
#[inline(always)]
pub fn pair_column(lane: Lane, j: usize) -> u32 {
    2 * lane.x + 2 * ROW_LANES * j as u32
}

/// Rounds row `i` of a [`multiply_accumulate`] product, times `factor`, into row `row` of `target`.
///
/// # Safety
/// `row` exists in `target`, which is writable and touched by no other thread there.
#[inline(always)]
pub unsafe fn store_row<E: Element, P: Registers<Value = [f32; 2]>>(
    target: &GlobalTile,
    row: u32,
    lane: Lane,
    pairs: &P,
    factor: f32,
) {
    let mut j = 0;
    while j < P::LEN {
        let mut e = 0;
        while e < 2 {
            let column = pair_column(lane, j) + e as u32;
            if column < target.columns {
                // SAFETY: the row and the column exist, and the element is this lane's alone.
                unsafe { E::store(target.at::<E>(row, column), pairs[j][e] * factor) };
            }
            e += 1;
        }
        j += 1;
    }
}
