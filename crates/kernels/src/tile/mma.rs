//! 16-bit tiles in shared memory, multiplied by tensor cores with `mma.sync.m16n8k16`.
//!
//! A warp owns blocks of 16 rows of a product. In each, lane 4g + t holds rows g and g + 8, columns
//! 8n + 2t + {0, 1} of every n (PTX ISA, fragments of `mma.m16n8k16`): a row's columns are spread
//! over the four lanes of a quad. Register tiles here are indexed [row][column] of what the lane
//! holds: row 2m + h is row 16m + 8h + g, column 2n + e is column 8n + 2t + e.

use core::marker::PhantomData;

use crate::element::{Bf16, Element, F16};
use crate::ptx::{convert, index, ldmatrix, mma, shared};
use crate::registers::{Matrix, Registers, Width};

/// Lanes that share a row of a product.
pub const QUAD: u32 = 4;

/// Bytes that one lane copies or one `ldmatrix` row holds.
pub const CHUNK: u32 = 16;

/// What a lane holds of its warp's products: rows and columns as said above.
#[derive(Clone, Copy)]
pub struct Lane {
    /// First row of the warp.
    pub warp_row: u32,
    /// g: row within each block of eight.
    pub group: u32,
    /// t: pair of columns within each block of eight.
    pub pair: u32,
}

impl Lane {
    /// This thread's, if each warp has `rows` times eight rows.
    #[inline(always)]
    pub fn current(rows: usize) -> Self {
        Self::of_thread(index::thread(), rows)
    }

    /// As [`Self::current`], found anew: behind a loop that has no registers to keep it in.
    #[inline(always)]
    pub fn reread(rows: usize) -> Self {
        Self::of_thread(index::reread_thread(), rows)
    }

    /// As [`Self::current`], of a given thread.
    #[inline(always)]
    pub fn of_thread(thread: u32, rows: usize) -> Self {
        let (warp, lane) = (thread / 32, thread % 32);
        Self { warp_row: warp * 8 * rows as u32, group: lane / QUAD, pair: lane % QUAD }
    }

    /// Row of the block's tile that the lane's row `i` is.
    #[inline(always)]
    pub fn row(self, i: usize) -> u32 {
        self.warp_row + 8 * i as u32 + self.group
    }

    /// Column of the product that the lane's column `j` is.
    #[inline(always)]
    pub fn column(self, j: usize) -> u32 {
        8 * (j / 2) as u32 + 2 * self.pair + (j % 2) as u32
    }
}

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
        // SAFETY: all lanes of the warp are here.
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
        // SAFETY: all lanes of the warp are here.
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
pub struct MmaTile<W> {
    /// Byte address of the first element, 16-byte aligned.
    pub address: u32,
    columns: PhantomData<W>,
}

impl<W: Width> MmaTile<W> {
    /// Bytes from one row to the next.
    pub const STRIDE: u32 = const {
        assert!(W::COLUMNS.is_multiple_of(16));
        2 * W::COLUMNS + CHUNK
    };

    /// The matrix at `address`, a multiple of 16.
    #[inline(always)]
    pub fn new(address: u32) -> Self {
        Self { address, columns: PhantomData }
    }

    /// Bytes of `rows` rows.
    pub const fn bytes(rows: u32) -> u32 {
        rows * Self::STRIDE
    }

    /// Byte address of an element.
    #[inline(always)]
    pub fn at(self, row: u32, column: u32) -> u32 {
        self.address + row * Self::STRIDE + 2 * column
    }

    /// The rows from `row` on.
    #[inline(always)]
    pub fn from_row(self, row: u32) -> Self {
        Self::new(self.at(row, 0))
    }

    /// The columns from `column`, a multiple of 8, on.
    #[inline(always)]
    pub fn from_column(self, column: u32) -> Self {
        Self::new(self.at(0, column))
    }

    /// Writes zeros into the columns from `first`, an even one, on, in `rows` rows. A barrier must follow
    /// before others read them.
    ///
    /// # Safety
    /// All `threads` threads of the block call this together; no other thread accesses those columns.
    #[inline(always)]
    pub unsafe fn clear_columns(self, first: u32, rows: u32, threads: u32) {
        if first >= W::COLUMNS {
            return;
        }
        let (warp, lane) = (index::thread() / 32, index::thread() % 32);
        let mut row = warp;
        while row < rows {
            let mut column = first + 2 * lane;
            while column < W::COLUMNS {
                // SAFETY: the word lies in the tile, and no other thread accesses it.
                unsafe { shared::store_b32(self.at(row, column), 0) };
                column += 64;
            }
            row += threads / 32;
        }
    }
}

