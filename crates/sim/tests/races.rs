//! Kernels with missing or insufficient ordering, and sound ones that look similar.

mod common;

use common::{assert_contains, fails, one_block, run, word};
use fa_sim::{AccessKind, Error, Schedule, barrier, index, launch, shared, warp};

const SEEDS: std::ops::Range<u64> = 0..24;

/// Each thread stores its word and loads that of a thread in another warp.
fn exchange(threads: u32, order: impl Fn()) -> f32 {
    shared::store(word(index::thread()), index::thread() as f32);
    order();
    shared::load::<f32>(word((index::thread() + 32) % threads))
}

#[test]
fn missing_barrier_is_a_race_under_every_schedule() {
    for seed in SEEDS {
        let (error, message) = fails(128, seed, || {
            exchange(128, || {});
        });
        let Error::Race { address, offset, first, second, .. } = error else {
            panic!("seed {seed}: {message}")
        };
        assert_ne!(first.kind, second.kind, "seed {seed}");
        assert_ne!(first.thread, second.thread, "seed {seed}");
        let writer = if first.kind == AccessKind::Write { first } else { second };
        assert_eq!(offset, 4 * writer.thread, "seed {seed}");
        assert_eq!(address, shared::base() + offset, "seed {seed}");
        assert_contains(
            &message,
            &[
                "race in block 0 of broken",
                &format!("shared address {address} (offset {offset})"),
                &format!("thread {} writes at {}:{}", writer.thread, file!(), writer.site.line),
                &format!(" reads at {}:", file!()),
                "no barrier between",
            ],
        );
        assert_ne!(first.site.line, second.site.line);
    }
}

#[test]
fn missing_barrier_shows_in_results_where_races_go_unreported() {
    let result = |seed| {
        let mut sums = [0.0_f32; 128];
        let out = sums.as_mut_ptr().expose_provenance() as u64;
        let buffers = [fa_sim::Buffer::read_write("sums", &mut sums)];
        let schedule = Schedule::from_seed(seed).without_race_detection();
        let config = fa_sim::Launch { schedule, buffers: &buffers, ..one_block(128, 0) };
        let kernel = || {
            shared::store(word(index::thread()), 0.0_f32);
            barrier::sync(0, 128);
            let seen = exchange(128, || {});
            // SAFETY: the buffer is this launch's alone.
            unsafe { fa_sim::global::store(out + 4 * u64::from(index::thread()), seen) };
        };
        launch(&config, &kernel).expect("nothing reports the race");
        sums
    };
    let right: [f32; 128] = std::array::from_fn(|thread| ((thread + 32) % 128) as f32);
    let wrong = (0..8).filter(|&seed| result(seed) != right).count();
    assert!(wrong >= 6, "only {wrong} of 8 schedules show the missing barrier");
}

#[test]
fn barrier_orders_the_exchange() {
    for seed in SEEDS {
        run(128, seed, || {
            let seen = exchange(128, || barrier::sync(0, 128));
            assert_eq!(seen, ((index::thread() + 32) % 128) as f32);
        })
        .expect("the barrier orders all accesses");
    }
}

#[test]
fn warp_sync_orders_its_own_warp_only() {
    for seed in SEEDS {
        run(64, seed, || {
            shared::store(word(index::thread()), index::thread());
            warp::sync();
            assert_eq!(shared::load::<u32>(word(index::thread() ^ 1)), index::thread() ^ 1);
        })
        .expect("the lanes of a warp are ordered");

        let (error, message) = fails(64, seed, || {
            exchange(64, warp::sync);
        });
        let Error::Race { first, second, .. } = error else { panic!("seed {seed}: {message}") };
        assert_ne!(first.thread / 32, second.thread / 32);
    }
}

