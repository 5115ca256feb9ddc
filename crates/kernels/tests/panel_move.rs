//! Columns that move within rows of a tile in shared memory, in the simulator.
#![allow(clippy::unwrap_used)]

use fa_kernels::attention::alignment::panel_move::{move_left, move_right_by_one};
use fa_kernels::ptx::{global, index, shared, warp};
use fa_kernels::tile::panels::{Extents, Panels};
use fa_sim::{Buffer, Launch, Schedule, launch};

const SEEDS: std::ops::Range<u64> = 0..8;

const ROWS: u32 = 64;

/// Rows of one warp.
const WARP_ROWS: u32 = 16;

/// The element in a row and column of the tile: none is 0.
fn element(row: u32, column: u32) -> u32 {
    (row * 257 + column) % 65_521 + 1
}

/// What is left of a tile after a warp has called `change` with its second sixteen rows, row by row.
fn changed<const COLUMNS: u32>(
    seed: u64,
    change: impl Fn(Panels<Extents<ROWS, COLUMNS>>) + Sync,
) -> Vec<u32> {
    let mut out = vec![0; (ROWS * COLUMNS / 2) as usize];
    let buffers = [Buffer::read_write("out", &mut out)];
    let address = buffers[0].address;
    let config = Launch {
        name: "panel_move",
        grid: 1,
        block: 32,
        shared_bytes: Panels::<Extents<ROWS, COLUMNS>>::BYTES,
        schedule: Schedule::from_seed(seed),
        buffers: &buffers,
    };
    launch(&config, &|| {
        let tile = Panels::<Extents<ROWS, COLUMNS>>::new(shared::base());
        let words = |visit: &dyn Fn(u32, u32, u32)| {
            for row in (index::thread()..ROWS).step_by(32) {
                (0..COLUMNS).step_by(2).for_each(|column| {
                    visit(row, column, tile.at(row, column / 8) + 2 * (column % 8));
                });
            }
        };
        // SAFETY: one lane has each row, with a barrier between them and those that have it in `change`.
        unsafe {
            words(&|row, column, at| {
                shared::store_b32(at, element(row, column) | element(row, column + 1) << 16)
            });
            warp::sync();
            change(tile.from_row(WARP_ROWS));
            warp::sync();
            words(&|row, column, at| {
                let word = shared::load_b32(at);
                global::store_b32(address + 2 * u64::from(row * COLUMNS + column), word);
            });
        }
    })
    .unwrap();
    out.iter().flat_map(|word| [word & 0xffff, word >> 16]).collect()
}

/// Checks a tile of which a row's column came from `from` in its sixteen rows, or is 0.
fn check<const COLUMNS: u32>(found: &[u32], from: impl Fn(u32, u32) -> Option<u32>) {
    for (index, &found) in (0..).zip(found) {
        let (row, column) = (index / COLUMNS, index % COLUMNS);
        let moves = (WARP_ROWS..2 * WARP_ROWS).contains(&row);
        let source = if moves { from(row - WARP_ROWS, column) } else { Some(column) };
        let expected = source.filter(|&column| column < COLUMNS).map_or(0, |column| element(row, column));
        assert_eq!(found, expected, "row {row}, column {column} of {COLUMNS}");
    }
}

fn columns_move<const COLUMNS: u32>() {
    for seed in SEEDS {
        let right = changed::<COLUMNS>(seed, |rows| {
            // SAFETY: the warp's rows.
            unsafe { move_right_by_one(rows) };
        });
        check::<COLUMNS>(&right, |_, column| column.checked_sub(1));
        let by = |row: u32| (row * 5 + seed as u32) % 8;
        let left = changed::<COLUMNS>(seed, |rows| {
            // SAFETY: the warp's rows.
            unsafe { move_left(rows, by(index::thread() % WARP_ROWS)) };
        });
        check::<COLUMNS>(&left, |row, column| Some(column + by(row)));
    }
}

#[test]
fn columns_move_across_chunks_and_panels() {
    columns_move::<16>();
    columns_move::<48>();
    columns_move::<64>();
    columns_move::<144>();
    columns_move::<256>();
}
