//! Operands of a blocked matrix multiplication: how a step of A or B gets from device memory into shared
//! memory, and from there into the fragments of `mma.sync.m16n8k16`.
//!
//! A and B are one case: a panel is `SPAN` rows of A, or columns of B, by `DEPTH` of K. In memory consecutive
//! elements run along K (a row-major A, a column-major B) or along the span, and they keep that order in
//! shared memory: where they run along K, `ldmatrix` reads fragments as they are, else transposed.
//!
//! Shared rows have no padding; their 16-byte chunks are permuted instead. Chunk c of row r lies at c ^
//! key(r), so that the eight rows that `ldmatrix` reads at once, and the eight chunks that a quarter-warp
//! copies at once, lie in different banks.

use core::marker::PhantomData;

use crate::ptx::{cp_async, index, ldmatrix, shared};
use crate::tile::chunk::load_chunk;
use crate::tile::mma::CHUNK;

/// 16-bit elements of a chunk.
const CHUNK_ELEMENTS: u32 = CHUNK / 2;

/// The largest leading dimension for [`Feeder::copy`]: no offset within 256 rows exceeds 32 bits.
pub const MAX_LEADING: u32 = (1 << 23) - 1;

/// An operand in device memory: A, with span M, or B, with span N.
#[derive(Clone, Copy)]
pub struct Operand {
    /// Byte address of the first element.
    pub address: u64,
    /// Elements from one run of consecutive elements to the next.
    pub leading: u32,
    /// Rows of A or columns of B.
    pub span: u32,
    /// K.
    pub depth: u32,
}

/// Shape of a panel in shared memory: [`AlongK`] or [`AlongSpan`].
pub trait Panel: Copy {
    /// Rows of A or columns of B, a multiple of 64.
    const SPAN: u32;
    /// Of K, 32 or 64.
    const DEPTH: u32;
    /// Whether consecutive elements run along K.
    const ALONG_K: bool;

    /// Chunks of a shared row.
    const ROW_CHUNKS: u32 = const {
        assert!(Self::DEPTH == 32 || Self::DEPTH == 64, "a row along K is half a line of all banks, or one");
        assert!(Self::SPAN.is_multiple_of(64), "a row along the span is whole lines of all banks");
        (if Self::ALONG_K { Self::DEPTH } else { Self::SPAN }) / CHUNK_ELEMENTS
    };
    /// Shared rows.
    const ROWS: u32 = if Self::ALONG_K { Self::SPAN } else { Self::DEPTH };
    /// Bytes from one shared row to the next.
    const ROW_BYTES: u32 = Self::ROW_CHUNKS * CHUNK;
    /// Bytes in all.
    const BYTES: u32 = Self::ROWS * Self::ROW_BYTES;

    /// Byte offset of a chunk.
    #[inline(always)]
    fn chunk(row: u32, chunk: u32) -> u32 {
        // Two rows of four chunks share a line of all banks.
        let key = if Self::ROW_CHUNKS == 4 { row / 2 % 4 } else { row % 8 };
        row * Self::ROW_BYTES + CHUNK * (chunk ^ key)
    }
}

/// A panel whose consecutive elements run along K: of a row-major A or a column-major B.
#[derive(Clone, Copy)]
pub struct AlongK<const SPAN: u32, const DEPTH: u32>;

impl<const SPAN: u32, const DEPTH: u32> Panel for AlongK<SPAN, DEPTH> {
    const SPAN: u32 = SPAN;
    const DEPTH: u32 = DEPTH;
    const ALONG_K: bool = true;
}

/// A panel whose consecutive elements run along the span: of a column-major A or a row-major B.
#[derive(Clone, Copy)]
pub struct AlongSpan<const SPAN: u32, const DEPTH: u32>;

impl<const SPAN: u32, const DEPTH: u32> Panel for AlongSpan<SPAN, DEPTH> {
    const SPAN: u32 = SPAN;
    const DEPTH: u32 = DEPTH;
    const ALONG_K: bool = false;
}

/// Where a lane finds its part of a warp's fragments in a panel.
#[derive(Clone, Copy)]
pub struct Fragments<P> {
    first: u32,
    panel: PhantomData<P>,
}

impl<P: Panel> Fragments<P> {
    /// Of A, for the warp whose rows begin at `first`, a multiple of their number.
    #[inline(always)]
    pub fn of_a(first: u32) -> Self {
        // Lanes name the rows of four 8×8 matrices: rows 0–7 and 8–15 at the first half of K, then at the
        // second.
        let lane = index::thread() % 32;
        Self::new(first, lane / 8 % 2, lane / 16)
    }

