//! Barriers in shared memory: what they order, and kernels that use them wrongly.

mod common;

use common::{assert_contains, fails, run, word};
use fa_sim::{Error, barrier, index, mbarrier, shared};

const SEEDS: std::ops::Range<u64> = 0..24;

/// Addresses of the barriers of these tests, behind the data.
fn at(barrier: u32) -> u32 {
    shared::base() + 2048 + 8 * barrier
}

/// Thread 0 makes barriers of these counts, and all 64 threads meet.
fn init(counts: &[u32]) {
    if index::thread() == 0 {
        (0..).zip(counts).for_each(|(barrier, &count)| mbarrier::init(at(barrier), count));
    }
    barrier::sync(0, 64);
}

/// Warp 0 writes a ring of two stages of 32 words, and warp 1 reads them, lane by lane.
fn ring(parity_of_empty: u32, release: bool) {
    init(&[32, 32, 32, 32]);
    let (warp, lane) = (index::thread() / 32, index::thread() % 32);
    for step in 0..7 {
        let (stage, parity) = (step % 2, step / 2 % 2);
        let (full, empty) = (at(stage), at(2 + stage));
        if warp == 0 {
            mbarrier::wait(empty, parity ^ parity_of_empty);
            shared::store(word(32 * stage + lane), 100 * step + lane);
            mbarrier::arrive(full);
        } else {
            mbarrier::wait(full, parity);
            assert_eq!(shared::load::<u32>(word(32 * stage + (lane + 5) % 32)), 100 * step + (lane + 5) % 32);
            if release {
                mbarrier::arrive(empty);
            }
        }
    }
}

#[test]
fn a_ring_of_two_stages() {
    for seed in SEEDS {
        run(64, seed, || ring(1, true)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn a_ring_that_waits_for_the_wrong_phase_says_who_waits_for_what() {
    for seed in SEEDS {
        // The producer waits for a release that can only come after it.
        let (error, message) = fails(64, seed, || ring(0, true));
        let Error::Deadlock { waiting, .. } = error else { panic!("seed {seed}: {message}") };
        assert_eq!(waiting.len(), 2, "{message}");
        assert_contains(
            &message,
            &[
                &format!("threads 0-31 wait at the mbarrier at {} for parity 0", at(2)),
                &format!("threads 32-63 wait at the mbarrier at {} for parity 0", at(0)),
                "phase 0 is under way, 32 of 32 arrivals and 0 bytes are missing",
                file!(),
            ],
        );
        // Without a release the ring stops where it is full.
        let (error, message) = fails(64, seed, || ring(1, false));
        assert!(matches!(error, Error::Deadlock { .. }), "seed {seed}: {message}");
        assert_contains(&message, &[&format!("threads 0-31 wait at the mbarrier at {} for parity 0", at(2))]);
    }
}

#[test]
fn arrivals_and_waits_order_only_those_who_make_them() {
    for seed in SEEDS {
        // Thread 40 reads what thread 0 wrote, though only thread 32 waited for it.
        let (error, message) = fails(64, seed, || {
            init(&[1]);
            match index::thread() {
                0 => {
                    shared::store(word(0), 1_u32);
                    mbarrier::arrive(at(0));
                }
                32 => mbarrier::wait(at(0), 0),
                40 => {
                    shared::load::<u32>(word(0));
                }
                _ => {}
            }
        });
        assert!(matches!(error, Error::Race { .. }), "seed {seed}: {message}");
        // What is written after the arrival is not ordered either.
        let (error, message) = fails(64, seed, || {
            init(&[1]);
            match index::thread() {
                0 => {
                    mbarrier::arrive(at(0));
                    shared::store(word(0), 1_u32);
                }
                32 => {
                    mbarrier::wait(at(0), 0);
                    shared::load::<u32>(word(0));
                }
                _ => {}
            }
        });
        assert!(matches!(error, Error::Race { .. }), "seed {seed}: {message}");
    }
}

#[test]
fn the_phase_before_the_first_is_complete() {
    for seed in SEEDS {
        run(64, seed, || {
            init(&[64]);
            mbarrier::wait(at(0), 1);
            mbarrier::arrive(at(0));
            mbarrier::wait(at(0), 0);
            mbarrier::arrive(at(0));
            mbarrier::wait(at(0), 1);
        })
        .expect("all threads arrive twice");
    }
}

#[test]
fn barriers_that_are_not_there_yet() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || {
            if index::thread() == 0 {
                mbarrier::init(at(0), 64);
            }
            mbarrier::arrive(at(0));
            mbarrier::wait(at(0), 0);
        });
        assert!(matches!(error, Error::Mbarrier { .. }), "seed {seed}: {message}");
        let unordered =
            message.contains("thread 0 initialises it at") && message.contains("no barrier between");
        assert!(unordered || message.contains("no mbarrier::init"), "seed {seed}: {message}");
    }
    let (_, message) = fails(64, 0, || mbarrier::arrive(at(3)));
    assert_contains(&message, &[&format!("shared address {}", at(3)), "no mbarrier::init of this block"]);
}

