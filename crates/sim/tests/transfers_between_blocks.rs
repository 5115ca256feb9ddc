//! Asynchronous copies and tensor transfers of bytes that other blocks access too.

#[path = "common/grids.rs"]
mod grids;
#[path = "common/tensors.rs"]
mod tensors;

use fa_sim::tma::{self, Swizzle};
use fa_sim::{AccessKind, Buffer, Error, cp_async, fence, global, index, mbarrier, shared};
use grids::{SHARED_BYTES, on_cores};

/// The first mbarrier of a block.
fn bar() -> u32 {
    shared::base() + SHARED_BYTES - 16
}

/// The thread loads 64 bytes at the first coordinate of a map by TMA, and waits for them.
///
/// # Safety
/// As [`tma::load`].
unsafe fn load_box(map: u64) {
    mbarrier::init(bar(), 1);
    fence::proxy_async();
    mbarrier::arrive_expect_tx(bar(), 64);
    // SAFETY: the map is the caller's.
    unsafe { tma::load(shared::base(), map, bar(), [0]) };
    mbarrier::wait(bar(), 0);
}

/// The thread begins to store 64 bytes at an address, as a group.
///
/// # Safety
/// As [`tma::store_bytes`].
unsafe fn begin_store(address: u64) {
    for chunk in 0..4 {
        shared::store(shared::base() + 16 * chunk, [7_u32; 4]);
    }
    fence::proxy_async();
    // SAFETY: the bytes are the caller's.
    unsafe { tma::store_bytes(address, shared::base(), 64) };
    tma::commit_group();
}

/// What a block does to 64 bytes, whose address and map it is given.
type Transfer = unsafe fn(u64, u64);

/// Runs two blocks that do this, in several schedules: unordered, block 1 behind block 0, and with the
/// release of block 0 before its last wait.
fn transfers(kinds: [AccessKind; 2], begin: [Transfer; 2], wait: fn()) {
    for seed in 0..16 {
        let found = [0, 1, 2].map(|order| {
            let mut values = [0_u128; 8];
            let map = tensors::map(&values[1..], [32], [32], Swizzle::None).encode().expect("a map");
            let map = map.as_ptr().expose_provenance() as u64;
            let buffers = [Buffer::read_write("values", &mut values)];
            let at = buffers[0].address;
            on_cores(1 + seed as usize % 2, (2, seed), &buffers, || {
                if index::thread() > 0 {
                    return;
                }
                // SAFETY: the values and the map are the launch's.
                unsafe {
                    if index::block() == 0 {
                        begin[0](at + 16, map);
                        if order == 2 {
                            global::add_release(at, 1);
                        }
                        wait();
                        if order < 2 {
                            global::add_release(at, 1);
                        }
                    } else {
                        if order > 0 {
                            global::wait_at_least(at, 1);
                        }
                        begin[1](at + 16, map);
                    }
                }
            })
        });
        let [unordered, ordered, early] = found;
        ordered.expect("the blocks are ordered");
        for found in [unordered, early] {
            let Err(Error::RaceBetweenBlocks { first, second, offset, .. }) = found else {
                panic!("seed {seed}, {kinds:?}: {found:?}")
            };
            let found = [first.kind, second.kind];
            assert!(found == kinds || found == [kinds[1], kinds[0]], "seed {seed}: {found:?}");
            assert!((16..80).contains(&offset));
        }
    }
}

#[test]
fn transfers_count_until_they_are_waited_for() {
    // SAFETY: the bytes are the launch's.
    let ordinary: [Transfer; 2] = [
        |address, _| unsafe {
            global::load::<u32>(address + 40);
        },
        |address, _| unsafe { global::store(address + 40, 1_u32) },
    ];
    // SAFETY: the bytes are the launch's.
    let store: Transfer = |address, _| unsafe { begin_store(address) };
    let end = || tma::wait_group(0);
    transfers([AccessKind::TmaStore, AccessKind::Read], [store, ordinary[0]], end);
    transfers([AccessKind::TmaStore, AccessKind::Write], [store, ordinary[1]], end);
    // SAFETY: the bytes are the launch's, and the map is that of this tensor.
    let load: Transfer = |_, map| unsafe { load_box(map) };
    transfers([AccessKind::TmaStore, AccessKind::TmaLoad], [store, load], end);
    // SAFETY: the bytes are the launch's.
    let copy: Transfer = |address, _| unsafe {
        cp_async::copy::<16>(shared::base(), address + 32, 16);
        cp_async::commit_group();
    };
    transfers([AccessKind::Copy, AccessKind::Write], [copy, ordinary[1]], || cp_async::wait_group(0));
}

#[test]
fn stores_that_have_left_shared_memory_may_not_be_there_yet() {
    for until_written in [true, false] {
        let mut values = [0_u128; 8];
        let buffers = [Buffer::read_write("values", &mut values)];
        let at = buffers[0].address;
        for seed in 0..16 {
            let found = on_cores(1, (2, seed), &buffers, || {
                if index::thread() > 0 {
                    return;
                }
                // SAFETY: the values are the launch's.
                unsafe {
                    if index::block() == 0 {
                        begin_store(at + 16);
                        tma::wait_group_read(0);
                        if until_written {
                            tma::wait_group(0);
                        }
                        global::add_release(at, 1);
                    } else {
                        global::wait_at_least(at, 1 + seed as u32);
                        assert_eq!(global::load::<u32>(at + 20), 7);
                    }
                }
            });
            assert_eq!(found.is_ok(), until_written, "{found:?}");
            if !until_written {
                assert!(matches!(found, Err(Error::RaceBetweenBlocks { .. })), "{found:?}");
            }
        }
    }
}

#[test]
fn a_load_under_way_reads_until_it_lands() {
    let mut found_races = 0;
    for seed in 0..16 {
        let mut values = [0_u128; 8];
        let map = tensors::map(&values[1..], [32], [32], Swizzle::None).encode().expect("a map");
        let map = map.as_ptr().expose_provenance() as u64;
        let buffers = [Buffer::read_write("values", &mut values)];
        let at = buffers[0].address;
        let found = on_cores(1, (2, seed), &buffers, || {
            if index::thread() > 0 {
                return;
            }
            // SAFETY: the values and the map are the launch's.
            unsafe {
                if index::block() == 0 {
                    mbarrier::init(bar(), 1);
                    fence::proxy_async();
                    mbarrier::arrive_expect_tx(bar(), 64);
                    tma::load(shared::base(), map, bar(), [0]);
                    global::add_release(at, 1);
                    mbarrier::wait(bar(), 0);
                } else {
                    global::wait_at_least(at, 1);
                    global::store(at + 16, 1_u32);
                }
            }
        });
        match found {
            Ok(_) => {}
            Err(Error::RaceBetweenBlocks { .. }) => found_races += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // In the other schedules the load has landed when it is issued.
    assert!(found_races >= 8, "{found_races} of 16 schedules");
}
