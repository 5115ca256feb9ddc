//! Kernels that use boxes too early, too late, or without a word to the other proxy.

mod common;
#[path = "common/tensors.rs"]
mod tensors;

use common::assert_contains;
use fa_sim::tma::{self, Swizzle};
use fa_sim::{Access, AccessKind, Buffer, Error, Report, Schedule, barrier, fence, index, mbarrier, shared};
use tensors::{bar, counting, launch_on, load_and, map};

const SEEDS: std::ops::Range<u64> = 0..16;

/// Runs a kernel that gets the address of the map of a tensor of 64 × 8 elements, box and all.
fn with_map(seed: u64, kernel: impl Fn(u64) + Sync) -> Result<Report, Error> {
    let mut values = counting(64 * 8);
    let encoded = map(&values, [64, 8], [64, 8], Swizzle::Bytes128).encode().expect("valid");
    let address = encoded.as_ptr().expose_provenance() as u64;
    let buffers = [Buffer::read_write("values", &mut values)];
    launch_on(Schedule::from_seed(seed), &buffers, &|| kernel(address))
}

fn fails(seed: u64, kernel: impl Fn(u64) + Sync) -> (Error, String) {
    let error = with_map(seed, kernel).expect_err("the kernel is broken");
    let message = error.to_string();
    (error, message)
}

fn load_box(map: u64) {
    // SAFETY: the map and the buffer are this launch's.
    unsafe { tma::load(shared::base(), map, bar(), [0, 0]) };
}

fn store_box(map: u64) {
    // SAFETY: the map and the buffer are this launch's.
    unsafe { tma::store(map, shared::base(), [0, 0]) };
}

#[test]
fn bytes_of_a_load_before_the_wait() {
    let accesses: [fn(); 2] = [
        || {
            shared::load::<u32>(shared::base() + 4 * index::thread());
        },
        || shared::store(shared::base() + 4 * index::thread(), 0_u32),
    ];
    for seed in SEEDS {
        for (access, kind) in accesses.into_iter().zip([AccessKind::Read, AccessKind::Write]) {
            let (error, message) = fails(seed, |map| {
                if index::thread() == 0 {
                    mbarrier::init(bar(), 1);
                    mbarrier::fence_init();
                    mbarrier::arrive_expect_tx(bar(), 1024);
                    load_box(map);
                }
                barrier::sync(0, 64);
                access();
                mbarrier::wait(bar(), 0);
            });
            let Error::NotAwaited { access, operation, .. } = error else { panic!("seed {seed}: {message}") };
            assert_eq!((access.kind, operation.kind, operation.thread), (kind, AccessKind::TmaLoad, 0));
            assert_contains(
                &message,
                &[
                    "thread 0 loads by TMA at",
                    &format!("no mbarrier::wait for its phase of the mbarrier at {}", bar()),
                ],
            );
        }
    }
}

#[test]
fn a_load_onto_bytes_that_are_still_read() {
    for seed in SEEDS {
        let (error, message) = fails(seed, |map| {
            load_and(
                1024,
                || load_box(map),
                || {
                    shared::load::<u32>(shared::base() + 4 * index::thread());
                    if index::thread() == 0 {
                        mbarrier::arrive_expect_tx(bar(), 1024);
                        load_box(map);
                    }
                    mbarrier::wait(bar(), 1);
                },
            );
        });
        let kinds = match error {
            Error::Race { first, second, .. } => [first.kind, second.kind],
            Error::NotAwaited { access, operation, .. } => [access.kind, operation.kind],
            _ => panic!("seed {seed}: {message}"),
        };
        assert!(
            kinds.contains(&AccessKind::Read) && kinds.contains(&AccessKind::TmaLoad),
            "seed {seed}: {message}"
        );
    }
}

#[test]
fn loads_that_overlap_or_that_nobody_counts() {
    for seed in SEEDS {
        let (error, message) = fails(seed, |map| {
            load_and(2048, || (0..2).for_each(|_| load_box(map)), || {});
        });
        assert!(
            matches!(error, Error::NotAwaited { access: Access { kind: AccessKind::TmaLoad, .. }, .. }),
            "{message}"
        );
        // Fewer bytes announced than loaded: the phase ends early, or never.
        let (error, message) = fails(seed, |map| load_and(512, || load_box(map), || {}));
        match error {
            Error::Mbarrier { .. } => {
                assert_contains(&message, &["while loads of", "too few bytes were expected"])
            }
            Error::Deadlock { .. } => assert_contains(&message, &["bytes have landed that nobody expects"]),
            _ => panic!("seed {seed}: {message}"),
        }
    }
}

#[test]
fn more_bytes_than_a_barrier_counts() {
    let values = counting(64 * 128);
    let encoded = map(&values, [64, 128], [64, 128], Swizzle::Bytes128).encode().expect("valid");
    let address = encoded.as_ptr().expose_provenance() as u64;
    // Loads that overlap are a race before that, and land at their issue here.
    let schedule = Schedule::from_seed(1).without_race_detection();
    let error = launch_on(schedule, &[Buffer::read("values", &values)], &|| {
        // SAFETY: the map and the buffer are this launch's.
        let load = |_| unsafe { tma::load(shared::base(), address, bar(), [0, 0]) };
        load_and(0, || (0..64).for_each(load), || {});
    });
    let message = error.expect_err("64 times 16 KiB is the limit and one").to_string();
    assert_contains(&message, &["1048576 bytes have landed that nobody expects, the limit is 1048575"]);
}

