//! Asynchronous copies: what they write, and kernels that use the bytes too early.

mod common;

use common::{assert_contains, one_block, word};
use fa_sim::{Access, AccessKind, Buffer, Error, Launch, Report, Schedule, barrier, cp_async, index, shared};

const SEEDS: std::ops::Range<u64> = 0..24;

/// Runs one block of 64 threads with 4 KiB of shared memory over a source of 64 × 16 bytes, of which
/// word i is i, and whose address the kernel gets.
fn run(seed: u64, kernel: impl Fn(u64) + Sync) -> Result<Report, Error> {
    run_scheduled(Schedule::from_seed(seed), kernel)
}

fn run_scheduled(schedule: Schedule, kernel: impl Fn(u64) + Sync) -> Result<Report, Error> {
    let row = |row: u32| std::array::from_fn::<u32, 4, _>(|i| 4 * row + i as u32);
    // 16 bytes at a time, so that they are aligned to 16.
    let source: Vec<u128> = (0..64).map(|index| bytemuck::cast(row(index))).collect();
    let buffers = [Buffer::read("source", &source)];
    let address = buffers[0].address;
    fa_sim::launch(&Launch { schedule, buffers: &buffers, ..one_block(64, 0) }, &|| kernel(address))
}

fn fails(seed: u64, kernel: impl Fn(u64) + Sync) -> (Error, String) {
    let error = run(seed, kernel).expect_err("the kernel is broken");
    let message = error.to_string();
    (error, message)
}

/// Copies the thread's 16 bytes of the source to row `row` of shared memory.
#[track_caller]
fn copy_own(source: u64, row: u32) {
    let thread = index::thread();
    // SAFETY: the source is this launch's alone.
    unsafe { cp_async::copy::<16>(word(4 * row), source + 16 * u64::from(thread), 16) };
}

fn neighbour() -> u32 {
    (index::thread() + 32) % 64
}

#[test]
fn a_waited_copy_is_there_behind_a_barrier() {
    for seed in SEEDS {
        let report = run(seed, |source| {
            copy_own(source, index::thread());
            cp_async::commit_group();
            cp_async::wait_group(0);
            let own = shared::load::<[u32; 4]>(word(4 * index::thread()));
            assert_eq!(own[3], 4 * index::thread() + 3);
            barrier::sync(0, 64);
            let other = shared::load::<[u32; 4]>(word(4 * neighbour()));
            assert_eq!(other, std::array::from_fn(|i| 4 * neighbour() + i as u32));
        })
        .expect("waits and barriers are all there");
        assert_eq!((report.global_bytes_read, report.shared_bytes_written), (1024, 1024));
    }
}

#[test]
fn a_forgotten_wait_is_reported_under_every_schedule() {
    for seed in SEEDS {
        let (error, message) = fails(seed, |source| {
            copy_own(source, index::thread());
            cp_async::commit_group();
            barrier::sync(0, 64);
            shared::load::<[u32; 4]>(word(4 * neighbour()));
        });
        let Error::CopyInFlight { offset, access, copy, committed: true, .. } = error else {
            panic!("seed {seed}: {message}")
        };
        assert_eq!((access.kind, copy.kind, offset), (AccessKind::Read, AccessKind::Copy, 16 * copy.thread));
        assert_eq!(access.thread, (copy.thread + 32) % 64);
        assert_contains(
            &message,
            &[
                &format!(
                    "copy in flight in block 0 of broken at shared address {} (offset {offset})",
                    word(offset / 4)
                ),
                &format!("thread {} reads at {}:{}", access.thread, file!(), access.site.line),
                &format!(
                    "where thread {} copies asynchronously at {}:{}",
                    copy.thread,
                    file!(),
                    copy.site.line
                ),
                "no cp_async::wait_group of that thread has covered it",
            ],
        );
    }
}

#[test]
fn a_forgotten_commit_is_told_from_a_forgotten_wait() {
    for seed in SEEDS {
        let (error, message) = fails(seed, |source| {
            cp_async::commit_group();
            copy_own(source, index::thread());
            cp_async::wait_group(0);
            barrier::sync(0, 64);
            shared::load::<[u32; 4]>(word(4 * neighbour()));
        });
        assert!(matches!(error, Error::CopyInFlight { committed: false, .. }), "seed {seed}: {message}");
        assert_contains(&message, &["no cp_async::commit_group of that thread has closed its group"]);
    }
}

