//! Blocks that read each other's shared memory.
#![allow(clippy::unwrap_used)]

mod common;

use common::one_block;
use fa_sim::{Error, Launch, barrier, cluster, index, launch, launch_clusters, shared};

const THREADS: u32 = 64;

/// The launch of so many clusters.
fn run(clusters: u32, size: u32, seed: u64, kernel: impl Fn() + Sync) -> Result<(), Error> {
    let config = Launch { grid: clusters * size, ..one_block(THREADS, seed) };
    launch_clusters(&config, size, &kernel).map(drop)
}

/// This thread's word.
fn word() -> u32 {
    shared::base() + 4 * index::thread()
}

/// What block `block` has in a round.
fn value(block: u32, round: u32) -> u32 {
    10_000 * round + 100 * block + index::thread()
}

#[test]
fn each_block_reads_what_the_others_wrote_before_the_barrier() {
    for seed in 0..8 {
        for size in [1, 2, 5, 8] {
            run(3, size, seed, || {
                assert_eq!((cluster::rank(), cluster::size()), (index::block() % size, size));
                let first = index::block() - cluster::rank();
                for round in 0..3 {
                    shared::store(word(), value(index::block(), round));
                    if size == 1 {
                        continue;
                    }
                    cluster::sync();
                    for rank in 0..size {
                        assert_eq!(cluster::load::<u32>(rank, word()), value(first + rank, round));
                    }
                    cluster::sync();
                }
            })
            .unwrap();
        }
    }
}

/// Why a launch of one cluster of two fails, under each schedule.
fn refused(why: &str, kernel: impl Fn() + Sync) {
    for seed in 0..8 {
        let error = run(1, 2, seed, &kernel).unwrap_err();
        assert!(matches!(error, Error::Cluster { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn blocks_stay_until_others_have_read_them() {
    for seed in 0..8 {
        run(3, 2, seed, || {
            shared::store(word(), index::block());
            cluster::sync();
            assert_eq!(cluster::load::<u32>(1 - cluster::rank(), word()), index::block() ^ 1);
            cluster::leave();
        })
        .unwrap();
    }
}

#[test]
fn what_nothing_orders_is_found_under_any_schedule() {
    let other = || 1 - cluster::rank();
    refused("has come through no barrier", || {
        shared::store(word(), 1);
        barrier::sync(0, THREADS);
        cluster::load::<u32>(other(), word());
        cluster::sync();
    });
    refused("byte 4 of shared memory of block 1 of the cluster is written and read by others", || {
        shared::store(word(), 1);
        cluster::sync();
        if index::thread() == 1 {
            match cluster::rank() {
                0 => drop(cluster::load::<u32>(1, word())),
                _ => shared::store(word(), 2),
            }
        }
        cluster::sync();
    });
    // Before others have read it, or behind.
    refused(" end", || {
        shared::store(word(), 1);
        cluster::sync();
        if index::thread() == 0 {
            cluster::load::<u32>(other(), word());
        }
    });
    // Behind a barrier that orders nothing.
    refused("has come through no barrier that orders", || {
        shared::store(word(), 1);
        cluster::leave();
        cluster::load::<u32>(other(), word());
        cluster::sync();
    });
    refused("byte 4 of shared memory of block 1 of the cluster is written and read by others", || {
        shared::store(word(), 1);
        cluster::sync();
        if (index::thread(), cluster::rank()) == (1, 0) {
            cluster::load::<u32>(1, word());
        }
        cluster::leave();
        if (index::thread(), cluster::rank()) == (1, 1) {
            shared::store(word(), 2);
        }
        cluster::sync();
    });
    refused("were not written", || {
        cluster::sync();
        cluster::load::<u32>(other(), word());
        cluster::sync();
    });
    refused("rank is 2, and the cluster has 2 blocks", || {
        shared::store(word(), 1);
        cluster::sync();
        cluster::load::<u32>(2, word());
    });
}

#[test]
fn a_block_that_does_not_come_is_a_deadlock() {
    for seed in 0..8 {
        let error = run(1, 2, seed, || {
            if cluster::rank() == 0 {
                cluster::sync();
            }
        });
        let Err(Error::Deadlock { waiting, .. }) = error else { panic!("{error:?}") };
        assert!(waiting[0].to_string().contains("the barrier of the cluster"), "{}", waiting[0]);
        // Or one warp of it.
        let error = run(1, 2, seed, || {
            if index::thread() < 32 || cluster::rank() == 0 {
                cluster::sync();
            }
        });
        assert!(matches!(error, Err(Error::Deadlock { .. })), "{error:?}");
    }
}

#[test]
fn a_cluster_has_at_most_eight_blocks_and_divides_the_grid() {
    let of = |grid, size| {
        let config = Launch { grid, ..one_block(32, 0) };
        launch_clusters(&config, size, &|| {}).map_err(|error| error.to_string())
    };
    assert!(of(9, 9).unwrap_err().contains("cluster is 9, not 1 to 8"));
    assert!(of(4, 0).unwrap_err().contains("cluster is 0"));
    assert!(of(9, 2).unwrap_err().contains("grid is 9, no multiple of the cluster's 2"));
    assert!(of(8, 8).is_ok());
    let alone = launch(&one_block(32, 0), &|| cluster::sync()).unwrap_err();
    assert!(alone.to_string().contains("the launch has no clusters"), "{alone}");
}
