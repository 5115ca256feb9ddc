//! The kernel that puts the tiles of a packed batch into an order, in the simulator.
#![allow(clippy::unwrap_used)]

use fa_kernels::attention::tile_schedule::{SHARED_BYTES, THREADS, tile_schedule};
use fa_kernels::params::{AttentionParams, ScheduleParams};
use fa_sim::{Buffer, Launch, Schedule, launch};

/// What the schedule is filled with before.
const POISON: u32 = u32::MAX;
const BLOCK_M: u32 = 64;

/// The schedule of sequences that begin at these rows of Q and of K, with room for so many rows of tiles.
fn schedule(of_q: &[u32], of_k: &[u32], most: u32, seed: u64) -> Vec<u32> {
    let words = ScheduleParams::bytes(most.into()).div_ceil(16) as usize;
    // One more, to see that it is left alone.
    let mut memory = vec![[POISON; 4]; words + 1];
    let buffers = [
        Buffer::read("cu_seqlens_q", of_q),
        Buffer::read("cu_seqlens_k", of_k),
        Buffer::read_write("schedule", &mut memory),
    ];
    let params = ScheduleParams {
        attention: AttentionParams {
            cu_seqlens_q: buffers[0].address,
            cu_seqlens_k: buffers[1].address,
            ..AttentionParams::default()
        },
        schedule: buffers[2].address,
        sequences: of_q.len() as u32 - 1,
        block_m: BLOCK_M,
        most,
    };
    let config = Launch {
        name: "tile_schedule",
        grid: 1,
        block: THREADS,
        shared_bytes: SHARED_BYTES,
        schedule: Schedule::from_seed(seed),
        buffers: &buffers,
    };
    // SAFETY: the parameters describe the launch's buffers.
    launch(&config, &|| unsafe { tile_schedule(&params) }).unwrap();
    memory.concat()
}

fn offsets(lengths: impl Iterator<Item = u32>) -> Vec<u32> {
    let ends = lengths.scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

#[test]
fn sequences_with_the_most_keys_come_first() {
    for (seed, batch) in [1, 2, 3, 5, 31, 100, 1000, 1024].into_iter().enumerate() {
        let queries = |index: u32| index * 7_919 % 301;
        let keys = |index: u32| index * 104_729 % 97;
        let (of_q, of_k) = (offsets((0..batch).map(queries)), offsets((0..batch).map(keys)));
        let mut order: Vec<u32> = (0..batch).collect();
        // A stable sort: of sequences with as many keys the earlier one first.
        order.sort_by_key(|&index| std::cmp::Reverse(keys(index)));
        let mut rows = Vec::new();
        for sequence in order {
            let first = rows.len() as u32;
            rows.extend((0..queries(sequence).div_ceil(BLOCK_M)).map(|_| [sequence, first]));
        }
        let most = rows.len() as u32 + 3;
        let found = schedule(&of_q, &of_k, most, seed as u64);
        assert_eq!(found[..4], [0, rows.len() as u32, 0, 0], "{batch} sequences");
        assert_eq!(found[4..4 + 2 * rows.len()], rows.concat(), "{batch} sequences");
        assert!(found[4 + 2 * rows.len()..].iter().all(|&word| word == POISON), "{batch} sequences");
    }
}

/// Offsets on the device are the caller's promise, but what breaks it writes nothing elsewhere.
#[test]
fn offsets_that_are_none_write_only_what_there_is_room_for() {
    let wrong: [&[u32]; 4] = [&[0, u32::MAX, 0], &[9, 8, 7], &[0, 1 << 31, 3 << 30], &[0, 700, 1400]];
    for (seed, of_q) in wrong.into_iter().enumerate() {
        let most = 5;
        let found = schedule(of_q, &[0, 4, 2], most, seed as u64);
        assert!(found[1] <= most, "{of_q:?}: {found:?}");
        let rows = &found[4..4 + 2 * most as usize];
        assert!(rows.chunks(2).take(found[1] as usize).all(|row| row[0] < 2), "{of_q:?}: {found:?}");
        assert!(found[4 + 2 * most as usize..].iter().all(|&word| word == POISON), "{of_q:?}: {found:?}");
    }
}
