//! Rows of a head that a block copies at once.

use core::hint::assert_unchecked;

use super::{STAGE_BYTES, WORKER};
use crate::params::{PackParams, PackTensor};
use crate::ptx::{global, shared};

/// Bytes that a thread copies at once.
pub(super) const CHUNK: u32 = 16;

/// Rows from one to the next that starts as far behind a multiple of 16 bytes.
pub(super) const CLASSES: u32 = 8;

/// Rows of a class that a thread has of a unit.
pub(super) const ROWS: u32 = 3;

/// Bytes of a line of the cache.
const LINE: u64 = 128;

/// Bytes that one copy to shared memory has at most.
const PIECE: u32 = 2048;

/// The most bytes from one row to the next of those that are loaded as one run.
const fn longest_step(chunks: u32) -> u32 {
    CHUNK * chunks + CHUNK - 1
}

/// Whether rows so many bytes apart, of `chunks` chunks each, are loaded as one run of bytes: where they lie
/// close to one another.
pub const fn are_run(row_bytes: u64, chunks: u32) -> bool {
    row_bytes <= longest_step(chunks) as u64
}

/// Rows of a unit, of `chunks` chunks each, an even number.
pub const fn unit_rows(chunks: u32) -> u32 {
    ROWS * CLASSES * (WORKER / chunks)
}

// The fewer chunks, the more bytes lie between rows.
const _: () = assert!(unit_rows(2) * longest_step(2) + CHUNK <= STAGE_BYTES);

/// What a unit copies.
pub(super) struct Unit {
    /// Byte address of the first element of its first row.
    pub(super) source: u64,
    /// Bytes to that of the next row.
    pub(super) source_step: u64,
    /// First byte of the tensor, and the one behind its last.
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Where the first row goes.
    pub(super) target: u64,
    /// Rows that there are.
    pub(super) rows: u32,
    /// Chunks of a row of the copy.
    pub(super) chunks: u32,
    /// Columns of a row.
    pub(super) columns: u32,
    /// Whether there are as many rows as a unit has at most, and all of their aligned bytes are inside of the
    /// tensor.
    pub(super) is_whole: bool,
    /// Whether its rows are loaded to shared memory, as one run of bytes.
    pub(super) is_run: bool,
}

/// Bytes that are loaded by one copy: from `address` to `offset` in the stage.
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) offset: u32,
    /// 0 where there is nothing to load.
    pub(super) bytes: u32,
}

impl Unit {
    /// Bytes of a unit in shared memory.
    pub(super) const BYTES: u32 = 64;

    /// The unit of a launch with this index: of the tensors' heads that go together those of the first tensor
    /// come first.
    ///
    /// # Safety
    /// The unit is one of the launch.
    #[inline(always)]
    pub(super) unsafe fn of(params: &PackParams, unit: u32) -> Self {
        let [first_end, second_end, third_end, all] = params.ends;
        // SAFETY: where there is a unit, a group of heads has some.
        unsafe { assert_unchecked(all > 0) };
        let (group, place) = (unit / all, unit % all);
        let [first, second, third, fourth] = &params.tensors;
        if place < first_end {
            // SAFETY: the unit is one of this tensor's.
            unsafe { Self::of_tensor(first, group, place) }
        } else if place < second_end {
            // SAFETY: as above.
            unsafe { Self::of_tensor(second, group, place - first_end) }
        } else if place < third_end {
            // SAFETY: as above.
            unsafe { Self::of_tensor(third, group, place - second_end) }
        } else {
            // SAFETY: as above.
            unsafe { Self::of_tensor(fourth, group, place - third_end) }
        }
    }

    /// The unit of a tensor's heads in a group with this index.
    ///
    /// # Safety
    /// There is such a unit.
    #[inline(always)]
    unsafe fn of_tensor(tensor: &PackTensor, group: u32, unit: u32) -> Self {
        let &PackTensor {
            source,
            end,
            target,
            strides,
            rows,
            heads,
            chunks,
            columns,
            unit_rows,
            head_blocks,
            ..
        } = tensor;
        // SAFETY: a tensor with a unit has no empty axis.
        unsafe {
            assert_unchecked(heads > 0 && head_blocks > 0);
        }
        let (sequence_head, block) = (group * tensor.group + unit / head_blocks, unit % head_blocks);
        let first_row = block * unit_rows;
        let first = strides.offset(sequence_head / heads, first_row, sequence_head % heads);
        let source_step = 2 * strides.row;
        let packed_row = sequence_head as u64 * rows as u64 + first_row as u64;
        let (first, rows) = (source + 2 * first, rows.saturating_sub(first_row).min(unit_rows));
        let last = first + (rows.max(1) - 1) as u64 * source_step + 2 * columns as u64;
        let is_inside = low(first) >= source && low(last + CHUNK as u64 - 1) <= end;
        Self {
            source: first,
            source_step,
            begin: source,
            end,
            target: target + (CHUNK * chunks) as u64 * packed_row,
            is_whole: is_inside && rows == unit_rows,
            rows,
            chunks,
            columns,
            is_run: are_run(source_step, chunks),
        }
    }