#[test]
fn a_forgotten_barrier_after_the_wait_is_reported_under_every_schedule() {
    for seed in SEEDS {
        let (error, message) = fails(seed, |source| {
            copy_own(source, index::thread());
            cp_async::commit_group();
            cp_async::wait_group(0);
            shared::load::<[u32; 4]>(word(4 * neighbour()));
        });
        // Which one it is depends on how far the two threads are when they meet.
        match error {
            Error::Race { first, second, .. } => {
                assert!([first.kind, second.kind].contains(&AccessKind::Copy), "seed {seed}: {message}");
                assert_contains(&message, &["copies asynchronously at", " reads at ", "no barrier between"]);
            }
            Error::CopyInFlight { access: Access { kind: AccessKind::Read, .. }, .. } => {}
            _ => panic!("seed {seed}: {message}"),
        }
    }
}

#[test]
fn a_wait_covers_the_older_groups_only() {
    let two_groups = |read: u32| {
        move |source| {
            for row in [index::thread(), 64 + index::thread()] {
                copy_own(source, row);
                cp_async::commit_group();
            }
            cp_async::wait_group(1);
            shared::load::<[u32; 4]>(word(4 * (64 * read + index::thread())));
            cp_async::wait_group(0);
        }
    };
    for seed in SEEDS {
        run(seed, two_groups(0)).expect("the older group is waited for");
        let (error, message) = fails(seed, two_groups(1));
        let Error::CopyInFlight { access, copy, .. } = error else { panic!("seed {seed}: {message}") };
        assert_eq!(access.thread, copy.thread, "seed {seed}: {message}");
    }
}

#[test]
fn overwriting_what_is_in_flight_is_reported() {
    let overwrite = |by_copy: bool| {
        move |source| {
            copy_own(source, index::thread());
            if by_copy {
                copy_own(source, index::thread());
            } else {
                shared::store(word(4 * index::thread() + 1), 0_u32);
            }
            cp_async::commit_group();
            cp_async::wait_group(0);
        }
    };
    for seed in SEEDS {
        for (by_copy, kind) in [(false, AccessKind::Write), (true, AccessKind::Copy)] {
            let (error, message) = fails(seed, overwrite(by_copy));
            let Error::CopyInFlight { access, copy, .. } = error else { panic!("seed {seed}: {message}") };
            assert_eq!((access.kind, access.thread), (kind, copy.thread), "seed {seed}");
            assert_ne!(access.site, copy.site);
        }
    }
}

/// A ring of two stages: stage s + 1 is on its way while stage s is read by other threads.
fn pipeline(source: u64, before_refill: impl Fn()) {
    let stage = |step: u32| 64 * (step % 2) + index::thread();
    copy_own(source, stage(0));
    cp_async::commit_group();
    for step in 0..6 {
        if step < 5 {
            copy_own(source, stage(step + 1));
        }
        cp_async::commit_group();
        cp_async::wait_group(1);
        barrier::sync(0, 64);
        let other = shared::load::<[u32; 4]>(word(4 * (64 * (step % 2) + neighbour())));
        assert_eq!(other[0], 4 * neighbour());
        before_refill();
    }
}

#[test]
fn a_pipeline_needs_the_barrier_before_a_stage_is_filled_again() {
    for seed in SEEDS {
        run(seed, |source| pipeline(source, || barrier::sync(0, 64))).expect("all barriers are there");
        let (error, message) = fails(seed, |source| pipeline(source, || {}));
        // Mostly a copy meets an earlier read; a reader far behind meets the copy.
        let kinds = match error {
            Error::Race { first, second, .. } => [first.kind, second.kind],
            Error::CopyInFlight { access, copy, .. } => [access.kind, copy.kind],
            _ => panic!("seed {seed}: {message}"),
        };
        assert!(
            kinds.contains(&AccessKind::Copy) && kinds.contains(&AccessKind::Read),
            "seed {seed}: {message}"
        );
    }
}

#[test]
fn a_thread_that_returns_with_a_copy_in_flight_is_reported() {
    for committed in [false, true] {
        let (error, message) = fails(3, |source| {
            if index::thread() == 5 {
                copy_own(source, 0);
            }
            if committed {
                cp_async::commit_group();
            }
        });
        let Error::CopyNotAwaited { copy: Access { thread: 5, .. }, committed: found, .. } = error else {
            panic!("{message}")
        };
        assert_eq!(found, committed);
        assert_contains(
            &message,
            &["copy never waited for", "thread 5 copies asynchronously at", "and returns"],
        );
    }
}

