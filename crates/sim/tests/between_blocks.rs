//! What blocks of a launch learn of each other: atomics, and waits for what others add.

mod common;
#[path = "common/grids.rs"]
mod grids;

use common::assert_contains;
use fa_sim::{Buffer, Error, Report, barrier, global, index};
use grids::on_cores;

/// Runs two blocks at a time.
fn two_at_a_time(
    grid: u32,
    seed: u64,
    buffers: &[Buffer],
    kernel: impl Fn() + Sync,
) -> Result<Report, Error> {
    on_cores(2, (grid, seed), buffers, kernel)
}

#[test]
fn blocks_that_wait_for_each_other_take_turns_on_one_core() {
    for seed in 0..8 {
        let mut words = [0_u32; 2];
        let buffers = [Buffer::read_write("words", &mut words)];
        let at = buffers[0].address;
        let turns = on_cores(1, (5, seed), &buffers, || {
            let (own, other) =
                (at + 4 * u64::from(index::block() % 2), at + 4 * u64::from(1 - index::block() % 2));
            // SAFETY: the words are accessed by atomics alone.
            unsafe {
                if index::thread() == 0 && index::block() < 2 {
                    for turn in 1..4 {
                        if index::block() == 0 {
                            global::wait_at_least(other, turn);
                        }
                        global::add_release(own, 1);
                        if index::block() == 1 {
                            global::wait_at_least(other, turn);
                        }
                    }
                }
            }
        });
        turns.expect("a kernel without faults");
        assert_eq!(words, [3, 3]);
    }
}

#[test]
fn a_block_whose_partner_fails_does_not_wait_for_it() {
    let mut words = [0_u32; 1];
    let buffers = [Buffer::read_write("words", &mut words)];
    let at = buffers[0].address;
    let fails = on_cores(1, (2, 0), &buffers, || {
        // SAFETY: the word is accessed by atomics alone.
        unsafe {
            if index::block() == 0 {
                global::wait_at_least(at, 1);
            } else {
                panic!("block {} fails", index::block());
            }
        }
    });
    assert_contains(&fails.expect_err("a block fails").to_string(), &["block 1 fails"]);
}

#[test]
fn each_ticket_is_given_once() {
    for seed in 0..8 {
        let mut words = [0_u32; 1 + 4 * 32];
        let buffers = [Buffer::read_write("words", &mut words)];
        let at = buffers[0].address;
        let taken = two_at_a_time(4, seed, &buffers, || {
            // SAFETY: the first word is accessed by atomics alone, and each other by who has its ticket.
            unsafe {
                let ticket = global::fetch_add(at, 1);
                global::store(at + 4 + 4 * u64::from(ticket), 1 + index::block());
            }
        });
        taken.expect("a kernel without faults");
        assert_eq!(words[0], 4 * 32);
        assert!((1..=4).all(|block| words[1..].iter().filter(|&&word| word == block).count() == 32));
    }
}

#[test]
fn a_wait_ends_when_another_block_has_added() {
    for seed in 0..8 {
        let mut words = [0_u32; 1 + 32];
        let buffers = [Buffer::read_write("words", &mut words)];
        let at = buffers[0].address;
        let handed_on = two_at_a_time(2, seed, &buffers, || {
            let value = at + 4 + 4 * u64::from(index::thread());
            // SAFETY: the first word is accessed by atomics alone; a value is read behind a wait for
            // the addition that follows its store.
            unsafe {
                if index::block() == 0 {
                    global::store(value, 7 + index::thread());
                    barrier::sync(0, 32);
                    if index::thread() == 0 {
                        global::add_release(at, 3);
                    }
                } else {
                    global::wait_at_least(at, 3);
                    let seen = global::load::<u32>(value);
                    global::store(value, 2 * seen);
                }
            }
        });
        handed_on.expect("a kernel without faults");
        assert!((0..32).all(|thread| words[1 + thread] == 2 * (7 + thread as u32)), "{words:?}");
    }
}

#[test]
fn threads_of_a_block_wait_for_each_other_too() {
    for seed in 0..8 {
        let mut words = [0_u32; 1];
        let buffers = [Buffer::read_write("words", &mut words)];
        let at = buffers[0].address;
        let all = two_at_a_time(1, seed, &buffers, || {
            // SAFETY: the word is accessed by atomics alone.
            unsafe {
                if index::thread() < 16 {
                    global::wait_at_least(at, 16);
                } else {
                    global::add_release(at, 1);
                }
            }
        });
        all.expect("a kernel without faults");
    }
}

#[test]
fn atomics_outside_of_buffers_are_faults() {
    let mut words = [0_u32; 1];
    let buffers = [Buffer::read_write("words", &mut words)];
    let at = buffers[0].address;
    // SAFETY: the simulator stops the access.
    let behind = two_at_a_time(1, 0, &buffers, || unsafe { global::add_release(at + 4, 1) });
    assert_contains(&behind.expect_err("no buffer is there").to_string(), &["writes", "kernel"]);
    // SAFETY: as above.
    let between = two_at_a_time(1, 0, &buffers, || unsafe { global::wait_at_least(at + 2, 0) });
    assert_contains(&between.expect_err("no word starts there").to_string(), &["reads", "kernel"]);
}
