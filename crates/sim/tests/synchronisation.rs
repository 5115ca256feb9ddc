//! Barriers and warp operations that cannot complete, panics, and launches that are refused.

mod common;

use common::{assert_contains, fails, one_block, run, word};
use fa_sim::{Error, Launch, Operation, barrier, index, launch, setmaxnreg, shared, warp};

const SEEDS: std::ops::Range<u64> = 0..16;

#[test]
fn barrier_that_some_warps_skip() {
    for seed in SEEDS {
        let (error, message) = fails(256, seed, || {
            if index::thread() < 32 {
                barrier::sync(1, 256);
            }
        });
        let Error::Deadlock { waiting, finished, .. } = error else { panic!("{message}") };
        assert_eq!(waiting.len(), 1);
        assert_eq!(finished.0, (32..256).collect::<Vec<_>>());
        let line = waiting[0].site.line;
        assert_eq!(
            message,
            format!(
                "deadlock in block 0 of broken: threads 0-31 wait at barrier 1 for 256 arrivals (32 arrived), \
                 {}:{line}; threads 32-255 finished",
                file!()
            )
        );
    }
}

#[test]
fn barrier_within_a_warp_that_some_lanes_skip() {
    for seed in SEEDS {
        let (error, message) = fails(32, seed, || {
            if index::thread().is_multiple_of(2) {
                barrier::sync(0, 32);
            }
        });
        assert!(matches!(error, Error::Deadlock { .. }), "{message}");
        assert_contains(&message, &["threads 0, 2, 4,", "not all lanes of the warp are there", "finished"]);
    }
}

#[test]
fn two_halves_that_wait_for_each_other() {
    for seed in SEEDS {
        let (error, message) = fails(128, seed, || {
            let first = index::thread() / 64;
            barrier::sync(first, 128);
            barrier::sync(1 - first, 128);
        });
        let Error::Deadlock { waiting, .. } = error else { panic!("{message}") };
        assert_eq!(waiting.len(), 2, "{message}");
        assert_contains(&message, &["threads 0-63 wait at barrier 0", "threads 64-127 wait at barrier 1"]);
    }
}

#[test]
fn barrier_whose_participants_disagree() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || barrier::sync(3, 32 + 32 * (1 - index::thread() / 32)));
        // Depending on who comes first, 32 arrivals either complete the barrier or disagree.
        match error {
            Error::BarrierMismatch { barrier: 3, first_threads: 64, second_threads: 32, .. } => {
                assert_contains(&message, &[&format!("for 64 at {}:", file!()), "for 32 arrivals"]);
            }
            Error::Deadlock { .. } => {
                assert_contains(&message, &["threads 0-31 wait", "threads 32-63 finished"])
            }
            _ => panic!("{message}"),
        }
    }
}

#[test]
fn barrier_arguments_out_of_range() {
    for (barrier, threads, reason) in [
        (16, 64, "barrier is 16, the last is 15"),
        (0, 0, "threads is 0, not a positive multiple of 32"),
        (0, 48, "threads is 48, not a positive multiple of 32"),
        (0, 96, "threads is 96, the block has 64"),
    ] {
        let (error, message) = fails(64, 0, || barrier::sync(barrier, threads));
        assert!(matches!(error, Error::InvalidBarrier { .. }), "{message}");
        assert_contains(&message, &[reason, &format!("thread 0 at {}:", file!())]);
    }
}

#[test]
fn a_barrier_serves_phase_after_phase() {
    let report = run(96, 3, || {
        for _ in 0..50 {
            barrier::sync(0, 96);
        }
        barrier::sync(15, 96);
    })
    .expect("all threads meet");
    assert_eq!((report.barriers, report.barrier_sites), (51, 2));
}

/// Warp 0 fills a buffer and warp 1 empties it: each arrives at one barrier and waits at the other.
fn hand_over(fill: impl Fn(u32, u32)) {
    for step in 0..5 {
        if index::thread() < 32 {
            if step > 0 {
                barrier::sync(2, 64);
            }
            fill(step, index::thread());
        } else {
            barrier::sync(1, 64);
            let lane = index::thread() % 32;
            assert_eq!(shared::load::<u32>(word((lane + 1) % 32)), 100 * step + (lane + 1) % 32);
            if step < 4 {
                barrier::arrive(2, 64);
            }
        }
    }
}

