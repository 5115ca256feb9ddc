//! `cp.async`: what arrives, and what the simulator says of a kernel that does not wait for it.

use fa_kernels::ptx::{barrier, cp_async, index, shared};
use fa_sim::{AccessKind, Buffer, Error, Launch, Report, launch};

use super::{SEEDS, one_block};

/// Runs one block of 64 threads over a source of 256 words, aligned to 16 bytes, of which word i is i + 1.
fn run(seed: u64, kernel: impl Fn(u64) + Sync) -> Result<Report, Error> {
    let source: Vec<[u32; 4]> = (0..64).map(|row| [1, 2, 3, 4].map(|word| 4 * row + word)).collect();
    let aligned: Vec<u128> = source
        .iter()
        .map(|row| row.iter().rev().fold(0, |bits, &word| bits << 32 | u128::from(word)))
        .collect();
    let buffers = [Buffer::read("source", &aligned)];
    let address = buffers[0].address;
    launch(&Launch { buffers: &buffers, ..one_block(64, seed) }, &|| kernel(address))
}

/// The word at index `index` of shared memory, as its bits.
fn word(index: u32) -> u32 {
    // SAFETY: the tests read what has arrived, or want to hear of it.
    unsafe { shared::load(shared::base() + 4 * index) }.to_bits()
}

#[test]
fn short_copies_are_filled_with_zeros() {
    for seed in SEEDS {
        for bytes in (0..=16).step_by(4) {
            run(seed, |source| {
                let thread = index::thread();
                // SAFETY: each thread copies its own aligned 16 bytes, and waits.
                unsafe {
                    cp_async::copy16(shared::base() + 16 * thread, source + 16 * u64::from(thread), bytes)
                };
                cp_async::commit_group();
                cp_async::wait_group::<0>();
                for part in 0..4 {
                    let expected = if 4 * part < bytes { 4 * thread + part + 1 } else { 0 };
                    assert_eq!(word(4 * thread + part), expected, "word {part} of {bytes} bytes");
                }
            })
            .unwrap();
        }
    }
}

#[test]
fn narrow_copies_leave_their_neighbours_alone() {
    for seed in SEEDS {
        run(seed, |source| {
            let (thread, to) = (index::thread(), shared::base() + 12 * index::thread());
            let from = source + 8 * u64::from(thread);
            // SAFETY: each thread copies to its own 12 bytes, as aligned as the copies, and waits.
            unsafe {
                if thread % 2 == 0 {
                    cp_async::copy8(to, from, 8);
                    cp_async::copy4(to + 8, from, 2);
                } else {
                    cp_async::copy4(to, from, 4);
                    cp_async::copy8(to + 4, from, 4);
                }
            }
            cp_async::commit_group();
            cp_async::wait_group::<0>();
            barrier_and_check(thread ^ 1);
        })
        .unwrap();
    }

    fn barrier_and_check(thread: u32) {
        // SAFETY: the whole block is here.
        unsafe { barrier::sync(0, 64) };
        let first = 2 * thread + 1;
        let expected =
            if thread.is_multiple_of(2) { [first, first + 1, first & 0xffff] } else { [first, first, 0] };
        for (part, expected) in (0..).zip(expected) {
            assert_eq!(word(3 * thread + part), expected, "word {part} of thread {thread}");
        }
    }
}

/// Copies two rows in a group each, waits until `PENDING` are in flight, and reads row `row`.
fn two_groups<const PENDING: usize>(source: u64, row: u32) -> u32 {
    let thread = index::thread();
    for row in 0..2 {
        // SAFETY: each thread copies 16 bytes of its own, and waits before it returns.
        unsafe {
            cp_async::copy16(shared::base() + 16 * (64 * row + thread), source + 16 * u64::from(thread), 16)
        };
        cp_async::commit_group();
    }
    cp_async::wait_group::<PENDING>();
    let seen = word(4 * (64 * row + thread));
    cp_async::wait_group::<0>();
    seen
}

#[test]
fn a_wait_covers_all_but_the_youngest_groups() {
    for seed in SEEDS {
        run(seed, |source| assert_eq!(two_groups::<1>(source, 0), 4 * index::thread() + 1)).unwrap();
        run(seed, |source| assert_eq!(two_groups::<0>(source, 1), 4 * index::thread() + 1)).unwrap();
        for error in [
            run(seed, |source| _ = two_groups::<1>(source, 1)).unwrap_err(),
            run(seed, |source| _ = two_groups::<2>(source, 0)).unwrap_err(),
        ] {
            let Error::CopyInFlight { access, copy, committed: true, .. } = &error else {
                panic!("seed {seed}: {error}")
            };
            // The places are the kernel's, not the wrappers'.
            assert_eq!((access.site.file, copy.site.file), (file!(), file!()), "{error}");
            assert_eq!((access.kind, copy.kind), (AccessKind::Read, AccessKind::Copy));
        }
    }
}

#[test]
fn a_barrier_without_a_wait_is_not_enough() {
    for seed in SEEDS {
        let error = run(seed, |source| {
            let thread = index::thread();
            // SAFETY: not sound, and reported: nobody waits for the copy.
            unsafe {
                cp_async::copy16(shared::base() + 16 * thread, source + 16 * u64::from(thread), 16);
                cp_async::commit_group();
                barrier::sync(0, 64);
            }
            word(4 * (63 - thread));
        })
        .unwrap_err();
        assert!(matches!(error, Error::CopyInFlight { committed: true, .. }), "seed {seed}: {error}");
        assert!(
            error.to_string().contains("no cp_async::wait_group of that thread has covered it"),
            "{error}"
        );
    }
}

#[test]
fn a_wait_without_a_barrier_is_not_enough() {
    for seed in SEEDS {
        let error = run(seed, |source| {
            let thread = index::thread();
            // SAFETY: not sound, and reported: others read with no barrier after the wait.
            unsafe { cp_async::copy16(shared::base() + 16 * thread, source + 16 * u64::from(thread), 16) };
            cp_async::commit_group();
            cp_async::wait_group::<0>();
            word(4 * (63 - thread));
        })
        .unwrap_err();
        assert!(matches!(error, Error::Race { .. } | Error::CopyInFlight { .. }), "seed {seed}: {error}");
        assert!(error.to_string().contains("copies asynchronously at"), "{error}");
    }
}
