//! Blocks that access the same bytes of global memory, with and without an order.

mod common;
#[path = "common/grids.rs"]
mod grids;

use common::assert_contains;
use fa_sim::{AccessKind, Buffer, Error, Launch, Neighbours, Schedule, barrier, global, index};
use grids::on_cores;

/// The words that blocks add to: the first of [`Words`].
const COUNTERS: u64 = 4;

/// Counters, and behind them words of data.
type Words = [u32; 64];

/// Runs blocks, of which thread 0 does what the block's index says with the address of the first counter and
/// of the data, on one core and on two, in several schedules. Each of these says what was found.
fn runs(grid: u32, kernel: impl Fn(u32, u64, u64) + Sync) -> Vec<Result<(), Error>> {
    let cases = (0..8).flat_map(|seed| [(1, seed), (2, seed)]);
    let run = |(cores, seed)| {
        let mut words: Words = [0; 64];
        let buffers = [Buffer::read_write("words", &mut words)];
        let at = buffers[0].address;
        let report = on_cores(cores, (grid, seed), &buffers, || {
            if index::thread() == 0 {
                kernel(index::block(), at, at + 4 * COUNTERS);
            }
        });
        report.map(|_| ())
    };
    cases.map(run).collect()
}

/// As [`runs`], of blocks of which nothing is to be reported.
#[track_caller]
fn is_right(grid: u32, kernel: impl Fn(u32, u64, u64) + Sync) {
    runs(grid, kernel).into_iter().for_each(|found| found.expect("a kernel without faults"));
}

/// As [`runs`], of blocks of which these do what is named, unordered, at this byte of the data.
#[track_caller]
fn races(
    grid: u32,
    (one, other): ((u32, AccessKind), (u32, AccessKind)),
    byte: u64,
    kernel: impl Fn(u32, u64, u64) + Sync,
) {
    for found in runs(grid, kernel) {
        let error = found.expect_err("blocks race");
        let message = error.to_string();
        let Error::RaceBetweenBlocks { buffer, offset, block, other: earlier, first, second, .. } = error
        else {
            panic!("{message}")
        };
        let sides = [(block, second.kind), (earlier, first.kind)];
        assert!(sides == [one, other] || sides == [other, one], "{message}");
        assert_eq!((&*buffer, offset), ("words", 4 * COUNTERS + byte), "{message}");
    }
}

#[test]
fn a_store_and_a_load_without_an_order_are_a_race() {
    for writer in [0, 1] {
        let kinds = ((writer, AccessKind::Write), (1 - writer, AccessKind::Read));
        // SAFETY: the words are the launch's.
        races(2, kinds, 20, |block, counters, data| unsafe {
            if block == writer {
                global::store(data + 20, 1_u32);
                global::add_release(counters, 1);
            } else {
                global::load::<[u32; 4]>(data + 16);
                global::fetch_add(counters + 4, 1);
            }
        });
    }
}

#[test]
fn a_race_names_both_sides() {
    for found in runs(2, |block, counters, data| {
        // SAFETY: the words are the launch's.
        unsafe {
            global::fetch_add(counters, 1);
            global::store(data + 8, block);
        }
    }) {
        let message = found.expect_err("blocks race").to_string();
        let parts = [
            "race between blocks of kernel at byte 24 of buffer `words`: thread 0 writes at ",
            &format!("{}:", file!()),
            " in block 0",
            " in block 1",
            "with no global::add_release and global::wait_at_least between",
        ];
        assert_contains(&message, &parts);
    }
}

#[test]
fn a_release_and_a_wait_order_what_is_around_them() {
    // SAFETY: the words are the launch's.
    is_right(3, |block, counters, data| unsafe {
        if block > 0 {
            global::wait_at_least(counters + 4 * u64::from(block - 1), 1);
            let value = global::load::<u32>(data);
            assert_eq!(value, block - 1);
            // Block 2 comes after block 0 by way of block 1.
            assert_eq!(global::load::<u32>(data + 16), 7);
        } else {
            global::store(data + 16, 7_u32);
        }
        global::store(data, block);
        global::add_release(counters + 4 * u64::from(block), 1);
    });
}

#[test]
fn a_store_behind_the_release_is_not_ordered() {
    let kinds = ((0, AccessKind::Write), (1, AccessKind::Read));
    // SAFETY: the words are the launch's.
    races(2, kinds, 0, |block, counters, data| unsafe {
        if block == 0 {
            global::add_release(counters, 1);
            global::store(data, 1_u32);
        } else {
            global::wait_at_least(counters, 1);
            global::load::<u32>(data);
        }
    });
}

