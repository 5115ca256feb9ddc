//! 16-bit tiles in shared memory, multiplied by tensor cores with `mma.sync.m16n8k16`.
//!
//! A warp owns blocks of 16 rows of a product. In each, lane 4g + t holds rows g and g + 8, columns
//! 8n + 2t + {0, 1} of every n (PTX ISA, fragments of `mma.m16n8k16`): a row's columns are spread
//! over the four lanes of a quad. Register tiles here are indexed [row][column] of what the lane
//! holds: row 2m + h is row 16m + 8h + g, column 2n + e is column 8n + 2t + e.

use crate::element::{Bf16, Element, F16};
use crate::ptx::{convert, cp_async, global, index, ldmatrix, mma, shared};
use crate::tile::simt::GlobalTile;

/// Lanes that share a row of a product.
pub const QUAD: u32 = 4;

/// Bytes that one lane copies or one `ldmatrix` row holds.
pub const CHUNK: u32 = 16;

/// A 16-bit storage type that tensor cores multiply.
pub trait MmaElement: Element {
    /// acc += A·B for one 16×8×16 step.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    unsafe fn mma(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);

    /// Two values rounded to this type, the first in the low half.
    fn pack(low: f32, high: f32) -> u32;
}

impl MmaElement for F16 {
    #[inline(always)]
    #[track_caller]
    unsafe fn mma(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: the caller's contract.
        unsafe { mma::m16n8k16_f16(acc, a, b) }
    }

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        convert::pack_f16x2(low, high)
    }
}

impl MmaElement for Bf16 {
    #[inline(always)]
    #[track_caller]
    unsafe fn mma(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: the caller's contract.
        unsafe { mma::m16n8k16_bf16(acc, a, b) }
    }

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        convert::pack_bf16x2(low, high)
    }
}

/// A row-major matrix of 16-bit elements in shared memory.
///
/// Rows are one chunk longer than their columns: an odd multiple of 16 bytes, so that the eight rows
/// that `ldmatrix` reads at once lie in different banks, whatever the number of columns.
#[derive(Clone, Copy)]
pub struct MmaTile<const COLUMNS: u32> {
    /// Byte address of the first element, 16-byte aligned.
    pub address: u32,
}

impl<const COLUMNS: u32> MmaTile<COLUMNS> {
    /// Bytes from one row to the next.
    pub const STRIDE: u32 = const {
        assert!(COLUMNS.is_multiple_of(16));
        2 * COLUMNS + CHUNK
    };

    /// Bytes of `rows` rows.
    pub const fn bytes(rows: u32) -> u32 {
        rows * Self::STRIDE
    }

    /// Byte address of an element.
    #[inline(always)]
    fn at(self, row: u32, column: u32) -> u32 {
        self.address + row * Self::STRIDE + 2 * column
    }

