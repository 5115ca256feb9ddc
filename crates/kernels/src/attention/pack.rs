//! Copying rows that start anywhere into rows that tensor maps can describe.
//!
//! Hopper's tensor copies want addresses and strides at multiples of 16 bytes. Where rows of what is
//! read lie otherwise, as those of a contiguous [B, H, S, 129] do, launches copy them to rows of whole
//! 32-byte sectors, with zeros behind the last column.
//!
//! Each thread writes 16 bytes of a row at a time. It reads the one or two aligned 16 bytes that hold them,
//! and shifts: its neighbour reads the second of them too, out of L1, which has a multiple of the bandwidth
//! that this needs. So nothing passes through shared memory, and no thread waits for another. Of any eight
//! rows the first start equally far behind a multiple of 16 bytes as those of the next eight: a worker has
//! such rows, and so one shift.
//!
//! Device memory takes what a quarter of the multiprocessors copies as fast as what all do. So a launch of a
//! few blocks copies beside `forward_sm90`, which has the others, and counts what it has copied.

use core::hint::assert_unchecked;

use crate::params::{PackParams, PackTensor};
use crate::ptx::{fence, global, grid, index, warp};

/// Threads of a block, one for each multiprocessor.
pub const THREADS: u32 = 512;

/// Threads that copy a unit.
const WORKER: u32 = 128;

/// Units that a block copies at once.
pub const WORKERS: u32 = THREADS / WORKER;

/// What each unit that is copied adds to its counter: its warps.
pub const COUNTED: u32 = WORKER / 32;

/// Bytes, and elements, that a thread copies at once.
const CHUNK: u32 = 16;
const CHUNK_COLUMNS: u32 = CHUNK / 2;

/// Rows of which a thread has bytes on their way.
const ROWS: usize = 8;

/// Rows from one to the next that starts as far behind a multiple of 16 bytes.
const CLASSES: u32 = 8;

/// The most chunks of a row: 256 columns.
const MAX_CHUNKS: u32 = 32;

/// The most steps of [`ROWS`] rows for each thread that a unit has.
const STEPS: u32 = 2;

/// Units of a head with so many rows, of `chunks` chunks each.
pub const fn head_units(rows: u32, chunks: u32) -> u32 {
    let unit_rows = STEPS * ROWS as u32 * (WORKER / chunks);
    CLASSES * rows.div_ceil(CLASSES * unit_rows)
}

/// Copies units of up to four tensors, and sets counters to 0 where there are none that it adds to.
///
/// Launch: blocks of [`THREADS`] threads, best one for each multiprocessor, without shared memory.
///
/// # Safety
/// `params` describes valid device memory, targets overlap nothing, and the launch is as above.
#[inline(always)]
pub unsafe fn pack(params: &PackParams) {
    grid::launch_dependents();
    // SAFETY: all lanes of the warp are here.
    let worker = WORKERS * index::block() + unsafe { warp::broadcast(index::thread() / WORKER, 0) };
    let workers = WORKERS * index::blocks();
    let mut cleared = worker * WORKER + index::thread() % WORKER;
    while cleared < params.cleared {
        // SAFETY: the counters are device memory, and this one is this thread's.
        unsafe { global::store_b32(params.counters + 4 * cleared as u64, 0) };
        cleared += workers * WORKER;
    }
    let mut copied = Copied { group: NO_GROUP };
    let mut unit = params.first + worker;
    while unit < params.end {
        // SAFETY: the unit is one of the launch, whose tensors are valid device memory.
        unsafe { pack_unit(params, unit, &mut copied) };
        unit += workers;
    }
    // SAFETY: all lanes of the warp are here.
    unsafe { copied.count(params) };
}

/// The group of heads that a worker's last unit is of, until that is counted.
struct Copied {
    group: u32,
}

const NO_GROUP: u32 = u32::MAX;

impl Copied {
    /// Counts the unit, if there is one, for those who wait for its group beside this launch.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and have stored what they copy of the unit.
    #[inline(always)]
    unsafe fn count(&mut self, params: &PackParams) {
        let group = self.group;
        if group == NO_GROUP || params.cleared > 0 || params.counters == 0 {
            return;
        }
        self.group = NO_GROUP;
        fence::proxy_async_global();
        // SAFETY: all lanes are here; the counter is device memory that this launch and that beside it access by
        // atomics alone.
        unsafe {
            warp::sync();
            if index::thread().is_multiple_of(32) {
                global::add_release(params.counter(group), 1);
            }
        }
    }
}

