//! V of 8-bit elements with its keys along rows, and such rows of Q and K as no tensor map describes.
//!
//! `wgmma` takes 8-bit operands whose consecutive elements run along K alone (PTX ISA, `wgmma.mma_async`),
//! and those of V run along its columns. So one launch before `forward_sm90` writes V as [B, H, D, Sk], with
//! zeros behind the last key.
//!
//! Keys change places within each 16, so that a thread's scores, packed, are already the A of their product
//! with V: of two blocks of eight keys it has the pair t of each, where A has four neighbours from 4t on. The
//! pairs 0 1 2 3 | 4 5 6 7 become 0 4 1 5 2 6 3 7.
//!
//! Blocks of keys begin at multiples of 16 bytes, and reach beyond a sequence's keys, where a weight of 0
//! must meet a number. So the keys of packed sequences lie further apart than in V ([`first_position`]), with
//! zeros between them, and so do keys that a sequence does not use become zeros.
//!
//! Each thread reads four columns of 16 keys and writes 16 keys of four columns; it has all that it needs in
//! registers. The lanes of a warp read whole sectors of 32 bytes, and write two next to one another.
//!
//! Further blocks copy rows of Q and K that lie at no multiples of 16 bytes to rows that do, with zeros
//! behind the last column: a thread has 16 bytes of a row.

use core::hint::assert_unchecked;

use crate::config::Sm90Config;
use crate::params::{KeySequences, PackParams, PackTensor};
use crate::ptx::{global, grid, index};
use crate::scheduler::Rows;

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Blocks that the registers leave room for on a multiprocessor: 64 KiB on their way.
pub const MIN_BLOCKS: u32 = 4;

/// Keys of a product, of which the copy's rows have whole ones.
pub const KEYS: u32 = 32;

/// Keys that change places among one another.
const GROUP: u32 = 16;

/// Positions that packed sequences lie further apart than their keys: as many as a block of keys reaches
/// beyond them, and what rounding to a group takes away.
const GAP: u32 = Sm90Config::MAX_SUMMED + GROUP;

/// Where the copy of a packed sequence begins, whose first key is `first` in V, by its index.
#[inline(always)]
pub const fn first_position(first: u32, sequence: u32) -> u32 {
    first.next_multiple_of(GROUP) + GAP * sequence
}

/// Columns that a thread reads at once, and a warp.
const COLUMNS: u32 = 4;
const WARP_COLUMNS: u32 = 32;

/// Keys of a warp.
const WARP_KEYS: u32 = 32 / (WARP_COLUMNS / COLUMNS) * GROUP;

/// Blocks for a head of so many columns and keys.
pub const fn head_blocks(columns: u32, keys: u32) -> u32 {
    let warps = keys.div_ceil(WARP_KEYS) as u64 * columns.div_ceil(WARP_COLUMNS) as u64;
    warps.div_ceil((THREADS / 32) as u64) as u32
}

/// Blocks for the rows of a head, of so many chunks of 16 bytes each, that are copied as they are.
pub const fn row_blocks(rows: u32, chunks: u32) -> u32 {
    (rows as u64 * chunks as u64).div_ceil(THREADS as u64) as u32
}

/// Copies the first of the tensors, whose elements have 8 bits: [B, S, H, D] to [B, H, D, 16·`chunks`],
/// contiguous. Of packed sequences, B is 1, and each begins at its [`first_position`]. The second and the
/// third, where there are blocks for them, go to [B, H, S, 16·`chunks`].
///
/// Launch: the last of `params.ends` blocks of [`THREADS`] threads, without shared memory.
///
/// # Safety
/// `params` describes valid device memory, `chunks` times 16 positions are no fewer than the first tensor's
/// sequences have, and the others' columns, targets overlap nothing, and the launch is as above.
#[inline(always)]
pub unsafe fn transpose(params: &PackParams) {
    grid::launch_dependents();
    let (block, ends) = (index::block(), &params.ends);
    // SAFETY: as the caller says; each tensor has the blocks before its end.
    unsafe {
        if block < ends[0] {
            transpose_block(params, block);
        } else if block < ends[1] {
            copy_block(&params.tensors[1], block - ends[0]);
        } else {
            copy_block(&params.tensors[2], block - ends[1]);
        }
    }
}