#[test]
fn arguments_that_no_device_takes() {
    for (kernel, part) in [
        ((|| mbarrier::init(at(0), 0)) as fn(), "arrivals is 0, not 1 to 1048575"),
        (|| mbarrier::init(at(0), 1 << 20), "arrivals is 1048576"),
        (|| mbarrier::init(at(0) + 4, 1), "misaligned"),
        (|| mbarrier::init(shared::base() + 4096, 1), "out of bounds"),
        (|| mbarrier::wait(at(1), 2), "parity is 2, not 0 or 1"),
        (|| mbarrier::init(at(1), 1), "it is initialised already, at"),
        (|| mbarrier::arrive_expect_tx(at(1), 1 << 20), "would expect 1048576 bytes, the limit is 1048575"),
    ] {
        let (_, message) = fails(64, 0, || {
            init(&[64, 1]);
            if index::thread() == 0 {
                kernel();
            }
        });
        assert!(message.contains(part), "`{part}` is missing from: {message}");
    }
}

#[test]
fn more_arrivals_than_the_count() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || {
            init(&[1]);
            if index::thread() == 7 {
                mbarrier::arrive_expect_tx(at(0), 512);
                mbarrier::arrive(at(0));
            }
        });
        assert!(matches!(error, Error::Mbarrier { thread: 7, .. }), "seed {seed}: {message}");
        assert_contains(&message, &["more arrivals than its count of 1", "phase 0 waits for 512 bytes"]);
    }
}

#[test]
fn announced_bytes_that_never_come() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || {
            init(&[1]);
            if index::thread() == 7 {
                mbarrier::arrive_expect_tx(at(0), 512);
            }
            mbarrier::wait(at(0), 0);
        });
        assert!(matches!(error, Error::Deadlock { .. }), "seed {seed}: {message}");
        assert_contains(
            &message,
            &["threads 0-63 wait at the mbarrier at", "0 of 1 arrivals and 512 bytes are missing"],
        );
    }
}

#[test]
fn a_barrier_is_no_memory() {
    let accesses: [fn(); 3] = [
        || {
            shared::load::<u32>(at(0) + 4);
        },
        || shared::store(at(0), 0_u64),
        || shared::store(at(0) + 1, 0_u8),
    ];
    for seed in SEEDS {
        for access in accesses {
            let (error, message) = fails(64, seed, || {
                init(&[1]);
                if index::thread() == 33 {
                    access();
                }
            });
            assert!(matches!(error, Error::Mbarrier { .. }), "seed {seed}: {message}");
            assert_contains(&message, &["thread 33", "as memory, and it is initialised at"]);
        }
    }
    // In the next block the bytes are free again.
    let config = fa_sim::Launch { grid: 8, ..common::one_block(64, 3) };
    let kernel = || {
        if index::block().is_multiple_of(2) {
            init(&[1]);
        } else if index::thread() == 1 {
            shared::store(at(0), [1_u8; 16]);
            assert_eq!(shared::load::<u8>(at(0) + 3), 1);
        }
    };
    fa_sim::launch(&config, &kernel).expect("each block has its own memory");
}

#[test]
fn a_phase_that_passes_a_waiting_thread_by() {
    let result = |seed| {
        run(64, seed, || {
            init(&[1]);
            match index::thread() {
                0 => (0..3).for_each(|_| mbarrier::arrive(at(0))),
                32 => mbarrier::wait(at(0), 0),
                _ => {}
            }
        })
    };
    let messages: Vec<String> =
        SEEDS.filter_map(|seed| result(seed).err()).map(|error| error.to_string()).collect();
    assert!(!messages.is_empty());
    for message in messages {
        // Three phases on, the thread waits for one that never ends.
        let passed = message.contains("nothing makes the barrier wait for this thread");
        assert!(
            passed || message.contains("phase 3 is under way") || message.contains("deadlock"),
            "{message}"
        );
    }
}