    /// Of B, for the warp whose columns begin at `first`, a multiple of their number.
    #[inline(always)]
    pub fn of_b(first: u32) -> Self {
        // The two halves of K of columns 0–7, then of columns 8–15: each fragment of `mma` in neighbouring
        // registers.
        let lane = index::thread() % 32;
        Self::new(first, lane / 16, lane / 8 % 2)
    }

    /// For lanes that name rows of the matrix at half `span` of the span and half `depth` of K.
    #[inline(always)]
    fn new(first: u32, span: u32, depth: u32) -> Self {
        let row = index::thread() % 8;
        let first = if P::ALONG_K {
            P::chunk(first + 8 * span + row, depth)
        } else {
            P::chunk(8 * depth + row, first / CHUNK_ELEMENTS + span)
        };
        Self { first, panel: PhantomData }
    }

    /// The 16×16 elements at the `block`-th 16 of the warp's span and the `step`-th 16 of K, from the panel
    /// at `panel`: one fragment A of `mma`, or two fragments B.
    ///
    /// # Safety
    /// The panel is written, with a barrier between; all 32 lanes of the warp call this together.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load(self, panel: u32, block: u32, step: u32) -> [u32; 4] {
        // Sixteen elements are two chunks. Along a row they are an exclusive or, whatever the key, because
        // the warp's part begins at a multiple of its length; the key repeats every eight rows.
        let (chunks, rows) = if P::ALONG_K { (step, block) } else { (block, step) };
        let address = panel + (self.first ^ (2 * CHUNK * chunks)) + 16 * rows * P::ROW_BYTES;
        // SAFETY: the panel is written, with a barrier between, and all lanes are here.
        unsafe { if P::ALONG_K { ldmatrix::load_x4(address) } else { ldmatrix::load_x4_transposed(address) } }
    }
}

/// A thread's share in copying one operand: `COUNT` chunks of each panel, always the same ones.
#[derive(Clone, Copy)]
pub struct Feeder<P, const THREADS: u32, const COUNT: usize> {
    operand: Operand,
    /// First of the block's span.
    first: u32,
    /// The thread's first row in each panel.
    row: u32,
    /// Its column in elements.
    column: u32,
    /// Byte offset of its first chunk in a panel; the others lie [`Self::TARGET_STEP`] apart.
    target: u32,
    panel: PhantomData<P>,
}

/// Addresses of a thread's chunks in the next panel to be copied, all of which exists.
#[derive(Clone, Copy)]
pub struct Cursor<const COUNT: usize> {
    /// Address of the panel's first element, the same for all threads.
    base: u64,
    /// Bytes from there to each of the thread's chunks: in 64 bits they would leave too few registers.
    offsets: [u32; COUNT],
    /// Bytes from one panel to the next along K.
    advance: u64,
}

impl<P: Panel, const THREADS: u32, const COUNT: usize> Feeder<P, THREADS, COUNT> {
    /// Rows from one of the thread's chunks to the next: multiples of eight keep the key.
    const ROW_STEP: u32 = const {
        let step = THREADS / P::ROW_CHUNKS;
        assert!(THREADS.is_multiple_of(P::ROW_CHUNKS) && step.is_multiple_of(8));
        assert!(step * COUNT as u32 == P::ROWS);
        step
    };

    /// Bytes from one of the thread's chunks to the next in shared memory.
    const TARGET_STEP: u32 = Self::ROW_STEP * P::ROW_BYTES;

    /// For the block whose part of the span begins at `first`, which exists.
    #[inline(always)]
    pub fn new(operand: Operand, first: u32) -> Self {
        let thread = index::reread_thread();
        let chunks = P::ROW_CHUNKS;
        let (row, chunk) = (thread / chunks, thread % chunks);
        Self {
            operand,
            first,
            row,
            column: chunk * CHUNK_ELEMENTS,
            target: P::chunk(row, chunk),
            panel: PhantomData,
        }
    }

    /// The thread's chunks of the panel that begins at `k`.
    ///
    /// What lies past the span is replaced by the span's last row or chunk: it becomes part of products that
    /// nobody stores, and no copy needs a predicate.
    #[inline(always)]
    pub fn cursor(&self, k: u32) -> Cursor<COUNT> {
        let Operand { address, leading, span, .. } = self.operand;
        let (row, column) = if P::ALONG_K { (self.first, k) } else { (k, self.first) };
        let base = address + 2 * (row as u64 * leading as u64 + column as u64);
        let last = span - 1 - self.first;
        let mut offsets = [0; COUNT];
        let mut i = 0;
        while i < COUNT {
            let row = self.row + i as u32 * Self::ROW_STEP;
            offsets[i] = if P::ALONG_K {
                2 * (row.min(last) * leading + self.column)
            } else {
                // The span's last chunk begins at a multiple of eight.
                2 * (row * leading + self.column.min(last / CHUNK_ELEMENTS * CHUNK_ELEMENTS))
            };
            i += 1;
        }
        let advance = 2 * P::DEPTH as u64 * if P::ALONG_K { 1 } else { leading as u64 };
        Cursor { base, offsets, advance }
    }