/// A block's part of the copy of V.
///
/// # Safety
/// As [`transpose`]; it is one of the first tensor's blocks.
#[inline(always)]
unsafe fn transpose_block(params: &PackParams, block: u32) {
    let tensor = &params.tensors[0];
    let (heads, head_blocks) = (tensor.heads, tensor.head_blocks);
    // SAFETY: a tensor with a block has no empty axis.
    unsafe { assert_unchecked(heads > 0 && head_blocks > 0 && tensor.columns > 0) };
    let (sequence_head, block) = (block / head_blocks, block % head_blocks);
    let (warp, lane) = (index::thread() / 32, index::thread() % 32);
    let unit = block * (THREADS / 32) + warp;
    let units = tensor.columns.div_ceil(WARP_COLUMNS);
    // SAFETY: there are columns.
    unsafe { assert_unchecked(units > 0) };
    let quads = const { WARP_COLUMNS / COLUMNS };
    let column = unit % units * WARP_COLUMNS + lane % quads * COLUMNS;
    let chunk = (unit / units * WARP_KEYS + lane / quads * GROUP) / GROUP;
    if column < tensor.columns && chunk < tensor.chunks {
        let (batch, head) = (sequence_head / heads, sequence_head % heads);
        // SAFETY: the tensor is valid memory, which has such a column, and its copy has the chunk.
        unsafe {
            let source = Source::of(params, batch, GROUP * chunk);
            transpose_chunk(tensor, (&source, batch, head), column, chunk);
        }
    }
}

/// The keys of a chunk.
struct Source {
    /// The row of its first.
    row: u32,
    /// How many there are from that one on.
    keys: u32,
}

impl Source {
    /// Those whose copy begins at a position of a batch index.
    ///
    /// # Safety
    /// The offsets and lengths of `params` are readable, and the copy has the position.
    #[inline(always)]
    unsafe fn of(params: &PackParams, batch: u32, position: u32) -> Self {
        let sequences = &params.keys;
        // SAFETY: the offsets are readable, of a sequence that exists.
        unsafe {
            let sequence = if sequences.count > 0 { sequence_at(sequences, position) } else { batch };
            let rows = Rows::of_sequence(sequences.cu_seqlens, sequence, params.tensors[0].rows);
            let key =
                if sequences.count > 0 { position - first_position(rows.first, sequence) } else { position };
            let used = rows.used(sequences.seqused, sequence).len;
            Self { row: rows.first + key, keys: used.saturating_sub(key) }
        }
    }
}

/// The packed sequence whose copy a position belongs to.
///
/// # Safety
/// The offsets are readable.
#[inline(always)]
unsafe fn sequence_at(sequences: &KeySequences, position: u32) -> u32 {
    let (mut first, mut end) = (0, sequences.count);
    while end - first > 1 {
        let middle = first.midpoint(end);
        // SAFETY: there is such a sequence.
        let key = unsafe { global::load_b32_if(true, sequences.cu_seqlens + 4 * middle as u64) };
        if first_position(key, middle) <= position {
            first = middle;
        } else {
            end = middle;
        }
    }
    first
}

/// Copies the 16 keys of a chunk, up to four columns of them.
///
/// # Safety
/// As [`transpose`]; there is such a column, and such a chunk.
#[inline(always)]
unsafe fn transpose_chunk(
    tensor: &PackTensor,
    (keys, batch, head): (&Source, u32, u32),
    column: u32,
    chunk: u32,
) {
    let strides = &tensor.strides;
    let source = tensor.source + strides.offset(batch, keys.row, head) + column as u64;
    let row = (batch as u64 * tensor.heads as u64 + head as u64) * tensor.columns as u64 + column as u64;
    let step = 16 * tensor.chunks as u64;
    let target = tensor.target + row * step + 16 * chunk as u64;
    let columns = tensor.columns - column;
    if columns < COLUMNS || !(source | strides.row).is_multiple_of(4) {
        // SAFETY: as the caller says.
        return unsafe { transpose_bytes((source, strides.row), keys.keys, columns, (target, step)) };
    }
    let mut loaded = [0; GROUP as usize];
    let mut i = 0;
    while i < GROUP as usize {
        let exists = (i as u32) < keys.keys;
        // SAFETY: a key that exists has these four columns, at a multiple of 4 bytes.
        loaded[i] = unsafe { global::load_b32_if(exists, source + i as u64 * strides.row) };
        i += 1;
    }
    let mut byte = 0;
    while byte < COLUMNS {
        let word = |pair: usize| {
            let [a, b, c, d] =
                [loaded[2 * pair], loaded[2 * pair + 1], loaded[2 * pair + 8], loaded[2 * pair + 9]]
                    .map(|word| word >> (8 * byte) & 0xff);
            a | b << 8 | c << 16 | d << 24
        };
        // SAFETY: the chunk is the copy's, at a multiple of 16 bytes, and no other thread stores it.
        unsafe { global::store4(target + byte as u64 * step, [word(0), word(1), word(2), word(3)]) };
        byte += 1;
    }
}