#[test]
fn a_store_races_with_what_still_reads_the_bytes() {
    let kinds = ((0, AccessKind::Write), (1, AccessKind::Read));
    // SAFETY: the words are the launch's.
    races(3, kinds, 0, |block, counters, data| unsafe {
        match block {
            0 => {
                global::store(data, 1_u32);
                global::add_release(counters, 1);
                // Of block 2, which does not wait for block 1.
                global::wait_at_least(counters + 4, 1);
                global::store(data, 2_u32);
            }
            1 => {
                global::wait_at_least(counters, 1);
                global::load::<u32>(data);
            }
            _ => {
                global::wait_at_least(counters, 1);
                global::add_release(counters + 4, 1);
            }
        }
    });
}

#[test]
fn additions_that_release_nothing_order_nothing() {
    let kinds = ((0, AccessKind::Write), (1, AccessKind::Read));
    // SAFETY: the words are the launch's.
    races(2, kinds, 0, |block, counters, data| unsafe {
        if block == 0 {
            global::store(data, 1_u32);
            global::fetch_add(counters, 1);
        } else {
            global::wait_at_least(counters, 1);
            global::load::<u32>(data);
        }
    });
}

#[test]
fn additions_hand_on_what_earlier_ones_have_released() {
    // SAFETY: the words are the launch's.
    is_right(3, |block, counters, data| unsafe {
        match block {
            0 => {
                global::store(data, 1_u32);
                global::add_release(counters, 1);
            }
            1 => {
                global::wait_at_least(counters, 1);
                global::fetch_add(counters, 1);
            }
            _ => {
                global::wait_at_least(counters, 2);
                global::load::<u32>(data);
            }
        }
    });
}

#[test]
fn what_is_added_behind_the_awaited_value_orders_nothing() {
    let kinds = ((1, AccessKind::Write), (2, AccessKind::Read));
    // SAFETY: the words are the launch's.
    races(3, kinds, 4, |block, counters, data| unsafe {
        match block {
            0 => global::add_release(counters, 1),
            1 => {
                global::wait_at_least(counters, 1);
                global::store(data + 4, 1_u32);
                global::add_release(counters, 1);
                global::fetch_add(counters + 4, 1);
            }
            _ => {
                // The counter is 2 by now, of which nothing is known by who asks for 1.
                global::wait_at_least(counters + 4, 1);
                global::wait_at_least(counters, 1);
                global::load::<u32>(data + 4);
            }
        }
    });
}

#[test]
fn slots_of_a_ring_that_counters_guard_are_no_race() {
    const TURNS: u32 = 6;
    const SLOTS: u32 = 2;
    // Block 0 fills slots, and block 1 empties them.
    let ring = |awaits_empty: bool| {
        // SAFETY: the words are the launch's.
        move |block: u32, counters: u64, data: u64| unsafe {
            for turn in 0..TURNS {
                let slot = data + u64::from(4 * (turn % SLOTS));
                if block == 0 {
                    if awaits_empty && turn >= SLOTS {
                        global::wait_at_least(counters + 4, turn + 1 - SLOTS);
                    }
                    global::store(slot, turn);
                    global::add_release(counters, 1);
                } else {
                    global::wait_at_least(counters, turn + 1);
                    global::load::<u32>(slot);
                    global::add_release(counters + 4, 1);
                }
            }
        }
    };
    is_right(2, ring(true));
    let found = runs(2, ring(false));
    assert!(found.iter().all(|found| matches!(found, Err(Error::RaceBetweenBlocks { .. }))), "{found:?}");
}

#[test]
fn neighbours_of_two_bytes_are_no_race() {
    // SAFETY: the words are the launch's.
    is_right(3, |block, counters, data| unsafe {
        global::fetch_add(counters, 1);
        global::store(data + 2 * u64::from(block), block as u16);
        global::load::<u16>(data + 2 * u64::from(block));
    });
    let kinds = ((0, AccessKind::Write), (1, AccessKind::Write));
    // SAFETY: as above.
    races(2, kinds, 2, |block, counters, data| unsafe {
        global::fetch_add(counters, 1);
        if block == 0 { global::store(data, 1_u32) } else { global::store(data + 2, 1_u16) }
    });
}

#[test]
fn all_loads_since_a_store_count() {
    let kinds = ((3, AccessKind::Write), (1, AccessKind::Read));
    // SAFETY: the words are the launch's.
    races(4, kinds, 0, |block, counters, data| unsafe {
        match block {
            1 => {
                global::load::<u32>(data);
                global::fetch_add(counters + 4, 1);
            }
            0 | 2 => {
                global::load::<u32>(data);
                global::add_release(counters, 1);
            }
            _ => {
                global::wait_at_least(counters, 2);
                global::wait_at_least(counters + 4, 1);
                global::store(data, 1_u32);
            }
        }
    });
}