#[test]
fn those_who_arrive_do_not_wait_and_come_before_those_who_do() {
    for seed in SEEDS {
        let report = run(64, seed, || {
            hand_over(|step, lane| {
                shared::store(word(lane), 100 * step + lane);
                barrier::arrive(1, 64);
            });
        })
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((report.barriers, report.barrier_sites), (9, 4));
        let (error, message) = fails(64, seed, || {
            hand_over(|step, lane| {
                barrier::arrive(1, 64);
                shared::store(word(lane), 100 * step + lane);
            });
        });
        assert!(matches!(error, Error::Race { .. }), "seed {seed}: {message}");
        // Who arrives is not ordered after who waits.
        let (error, message) = fails(64, seed, || {
            if index::thread() < 32 {
                barrier::arrive(1, 64);
                shared::store(word(index::thread()), 1_u32);
            } else {
                shared::store(word(index::thread() - 32), 2_u32);
                barrier::sync(1, 64);
            }
        });
        assert!(matches!(error, Error::Race { .. }), "seed {seed}: {message}");
    }
}

#[test]
fn arrivals_count_and_have_to_agree() {
    for seed in SEEDS {
        let (error, message) = fails(96, seed, || {
            if index::thread() < 32 {
                barrier::arrive(3, 96);
            } else if index::thread() < 64 {
                barrier::sync(3, 96);
            }
        });
        assert!(matches!(error, Error::Deadlock { .. }), "{message}");
        assert_contains(&message, &["threads 32-63 wait at barrier 3 for 96 arrivals (64 arrived)"]);
        let (error, message) = fails(96, seed, || match index::thread() / 32 {
            0 => barrier::arrive(3, 96),
            1 => barrier::sync(3, 96),
            _ => barrier::arrive(3, 64),
        });
        assert!(matches!(error, Error::BarrierMismatch { barrier: 3, .. }), "seed {seed}: {message}");
    }
}

#[test]
fn register_limits_that_no_device_takes() {
    for seed in SEEDS {
        let producer = || index::thread() < 128;
        run(384, seed, || if producer() { setmaxnreg::decrease(24) } else { setmaxnreg::increase(240) })
            .expect("64,512 registers");
        let (error, message) =
            fails(
                384,
                seed,
                || {
                    if producer() { setmaxnreg::decrease(32) } else { setmaxnreg::increase(248) }
                },
            );
        assert!(matches!(error, Error::InvalidRegisters { .. }), "{message}");
        assert_contains(&message, &["the warpgroups of the block hold 67584 registers, the limit is 65536"]);
        for (registers, part) in
            [(20, "registers is 20, not a multiple of 8"), (264, "registers is 264"), (28, "is 28")]
        {
            let (_, message) = fails(128, seed, || setmaxnreg::decrease(registers));
            assert_contains(&message, &[part, file!()]);
        }
        let (_, message) =
            fails(128, seed, || setmaxnreg::decrease(if index::thread() < 64 { 24 } else { 40 }));
        assert_contains(&message, &["another warp of the warpgroup executes setmaxnreg::decrease of"]);
        let (_, message) = fails(128, seed, || {
            if index::thread() / 32 != 2 {
                setmaxnreg::decrease(24);
            }
        });
        assert_contains(
            &message,
            &["threads 64-95 never execute setmaxnreg::decrease of 24 of their warpgroup"],
        );
        let (_, message) = fails(96, seed, || setmaxnreg::decrease(24));
        assert_contains(&message, &["threads 0 on are no whole warpgroup"]);
    }
}

#[test]
fn shuffles_at_two_places() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || {
            if index::thread() % 32 < 16 {
                warp::shuffle_xor(1, 1);
            } else {
                warp::shuffle_xor(2, 1);
            }
        });
        let Error::Divergence { first_thread, second_thread, first, second, .. } = error else {
            panic!("{message}")
        };
        assert_eq!(first_thread / 32, second_thread / 32);
        assert_eq!(first.line.abs_diff(second.line), 2);
        assert_contains(&message, &[&first.to_string(), &second.to_string(), "warp::shuffle_xor"]);
    }
}

#[test]
fn lanes_at_different_operations() {
    let (error, message) = fails(32, 0, || {
        if index::thread() < 5 {
            warp::sync();
        } else {
            barrier::sync(0, 32);
        }
    });
    let Error::Divergence { first_thread: 0, second_thread: 5, first_operation, second_operation, .. } =
        error
    else {
        panic!("{message}")
    };
    assert_eq!(first_operation, Operation::WarpSync);
    assert_eq!(second_operation, Operation::Barrier { barrier: 0, threads: 32 });
}