    /// Issues the copies of the thread's chunks `from` to below `to` into the panel at `panel`.
    ///
    /// # Safety
    /// The panel at the cursor exists along K, and the leading dimension is at most [`MAX_LEADING`]. Rows
    /// start at multiples of 16 bytes; where they run along the span, its length is a multiple of eight. No
    /// thread still reads the target.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy(&self, cursor: &Cursor<COUNT>, panel: u32, (from, to): (usize, usize)) {
        let mut i = from;
        while i < to {
            let source = cursor.base + cursor.offsets[i] as u64;
            // SAFETY: the chunk exists, at a multiple of 16 bytes, and no thread still reads the target.
            unsafe { cp_async::copy16(panel + self.target + i as u32 * Self::TARGET_STEP, source, CHUNK) };
            i += 1;
        }
    }

    /// Issues the copies of the whole panel that begins at `k`; what lies past K becomes 0.
    ///
    /// # Safety
    /// As [`Self::copy`], but for what exists along K: `k` does.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_to_end(&self, k: u32, panel: u32) {
        let cursor = self.cursor(k);
        let depth = self.operand.depth - k;
        let mut i = 0;
        while i < COUNT {
            let elements = if P::ALONG_K {
                depth.saturating_sub(self.column).min(CHUNK_ELEMENTS)
            } else if self.row + i as u32 * Self::ROW_STEP < depth {
                CHUNK_ELEMENTS
            } else {
                0
            };
            // Where nothing is read the address still has to be a valid one.
            let source = cursor.base + if elements > 0 { cursor.offsets[i] as u64 } else { 0 };
            // SAFETY: only what exists is read, in aligned chunks, and no thread still reads the target.
            unsafe {
                cp_async::copy16(panel + self.target + i as u32 * Self::TARGET_STEP, source, 2 * elements)
            };
            i += 1;
        }
    }

    /// As [`Self::copy_to_end`], of rows that start at any element, through registers.
    ///
    /// # Safety
    /// No thread still reads the target, and `k` exists.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn realign(&self, k: u32, panel: u32) {
        let Operand { address, leading, span, depth } = self.operand;
        let (first_row, first_column) = if P::ALONG_K { (self.first, k) } else { (k, self.first) };
        let (rows, columns) = if P::ALONG_K { (span, depth) } else { (depth, span) };
        let column = first_column + self.column;
        let mut i = 0;
        while i < COUNT {
            let row = first_row + self.row + i as u32 * Self::ROW_STEP;
            let elements = if row < rows { columns.saturating_sub(column).min(CHUNK_ELEMENTS) } else { 0 };
            let source = address + 2 * (row as u64 * leading as u64 + column as u64);
            // SAFETY: the elements are inside the operand, and no thread still reads the target.
            unsafe {
                let chunk = load_chunk(source, elements);
                shared::store4(panel + self.target + i as u32 * Self::TARGET_STEP, chunk);
            }
            i += 1;
        }
    }
}

impl<const COUNT: usize> Cursor<COUNT> {
    /// On to the next panel along K.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.base += self.advance;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of four banks that 16-byte accesses at these offsets touch.
    fn bank_groups(offsets: impl Iterator<Item = u32>) -> usize {
        let mut touched = [false; 8];
        offsets.for_each(|offset| touched[(offset / CHUNK % 8) as usize] = true);
        touched.into_iter().filter(|&touched| touched).count()
    }

    fn check<P: Panel>() {
        let mut taken = [false; 2048];
        for row in 0..P::ROWS {
            for chunk in 0..P::ROW_CHUNKS {
                let place = (P::chunk(row, chunk) / CHUNK) as usize;
                assert!(!core::mem::replace(&mut taken[place], true), "two chunks in one place");
                if row % 8 == 0 {
                    assert_eq!(bank_groups((row..row + 8).map(|row| P::chunk(row, chunk))), 8, "ldmatrix");
                }
            }
        }
        let copied = |thread: u32| P::chunk(thread / P::ROW_CHUNKS, thread % P::ROW_CHUNKS);
        assert!((0..64).step_by(8).all(|first| bank_groups((first..first + 8).map(copied)) == 8), "copies");
    }

    #[test]
    fn eight_chunks_at_once_lie_in_different_banks() {
        check::<AlongK<128, 64>>();
        check::<AlongK<128, 32>>();
        check::<AlongSpan<64, 64>>();
        check::<AlongSpan<128, 32>>();
        check::<AlongSpan<256, 64>>();
    }
}
