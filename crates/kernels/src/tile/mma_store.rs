//! Rows of 16-bit elements from shared memory to device memory, a warp at a time: lanes that hold an `mma`'s
//! product store it in pieces of 4 bytes in eight rows at once, which costs an L2 sector each.

use crate::element::Element;
use crate::ptx::{global, index, shared};
use crate::registers::Width;
use crate::tile::mma::{CHUNK, MmaTile};
use crate::tile::simt::GlobalTile;

/// Copies the first `rows` rows of `tile`, or what `target` has of them, to `target`, whose first column is
/// column `first_column` of the tile, with the widest accesses that all rows allow.
///
/// # Safety
/// All 32 lanes of a warp call this together, after a `warp::sync` that follows the last write to the rows;
/// `target` is writable and has at most W::COLUMNS − `first_column` columns.
#[inline(always)]
pub unsafe fn store_rows<E: Element, W: Width>(
    tile: MmaTile<W>,
    rows: u32,
    target: &GlobalTile,
    first_column: u32,
) {
    let first = target.address.wrapping_sub(E::BYTES * first_column as u64);
    let alignment = first | (E::BYTES * target.stride);
    // SAFETY: all lanes are here, `target` is writable, and its rows start at multiples of the units' bytes.
    unsafe {
        if alignment.is_multiple_of(CHUNK as u64) {
            store_units::<E, W, 8>(tile, rows, target, first_column);
        } else if alignment.is_multiple_of(4) {
            store_units::<E, W, 2>(tile, rows, target, first_column);
        } else {
            store_units::<E, W, 1>(tile, rows, target, first_column);
        }
    }
}

/// [`store_rows`] by `UNIT` elements at a time: 8, 2 or 1.
///
/// # Safety
/// As [`store_rows`]; column 0 of each row lies at a multiple of the unit's bytes.
#[inline(always)]
unsafe fn store_units<E: Element, W: Width, const UNIT: u32>(
    tile: MmaTile<W>,
    rows: u32,
    target: &GlobalTile,
    first_column: u32,
) {
    let units = const { W::COLUMNS / UNIT };
    let end = index::unknown(units) * rows.min(target.rows);
    let mut unit = index::reread_thread() % 32;
    while unit < end {
        let (row, column) = (unit / units, unit % units * UNIT);
        let from = first_column.saturating_sub(column).min(UNIT);
        let to = (first_column + target.columns).saturating_sub(column).min(UNIT);
        // Before the first column this may lie before the tensor; nothing is stored there then.
        let address = target
            .at::<E>(row, 0)
            .wrapping_sub(E::BYTES * first_column as u64)
            .wrapping_add(E::BYTES * column as u64);
        // SAFETY: the row of the tile is written, and only elements of `target` that exist are stored.
        unsafe {
            if UNIT == 8 && from == 0 && to == UNIT {
                global::store4(address, shared::load4(tile.at(row, column)).map(f32::to_bits));
            } else if UNIT == 2 && from == 0 && to == UNIT {
                global::store_b32(address, shared::load_b32(tile.at(row, column)));
            } else {
                let mut i = from;
                while i < to {
                    let pair = shared::load_b32(tile.at(row, (column + i) & !1));
                    let element = if (column + i).is_multiple_of(2) { pair } else { pair >> 16 };
                    global::store_b16(address + E::BYTES * i as u64, element as u16);
                    i += 1;
                }
            }
        }
        unit += 32;
    }
}