#[test]
fn shuffle_that_lanes_have_left() {
    let (error, message) = fails(32, 2, || {
        if index::thread() != 7 {
            warp::shuffle_xor(0, 1);
        }
    });
    assert!(matches!(error, Error::Deadlock { .. }), "{message}");
    assert_contains(&message, &["threads 0-6, 8-31 wait at warp::shuffle_xor", "thread 7 finished"]);
}

#[test]
fn shuffles_and_votes_give_what_ptx_says() {
    for seed in SEEDS {
        run(64, seed, || {
            let (thread, lane) = (index::thread(), index::thread() % 32);
            for mask in [0, 1, 2, 16, 31] {
                assert_eq!(warp::shuffle_xor(100 + thread, mask), 100 + (thread ^ mask));
            }
            assert_eq!(warp::shuffle_xor(thread, 32 + 4), thread ^ 4, "5 bits count");
            assert_eq!(
                warp::shuffle(100 + thread, (lane + 3) % 32),
                100 + thread / 32 * 32 + (lane + 3) % 32
            );
            assert_eq!(warp::shuffle(thread, 32 + lane / 4), thread / 32 * 32 + lane / 4, "5 bits count");
            for from in [0, 5, 31] {
                assert_eq!(warp::broadcast(100 + thread, from), 100 + thread / 32 * 32 + from);
            }
            assert_eq!(warp::broadcast(thread, 32 + 3), thread / 32 * 32 + 3, "5 bits count");
            assert!(warp::vote_any(lane == 31));
            assert!(!warp::vote_any(false));
            assert_eq!(warp::ballot(true), u32::MAX);
            assert_eq!(warp::ballot(lane != 3), !8);
            assert_eq!(warp::vote_any(thread < 32), thread < 32, "votes stay within the warp");
        })
        .expect("all lanes take part");
    }
}

#[test]
fn panics_become_errors() {
    let table = [0_u32; 4];
    let (error, message) = fails(64, 2, || {
        if index::thread() == 33 {
            let beyond = index::thread() as usize;
            std::hint::black_box(table[beyond]);
        }
        barrier::sync(0, 64);
    });
    assert!(matches!(error, Error::KernelPanic { thread: 33, .. }), "{message}");
    let parts = ["thread 33", "index out of bounds: the len is 4 but the index is 33", file!()];
    assert_contains(&message, &parts);
}

#[test]
fn what_stands_on_the_stack_of_a_failed_thread_is_dropped() {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    struct Counted<'a>(&'a AtomicU32);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let dropped = AtomicU32::new(0);
    fails(64, 0, || {
        let _counted = Counted(&dropped);
        barrier::sync(0, 64);
        assert_ne!(index::thread(), 5, "thread 5 fails while the others wait");
        barrier::sync(0, 64);
    });
    assert_eq!(dropped.load(Relaxed), 64);
}

#[test]
fn the_lowest_failing_block_is_reported() {
    for _ in 0..20 {
        let config = Launch { grid: 64, ..one_block(32, 0) };
        let error = launch(&config, &|| assert!(index::block() < 11, "block {}", index::block()));
        assert!(matches!(error, Err(Error::KernelPanic { block: 11, .. })), "{error:?}");
    }
}

#[test]
fn launches_that_no_device_takes() {
    let base = one_block(32, 0);
    for (config, reason) in [
        (Launch { block: 0, ..base }, "block is 0"),
        (Launch { block: 48, ..base }, "block is 48, not a multiple of 32"),
        (Launch { block: 1056, ..base }, "block is 1056"),
        (Launch { grid: 0, ..base }, "grid is 0"),
        (Launch { shared_bytes: 232_449, ..base }, "shared_bytes is 232449, the limit is 232448"),
    ] {
        let message = launch(&config, &|| {}).expect_err("the launch is invalid").to_string();
        assert_contains(&message, &["invalid launch of broken", reason]);
    }
    launch(&Launch { block: 1024, shared_bytes: 232_448, ..base }, &|| {}).expect("these are the limits");
}

#[test]
fn a_launch_within_a_kernel_is_refused() {
    run(32, 0, || {
        let error = launch(&one_block(32, 0), &|| {});
        assert!(matches!(error, Err(Error::InvalidLaunch { .. })));
    })
    .expect("the outer launch is fine");
}
