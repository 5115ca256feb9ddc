//! The rows of one class of a unit, as one thread copies them from shared memory.

use core::hint::assert_unchecked;

use super::WORKER;
use super::unit::{CHUNK, CLASSES, ROWS, Unit, low};
use crate::ptx::{global, index, shared};

/// 16-bit elements of a chunk.
const CHUNK_COLUMNS: u32 = CHUNK / 2;

/// What a thread has of each unit of rows of so many chunks.
pub(super) struct Place {
    /// Its row among those of a class that a worker has at once, and how many these are.
    row: u32,
    turn: u32,
    /// Its chunk.
    chunk: u32,
    /// Columns of the chunk that there are.
    columns: u32,
}

impl Place {
    /// This thread's.
    #[inline(always)]
    pub(super) fn of(unit: &Unit) -> Self {
        let chunks = unit.chunks;
        // SAFETY: a row has 1 to 32 chunks, and so a worker has as many threads.
        unsafe { assert_unchecked(chunks > 0 && chunks <= 32) };
        let thread = index::thread() % WORKER;
        let (turn, row, chunk) = (WORKER / chunks, thread / chunks, thread % chunks);
        let columns = unit.columns.saturating_sub(CHUNK_COLUMNS * chunk).min(CHUNK_COLUMNS);
        Self { row, turn, chunk, columns }
    }
}

/// A chunk of each of a few rows of a class.
pub(super) struct Rows<'a> {
    unit: &'a Unit,
    place: &'a Place,
    /// The first row, in the unit.
    first: u32,
    /// Bytes from the first row of the stage to the aligned chunk in this one.
    offset: u32,
    /// Bytes that rows start behind a multiple of 16.
    misaligned: u32,
}

/// The aligned bytes of a chunk of each row.
type Loaded = [[[u32; 4]; 2]; ROWS as usize];

impl<'a> Rows<'a> {
    /// Those of the rows of a unit that are so many behind a multiple of eight.
    #[inline(always)]
    pub(super) fn of_class(unit: &'a Unit, place: &'a Place, class: u32) -> Self {
        let misaligned = (unit.source as u32 + class * unit.source_step as u32) % CHUNK;
        let first = if unit.is_run() { unit.source as u32 % CHUNK } else { 0 };
        let (of_class, of_thread) = (low32(first + class * unit.step), CLASSES * unit.step * place.row);
        // What a chunk without columns is loaded from does not matter.
        let chunk = if place.columns > 0 { place.chunk } else { 0 };
        let offset = of_class + of_thread + CHUNK * chunk;
        Self { unit, place, first: class + CLASSES * place.row, offset, misaligned }
    }

    /// Copies them out of the stage at `stage`. Those whose aligned bytes are not all inside of the tensor
    /// are copied element by element.
    ///
    /// # Safety
    /// The unit has landed there, and its target is device memory that overlaps nothing. All lanes of the
    /// warp have rows of the same class.
    #[inline(always)]
    pub(super) unsafe fn copy(&self, stage: u32) {
        let has_rows = self.place.row < self.place.turn;
        if self.unit.is_whole {
            // SAFETY: all rows of the unit have landed, and the chunks are this thread's, if any.
            unsafe {
                let loaded = self.load_all(stage, has_rows);
                self.store_shifted(loaded, if has_rows { ROWS } else { 0 });
            }
            return;
        }
        let rows = if has_rows { self.rows() } else { 0 };
        let is_inside = self.is_inside(rows);
        // SAFETY: the aligned bytes of these rows have landed, and the chunks are this thread's.
        unsafe {
            if is_inside {
                let loaded = self.load(stage, rows);
                self.store_shifted(loaded, rows);
            } else {
                self.copy_elements(rows);
            }
        }
    }

    /// Rows from one to the thread's next.
    #[inline(always)]
    fn row_step(&self) -> u32 {
        CLASSES * self.place.turn
    }

    /// How many there are, up to [`ROWS`].
    #[inline(always)]
    fn rows(&self) -> u32 {
        let (mut rows, mut row) = (0, self.first);
        while rows < ROWS && row < self.unit.rows {
            row += self.row_step();
            rows += 1;
        }
        rows
    }

    /// Whether the aligned bytes of so many are inside of the tensor.
    #[inline(always)]
    fn is_inside(&self, rows: u32) -> bool {
        let last = self.source(rows.max(1) - 1) + 2 * self.place.columns.max(1) as u64 - 1;
        let is_inside = low(self.source(0)) >= self.unit.begin && low(last) + CHUNK as u64 <= self.unit.end;
        is_inside || self.place.columns == 0
    }

    /// Byte address of the chunk in a row, in device memory.
    #[inline(always)]
    fn source(&self, row: u32) -> u64 {
        let row = self.first + row * self.row_step();
        self.unit.source + row as u64 * self.unit.source_step + (CHUNK * self.place.chunk) as u64
    }

    /// Bytes to the aligned 16 that hold the last column of a chunk, from those that hold its first.
    #[inline(always)]
    fn to_high(&self) -> u32 {
        if self.misaligned + 2 * self.place.columns > CHUNK { CHUNK } else { 0 }
    }

