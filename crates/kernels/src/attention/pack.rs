//! Copying rows that start anywhere into rows that tensor maps can describe.
//!
//! Hopper's tensor copies want addresses and strides at multiples of 16 bytes. Where rows of what is
//! read lie otherwise, as those of a contiguous [B, H, S, 129] do, one launch copies them to rows of whole
//! 32-byte sectors, with zeros behind the last column.
//!
//! Each thread writes 16 bytes of a row at a time. It reads the one or two aligned 16 bytes that hold them,
//! and shifts: its neighbour reads the second of them too, out of L1, which has a multiple of the bandwidth
//! that this needs. So nothing passes through shared memory, and no thread waits for another.

use core::hint::assert_unchecked;

use crate::params::{PackParams, PackTensor};
use crate::ptx::{global, grid, index};

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Blocks that the registers leave room for on a multiprocessor: 64 KiB on their way.
pub const MIN_BLOCKS: u32 = 4;

/// Bytes, and elements, that a thread copies at once.
const CHUNK: u32 = 16;
const CHUNK_COLUMNS: u32 = CHUNK / 2;

/// Rows of which a thread has bytes on their way.
const ROWS: usize = 4;

/// The most chunks of a row: 256 columns.
const MAX_CHUNKS: u32 = 32;

/// Rows that a block copies, `chunks` chunks each: its threads take as many at once as they are enough for.
pub const fn block_rows(chunks: u32) -> u32 {
    ROWS as u32 * (THREADS / chunks)
}

/// Copies the rows of up to four tensors.
///
/// Launch: the last of `params.ends` blocks of [`THREADS`] threads, without shared memory.
///
/// # Safety
/// `params` describes valid device memory, targets overlap nothing, and the launch is as above.
#[inline(always)]
pub unsafe fn pack(params: &PackParams) {
    grid::launch_dependents();
    let block = index::block();
    let [first_end, second_end, third_end, _] = params.ends;
    let [first, second, third, fourth] = &params.tensors;
    // SAFETY: the tensors are valid device memory, and their targets overlap nothing.
    unsafe {
        if block < first_end {
            pack_block(first, block);
        } else if block < second_end {
            pack_block(second, block - first_end);
        } else if block < third_end {
            pack_block(third, block - second_end);
        } else {
            pack_block(fourth, block - third_end);
        }
    }
}

/// Copies the rows of a tensor that belong to its block `block`.
///
/// # Safety
/// As [`pack`].
#[inline(always)]
unsafe fn pack_block(tensor: &PackTensor, block: u32) {
    let (chunks, heads, head_blocks) = (tensor.chunks, tensor.heads, tensor.head_blocks);
    // SAFETY: a tensor with a block has no empty axis.
    unsafe {
        assert_unchecked(chunks > 0 && chunks <= MAX_CHUNKS);
        assert_unchecked(heads > 0 && head_blocks > 0);
    }
    let turn = THREADS / chunks;
    // SAFETY: there are more threads than chunks.
    unsafe { assert_unchecked(turn > 0) };
    let (thread_row, chunk) = (index::thread() / chunks, index::thread() % chunks);
    if thread_row >= turn {
        return;
    }
    let sequence_head = block / head_blocks;
    let (batch, head) = (sequence_head / heads, sequence_head % heads);
    let first_row = block % head_blocks * (ROWS as u32 * turn) + thread_row;
    let first = tensor.strides.offset(batch, first_row, head);
    let packed_row = sequence_head as u64 * tensor.rows as u64 + first_row as u64;
    let mut copies = Copies {
        source: tensor.source + 2 * (first + (CHUNK_COLUMNS * chunk) as u64),
        source_step: 2 * turn as u64 * tensor.strides.row,
        target: tensor.target + CHUNK as u64 * (packed_row * chunks as u64 + chunk as u64),
        target_step: (CHUNK * chunks * turn) as u64,
        columns: tensor.columns.saturating_sub(CHUNK_COLUMNS * chunk).min(CHUNK_COLUMNS),
        rows: tensor.rows.saturating_sub(first_row).div_ceil(turn),
    };
    // SAFETY: the tensor is device memory, its target overlaps nothing, and the chunks are this thread's.
    unsafe {
        copies.copy_inside(tensor);
        copies.copy_edges(tensor);
    }
}