/// Copies one unit: of the tensors' heads that go together those of the first tensor, then of the next.
///
/// # Safety
/// As [`pack`]. All threads of a worker call this together.
#[inline(always)]
unsafe fn pack_unit(params: &PackParams, unit: u32, copied: &mut Copied) {
    let [first_end, second_end, third_end, all] = params.ends;
    // SAFETY: where there is a unit, a group of heads has some.
    unsafe { assert_unchecked(all > 0) };
    let (group, place) = (unit / all, unit % all);
    let [first, second, third, fourth] = &params.tensors;
    let (tensor, place) = if place < first_end {
        (*first, place)
    } else if place < second_end {
        (*second, place - first_end)
    } else if place < third_end {
        (*third, place - second_end)
    } else {
        (*fourth, place - third_end)
    };
    // SAFETY: a tensor with a unit has no empty axis.
    unsafe { assert_unchecked(tensor.head_blocks > 0) };
    let sequence_head = group * tensor.group + place / tensor.head_blocks;
    // SAFETY: the tensor is valid device memory, and its target overlaps nothing.
    let (mut copies, class, steps) =
        unsafe { Copies::of_unit(&tensor, sequence_head, place % tensor.head_blocks) };
    let mut step = 0;
    while step < steps {
        let rows = copies.whole_rows(&tensor);
        // SAFETY: as above; what the unit before has stored is on its way since before these loads.
        unsafe {
            let loaded = copies.load(rows);
            copied.count(params);
            match class {
                0 => copies.store::<0>(loaded, rows),
                1 => copies.store::<1>(loaded, rows),
                2 => copies.store::<2>(loaded, rows),
                3 => copies.store::<3>(loaded, rows),
                4 => copies.store::<4>(loaded, rows),
                5 => copies.store::<5>(loaded, rows),
                6 => copies.store::<6>(loaded, rows),
                _ => copies.store::<7>(loaded, rows),
            }
            if rows == 0 {
                copies.copy_elements();
            }
        }
        copies.advance();
        step += 1;
    }
    copied.group = group;
}

/// What one thread copies: a chunk of each of a few rows.
struct Copies {
    /// Byte address of the chunk in the first row.
    source: u64,
    /// Bytes to that in the next, a multiple of 16.
    source_step: u64,
    /// Where it goes.
    target: u64,
    /// Bytes to where that of the next goes.
    target_step: u64,
    /// Columns of the chunk that there are.
    columns: u32,
    /// Rows that there are, of which the thread copies the first [`ROWS`] in a step.
    rows: u32,
}

/// The aligned bytes of a chunk of each row of a step.
type Loaded = [[[u32; 4]; 2]; ROWS];

impl Copies {
    /// Those of a unit of a head, how many elements its rows start behind a multiple of 16 bytes, and how many
    /// steps the unit has.
    ///
    /// # Safety
    /// As [`pack_unit`].
    #[inline(always)]
    unsafe fn of_unit(tensor: &PackTensor, sequence_head: u32, unit: u32) -> (Self, u32, u32) {
        let (chunks, heads) = (tensor.chunks, tensor.heads);
        // SAFETY: a tensor with a unit has no empty axis.
        unsafe {
            assert_unchecked(chunks > 0 && chunks <= MAX_CHUNKS);
            assert_unchecked(heads > 0);
        }
        let turn = WORKER / chunks;
        // SAFETY: a worker has more threads than a row has chunks.
        unsafe { assert_unchecked(turn > 0) };
        let thread = index::thread() % WORKER;
        let (thread_row, chunk) = (thread / chunks, thread % chunks);
        let (batch, head) = (sequence_head / heads, sequence_head % heads);
        let step_rows = CLASSES * ROWS as u32 * turn;
        let first_of_unit = unit / CLASSES * (STEPS * step_rows) + unit % CLASSES;
        let class = (tensor.source / 2 + tensor.strides.offset(batch, first_of_unit, head)) as u32 % CLASSES;
        let steps = tensor.rows.saturating_sub(first_of_unit).div_ceil(step_rows).min(STEPS);
        let first_row = first_of_unit + CLASSES * thread_row;
        let first = tensor.strides.offset(batch, first_row, head);
        let packed_row = sequence_head as u64 * tensor.rows as u64 + first_row as u64;
        let rows = tensor.rows.saturating_sub(first_row).div_ceil(CLASSES * turn);
        let copies = Self {
            source: tensor.source + 2 * (first + (CHUNK_COLUMNS * chunk) as u64),
            source_step: 2 * (CLASSES * turn) as u64 * tensor.strides.row,
            target: tensor.target + CHUNK as u64 * (packed_row * chunks as u64 + chunk as u64),
            target_step: (CHUNK * chunks * CLASSES * turn) as u64,
            columns: tensor.columns.saturating_sub(CHUNK_COLUMNS * chunk).min(CHUNK_COLUMNS),
            rows: if thread_row < turn { rows } else { 0 },
        };
        (copies, class, steps)
    }