    /// Loads the aligned bytes of chunks of all rows; of a thread that has none, those of the first.
    ///
    /// # Safety
    /// As [`Self::copy`], of a whole unit.
    #[inline(always)]
    unsafe fn load_all(&self, stage: u32, has_rows: bool) -> Loaded {
        let mut loaded = [[[0; 4]; 2]; ROWS as usize];
        let (mut address, step) = if has_rows {
            (stage + self.offset, self.unit.step * self.row_step())
        } else {
            (stage + self.offset - CLASSES * self.unit.step * self.place.row, 0)
        };
        let to_high = self.to_high();
        let mut i = 0;
        while i < ROWS as usize {
            // SAFETY: the bytes have landed.
            loaded[i] = unsafe {
                [shared::load4(address), shared::load4(address + to_high)]
                    .map(|words| words.map(f32::to_bits))
            };
            address += step;
            i += 1;
        }
        loaded
    }

    /// Loads the aligned bytes of chunks of the first `rows`.
    ///
    /// # Safety
    /// As [`Self::copy`].
    #[inline(always)]
    unsafe fn load(&self, stage: u32, rows: u32) -> Loaded {
        let mut loaded = [[[0; 4]; 2]; ROWS as usize];
        let mut address = stage + self.offset;
        let mut i = 0;
        while i < ROWS {
            if i < rows && self.place.columns > 0 {
                // SAFETY: the bytes have landed.
                loaded[i as usize] = unsafe {
                    [shared::load4(address), shared::load4(address + self.to_high())]
                        .map(|words| words.map(f32::to_bits))
                };
            }
            address += self.unit.step * self.row_step();
            i += 1;
        }
        loaded
    }

    /// Stores chunks of the first `rows`.
    ///
    /// # Safety
    /// As [`Self::copy`]; `loaded` has the rows.
    #[inline(always)]
    unsafe fn store_shifted(&self, loaded: Loaded, rows: u32) {
        // SAFETY: as above.
        unsafe {
            match self.misaligned / 2 {
                0 => self.store::<0>(loaded, rows),
                1 => self.store::<1>(loaded, rows),
                2 => self.store::<2>(loaded, rows),
                3 => self.store::<3>(loaded, rows),
                4 => self.store::<4>(loaded, rows),
                5 => self.store::<5>(loaded, rows),
                6 => self.store::<6>(loaded, rows),
                _ => self.store::<7>(loaded, rows),
            }
        }
    }

    /// Stores chunks of the first `rows`, which start CLASS elements behind the first of the aligned bytes,
    /// with zeros for columns that there are not.
    ///
    /// # Safety
    /// As [`Self::store_shifted`].
    #[inline(always)]
    unsafe fn store<const CLASS: usize>(&self, loaded: Loaded, rows: u32) {
        let (mut target, step) = self.target();
        let kept = self.kept();
        let mut i = 0;
        while i < ROWS {
            let [a, b, c, d] = shifted::<CLASS>(loaded[i as usize]);
            if i < rows {
                let words = [a & kept[0], b & kept[1], c & kept[2], d & kept[3]];
                // SAFETY: the chunk is this thread's.
                unsafe { global::store4(target, words) };
            }
            target += step as u64;
            i += 1;
        }
    }

    /// Copies so many rows element by element, from device memory.
    ///
    /// # Safety
    /// As [`Self::copy`].
    #[inline(always)]
    unsafe fn copy_elements(&self, rows: u32) {
        let (mut target, step) = self.target();
        let rows = rows.min(index::unknown(ROWS));
        let mut row = 0;
        while row < rows {
            let source = self.source(row);
            let mut words = [0; 4];
            let mut word = 0;
            while word < 4 {
                let (column, address) = (2 * word as u32, source + 4 * word as u64);
                // SAFETY: columns below `columns` exist.
                let (low, high) = unsafe {
                    (
                        global::load_b16_if(column < self.place.columns, address),
                        global::load_b16_if(column + 1 < self.place.columns, address + 2),
                    )
                };
                words[word] = low as u32 | (high as u32) << 16;
                word += 1;
            }
            // SAFETY: the chunk is this thread's.
            unsafe { global::store4(target, words) };
            target += step as u64;
            row += 1;
        }
    }

    /// Where the chunk of the first row goes, and bytes to that of the next.
    #[inline(always)]
    fn target(&self) -> (u64, u32) {
        let chunks = self.unit.chunks;
        let target = self.unit.target + (CHUNK * (chunks * self.first + self.place.chunk)) as u64;
        (target, CHUNK * chunks * self.row_step())
    }

    /// The bits of a chunk's words that are of columns that there are.
    #[inline(always)]
    fn kept(&self) -> [u32; 4] {
        [0, 1, 2, 3].map(|word: u32| match self.place.columns.saturating_sub(2 * word) {
            0 => 0,
            1 => 0xffff,
            _ => !0,
        })
    }
}

/// The multiple of 16 at an offset, or before it.
#[inline(always)]
fn low32(offset: u32) -> u32 {
    offset & !(CHUNK - 1)
}

/// The 16 bytes that begin CLASS elements behind the first of the aligned ones around them.
#[inline(always)]
fn shifted<const CLASS: usize>([low, high]: [[u32; 4]; 2]) -> [u32; 4] {
    let words = [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]];
    let word = |i: usize| {
        let i = i + CLASS / 2;
        if CLASS.is_multiple_of(2) { words[i] } else { words[i] >> 16 | words[i + 1] << 16 }
    };
    [word(0), word(1), word(2), word(3)]
}
