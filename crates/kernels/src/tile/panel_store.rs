//! Rows of a tile of panels to device memory by ordinary stores, where no tensor map describes or clips them.

use crate::element::Element;
use crate::ptx::{global, index, shared};
use crate::tile::panel_move::from_column;
use crate::tile::panels::Panels;
use crate::tile::simt::GlobalTile;

/// Columns of a chunk of 16 bytes.
const CHUNK: u32 = 8;

/// Copies the first `rows` rows of `tile`, or what `target` has of them, to `target`, whose first column is column
/// `first_column` of the tile.
///
/// Consecutive lanes store consecutive chunks of 16 bytes, aligned in device memory wherever a row starts: each is put
/// together from two of shared memory. What a row has of its first and last chunk leaves in words and halves.
///
/// # Safety
/// All 32 lanes of a warp call this together, after a `warp::sync` that follows the last write to the rows; `target`
/// is writable, starts at a multiple of the element's bytes, and has at most COLUMNS − `first_column` columns.
#[inline(always)]
pub unsafe fn store_rows<E: Element, const ROWS: u32, const COLUMNS: u32>(
    tile: Panels<ROWS, COLUMNS>,
    rows: u32,
    target: &GlobalTile,
    first_column: u32,
) {
    const { assert!(E::BYTES == 2) };
    // A row that starts inside of a chunk reaches into one more.
    let chunks = const { COLUMNS / CHUNK + 1 };
    let end = index::unknown(chunks) * rows.min(target.rows);
    let mut unit = index::thread_anew() % 32;
    while unit < end {
        let (row, chunk) = (unit / chunks, unit % chunks);
        let first = target.at::<E>(row, 0);
        // The row's columns count from 0; a chunk may begin before them.
        let column = (CHUNK * chunk).wrapping_sub((first % 16) as u32 / 2);
        let address = first - first % 16 + 16 * chunk as u64;
        let exists = |i: u32| column.wrapping_add(i) < target.columns;
        // SAFETY: the caller's contract; what is stored exists.
        unsafe {
            let words = load_columns(tile, row, first_column.wrapping_add(column));
            if exists(0) && exists(CHUNK - 1) {
                global::store4(address, words);
            } else {
                let mut i = 0;
                while i < 4 {
                    let (address, word) = (address + 4 * i as u64, words[i]);
                    match (exists(2 * i as u32), exists(2 * i as u32 + 1)) {
                        (true, true) => global::store_b32(address, word),
                        (true, false) => global::store_b16(address, word as u16),
                        (false, true) => global::store_b16(address + 2, (word >> 16) as u16),
                        (false, false) => {}
                    }
                    i += 1;
                }
            }
        }
        unit += 32;
    }
}

/// Eight columns of a row from `column` on, which may be a few before the first, modulo 2^32; those that the tile does
/// not have are any.
///
/// # Safety
/// As [`store_rows`]; the row is one of the tile's.
#[inline(always)]
unsafe fn load_columns<const ROWS: u32, const COLUMNS: u32>(
    tile: Panels<ROWS, COLUMNS>,
    row: u32,
    column: u32,
) -> [u32; 4] {
    let chunk = column as i32 >> 3;
    let load = |chunk: i32| {
        let chunk = chunk.clamp(0, const { (COLUMNS / CHUNK) as i32 - 1 }) as u32;
        // SAFETY: the caller's contract.
        unsafe { shared::load4(tile.at(row, chunk)) }.map(f32::to_bits)
    };
    from_column(load(chunk), load(chunk + 1), column)
}