    /// Goes to the rows of the next step.
    #[inline(always)]
    fn advance(&mut self) {
        self.source += ROWS as u64 * self.source_step;
        self.target += ROWS as u64 * self.target_step;
        self.rows = self.rows.saturating_sub(ROWS as u32);
    }

    /// How many rows of the step are copied by whole chunks: all, unless aligned bytes of one lie outside of
    /// the tensor; then none.
    #[inline(always)]
    fn whole_rows(&self, tensor: &PackTensor) -> u32 {
        let rows = self.rows.min(ROWS as u32);
        let last = self.source + (rows.max(1) - 1) as u64 * self.source_step;
        let is_inside =
            self.low(self.source) >= tensor.source && self.high(last) + CHUNK as u64 <= tensor.end;
        if is_inside || self.columns == 0 { rows } else { 0 }
    }

    /// Loads the aligned bytes of chunks of the first `rows` of a step.
    ///
    /// # Safety
    /// As [`pack`]; they lie inside the tensor.
    #[inline(always)]
    unsafe fn load(&self, rows: u32) -> Loaded {
        let mut loaded = [[[0; 4]; 2]; ROWS];
        let mut address = self.low(self.source);
        let (has_low, has_high) = (self.columns > 0, self.high(self.source) > address);
        let mut i = 0;
        while i < ROWS {
            let exists = (i as u32) < rows;
            // SAFETY: the aligned bytes are inside the tensor.
            unsafe {
                loaded[i][0] = global::load4_if(exists && has_low, address);
                loaded[i][1] = global::load4_if(exists && has_high, address + CHUNK as u64);
            }
            address += self.source_step;
            i += 1;
        }
        loaded
    }

    /// Stores chunks of the first `rows`, which start CLASS elements behind the first of the aligned bytes,
    /// with zeros for columns that there are not.
    ///
    /// # Safety
    /// As [`pack`]; `loaded` has the rows.
    #[inline(always)]
    unsafe fn store<const CLASS: usize>(&self, loaded: Loaded, rows: u32) {
        let (mut target, kept) = (self.target, self.kept());
        let mut i = 0;
        while i < ROWS {
            let [a, b, c, d] = shifted::<CLASS>(loaded[i]);
            if (i as u32) < rows {
                let words = [a & kept[0], b & kept[1], c & kept[2], d & kept[3]];
                // SAFETY: the row is this worker's, and the chunk this thread's.
                unsafe { global::store4(target, words) };
            }
            target += self.target_step;
            i += 1;
        }
    }

    /// Copies the rows of a step element by element.
    ///
    /// # Safety
    /// As [`pack`].
    #[inline(always)]
    unsafe fn copy_elements(&self) {
        let rows = self.rows.min(index::unknown(ROWS as u32));
        let (mut source, mut target) = (self.source, self.target);
        let mut row = 0;
        while row < rows {
            let mut words = [0; 4];
            let mut word = 0;
            while word < 4 {
                let (column, address) = (2 * word as u32, source + 4 * word as u64);
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
            // SAFETY: the row is this worker's, and the chunk this thread's.
            unsafe { global::store4(target, words) };
            source += self.source_step;
            target += self.target_step;
            row += 1;
        }
    }

    /// The aligned 16 bytes that hold the first column of a chunk.
    #[inline(always)]
    fn low(&self, source: u64) -> u64 {
        source & !(CHUNK as u64 - 1)
    }

    /// Those that hold the last column of it that there is.
    #[inline(always)]
    fn high(&self, source: u64) -> u64 {
        self.low(source + 2 * self.columns.max(1) as u64 - 1)
    }

    /// The bits of a chunk's words that are of columns that there are.
    #[inline(always)]
    fn kept(&self) -> [u32; 4] {
        [0, 1, 2, 3].map(|word: u32| match self.columns.saturating_sub(2 * word) {
            0 => 0,
            1 => 0xffff,
            _ => !0,
        })
    }
}

/// The 16 bytes that begin CLASS elements behind the first of the aligned ones around them.
#[inline(always)]
fn shifted<const CLASS: usize>([low, high]: [[u32; 4]; 2]) -> [u32; 4] {
    let words = [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]];
    let word = |i: usize| {
        let i = i + CLASS / 2;
        if CLASS % 2 == 0 { words[i] } else { words[i] >> 16 | words[i + 1] << 16 }
    };
    [word(0), word(1), word(2), word(3)]
}
