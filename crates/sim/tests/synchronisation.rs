//! Barriers and warp operations that cannot complete, panics, and launches that are refused.

mod common;

use common::{assert_contains, fails, one_block, run};
use fa_sim::{Error, Launch, Operation, barrier, index, launch, warp};

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
            assert!(warp::vote_any(lane == 31));
            assert!(!warp::vote_any(false));
            assert!(warp::vote_all(true));
            assert!(!warp::vote_all(lane != 3));
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