#[test]
fn an_ordinary_access_to_a_counter_is_a_race() {
    let kinds = ((0, AccessKind::Write), (1, AccessKind::Add));
    // SAFETY: the words are the launch's.
    races(2, kinds, 8, |block, _, data| unsafe {
        if block == 0 {
            global::store(data + 8, 0_u32);
        } else {
            global::fetch_add(data + 8, 1);
        }
    });
}

#[test]
fn what_an_earlier_launch_has_written_is_there() {
    let mut words: Words = [0; 64];
    for launch in 0..2 {
        let buffers = [Buffer::read_write("words", &mut words)];
        let at = buffers[0].address;
        let report = on_cores(2, (2, 0), &buffers, || {
            // SAFETY: the words are the launch's.
            unsafe {
                global::fetch_add(at, 1);
                let word = at + 16 + 4 * u64::from(1 + index::thread());
                if index::block() == launch {
                    global::store(word, launch);
                } else {
                    global::load::<u32>(at + 16);
                }
            }
        });
        report.expect("each launch is ordered behind the one before");
    }
}

#[test]
fn launches_whose_blocks_learn_nothing_of_each_other_are_not_checked() {
    // SAFETY: the words are the launch's.
    is_right(2, |_, _, data| unsafe { global::store(data, 1_u32) });
}

#[test]
fn what_comes_before_the_first_call_counts() {
    let kinds = ((0, AccessKind::Write), (1, AccessKind::Write));
    // SAFETY: the words are the launch's.
    races(3, kinds, 0, |block, counters, data| unsafe {
        if block < 2 {
            global::store(data, 1_u32);
        } else {
            global::fetch_add(counters, 1);
        }
    });
}

#[test]
fn races_go_unreported_where_nobody_asks_for_them() {
    let mut words: Words = [0; 64];
    let buffers = [Buffer::read_write("words", &mut words)];
    let at = buffers[0].address;
    let schedule = Schedule::from_seed(0).without_race_detection();
    let launch = Launch { name: "kernel", grid: 2, block: 32, shared_bytes: 0, schedule, buffers: &buffers };
    // SAFETY: the words are the launch's.
    let report = fa_sim::launch(&launch, &|| unsafe {
        global::fetch_add(at, 1);
        global::store(at + 16, index::block());
    });
    report.expect("nothing reports the race");
}

#[test]
fn a_barrier_and_a_release_order_the_stores_of_all_threads() {
    for (seed, cores) in (0..8).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let mut words: Words = [0; 64];
        let buffers = [Buffer::read_write("words", &mut words)];
        let at = buffers[0].address;
        let report = on_cores(cores, (2, seed), &buffers, || {
            let word = at + 16 + 4 * u64::from(index::thread());
            // SAFETY: the words are the launch's.
            unsafe {
                if index::block() == 0 {
                    global::store(word, index::thread());
                    barrier::sync(0, 32);
                    if index::thread() == 0 {
                        global::add_release(at, 1);
                    }
                } else {
                    if index::thread() == 0 {
                        global::wait_at_least(at, 1);
                    }
                    barrier::sync(0, 32);
                    assert_eq!(global::load::<u32>(word), index::thread());
                }
            }
        });
        report.expect("a kernel without faults");
    }
}

/// Runs two launches of two blocks beside each other, the second of which reads what the first has stored and
/// counted, if it `waits` for that.
fn beside(seed: u64, waits: bool) -> Result<(), Error> {
    let mut words: Words = [0; 64];
    let buffers = [Buffer::read_write("words", &mut words)];
    let (counter, data) = (buffers[0].address, buffers[0].address + 4 * COUNTERS);
    let schedule = Schedule::from_seed(seed);
    let config = Launch { name: "kernel", grid: 2, block: 32, shared_bytes: 0, schedule, buffers: &buffers };
    let neighbours = Neighbours::default();
    // SAFETY: the words are the launches'.
    neighbours.launch(&config, 1, &|| unsafe {
        if index::thread() == 0 {
            global::store(data + 16 * u64::from(index::block()), 7_u32);
            global::add_release(counter, 1);
        }
    })?;
    // SAFETY: the words are the launches'.
    let second = neighbours.launch(&config, 1, &|| unsafe {
        if index::thread() == 0 {
            if waits {
                global::wait_at_least(counter, 2);
            }
            assert_eq!(global::load::<u32>(data + 16 * u64::from(1 - index::block())), 7);
        }
    });
    second.map(|_| ())
}

#[test]
fn launches_beside_each_other_need_an_order() {
    for seed in 0..8 {
        beside(seed, true).expect("what is waited for is in order");
        let message = beside(seed, false).expect_err("nothing is waited for").to_string();
        assert_contains(&message, &["reads", "of a launch beside it", "with no global::add_release"]);
    }
}
