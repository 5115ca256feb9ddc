//! The keys and values in use of a cache in e4m3, widened to 16 bits: one launch before `forward_sm90`, whose
//! products take K and V of Q's type.
//!
//! Both copies are [B, Hkv, Sk, D], also of pages. Elements are exact in both types of 16 bits, and stay
//! without their factors, which the attention applies in fp32. Sequences without queries are passed over, and
//! so are keys that a window hides from all queries.
//!
//! A thread reads 8 bytes and writes 16, so that a warp stores whole lines.

use core::hint::assert_unchecked;

use crate::element::Widened;
use crate::params::{WidenParams, WidenTensor};
use crate::ptx::{global, grid, index};
use crate::scheduler::WorkTile;

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Blocks that the registers leave room for on a multiprocessor: 64 KiB on their way.
pub const MIN_BLOCKS: u32 = 4;

/// Elements that a thread widens at once.
pub const CHUNK: u32 = 8;

/// Bytes of as many 16-bit elements.
const CHUNK_BYTES: u64 = 2 * CHUNK as u64;

/// Rows of which a thread has bytes on their way.
const ROWS: usize = 8;

/// The most chunks of a row: 256 columns.
const MAX_CHUNKS: u32 = 32;

/// Rows that a block widens at a time, `chunks` chunks each.
pub const fn block_rows(chunks: u32) -> u32 {
    ROWS as u32 * (THREADS / chunks)
}

/// Widens the keys and values that queries may see.
///
/// Launch: B·Hkv·2·`params.head_blocks` blocks of [`THREADS`] threads, without shared memory.
///
/// # Safety
/// `params` describes valid device memory, of whose tensors rows start at multiples of 8 bytes, the targets
/// overlap nothing, and the launch is as above. Lengths and pages may be anything.
#[inline(always)]
pub unsafe fn widen<E: Widened>(params: &WidenParams) {
    grid::launch_dependents();
    let (heads, head_blocks) = (params.heads, params.head_blocks);
    // SAFETY: a launch with a block has heads, and blocks for each.
    unsafe { assert_unchecked(heads > 0 && head_blocks > 0) };
    // Blocks beside one another read heads of the same keys, which may share lines.
    let (head, rest) = (index::block() % heads, index::block() / heads);
    let (is_value, rest) = (rest % 2 == 1, rest / 2);
    let (part, batch) = (rest % head_blocks, rest / head_blocks);
    // SAFETY: the grid has no more sequences than there are, whose lengths are readable.
    let (queries, keys) = unsafe { WorkTile::rows(&params.attention, batch) };
    if queries.len == 0 {
        return;
    }
    let hidden = queries.len.saturating_add(params.attention.window_left);
    let seen = keys.len.saturating_sub(hidden);
    // SAFETY: a step of the attention has keys.
    unsafe { assert_unchecked(params.block_n > 0) };
    // A step takes keys before those that are seen, whose weights of 0 need numbers to multiply.
    let block = Block { part, batch, head, first: seen - seen % params.block_n, end: keys.len };
    // SAFETY: both tensors are valid memory, and the block is one of theirs.
    unsafe {
        if is_value {
            block.widen::<E>(params, &params.v);
        } else {
            block.widen::<E>(params, &params.k);
        }
    }
}

/// A block's share: of a sequence's head, the keys from `first` to before `end` that are its part's.
#[derive(Clone, Copy)]
struct Block {
    part: u32,
    batch: u32,
    head: u32,
    first: u32,
    end: u32,
}

impl Block {
    /// Widens its rows of a tensor.
    ///
    /// # Safety
    /// As [`widen`]; the sequence has room for the keys.
    #[inline(always)]
    unsafe fn widen<E: Widened>(self, params: &WidenParams, tensor: &WidenTensor) {
        let chunks = tensor.chunks;
        // SAFETY: a tensor has columns, at most as many as there are threads for.
        unsafe { assert_unchecked(chunks > 0 && chunks <= MAX_CHUNKS) };
        let turn = THREADS / chunks;
        let (thread_row, chunk) = (index::thread() / chunks, index::thread() % chunks);
        if thread_row >= turn {
            return;
        }
        let row_bytes = CHUNK_BYTES * chunks as u64;
        let of_head =
            (self.batch as u64 * params.heads as u64 + self.head as u64) * params.attention.seqlen_k as u64;
        let rows = Rows {
            source: tensor.source + self.head as u64 * tensor.strides.head + (CHUNK * chunk) as u64,
            target: tensor.target + of_head * row_bytes + CHUNK_BYTES * chunk as u64,
            row_bytes,
            turn,
            batch: self.batch,
            end: self.end,
        };
        // The planner bounds blocks, so that neither sum reaches 2^32.
        let at_a_time = ROWS as u32 * turn;
        let mut key = self.first + self.part * at_a_time + thread_row;
        while key < self.end {
            // SAFETY: the keys are the sequence's, and the chunk this thread's.
            unsafe { rows.widen::<E>(params, tensor, key) };
            key += params.head_blocks * at_a_time;
        }
    }
}