#[test]
fn a_copy_lands_at_different_times() {
    let early = |seed| {
        let schedule = Schedule::from_seed(seed).without_race_detection();
        let landed = std::sync::atomic::AtomicU32::new(0);
        run_scheduled(schedule, |source| {
            shared::store(word(4 * index::thread() + 3), u32::MAX);
            copy_own(source, index::thread());
            cp_async::commit_group();
            barrier::sync(0, 64);
            let seen = shared::load::<u32>(word(4 * index::thread() + 3));
            landed.fetch_add(u32::from(seen != u32::MAX), std::sync::atomic::Ordering::Relaxed);
            cp_async::wait_group(0);
            assert_eq!(shared::load::<u32>(word(4 * index::thread() + 3)), 4 * index::thread() + 3);
        })
        .expect("nothing reports the missing wait");
        landed.into_inner()
    };
    assert_eq!(early(0), 0, "ascending order: at the wait");
    assert_eq!(early(1), 64, "descending order: at the issue");
    for seed in 2..8 {
        assert!((1..64).contains(&early(seed)), "seed {seed}: {}", early(seed));
        assert_eq!(early(seed), early(seed), "seed {seed}");
    }
}

#[test]
fn the_rest_of_a_short_copy_is_zero_and_its_source_is_not_read() {
    fn check<const SIZE: usize>(bytes: usize) {
        let room: [u128; 2] = [u128::from_le_bytes([0xab; 16]); 2];
        let room: &[u8] = bytemuck::bytes_of(&room);
        // The buffer ends where the copy has to stop.
        let buffers = [Buffer::read("source", &room[..bytes])];
        let address = room.as_ptr().expose_provenance() as u64;
        let config = Launch { buffers: &buffers, ..one_block(32, 6) };
        let kernel = || {
            let to = shared::base() + (SIZE as u32) * index::thread();
            // SAFETY: the source is this launch's alone.
            unsafe { cp_async::copy::<SIZE>(to, address, bytes as u32) };
            cp_async::commit_group();
            cp_async::wait_group(0);
            for byte in 0..SIZE {
                let expected = if byte < bytes { 0xab } else { 0 };
                assert_eq!(shared::load::<u8>(to + byte as u32), expected, "byte {byte} of {bytes}");
            }
        };
        let report = fa_sim::launch(&config, &kernel).expect("the source is long enough");
        assert_eq!(report.global_bytes_read, 32 * bytes as u64);
    }
    (0..=16).for_each(check::<16>);
    (0..=8).for_each(check::<8>);
    (0..=4).for_each(check::<4>);
}

#[test]
fn copies_that_no_device_takes() {
    let one = |shared: u32, global: u64, bytes: u32| {
        fails(0, move |source| {
            // SAFETY: the source is this launch's alone.
            unsafe { cp_async::copy::<16>(word(0) + shared, source + global, bytes) };
        })
    };
    let (error, message) = one(0, 0, 17);
    assert!(matches!(error, Error::InvalidCopy { bytes: 17, limit: 16, .. }), "{message}");
    assert_contains(&message, &["bytes is 17, the limit is 16"]);
    let (error, message) = one(8, 0, 16);
    assert!(matches!(error, Error::SharedMisaligned { offset: 8, bytes: 16, .. }), "{message}");
    let (error, message) = one(4096, 0, 16);
    assert!(matches!(error, Error::SharedOutOfBounds { bytes: 16, .. }), "{message}");
    let (error, message) = one(0, 8, 8);
    assert!(matches!(error, Error::GlobalMisaligned { bytes: 8, alignment: 16, .. }), "{message}");
    let (error, message) = one(0, 1024, 1);
    assert!(matches!(error, Error::GlobalOutOfBounds { bytes: 1, .. }), "{message}");
    // A copy of nothing reads nothing, wherever it points.
    run(0, |_| {
        // SAFETY: nothing is read.
        unsafe { cp_async::copy::<16>(word(4 * index::thread()), 1 << 40, 0) };
        cp_async::commit_group();
        cp_async::wait_group(0);
    })
    .expect("a copy of 0 bytes");
}