    /// Begins to fill `ROWS` rows from `source`; what does not exist becomes 0. The caller commits and waits.
    ///
    /// Rows that start at multiples of 16 bytes are copied asynchronously, 16 bytes per thread and turn;
    /// others pass through registers, in the widest words that their addresses allow.
    ///
    /// # Safety
    /// `source` describes readable memory; the tile fits at its address, and no thread still reads it.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn fill<E: Element, const THREADS: u32, const ROWS: u32>(self, source: &GlobalTile) {
        // SAFETY: the caller's contract.
        unsafe {
            if (source.address | (2 * source.stride)).is_multiple_of(CHUNK as u64) {
                self.copy_async::<E, THREADS, ROWS>(source);
            } else {
                self.copy_realigned::<E, THREADS, ROWS>(source);
            }
        }
    }

    /// [`Self::fill`] of rows that start at any multiple of 2 bytes.
    ///
    /// # Safety
    /// As [`Self::fill`].
    #[inline(always)]
    #[track_caller]
    unsafe fn copy_realigned<E: Element, const THREADS: u32, const ROWS: u32>(self, source: &GlobalTile) {
        let chunks = COLUMNS * 2 / CHUNK;
        let mut chunk = index::thread();
        while chunk < ROWS * chunks {
            let (row, column) = (chunk / chunks, chunk % chunks * (CHUNK / 2));
            let exists = row < source.rows && column < source.columns;
            let elements = if exists { (source.columns - column).min(CHUNK / 2) } else { 0 };
            // SAFETY: the caller's contract.
            unsafe {
                shared::store4(self.at(row, column), load_chunk(source.at::<E>(row, column), elements))
            };
            chunk += THREADS;
        }
    }

    /// [`Self::fill`] of rows that start at multiples of 16 bytes.
    ///
    /// # Safety
    /// As [`Self::fill`].
    #[inline(always)]
    #[track_caller]
    unsafe fn copy_async<E: Element, const THREADS: u32, const ROWS: u32>(self, source: &GlobalTile) {
        let chunks = COLUMNS * 2 / CHUNK;
        let thread = index::thread();
        if const { THREADS.is_multiple_of(COLUMNS * 2 / CHUNK) } {
            // Each thread stays in its column of chunks, so that its addresses advance by constants.
            let (first, column) = (thread / chunks, thread % chunks * (CHUNK / 2));
            let mut row = 0;
            while row < ROWS {
                // SAFETY: the caller's contract.
                unsafe { self.copy_chunk::<E>(source, row + first, column, row + first < ROWS) };
                row += THREADS / chunks;
            }
        } else {
            let mut chunk = thread;
            while chunk < ROWS * chunks {
                let (row, column) = (chunk / chunks, chunk % chunks * (CHUNK / 2));
                // SAFETY: the caller's contract.
                unsafe { self.copy_chunk::<E>(source, row, column, true) };
                chunk += THREADS;
            }
        }
    }

    /// Issues the copy of one chunk, if it is `inside` the tile.
    ///
    /// # Safety
    /// As [`Self::copy_async`].
    #[inline(always)]
    #[track_caller]
    unsafe fn copy_chunk<E: Element>(self, source: &GlobalTile, row: u32, column: u32, inside: bool) {
        let exists = row < source.rows && column < source.columns;
        let bytes = if exists { (2 * (source.columns - column)).min(CHUNK) } else { 0 };
        // Where nothing is read the address still has to be a valid one.
        let from = if exists { source.at::<E>(row, column) } else { source.address };
        if inside {
            // SAFETY: the caller's contract.
            unsafe { cp_async::copy16(self.at(row, column), from, bytes) };
        }
    }
}

/// The first `elements` (0 to 8) 16-bit elements at `address`, a multiple of 2, zeros after them.
///
/// Nothing beyond them is read: another tensor, or nothing at all, may lie there.
///
/// # Safety
/// The elements are readable.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn load_chunk(address: u64, elements: u32) -> [u32; 4] {
    // SAFETY: the caller's contract; each load stays inside the elements.
    unsafe {
        if address.is_multiple_of(4) {
            let word = |i: u32| load_pair(address + 4 * i as u64, elements.saturating_sub(2 * i));
            [word(0), word(1), word(2), word(3)]
        } else {
            // Words straddle the pairs: one element, three aligned words, one element.
            let word = |i: u32| load_pair(address + 2 + 4 * i as u64, elements.saturating_sub(2 * i + 1));
            let first = load_pair(address, elements.min(1));
            let (a, b, c) = (word(0), word(1), word(2));
            let last = load_pair(address + 14, elements.saturating_sub(7));
            [first | (a << 16), (a >> 16) | (b << 16), (b >> 16) | (c << 16), (c >> 16) | (last << 16)]
        }
    }
}

/// The first two of `elements` 16-bit elements at `address`, zeros where there are fewer.
///
/// # Safety
/// The elements are readable; with two or more, `address` is a multiple of 4.
#[inline(always)]
#[track_caller]
unsafe fn load_pair(address: u64, elements: u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe {
        global::load_b32_if(elements >= 2, address) | global::load_b16_if(elements == 1, address) as u32
    }
}