/// Fragments of A that a warp multiplies at a time, at the most; no register is kept for those that it lacks.
const FRAGMENTS: usize = 8;

/// `acc` += A·Bᵀ: A the warp's rows from `first_row` on, B the first S::COLS·4 rows of `b`, over all columns;
/// of this lane's two in the first eight, only what the mask `keep` keeps.
///
/// # Safety
/// Both tiles are written, with a barrier between; all 32 lanes of the warp call this together.
#[inline(always)]
pub unsafe fn multiply_transposed<E: MmaElement, W: Width, S: Matrix>(
    acc: &mut S,
    a: MmaTile<W>,
    first_row: u32,
    b: MmaTile<W>,
    keep: u32,
) {
    const { assert!(S::ROWS <= 2 * FRAGMENTS) };
    let lane = index::thread() % 32;
    // Lanes name the rows of four 8×8 matrices: of A, rows 0–7 and 8–15 of the left half, then of the
    // right; of B, the left and right half of rows 0–7, then of rows 8–15.
    let a_first = a.at(first_row + lane % 16, lane / 16 * 8);
    let b_first = b.at(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    let mut k = 0;
    while k < W::COLUMNS {
        let mut a_fragments = [[0; 4]; FRAGMENTS];
        let mut m = 0;
        while m < S::ROWS / 2 {
            // SAFETY: the rows of A are written, with a barrier between, and all lanes are here.
            a_fragments[m] =
                unsafe { ldmatrix::load_x4(a_first + 16 * m as u32 * MmaTile::<W>::STRIDE + 2 * k) };
            if k == 0 {
                a_fragments[m][0] &= keep;
                a_fragments[m][1] &= keep;
            }
            m += 1;
        }
        let mut n = 0;
        while n < S::COLS / 2 {
            // SAFETY: the rows of B are written, with a barrier between, and all lanes are here.
            let mut b = unsafe { ldmatrix::load_x4(b_first + 8 * n as u32 * MmaTile::<W>::STRIDE + 2 * k) };
            if k == 0 {
                b[0] &= keep;
                b[2] &= keep;
            }
            let mut m = 0;
            while m < S::ROWS / 2 {
                // SAFETY: all lanes of the warp are here.
                unsafe {
                    step::<E, S>(acc, m, n, a_fragments[m], [b[0], b[1]]);
                    step::<E, S>(acc, m, n + 1, a_fragments[m], [b[2], b[3]]);
                }
                m += 1;
            }
            n += 2;
        }
        k += 16;
    }
}

/// `acc` += P·V: P the warp's probabilities in registers, V the first P::COLS·4 rows of `v`.
///
/// P is rounded to the storage type on its way into the tensor cores; its layout as a product is the
/// one that an A operand needs, so no lane exchanges anything.
///
/// # Safety
/// The tile is written, with a barrier between; all 32 lanes of the warp call this together.
#[inline(always)]
pub unsafe fn multiply_accumulate<E: MmaElement, W: Width, O: Matrix, P: Matrix>(
    acc: &mut O,
    p: &P,
    v: MmaTile<W>,
) {
    // SAFETY: the caller's promise is this function's.
    unsafe { multiply_accumulate_masked::<E, W, O, P>(acc, p, v, |_, _| [!0; 4]) }
}

/// As [`multiply_accumulate`], of those bits of P alone that `masks` gives, by 16 rows and by 16 columns: of
/// A's four registers.
///
/// # Safety
/// As [`multiply_accumulate`].
#[inline(always)]
pub unsafe fn multiply_accumulate_masked<E: MmaElement, W: Width, O: Matrix, P: Matrix>(
    acc: &mut O,
    p: &P,
    v: MmaTile<W>,
    masks: impl Fn(usize, usize) -> [u32; 4],
) {
    const { assert!(P::ROWS <= 2 * FRAGMENTS) };
    let lane = index::thread() % 32;
    // Rows 0–7 and 8–15 of the left half, then of the right; transposed on the way, since V's rows are keys.
    let v_first = v.at(lane % 16, lane / 16 * 8);
    let mut k = 0;
    while k < P::COLS / 4 {
        let mut a = [[0; 4]; FRAGMENTS];
        let mut m = 0;
        while m < P::ROWS / 2 {
            let (upper, lower) = (&p[2 * m], &p[2 * m + 1]);
            let j = 4 * k;
            let mask = masks(m, k);
            a[m] = [
                E::pack(upper[j], upper[j + 1]) & mask[0],
                E::pack(lower[j], lower[j + 1]) & mask[1],
                E::pack(upper[j + 2], upper[j + 3]) & mask[2],
                E::pack(lower[j + 2], lower[j + 3]) & mask[3],
            ];
            m += 1;
        }
        // SAFETY: the rows of V are written, with a barrier between, and all lanes are here.
        unsafe { accumulate::<E, W, O>(acc, v_first, k, |m| a[m]) };
        k += 1;
    }
}

/// `acc` += A·V over the `k`-th 16 rows of V, of which this lane reads from `v_first` on. `a` gives A's
/// registers by 16 rows.
///
/// # Safety
/// As [`multiply_accumulate`].
#[inline(always)]
unsafe fn accumulate<E: MmaElement, W: Width, O: Matrix>(
    acc: &mut O,
    v_first: u32,
    k: usize,
    a: impl Fn(usize) -> [u32; 4],
) {
    let mut n = 0;
    while n < O::COLS / 2 {
        let address = v_first + 16 * k as u32 * MmaTile::<W>::STRIDE + 16 * n as u32;
        // SAFETY: the rows of V are written, with a barrier between, and all lanes are here.
        let b = unsafe { ldmatrix::load_x4_transposed(address) };
        let mut m = 0;
        while m < O::ROWS / 2 {
            // SAFETY: all lanes of the warp are here.
            unsafe {
                step::<E, O>(acc, m, n, a(m), [b[0], b[1]]);
                step::<E, O>(acc, m, n + 1, a(m), [b[2], b[3]]);
            }
            m += 1;
        }
        n += 2;
    }
}

/// A thread's part of 16 rows of a product, rounded and packed as A operands: column block n and row half h
/// at 2n + h.
pub type Packed<S> = <<S as Matrix>::Row as Registers>::Of<u32>;

/// The `m`-th 16 rows of `s`, rounded and packed.
#[inline(always)]
pub fn pack_rows<E: MmaElement, S: Matrix>(s: &S, m: usize) -> Packed<S> {
    let mut packed = Packed::<S>::ZERO;
    let mut n = 0;
    while n < S::COLS / 2 {
        packed[2 * n] = E::pack(s[2 * m][2 * n], s[2 * m][2 * n + 1]);
        packed[2 * n + 1] = E::pack(s[2 * m + 1][2 * n], s[2 * m + 1][2 * n + 1]);
        n += 1;
    }
    packed
}

/// Sixteen-row blocks of A that [`multiply_packed`] takes at the most.
pub const PACKED_BLOCKS: usize = 2;

/// As [`multiply_accumulate`], of a P of `S` that is packed already.
///
/// # Safety
/// As [`multiply_accumulate`].
#[inline(always)]
pub unsafe fn multiply_packed<E: MmaElement, W: Width, O: Matrix, S: Matrix>(
    acc: &mut O,
    p: &[Packed<S>; PACKED_BLOCKS],
    v: MmaTile<W>,
) {
    const { assert!(S::ROWS <= 2 * PACKED_BLOCKS) };
    let lane = index::thread() % 32;
    let v_first = v.at(lane % 16, lane / 16 * 8);
    let mut k = 0;
    while k < S::COLS / 4 {
        let a = |m: usize| [p[m][4 * k], p[m][4 * k + 1], p[m][4 * k + 2], p[m][4 * k + 3]];
        // SAFETY: the rows of V are written, with a barrier between, and all lanes are here.
        unsafe { accumulate::<E, W, O>(acc, v_first, k, a) };
        k += 1;
    }
}

/// One 16×8×16 step into block (m, n) of a register tile.
///
/// # Safety
/// All 32 lanes of the warp call this together.
#[inline(always)]
unsafe fn step<E: MmaElement, S: Matrix>(acc: &mut S, m: usize, n: usize, a: [u32; 4], b: [u32; 2]) {
    let (i, j) = (2 * m, 2 * n);
    let mut block = [acc[i][j], acc[i][j + 1], acc[i + 1][j], acc[i + 1][j + 1]];
    // SAFETY: all lanes of the warp are here.
    unsafe { E::mma(&mut block, a, b) };
    acc[i][j] = block[0];
    acc[i][j + 1] = block[1];
    acc[i + 1][j] = block[2];
    acc[i + 1][j + 1] = block[3];
}