#[test]
fn shuffles_and_votes_order_nothing() {
    let meetings: [fn(); 2] = [
        || {
            warp::shuffle_xor(0, 1);
        },
        || {
            warp::ballot(true);
        },
    ];
    for (seed, meet) in SEEDS.flat_map(|seed| meetings.map(|meet| (seed, meet))) {
        let (error, message) = fails(32, seed, || {
            shared::store(word(index::thread()), 1_u32);
            meet();
            shared::load::<u32>(word(index::thread() ^ 1));
        });
        assert!(matches!(error, Error::Race { .. }), "seed {seed}: {message}");
    }
}

#[test]
fn write_after_read_needs_a_barrier() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || {
            shared::store(word(index::thread()), 1_u32);
            barrier::sync(0, 64);
            shared::load::<u32>(word(63 - index::thread()));
            shared::store(word(index::thread()), 2_u32);
        });
        assert!(matches!(error, Error::Race { .. }), "seed {seed}: {message}");
    }
}

#[test]
fn two_writers_of_one_word_race_even_with_equal_values() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || shared::store(word(5), 1.0_f32));
        let Error::Race { first, second, offset: 20, .. } = error else { panic!("seed {seed}: {message}") };
        assert_eq!((first.kind, second.kind), (AccessKind::Write, AccessKind::Write));
    }
}

#[test]
fn a_vector_access_races_in_the_word_that_is_shared() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || match index::thread() {
            0 => shared::store(word(4), [1.0_f32; 4]),
            33 => shared::store(word(6), 2.0_f32),
            _ => {}
        });
        assert!(matches!(error, Error::Race { offset: 24, .. }), "seed {seed}: {message}");
    }
}

#[test]
fn two_byte_neighbours_are_no_race() {
    for seed in SEEDS {
        run(64, seed, || {
            shared::store(shared::base() + 2 * index::thread(), index::thread() as u16);
            barrier::sync(0, 64);
            let pair = shared::load::<u32>(word(index::thread() / 2));
            let low = index::thread() & !1;
            assert_eq!(pair, low | (low + 1) << 16);
        })
        .expect("no byte is shared");
    }
}

#[test]
fn two_byte_overlap_of_a_word_is_a_race() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || match index::thread() {
            1 => shared::store(word(3), 1_u32),
            40 => shared::store(word(3) + 2, 1_u16),
            _ => {}
        });
        assert!(matches!(error, Error::Race { offset: 12..16, .. }), "seed {seed}: {message}");
    }
}

#[test]
fn named_barriers_order_their_participants_only() {
    let halves = |reader_offset: u32| {
        move || {
            let half = index::thread() / 64;
            shared::store(word(index::thread()), index::thread());
            barrier::sync(1 + half, 64);
            let other = (index::thread() + reader_offset) % 128;
            shared::load::<u32>(word(other));
        }
    };
    for seed in SEEDS {
        let within = |thread: u32| thread / 64 * 64 + (thread + 32) % 64;
        run(128, seed, || {
            shared::store(word(index::thread()), index::thread());
            barrier::sync(1 + index::thread() / 64, 64);
            let other = within(index::thread());
            assert_eq!(shared::load::<u32>(word(other)), other);
        })
        .expect("each half is ordered by its own barrier");

        let (error, message) = fails(128, seed, halves(64));
        let Error::Race { first, second, .. } = error else { panic!("seed {seed}: {message}") };
        assert_ne!(first.thread / 64, second.thread / 64);
    }
}

#[test]
fn order_passes_through_a_chain_of_barriers() {
    for seed in SEEDS {
        run(96, seed, || match index::thread() / 32 {
            0 => {
                shared::store(word(index::thread()), 7_u32);
                barrier::sync(1, 64);
            }
            1 => {
                barrier::sync(1, 64);
                barrier::sync(2, 64);
            }
            _ => {
                barrier::sync(2, 64);
                assert_eq!(shared::load::<u32>(word(index::thread() - 64)), 7);
            }
        })
        .expect("warp 0 is ordered before warp 2 by way of warp 1");
    }
}