/// `acc` += A·Bᵀ: A the warp's rows from `first_row` on, B the first `COLS`·4 rows of `b`, over all columns.
///
/// # Safety
/// Both tiles are written, with a barrier between; all 32 lanes of the warp call this together.
#[inline(always)]
pub unsafe fn multiply_transposed<E: MmaElement, const COLUMNS: u32, const ROWS: usize, const COLS: usize>(
    acc: &mut [[f32; COLS]; ROWS],
    a: MmaTile<COLUMNS>,
    first_row: u32,
    b: MmaTile<COLUMNS>,
) {
    let lane = index::thread() % 32;
    // Lanes name the rows of four 8×8 matrices: of A, rows 0–7 and 8–15 of the left half, then of the
    // right; of B, the left and right half of rows 0–7, then of rows 8–15.
    let a_first = a.at(first_row + lane % 16, lane / 16 * 8);
    let b_first = b.at(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    let mut k = 0;
    while k < COLUMNS {
        let mut a_fragments = [[0; 4]; ROWS];
        let mut m = 0;
        while m < ROWS / 2 {
            // SAFETY: the caller's contract.
            a_fragments[m] =
                unsafe { ldmatrix::load_x4(a_first + 16 * m as u32 * MmaTile::<COLUMNS>::STRIDE + 2 * k) };
            m += 1;
        }
        let mut n = 0;
        while n < COLS / 2 {
            // SAFETY: the caller's contract.
            let b = unsafe { ldmatrix::load_x4(b_first + 8 * n as u32 * MmaTile::<COLUMNS>::STRIDE + 2 * k) };
            let mut m = 0;
            while m < ROWS / 2 {
                // SAFETY: the caller's contract.
                unsafe {
                    step::<E, ROWS, COLS>(acc, m, n, a_fragments[m], [b[0], b[1]]);
                    step::<E, ROWS, COLS>(acc, m, n + 1, a_fragments[m], [b[2], b[3]]);
                }
                m += 1;
            }
            n += 2;
        }
        k += 16;
    }
}

/// `acc` += P·V: P the warp's probabilities in registers, V the first `COLS`·4 rows of `v`.
///
/// P is rounded to the storage type on its way into the tensor cores; its layout as a product is the
/// one that an A operand needs, so no lane exchanges anything.
///
/// # Safety
/// The tile is written, with a barrier between; all 32 lanes of the warp call this together.
#[inline(always)]
pub unsafe fn multiply_accumulate<
    E: MmaElement,
    const COLUMNS: u32,
    const ROWS: usize,
    const COLS: usize,
    const OUT: usize,
>(
    acc: &mut [[f32; OUT]; ROWS],
    p: &[[f32; COLS]; ROWS],
    v: MmaTile<COLUMNS>,
) {
    let lane = index::thread() % 32;
    // Rows 0–7 and 8–15 of the left half, then of the right; transposed on the way, since V's rows are keys.
    let v_first = v.at(lane % 16, lane / 16 * 8);
    let mut k = 0;
    while k < COLS / 4 {
        let mut a = [[0; 4]; ROWS];
        let mut m = 0;
        while m < ROWS / 2 {
            let (upper, lower) = (&p[2 * m], &p[2 * m + 1]);
            let j = 4 * k;
            a[m] = [
                E::pack(upper[j], upper[j + 1]),
                E::pack(lower[j], lower[j + 1]),
                E::pack(upper[j + 2], upper[j + 3]),
                E::pack(lower[j + 2], lower[j + 3]),
            ];
            m += 1;
        }
        let mut n = 0;
        while n < OUT / 2 {
            let address = v_first + 16 * k as u32 * MmaTile::<COLUMNS>::STRIDE + 16 * n as u32;
            // SAFETY: the caller's contract.
            let b = unsafe { ldmatrix::load_x4_transposed(address) };
            let mut m = 0;
            while m < ROWS / 2 {
                // SAFETY: the caller's contract.
                unsafe {
                    step::<E, ROWS, OUT>(acc, m, n, a[m], [b[0], b[1]]);
                    step::<E, ROWS, OUT>(acc, m, n + 1, a[m], [b[2], b[3]]);
                }
                m += 1;
            }
            n += 2;
        }
        k += 1;
    }
}

/// One 16×8×16 step into block (m, n) of a register tile.
///
/// # Safety
/// All 32 lanes of the warp call this together.
#[inline(always)]
unsafe fn step<E: MmaElement, const ROWS: usize, const COLS: usize>(
    acc: &mut [[f32; COLS]; ROWS],
    m: usize,
    n: usize,
    a: [u32; 4],
    b: [u32; 2],
) {
    let (i, j) = (2 * m, 2 * n);
    let mut block = [acc[i][j], acc[i][j + 1], acc[i + 1][j], acc[i + 1][j + 1]];
    // SAFETY: the caller's contract.
    unsafe { E::mma(&mut block, a, b) };
    acc[i][j] = block[0];
    acc[i][j + 1] = block[1];
    acc[i + 1][j] = block[2];
    acc[i + 1][j + 1] = block[3];
}
