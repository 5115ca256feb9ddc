//! The order of a packed batch's tiles, found on the device that has the sequences' lengths.
//!
//! Blocks that each take the next tile when they are done end at about the same time if the last tiles are
//! short. So sequences are put in the order of their keys, those with the most first (Graham, "Bounds on
//! Multiprocessing Timing Anomalies", 1969; FlashAttention-3 sorts so in `prepare_varlen_num_blocks`).

use crate::params::ScheduleParams;
use crate::ptx::{barrier, global, grid, index, shared, warp};
use crate::scheduler::WorkTile;

/// Threads of a block, each of which has a sequence.
pub const THREADS: u32 = ScheduleParams::MAX_SEQUENCES;

/// Bytes of shared memory: keys and tiles of each sequence.
pub const SHARED_BYTES: u32 = 8 * THREADS;

/// Barriers in the source.
pub const BARRIERS: u32 = 1;

/// Threads of a warp.
const LANES: u32 = 32;

/// Where a sequence's tiles of a head are, in rows of tiles.
#[derive(Clone, Copy)]
struct Place {
    first: u32,
    /// Behind the last, of all sequences.
    end_of_all: u32,
}

/// Writes down of each row of tiles which sequence it is of, and that none was taken.
///
/// Launch: one block of [`THREADS`] threads with [`SHARED_BYTES`] bytes of shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above. Lengths may be anything.
#[inline(always)]
pub unsafe fn tile_schedule(params: &ScheduleParams) {
    grid::launch_dependents();
    let sequence = index::thread();
    // SAFETY: the offsets of a sequence that exists are readable, and all threads are here.
    unsafe {
        let (keys, tiles) = if sequence < params.sequences {
            let (queries, keys) = WorkTile::rows(&params.attention, sequence);
            (keys.len, queries.len.div_ceil(params.block_m.max(1)))
        } else {
            (0, 0)
        };
        let base = shared::base();
        shared::store_b32(base + 4 * sequence, keys);
        shared::store_b32(base + 4 * (THREADS + sequence), tiles);
        barrier::sync(0, THREADS);
        let Place { first, end_of_all } = place(base, params.sequences, sequence, keys);
        if sequence == 0 {
            global::store4(params.schedule, [0, end_of_all.min(params.most), 0, 0]);
        }
        write_rows(params, first, tiles);
    }
}

/// Where the tiles of a sequence with so many keys are: behind those of sequences with more, and with as many
/// behind those of the sequences before it.
///
/// # Safety
/// Keys and tiles of all sequences lie at `base`, and 0 behind the last.
#[inline(always)]
unsafe fn place(base: u32, sequences: u32, sequence: u32, keys: u32) -> Place {
    let mut place = Place { first: 0, end_of_all: 0 };
    let mut other = 0;
    while other < sequences {
        // SAFETY: both lie there, of a multiple of four sequences.
        let (others_keys, tiles) =
            unsafe { (shared::load4(base + 4 * other), shared::load4(base + 4 * (THREADS + other))) };
        let mut i = 0;
        while i < 4 {
            let (other_keys, tiles) = (others_keys[i].to_bits(), tiles[i].to_bits());
            let is_before = other_keys > keys || (other_keys == keys && other + (i as u32) < sequence);
            // Offsets that are no offsets may add up to anything.
            place.end_of_all = place.end_of_all.saturating_add(tiles);
            if is_before {
                place.first = place.first.saturating_add(tiles);
            }
            i += 1;
        }
        other += 4;
    }
    place
}

/// Writes the rows of the sequences of a warp, whose lanes have one each.
///
/// # Safety
/// All lanes of the warp call this together; `params` is valid.
#[inline(always)]
unsafe fn write_rows(params: &ScheduleParams, first: u32, tiles: u32) {
    let (lane, first_of_warp) = (index::thread() % LANES, index::thread() / LANES * LANES);
    let end = first.saturating_add(tiles).min(params.most);
    let mut of = 0;
    while of < LANES {
        // SAFETY: all lanes of the warp are here.
        let (first, end) = unsafe { (warp::broadcast(first, of), warp::broadcast(end, of)) };
        let mut row = first.saturating_add(lane);
        while row < end {
            let address = params.schedule + ScheduleParams::ROWS + ScheduleParams::ROW_BYTES * row as u64;
            // SAFETY: the row is below `most`, and this thread's.
            unsafe {
                global::store_b32(address, first_of_warp + of);
                global::store_b32(address + 4, first);
            }
            row = row.saturating_add(LANES);
        }
        of += 1;
    }
}