#[test]
fn a_block_that_ends_while_a_load_is_under_way() {
    let result = with_map(0, |map| {
        if index::thread() == 0 {
            mbarrier::init(bar(), 1);
            mbarrier::fence_init();
            mbarrier::arrive_expect_tx(bar(), 1024);
            load_box(map);
        }
    });
    let message = result.expect_err("ascending order lands the load last").to_string();
    assert_contains(&message, &["thread 0 loads by TMA at", "the block ends while its bytes are under way"]);
}

/// All threads write the box; thread 0 stores it, with `after` behind the store.
fn store_and(map: u64, fence: bool, after: impl Fn()) {
    for word in (index::thread()..256).step_by(64) {
        shared::store(shared::base() + 4 * word, word);
    }
    if fence {
        fence::proxy_async();
    }
    barrier::sync(0, 64);
    if index::thread() == 0 {
        store_box(map);
        after();
    }
}

#[test]
fn stores_that_are_not_waited_for() {
    for seed in SEEDS {
        let wait = || {
            tma::commit_group();
            tma::wait_group_read(0);
        };
        with_map(seed, |map| store_and(map, true, wait)).expect("a sound store");
        let (error, message) = fails(seed, |map| store_and(map, false, wait));
        let Error::MissingProxyFence { access, write, .. } = error else { panic!("seed {seed}: {message}") };
        assert_eq!((access.kind, access.thread, write.kind), (AccessKind::TmaStore, 0, AccessKind::Write));
        assert_contains(
            &message,
            &["no fence::proxy_async by thread 0 between its write and the synchronisation"],
        );

        let (error, message) = fails(seed, |map| store_and(map, true, tma::commit_group));
        assert!(matches!(error, Error::TransferNotAwaited { .. }), "seed {seed}: {message}");
        assert_contains(
            &message,
            &["thread 0 stores by TMA at", "no tma::wait_group or tma::wait_group_read"],
        );
        let (_, message) = fails(seed, |map| store_and(map, true, || tma::wait_group(0)));
        assert_contains(&message, &["no tma::commit_group of it closes that group"]);

        let (error, message) = fails(seed, |map| {
            store_and(map, true, || {
                tma::commit_group();
                shared::store(shared::base() + 1020, 0_u32);
                tma::wait_group(0);
            });
        });
        let Error::NotAwaited { offset: 1020, .. } = error else { panic!("seed {seed}: {message}") };
        assert_contains(&message, &["thread 0 writes at", "stores by TMA at", "no tma::wait_group_read"]);
    }
}

#[test]
fn others_may_overwrite_a_store_behind_a_barrier_after_its_wait() {
    for seed in SEEDS {
        let overwrite = |wait_first: bool| {
            move |map| {
                store_and(map, true, || {
                    tma::commit_group();
                    if wait_first {
                        tma::wait_group_read(0);
                    }
                });
                barrier::sync(0, 64);
                shared::store(shared::base() + 4 * index::thread(), 0_u32);
                if index::thread() == 0 && !wait_first {
                    tma::wait_group_read(0);
                }
            }
        };
        with_map(seed, overwrite(true)).expect("the barrier comes after the wait");
        let (error, message) = fails(seed, overwrite(false));
        assert!(matches!(error, Error::NotAwaited { .. }), "seed {seed}: {message}");
    }
}

#[test]
fn a_wait_covers_the_older_stores_only() {
    for seed in SEEDS {
        let two = |pending: usize| {
            move |map| {
                store_and(map, true, || {
                    tma::commit_group();
                    // Another place in shared memory would do as well; reads do not disturb each other.
                    store_box(map);
                    tma::commit_group();
                    tma::wait_group_read(pending);
                    shared::store(shared::base(), 0_u32);
                    tma::wait_group_read(0);
                });
            }
        };
        with_map(seed, two(0)).expect("both are waited for");
        let (error, message) = fails(seed, two(1));
        assert!(matches!(error, Error::NotAwaited { .. }), "seed {seed}: {message}");
    }
}

#[test]
fn unwritten_bytes_are_not_stored() {
    for seed in SEEDS {
        let (error, message) = fails(seed, |map| {
            if index::thread() == 0 {
                store_box(map);
                tma::commit_group();
                tma::wait_group(0);
            }
        });
        let Error::SharedUninitialised { access, .. } = error else { panic!("seed {seed}: {message}") };
        assert_eq!(access.kind, AccessKind::TmaStore);
    }
}

#[test]
fn a_load_needs_a_fenced_barrier() {
    for seed in SEEDS {
        let (error, message) = fails(seed, |map| {
            if index::thread() == 0 {
                mbarrier::init(bar(), 1);
                mbarrier::arrive_expect_tx(bar(), 1024);
                load_box(map);
            }
        });
        assert!(matches!(error, Error::Mbarrier { .. }), "seed {seed}: {message}");
        assert_contains(&message, &["thread 0 has no mbarrier::fence_init or fence::proxy_async between"]);
    }
}