/// Copies as many keys as there are of a chunk, byte by byte: those of up to four of the columns that are
/// left in a row.
///
/// # Safety
/// As [`transpose_chunk`], of keys a step apart at the first address, and columns at the second.
#[inline(always)]
unsafe fn transpose_bytes((source, row): (u64, u64), keys: u32, columns: u32, (target, step): (u64, u64)) {
    let columns = index::unknown(columns.min(COLUMNS)) as u64;
    let mut column = 0;
    while column < columns {
        let mut words = [0; 4];
        let mut i = 0;
        while i < GROUP as usize {
            let address = source + i as u64 * row + column;
            // SAFETY: a key that exists has the column.
            let value = unsafe { global::load_b8_if((i as u32) < keys, address) } as u32;
            words[i % 8 / 2] |= value << (8 * (i % 2 + i / 8 * 2));
            i += 1;
        }
        // SAFETY: the chunk is the copy's, at a multiple of 16 bytes, and no other thread stores it.
        unsafe { global::store4(target + column * step, words) };
        column += 1;
    }
}

/// A block's part of the rows of a tensor that is copied as it is.
///
/// # Safety
/// As [`transpose`]; it is one of this tensor's blocks.
#[inline(always)]
unsafe fn copy_block(tensor: &PackTensor, block: u32) {
    let &PackTensor { heads, head_blocks, chunks, rows, .. } = tensor;
    // SAFETY: a tensor with a block has no empty axis.
    unsafe { assert_unchecked(heads > 0 && head_blocks > 0 && chunks > 0) };
    let (sequence_head, part) = (block / head_blocks, block % head_blocks);
    let unit = part * THREADS + index::thread();
    let (row, chunk) = (unit / chunks, unit % chunks);
    if row >= rows {
        return;
    }
    let (batch, head, column) = (sequence_head / heads, sequence_head % heads, 16 * chunk);
    let source = tensor.source + tensor.strides.offset(batch, row, head) + column as u64;
    let target_row = sequence_head as u64 * rows as u64 + row as u64;
    let target = tensor.target + 16 * (target_row * chunks as u64 + chunk as u64);
    let mut words = [0; 4];
    let mut i = 0;
    while i < 4 {
        let columns = tensor.columns.saturating_sub(column + 4 * i as u32);
        // SAFETY: the row has so many columns from this one on.
        words[i] = unsafe { load_bytes(source + 4 * i as u64, columns) };
        i += 1;
    }
    // SAFETY: the chunk is the copy's, at a multiple of 16 bytes, and no other thread stores it.
    unsafe { global::store4(target, words) };
}

/// The four bytes at an address, of which so many exist; the others are 0.
///
/// # Safety
/// Those that exist are device memory.
#[inline(always)]
unsafe fn load_bytes(address: u64, bytes: u32) -> u32 {
    let is_word = bytes >= 4 && address.is_multiple_of(4);
    // SAFETY: as the caller says.
    let mut word = unsafe { global::load_b32_if(is_word, address) };
    if !is_word {
        let mut byte = 0;
        while byte < 4 {
            // SAFETY: as the caller says.
            let value = unsafe { global::load_b8_if(byte < bytes, address + byte as u64) };
            word |= (value as u32) << (8 * byte);
            byte += 1;
        }
    }
    word
}
