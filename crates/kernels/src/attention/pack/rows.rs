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
    /// Its class.
    class: u32,
    /// Bytes that rows start behind a multiple of 16.
    misaligned: u32,
}

/// The one or two aligned 16 bytes of a chunk of each row. Where there is one, the second are not used.
type Chunks = [[[u32; 4]; 2]; ROWS as usize];

/// What a thread has loaded.
pub(super) struct Loaded {
    chunks: Chunks,
    /// Rows that it stores.
    rows: u32,
    /// Whether all aligned bytes are inside of the tensor: if not, none are loaded.
    is_inside: bool,
}

impl<'a> Rows<'a> {
    /// Those of the rows of a unit that are so many behind a multiple of eight.
    #[inline(always)]
    pub(super) fn of_class(unit: &'a Unit, place: &'a Place, class: u32) -> Self {
        let misaligned = (unit.source as u32 + class * unit.source_step as u32) % CHUNK;
        Self { unit, place, first: class + CLASSES * place.row, class, misaligned }
    }

    /// Loads their aligned bytes, of rows that lie far apart from device memory, of others from the stage at
    /// `stage`.
    ///
    /// # Safety
    /// The unit is device memory, and has landed there. All lanes of the warp have rows of the same class.
    #[inline(always)]
    pub(super) unsafe fn load(&self, stage: u32) -> Loaded {
        let has_rows = self.place.row < self.place.turn;
        // SAFETY: all aligned bytes of a whole unit have landed; of another, those that are inside of the
        // tensor.
        unsafe {
            if self.unit.is_whole && self.unit.is_run {
                let rows = if has_rows { ROWS } else { 0 };
                return Loaded { chunks: self.load_whole(stage, has_rows), rows, is_inside: true };
            }
            let rows = if has_rows { self.rows() } else { 0 };
            let is_inside = self.unit.is_whole || self.is_inside(rows);
            let loaded = if is_inside && self.place.columns > 0 { rows } else { 0 };
            let chunks =
                if self.unit.is_run { self.load_landed(stage, loaded) } else { self.load_apart(loaded) };
            Loaded { chunks, rows, is_inside }
        }
    }

    /// Stores what [`Self::load`] has loaded. Rows whose aligned bytes are not all inside of the tensor are
    /// copied element by element.
    ///
    /// # Safety
    /// As [`Self::load`], and the unit's target is device memory that overlaps nothing.
    #[inline(always)]
    pub(super) unsafe fn store(&self, loaded: &Loaded) {
        // SAFETY: the chunks are this thread's.
        unsafe {
            if loaded.is_inside {
                self.store_shifted(&loaded.chunks, loaded.rows);
            } else {
                self.copy_elements(loaded.rows);
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

    /// Bytes from the start of a stage to the aligned chunk in the first row, of a thread with rows, and to
    /// that of one without, which is its class's first.
    #[inline(always)]
    fn offset(&self, has_rows: bool) -> u32 {
        let of_class = low32(self.unit.source as u32 % CHUNK + self.class * self.unit.step());
        // What a chunk without columns is loaded from does not matter.
        let chunk = if self.place.columns > 0 { self.place.chunk } else { 0 };
        let row = if has_rows { self.place.row } else { 0 };
        of_class + CLASSES * self.unit.step() * row + CHUNK * chunk
    }

    /// Loads chunks of all rows of a whole unit that has landed; of a thread that has none, those of the
    /// first.
    ///
    /// # Safety
    /// As [`Self::load`].
    #[inline(always)]
    unsafe fn load_whole(&self, stage: u32, has_rows: bool) -> Chunks {
        let step = if has_rows { self.unit.step() * self.row_step() } else { 0 };
        let (mut address, to_high) = (stage + self.offset(has_rows), self.to_high());
        let mut loaded = [[[0; 4]; 2]; ROWS as usize];
        let mut i = 0;
        while i < ROWS as usize {
            // SAFETY: the bytes have landed.
            loaded[i] = unsafe { landed(address, to_high) };
            address += step;
            i += 1;
        }
        loaded
    }

    /// Loads chunks of the first `rows` of a unit that has landed.
    ///
    /// # Safety
    /// As [`Self::load`].
    #[inline(always)]
    unsafe fn load_landed(&self, stage: u32, rows: u32) -> Chunks {
        let mut address = stage + self.offset(true);
        let mut loaded = [[[0; 4]; 2]; ROWS as usize];
        let mut i = 0;
        while i < ROWS {
            if i < rows {
                // SAFETY: the bytes have landed.
                loaded[i as usize] = unsafe { landed(address, self.to_high()) };
            }
            address += self.unit.step() * self.row_step();
            i += 1;
        }
        loaded
    }

    /// Loads chunks of the first `rows` from device memory.
    ///
    /// # Safety
    /// As [`Self::load`].
    #[inline(always)]
    unsafe fn load_apart(&self, rows: u32) -> Chunks {
        let mut loaded = [[[0; 4]; 2]; ROWS as usize];
        let (mut address, to_high) = (low(self.source(0)), self.to_high());
        let mut i = 0;
        while i < ROWS {
            let exists = i < rows;
            // SAFETY: the aligned bytes are inside of the tensor.
            loaded[i as usize] = unsafe {
                [
                    global::load4_if(exists, address),
                    global::load4_if(exists && to_high > 0, address + to_high as u64),
                ]
            };
            address += self.row_step() as u64 * self.unit.source_step;
            i += 1;
        }
        loaded
    }

    /// Stores chunks of the first `rows`.
    ///
    /// # Safety
    /// As [`Self::store`]; `loaded` has the rows.
    #[inline(always)]
    unsafe fn store_shifted(&self, loaded: &Chunks, rows: u32) {
        // SAFETY: as above.
        unsafe {
            match self.misaligned / 2 {
                0 => self.store_class::<0>(loaded, rows),
                1 => self.store_class::<1>(loaded, rows),
                2 => self.store_class::<2>(loaded, rows),
                3 => self.store_class::<3>(loaded, rows),
                4 => self.store_class::<4>(loaded, rows),
                5 => self.store_class::<5>(loaded, rows),
                6 => self.store_class::<6>(loaded, rows),
                _ => self.store_class::<7>(loaded, rows),
            }
        }
    }

    /// Stores chunks of the first `rows`, which start CLASS elements behind the first of the aligned bytes,
    /// with zeros for columns that there are not.
    ///
    /// # Safety
    /// As [`Self::store_shifted`].
    #[inline(always)]
    unsafe fn store_class<const CLASS: usize>(&self, loaded: &Chunks, rows: u32) {
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
    /// As [`Self::store`].
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

/// The aligned 16 bytes at `address` in shared memory, and those `to_high` behind it.
///
/// # Safety
/// The bytes have landed.
#[inline(always)]
unsafe fn landed(address: u32, to_high: u32) -> [[u32; 4]; 2] {
    // SAFETY: as above.
    unsafe { [shared::load4(address), shared::load4(address + to_high)].map(|words| words.map(f32::to_bits)) }
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
