//! Rows of O to device memory where no tensor map describes or clips them.

use crate::element::Element;
use crate::hopper::epilogue::write_panel;
use crate::ptx::wgmma::Accumulator;
use crate::ptx::{fence, global, index, shared, tma, warp};
use crate::registers::Registers;
use crate::tile::mma::{Lane, MmaElement};
use crate::tile::panels::{Extent, Panels};
use crate::tile::simt::GlobalTile;
use crate::tile::wgmma::{LINE, chunk};

/// Columns of a chunk of 16 bytes.
const CHUNK: u32 = 8;

/// Rows of a warp.
const WARP_ROWS: u32 = 16;

/// Where a warp's rows wait in shared memory to be copied: in the lines that 16 rows of a tile of panels
/// have, each row in one piece, in one of as many slots as fit.
///
/// In its slot a row starts as far behind a multiple of 16 bytes as in device memory. Slots are an odd number
/// of chunks apart, so that eight rows lie in different banks.
struct Slots<X: Extent> {
    lines: Panels<X>,
}

impl<X: Extent> Slots<X> {
    /// Bytes of a slot: of all columns, the first of them up to seven behind a multiple of 16 bytes.
    const BYTES: u32 = 2 * (X::COLUMNS + CHUNK);
    /// Slots in a panel's lines.
    const IN_PANEL: u32 = WARP_ROWS * LINE / Self::BYTES;
    /// Rows that are copied together: all, or half of them.
    const TOGETHER: u32 = const {
        let slots = Self::IN_PANEL * Panels::<X>::COUNT;
        assert!(slots >= WARP_ROWS / 2);
        if slots >= WARP_ROWS { WARP_ROWS } else { WARP_ROWS / 2 }
    };

    /// Address of a row's slot.
    #[inline(always)]
    fn of_row(&self, row: u32) -> u32 {
        let slot = row % Self::TOGETHER;
        self.lines.panel(slot / Self::IN_PANEL) + slot % Self::IN_PANEL * Self::BYTES
    }
}

/// A row's place in its slot, in elements: column 0 of the tile at `shift`, and what O has from `start` to
/// `end`.
#[derive(Clone, Copy)]
struct Place {
    /// Byte address of O's first column in device memory.
    address: u64,
    shift: u32,
    start: u32,
    end: u32,
}

impl Place {
    /// Of row `row` of `target`, whose first column is column `first_column` of the tile.
    #[inline(always)]
    fn of_row<E: Element>(target: &GlobalTile, row: u32, first_column: u32) -> Self {
        let address = target.at::<E>(row, 0);
        let shift = ((address / 2) as u32).wrapping_sub(first_column) % CHUNK;
        let start = first_column + shift;
        Self { address, shift, start, end: start + target.columns }
    }

    /// The whole chunks of the row: where they start and end.
    #[inline(always)]
    fn chunks(self) -> (u32, u32) {
        let first = self.start.next_multiple_of(CHUNK).min(self.end);
        (first, (self.end - self.end % CHUNK).max(first))
    }

    /// Byte address of an element in device memory.
    #[inline(always)]
    fn at(self, element: u32) -> u64 {
        self.address + 2 * (element - self.start) as u64
    }
}

/// As [`store_rows`] from column 0 of the tile on, by 16 bytes a lane where all rows start at a multiple of
/// them and have whole chunks: some five times as quick as rows that start anywhere. Copies may write the
/// lines behind it, once all lanes are through.
///
/// # Safety
/// As [`store_rows`].
#[inline(always)]
pub unsafe fn store_rows_by_chunks<E: MmaElement, X: Extent, A: Accumulator>(
    lines: Panels<X>,
    rows: &A,
    target: &GlobalTile,
    place: impl Fn(u32) -> u32,
) {
    let bytes = target.address | (E::BYTES * target.stride) | (E::BYTES * target.columns as u64);
    // SAFETY: the caller says so; all lanes take one branch, and a chunk stands at a multiple of its bytes.
    unsafe {
        if !bytes.is_multiple_of(16) {
            return store_rows::<E, X, A>(lines, rows, (target, 0), place);
        }
        let lane = index::reread_thread() % 32;
        let mut panel = 0;
        while panel < Panels::<X>::COUNT {
            write_panel::<E, A>(lane, lines.panel(panel), rows, panel);
            panel += 1;
        }
        warp::sync();
        let of_row = const { X::COLUMNS / CHUNK };
        let mut at = lane;
        while at < WARP_ROWS * of_row {
            let (row, column) = (at / of_row, at % of_row);
            let target_row = place(row);
            if target_row < target.rows && CHUNK * column < target.columns {
                let words: [f32; 4] = shared::load4(chunk(lines.panel(column / 8), row, column % 8));
                global::store4(target.at::<E>(target_row, CHUNK * column), words.map(f32::to_bits));
            }
            at += 32;
        }
        fence::proxy_async();
    }
}