    /// Writes it to shared memory.
    ///
    /// # Safety
    /// [`Self::BYTES`] bytes from `address` on, a multiple of 16, are this thread's.
    #[inline(always)]
    pub(super) unsafe fn store(&self, address: u32) {
        let pair = |word: u64| (word as u32, (word >> 32) as u32);
        let words = |first: u64, second: u64| {
            let ((a, b), (c, d)) = (pair(first), pair(second));
            [a, b, c, d]
        };
        // SAFETY: the bytes are this thread's.
        unsafe {
            shared::store4(address, words(self.source, self.source_step));
            shared::store4(address + 16, words(self.begin, self.end));
            shared::store4(address + 32, [self.rows, self.chunks, self.columns, self.is_run as u32]);
            shared::store4(address + 48, words(self.target, self.is_whole as u64));
        }
    }

    /// Reads it back.
    ///
    /// # Safety
    /// [`Self::store`] has written it.
    #[inline(always)]
    pub(super) unsafe fn load(address: u32) -> Self {
        // SAFETY: the words are there.
        let [ends, rows, sizes, targets] =
            unsafe { [0, 16, 32, 48].map(|offset: u32| shared::load4(address + offset).map(f32::to_bits)) };
        let word = |[low, high]: [u32; 2]| low as u64 | (high as u64) << 32;
        Self {
            source: word([ends[0], ends[1]]),
            source_step: word([ends[2], ends[3]]),
            begin: word([rows[0], rows[1]]),
            end: word([rows[2], rows[3]]),
            target: word([targets[0], targets[1]]),
            rows: sizes[0],
            chunks: sizes[1],
            columns: sizes[2],
            is_whole: targets[2] != 0,
            is_run: sizes[3] != 0,
        }
    }

    /// Bytes from one row of a run to the next.
    #[inline(always)]
    pub(super) fn step(&self) -> u32 {
        self.source_step as u32
    }

    /// How many pieces its rows are loaded in.
    #[inline(always)]
    pub(super) fn pieces(&self) -> u32 {
        let bytes = (self.rows.max(1) - 1) * self.step() + 2 * self.columns + (self.source as u32) % CHUNK;
        if self.is_run { bytes.div_ceil(PIECE) } else { 0 }
    }

    /// Brings the lines of rows that lie far apart, and are loaded one by one, near to the multiprocessor.
    /// Each lane of a warp brings those of a part of the rows.
    ///
    /// # Safety
    /// The unit's rows are device memory.
    #[inline(always)]
    pub(super) unsafe fn prefetch(&self, lane: u32) {
        let mut row = lane;
        while row < self.rows && !self.is_run {
            let first = self.source + row as u64 * self.source_step;
            let last = first + 2 * self.columns as u64 - 1;
            let mut address = first;
            while address <= last {
                // SAFETY: the element is one of the row's.
                unsafe { global::prefetch(address) };
                address = (address & !(LINE - 1)) + LINE;
            }
            row += 32;
        }
    }

    /// One of them: whole chunks inside of the tensor.
    #[inline(always)]
    pub(super) fn piece(&self, index: u32) -> Piece {
        let first = low(self.source) + (PIECE * index) as u64;
        let end = self.source + ((self.rows.max(1) - 1) * self.step()) as u64 + 2 * self.columns as u64;
        let address = first.max(low(self.begin + CHUNK as u64 - 1));
        let end = low(end.min(first + PIECE as u64) + CHUNK as u64 - 1).min(low(self.end));
        Piece {
            address,
            offset: PIECE * index + (address - first) as u32,
            bytes: end.saturating_sub(address) as u32,
        }
    }
}

/// The multiple of 16 at an address, or before it.
#[inline(always)]
pub(super) fn low(address: u64) -> u64 {
    address & !(CHUNK as u64 - 1)
}
