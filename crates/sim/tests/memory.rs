//! Accesses outside what a kernel may touch.

mod common;

use bytemuck::Pod;
use common::{assert_contains, fails, one_block, run, word};
use fa_sim::{Buffer, Error, Launch, Report, Schedule, barrier, global, index, launch, shared};

#[test]
fn shared_read_past_the_end() {
    let (error, message) = fails(32, 0, || {
        if index::thread() == 9 {
            shared::load::<f32>(word(1024));
        }
    });
    assert!(matches!(error, Error::SharedOutOfBounds { address: 5120, bytes: 4, .. }), "{message}");
    let parts =
        ["block 0 of broken", &format!("thread 9 reads at {}:", file!()), "shared memory is 1024 to 5120"];
    assert_contains(&message, &parts);
}

#[test]
fn shared_write_that_reaches_past_the_end() {
    let (error, message) = fails(32, 0, || {
        if index::thread() == 31 {
            // One lane too far: in bounds is up to 4096 − 16.
            shared::store(shared::base() + 4096, [0.0_f32; 4]);
        }
    });
    assert!(matches!(error, Error::SharedOutOfBounds { bytes: 16, .. }), "{message}");
    assert_contains(&message, &["thread 31 writes"]);
}

#[test]
fn shared_address_without_the_base() {
    for address in [0, 4, 1020, u32::MAX - 3] {
        let (error, message) = fails(32, 0, || {
            shared::load::<f32>(address);
        });
        assert!(matches!(error, Error::SharedOutOfBounds { .. }), "{message}");
    }
}

#[test]
fn shared_misaligned_by_the_size_of_the_access() {
    let (error, message) = fails(32, 0, || {
        if index::thread() == 2 {
            shared::store(word(2), [0.0_f32; 4]);
        }
    });
    assert!(matches!(error, Error::SharedMisaligned { offset: 8, bytes: 16, .. }), "{message}");
    assert_contains(
        &message,
        &[&format!("thread 2 writes at {}:", file!()), "(offset 8)", "no multiple of 16"],
    );
}

#[test]
fn shared_read_of_what_nobody_writes() {
    for seed in 0..8 {
        let (error, message) = fails(64, seed, || {
            shared::store(shared::base() + 8 * index::thread(), 1_u32);
            barrier::sync(0, 64);
            if index::thread() == 40 {
                shared::load::<[u32; 2]>(shared::base() + 64);
            }
        });
        assert!(matches!(error, Error::SharedUninitialised { offset: 64, bytes: 8, .. }), "{message}");
        assert_contains(&message, &[&format!("thread 40 reads at {}:", file!()), "no thread has written"]);
    }
}

#[test]
fn shared_memory_is_undefined_again_in_the_next_block() {
    let kernel = || {
        if index::block() == 0 {
            shared::store(word(index::thread()), 1.0_f32);
        } else {
            shared::load::<f32>(word(index::thread()));
        }
    };
    let config = Launch { grid: 2, ..one_block(32, 0) };
    let error = launch(&config, &kernel).expect_err("block 1 reads before it writes");
    assert!(matches!(error, Error::SharedUninitialised { block: 1, .. }), "{error}");
}

#[test]
fn every_access_size_comes_back() {
    run(32, 3, || {
        let at = shared::base() + 64 * index::thread();
        shared::store(at, 0x11_u8);
        shared::store(at + 2, 0x2222_u16);
        shared::store(at + 4, 1.5_f32);
        shared::store(at + 8, 0x0123_4567_89ab_cdef_u64);
        shared::store(at + 16, [1.0_f32, 2.0, 3.0, 4.0]);
        assert_eq!(shared::load::<u8>(at), 0x11);
        assert_eq!(shared::load::<u16>(at + 2), 0x2222);
        assert_eq!(shared::load::<f32>(at + 4), 1.5);
        assert_eq!(shared::load::<[u32; 2]>(at + 8), [0x89ab_cdef, 0x0123_4567]);
        assert_eq!(shared::load::<[f32; 2]>(at + 24), [3.0, 4.0]);
    })
    .expect("the accesses are in bounds and aligned");
}