/// Rounds a warp's rows of O, and begins to store them: row r to row `place(r)` of `target`, where that
/// exists, whose first column is column `first_column` of the tile. A thread holds of O what
/// [`wgmma`](crate::ptx::wgmma) says.
///
/// Whole chunks of 16 bytes leave by asynchronous copies, of each row in one piece, which the lanes wait for;
/// what a row has of its first and last chunk they store themselves.
///
/// # Safety
/// All 32 lanes of a warp call this together. The 16 first lines of each of `lines`' panels are theirs, and
/// nobody reads or writes them. `target` is writable, starts at a multiple of the element's bytes, and has at
/// most `X::COLUMNS` − `first_column` columns.
#[inline(always)]
pub unsafe fn store_rows<E: MmaElement, X: Extent, O: Registers<Value = f32>>(
    lines: Panels<X>,
    o: &O,
    (target, first_column): (&GlobalTile, u32),
    place: impl Fn(u32) -> u32,
) {
    const { assert!(E::BYTES == 2 && 2 * O::LEN as u32 <= X::COLUMNS) };
    let slots = Slots { lines };
    let together = const { Slots::<X>::TOGETHER };
    let lane = Lane::reread(2);
    let mut first = 0;
    while first < WARP_ROWS {
        let mut half = first / 8;
        // SAFETY: all lanes are here, and a slot, which is theirs, is rewritten once its copy was waited for.
        unsafe {
            if first > 0 {
                tma::wait_group_read::<0>();
                warp::sync();
            }
            while 8 * half < first + together {
                let row = 8 * half + lane.group;
                let Place { shift, .. } = Place::of_row::<E>(target, place(row), first_column);
                write_row::<E, O>(slots.of_row(row) + 2 * (shift + 2 * lane.pair), o, half as usize);
                half += 1;
            }
            fence::proxy_async();
            warp::sync();
            let row = first + index::reread_thread() % together;
            let ends = index::reread_thread() % 32 / WARP_ROWS;
            let is_first = index::reread_thread() % WARP_ROWS < together;
            let target_row = place(row);
            if target_row < target.rows && is_first {
                let place = Place::of_row::<E>(target, target_row, first_column);
                copy_row(slots.of_row(row), place, ends == 0);
            }
            tma::commit_group();
        }
        first += together;
    }
}

/// Writes a thread's part of its `half`-th row, rounded, to `address`, where its first column stands.
///
/// # Safety
/// As [`store_rows`].
#[inline(always)]
unsafe fn write_row<E: MmaElement, O: Registers<Value = f32>>(address: u32, o: &O, half: usize) {
    let mut j = 0;
    while j < O::LEN / 4 {
        let pair = E::pack(o[4 * j + 2 * half], o[4 * j + 2 * half + 1]);
        let address = address + 16 * j as u32;
        // SAFETY: the pair lies in the row's slot, which no thread reads.
        unsafe {
            shared::store_b16(address, pair as u16);
            shared::store_b16(address + 2, (pair >> 16) as u16);
        }
        j += 1;
    }
}

/// Stores a row that stands in `slot`: all of it but what its last chunk has in part, or, without `leading`,
/// that.
///
/// # Safety
/// As [`store_rows`]; the row exists, and was written before a `warp::sync`.
#[inline(always)]
unsafe fn copy_row(slot: u32, place: Place, leading: bool) {
    let (first, last) = place.chunks();
    let (from, to) = if leading { (place.start, first) } else { (last, place.end) };
    // SAFETY: the row exists, it is written before a `warp::sync`, and no other lane stores this part of it.
    unsafe {
        if leading && first < last {
            tma::store_bytes(place.at(first), slot + 2 * first, 2 * (last - first));
        }
        let mut i = 0;
        while i < CHUNK - 1 {
            let element = from + i;
            if element < to {
                global::store_b16(place.at(element), shared::load_b16(slot + 2 * element));
            }
            i += 1;
        }
    }
}