/// A thread's chunk of the rows of a sequence's head.
#[derive(Clone, Copy)]
struct Rows {
    batch: u32,
    /// One past the last key.
    end: u32,
    /// Address of the chunk in the first row of the first sequence, or page.
    source: u64,
    /// Where that of the sequence's first row goes.
    target: u64,
    /// Bytes of a row there.
    row_bytes: u64,
    /// Keys from one row of the thread to the next.
    turn: u32,
}

impl Rows {
    /// Address of the chunk of a key that exists, in a page that is none behind the last element.
    ///
    /// # Safety
    /// As [`Block::widen`].
    #[inline(always)]
    unsafe fn source(&self, params: &WidenParams, tensor: &WidenTensor, key: u32, exists: bool) -> u64 {
        let (mut batch, mut row) = (self.batch, key);
        if params.pages.table != 0 {
            let entries = params.pages.of_sequence(self.batch);
            // SAFETY: the table has an entry for each key that the sequence has room for.
            (batch, row) = unsafe { params.pages.locate(entries, key, exists) };
            // As unsigned numbers, negative ones are too large as well.
            if batch >= params.num_pages {
                return tensor.end;
            }
        }
        self.source + batch as u64 * tensor.strides.batch + row as u64 * tensor.strides.row
    }

    /// Widens the chunks of this thread's next rows, from `first` on: all loads first, then all stores.
    ///
    /// # Safety
    /// As [`Block::widen`].
    #[inline(always)]
    unsafe fn widen<E: Widened>(&self, params: &WidenParams, tensor: &WidenTensor, first: u32) {
        let mut loaded = [[0; 2]; ROWS];
        // A bit for each that reaches behind the tensor's end.
        let mut cut = 0;
        let mut i = 0;
        while i < ROWS {
            let key = first + i as u32 * self.turn;
            let exists = key < self.end;
            // SAFETY: a key that exists is the sequence's, and what is loaded lies before the tensor's end.
            unsafe {
                let source = self.source(params, tensor, key, exists);
                let is_inside = source + CHUNK as u64 <= tensor.end;
                loaded[i] = global::load2_if(exists && is_inside, source);
                cut |= ((exists && !is_inside) as u32) << i;
            }
            i += 1;
        }
        let mut i = 0;
        while i < ROWS {
            let key = first + i as u32 * self.turn;
            if key < self.end && cut >> i & 1 == 0 {
                // SAFETY: the row is the sequence's, and its chunk this thread's.
                unsafe { self.store::<E>(key, loaded[i]) };
            }
            i += 1;
        }
        if cut != 0 {
            // SAFETY: as the caller says.
            unsafe { self.widen_cut::<E>(params, tensor, first, cut) };
        }
    }

    /// Widens those chunks that are `cut`, by the bytes before the tensor's end alone.
    ///
    /// # Safety
    /// As [`Block::widen`]; the bits of `cut` are of keys that exist.
    #[inline(always)]
    unsafe fn widen_cut<E: Widened>(&self, params: &WidenParams, tensor: &WidenTensor, first: u32, cut: u32) {
        let rows = index::unknown(ROWS as u32);
        let mut i = 0;
        while i < rows {
            if cut >> i & 1 == 1 {
                let key = first + i * self.turn;
                // SAFETY: bytes before the end exist; the row is the sequence's, and its chunk this thread's.
                unsafe {
                    let source = self.source(params, tensor, key, true);
                    let mut words = [0; 2];
                    let mut byte = 0;
                    while byte < CHUNK as usize {
                        let address = source + byte as u64;
                        let value = global::load_b8_if(address < tensor.end, address) as u32;
                        words[byte / 4] |= value << (8 * (byte % 4));
                        byte += 1;
                    }
                    self.store::<E>(key, words);
                }
            }
            i += 1;
        }
    }

    /// Stores the chunk of a key.
    ///
    /// # Safety
    /// The key is one of the sequence's, and the chunk this thread's.
    #[inline(always)]
    unsafe fn store<E: Widened>(&self, key: u32, [low, high]: [u32; 2]) {
        let ([a, b], [c, d]) = (E::from_e4m3x4(low), E::from_e4m3x4(high));
        // SAFETY: the target has room for each key of the sequence, at multiples of 16 bytes.
        unsafe { global::store4(self.target + key as u64 * self.row_bytes, [a, b, c, d]) };
    }
}