/// What one thread copies: a chunk of each of a few rows.
struct Copies {
    /// Byte address of the chunk in the first row.
    source: u64,
    /// Bytes to that in the next.
    source_step: u64,
    /// Where it goes.
    target: u64,
    /// Bytes to where that of the next goes.
    target_step: u64,
    /// Columns of the chunk that there are.
    columns: u32,
    /// Rows that there are, of which the thread copies the first [`ROWS`].
    rows: u32,
}

impl Copies {
    /// Copies the chunks whose aligned 16 bytes lie inside the tensor: all loads first, then all stores.
    ///
    /// # Safety
    /// As [`pack`].
    #[inline(always)]
    unsafe fn copy_inside(&self, tensor: &PackTensor) {
        let mut loaded = [[[0; 4]; 2]; ROWS];
        let mut source = self.source;
        let mut i = 0;
        while i < ROWS {
            let exists = (i as u32) < self.rows && self.is_inside(source, tensor);
            let (low, high) = self.aligned(source);
            // SAFETY: the aligned bytes are inside the tensor.
            unsafe {
                loaded[i][0] = global::load4_if(exists && self.columns > 0, low);
                loaded[i][1] = global::load4_if(exists && high > low, high);
            }
            source += self.source_step;
            i += 1;
        }
        let (mut source, mut target) = (self.source, self.target);
        let mut i = 0;
        while i < ROWS {
            if (i as u32) < self.rows && self.is_inside(source, tensor) {
                // SAFETY: the row is this block's, and the chunk this thread's.
                unsafe { global::store4(target, self.keep_columns(shifted(loaded[i], source as u32))) };
            }
            source += self.source_step;
            target += self.target_step;
            i += 1;
        }
    }

    /// Copies the others, at the tensor's first and last bytes, element by element.
    ///
    /// # Safety
    /// As [`pack`].
    #[inline(always)]
    unsafe fn copy_edges(&mut self, tensor: &PackTensor) {
        let rows = self.rows.min(index::unknown(ROWS as u32));
        let mut row = 0;
        while row < rows {
            if !self.is_inside(self.source, tensor) {
                let mut words = [0; 4];
                let mut word = 0;
                while word < 4 {
                    let (column, address) = (2 * word as u32, self.source + 4 * word as u64);
                    // SAFETY: columns below `columns` exist.
                    let (low, high) = unsafe {
                        (
                            global::load_b16_if(column < self.columns, address),
                            global::load_b16_if(column + 1 < self.columns, address + 2),
                        )
                    };
                    words[word] = low as u32 | (high as u32) << 16;
                    word += 1;
                }
                // SAFETY: the row is this block's, and the chunk this thread's.
                unsafe { global::store4(self.target, words) };
            }
            self.source += self.source_step;
            self.target += self.target_step;
            row += 1;
        }
    }

    /// The aligned 16 bytes that hold the first and the last column of the chunk at `source`.
    #[inline(always)]
    fn aligned(&self, source: u64) -> (u64, u64) {
        let last = source + 2 * self.columns.max(1) as u64 - 1;
        (source & !(CHUNK as u64 - 1), last & !(CHUNK as u64 - 1))
    }

    /// Whether reading these stays inside the tensor.
    #[inline(always)]
    fn is_inside(&self, source: u64, tensor: &PackTensor) -> bool {
        let (low, high) = self.aligned(source);
        self.columns == 0 || (low >= tensor.source && high + CHUNK as u64 <= tensor.end)
    }

    /// The chunk with zeros for columns that there are not.
    #[inline(always)]
    fn keep_columns(&self, mut words: [u32; 4]) -> [u32; 4] {
        let mut word = 0;
        while word < 4 {
            let kept = self.columns.saturating_sub(2 * word as u32);
            words[word] &= match kept {
                0 => 0,
                1 => 0xffff,
                _ => !0,
            };
            word += 1;
        }
        words
    }
}

/// The 16 bytes that begin at `address`, a multiple of 2, out of the aligned ones around them.
#[inline(always)]
fn shifted([low, high]: [[u32; 4]; 2], address: u32) -> [u32; 4] {
    let mut words = [low[0], low[1], low[2], low[3], high[0], high[1], high[2]];
    if address & 8 != 0 {
        words = [words[2], words[3], words[4], words[5], words[6], high[3], 0];
    }
    if address & 4 != 0 {
        words = [words[1], words[2], words[3], words[4], words[5], words[6], 0];
    }
    if address & 2 != 0 {
        let late = |i: usize| words[i] >> 16 | words[i + 1] << 16;
        return [late(0), late(1), late(2), late(3)];
    }
    [words[0], words[1], words[2], words[3]]
}