/// Runs `kernel` on one warp with an input of 32 and an output of 32 fp32.
fn with_buffers(kernel: impl Fn(u64, u64) + Sync) -> (Result<Report, Error>, Vec<f32>) {
    let input: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let mut output = vec![0.0_f32; 32];
    let buffers = [Buffer::read("input", &input), Buffer::read_write("output", &mut output)];
    let addresses = buffers.each_ref().map(|buffer| buffer.address);
    let config = Launch { buffers: &buffers, ..one_block(32, 2) };
    let result = launch(&config, &|| kernel(addresses[0], addresses[1]));
    (result, output)
}

#[track_caller]
fn read<T: Pod>(address: u64) -> T {
    // SAFETY: the launch's buffers are valid, and nothing else touches them meanwhile.
    unsafe { global::load(address) }
}

#[track_caller]
fn write<T: Pod>(address: u64, value: T) {
    // SAFETY: as in `read`.
    unsafe { global::store(address, value) };
}

#[test]
fn global_traffic_is_counted_exactly() {
    let (result, output) = with_buffers(|input, output| {
        let offset = 4 * u64::from(index::thread());
        let x = read::<f32>(input + offset);
        write(output + offset, 2.0 * x);
    });
    let report = result.expect("the accesses are in bounds");
    assert_eq!((report.global_bytes_read, report.global_bytes_written), (128, 128));
    assert!(output.iter().enumerate().all(|(i, &y)| y == 2.0 * i as f32), "{output:?}");
}

#[test]
fn global_read_past_the_end() {
    let (result, _) = with_buffers(|input, _| {
        if index::thread() == 17 {
            read::<f32>(input + 128);
        }
    });
    let message = result.expect_err("the read is out of bounds").to_string();
    assert_contains(
        &message,
        &[
            &format!("thread 17 reads at {}:", file!()),
            "128 bytes from the start of buffer `input` of 128 bytes",
        ],
    );
}

#[test]
fn global_read_that_straddles_the_end() {
    let (result, _) = with_buffers(|input, _| {
        read::<[f32; 4]>((input + 124).next_multiple_of(16));
    });
    assert!(matches!(result, Err(Error::GlobalOutOfBounds { bytes: 16, .. })), "{result:?}");
}

#[test]
fn global_write_to_a_read_only_buffer() {
    let (result, _) = with_buffers(|input, _| {
        if index::thread() == 3 {
            write(input, 1.0_f32);
        }
    });
    let message = result.expect_err("the buffer is read-only").to_string();
    assert_contains(&message, &["thread 3 writes", "in buffer `input`, read-only"]);
}

#[test]
fn global_write_to_bytes_that_no_view_reaches() {
    let mut values = [0.0_f32; 32];
    let rows = (0..4).map(|row| 32 * row..32 * row + 20);
    let buffers = [Buffer::read_write("o", &mut values).reaching(rows)];
    let launch_of = |element: u64| {
        let launch = Launch {
            name: "kernel",
            grid: 1,
            block: 32,
            shared_bytes: 0,
            schedule: Schedule::from_seed(0),
            buffers: &buffers,
        };
        fa_sim::launch(&launch, &|| {
            if index::thread() == 5 {
                write(buffers[0].address + 4 * element, 1.0_f32);
            }
        })
    };
    assert!(launch_of(8).is_ok() && launch_of(12).is_ok());
    let message = launch_of(13).expect_err("no view reaches the element").to_string();
    let parts = ["thread 5 writes", "byte 52 of buffer `o`, which no view reaches", "kernel"];
    assert_contains(&message, &parts);
}

#[test]
fn global_misaligned() {
    let (result, _) = with_buffers(|input, _| {
        read::<u32>(input + 2);
    });
    assert!(matches!(result, Err(Error::GlobalMisaligned { bytes: 4, .. })), "{result:?}");
}

#[test]
fn global_access_with_no_buffers() {
    let (_, message) = fails(32, 0, || {
        read::<u32>(4096);
    });
    assert_contains(&message, &["0x1000", "the launch has no buffers"]);
}
