//! A matrix multiplication as Hopper kernels are built: a warp that loads by TMA, a warpgroup that
//! multiplies, a ring of mbarriers between, and a TMA store at the end. Right as it stands, and broken in one
//! place at a time.

mod common;

use common::assert_contains;
use fa_sim::tma::{self, Swizzle, TensorMap};
use fa_sim::wgmma::{self, Element, Options};
use fa_sim::{
    Buffer, Error, Launch, Report, Schedule, barrier, convert, fence, index, mbarrier, setmaxnreg, shared,
    stmatrix,
};

const SEEDS: std::ops::Range<u64> = 0..8;

const M: usize = 64;
const N: usize = 96;
const K: usize = 200;
/// Columns of a stage: 128 bytes.
const BLOCK_K: usize = 64;
const BLOCKS: u32 = K.div_ceil(BLOCK_K) as u32;
const STAGES: u32 = 2;

const A_BYTES: u32 = (M * BLOCK_K * 2) as u32;
const B_BYTES: u32 = (N * BLOCK_K * 2) as u32;
const STAGE_BYTES: u32 = A_BYTES + B_BYTES;
/// D goes out in panels of 64 columns.
const D_BYTES: u32 = (M * 128 * 2) as u32;
const BARRIERS: u32 = STAGES * STAGE_BYTES + D_BYTES;

/// Threads of the warpgroup that multiplies; a fifth warp loads.
const CONSUMERS: u32 = 128;
const THREADS: u32 = CONSUMERS + 32;

const OPTIONS: Options =
    Options { element: Element::F16, transposed_a: false, transposed_b: false, accumulate: true };

/// The one thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The consumers do not wait for a stage to be full.
    NoFullWait,
    /// The consumers wait for the other parity.
    WrongParity,
    /// The producer does not wait for a stage to be empty.
    NoEmptyWait,
    /// The consumers let a stage go before their products are complete.
    EarlyRelease,
    /// One load too few is announced.
    FewBytes,
    /// One load too many is announced.
    ManyBytes,
    NoBarrierFence,
    NoProxyFence,
    /// The fence comes after the barrier, and not from the threads that wrote.
    LateProxyFence,
    NoWgmmaFence,
    NoCommit,
    NoWait,
    /// The block ends while D is on its way.
    NoStoreWait,
    /// D is overwritten while it is on its way.
    OverwriteStore,
}

/// The three maps: A (M × K), B (N × K), D (M × N), all by rows.
#[repr(C)]
struct Parameters {
    maps: [[u64; 16]; 3],
}

fn full(stage: u32) -> u32 {
    shared::base() + BARRIERS + 16 * stage
}

fn empty(stage: u32) -> u32 {
    full(stage) + 8
}

/// Address of a stage: A, then B.
fn stage_of(step: u32) -> u32 {
    shared::base() + step % STAGES * STAGE_BYTES
}

/// K-major, swizzled by 128 bytes, groups of 8 rows 1,024 bytes apart.
fn descriptor(address: u32) -> u64 {
    u64::from(address >> 4) | 1 << 16 | 64 << 32 | 1 << 62
}

fn kernel(parameters: &Parameters, fault: Fault) {
    let [a, b, d] = std::array::from_fn(|map| parameters.maps[map].as_ptr().expose_provenance() as u64);
    let thread = index::thread();
    if thread == 0 {
        for stage in 0..STAGES {
            mbarrier::init(full(stage), 1);
            mbarrier::init(empty(stage), CONSUMERS / 32);
        }
        if fault != Fault::NoBarrierFence {
            mbarrier::fence_init();
        }
    }
    barrier::sync(0, THREADS);
    if thread < CONSUMERS {
        setmaxnreg::increase(232);
        consume(d, fault);
    } else if thread == CONSUMERS {
        produce(a, b, fault);
    }
}

fn produce(a: u64, b: u64, fault: Fault) {
    for step in 0..BLOCKS {
        let stage = step % STAGES;
        if fault != Fault::NoEmptyWait {
            mbarrier::wait(empty(stage), (step / STAGES + 1) % 2);
        }
        let bytes = match fault {
            Fault::FewBytes => A_BYTES,
            Fault::ManyBytes => STAGE_BYTES + B_BYTES,
            _ => STAGE_BYTES,
        };
        mbarrier::arrive_expect_tx(full(stage), bytes);
        let column = (step as usize * BLOCK_K) as i32;
        // SAFETY: the maps and buffers are this launch's.
        unsafe {
            tma::load(stage_of(step), a, full(stage), [column, 0]);
            tma::load(stage_of(step) + A_BYTES, b, full(stage), [column, 0]);
        }
    }
}

fn consume(d: u64, fault: Fault) {
    let lane = index::thread() % 32;
    let mut sums = [0.0; N / 2];
    for step in 0..BLOCKS {
        let stage = step % STAGES;
        let parity = step / STAGES % 2;
        match fault {
            Fault::NoFullWait => {}
            Fault::WrongParity => mbarrier::wait(full(stage), 1 - parity),
            _ => mbarrier::wait(full(stage), parity),
        }
        if fault != Fault::NoWgmmaFence {
            wgmma::fence();
        }
        for part in 0..4 {
            let a = descriptor(stage_of(step) + 32 * part);
            let b = descriptor(stage_of(step) + A_BYTES + 32 * part);
            let options = Options { accumulate: step + part > 0, ..OPTIONS };
            wgmma::multiply_ss(&mut sums, a, b, options);
        }
        if fault != Fault::NoCommit {
            wgmma::commit_group();
        }
        if fault == Fault::EarlyRelease && lane == 0 {
            mbarrier::arrive(empty(stage));
        }
        if fault != Fault::NoWait {
            wgmma::wait_group(0, &mut sums);
        }
        if fault != Fault::EarlyRelease && lane == 0 {
            mbarrier::arrive(empty(stage));
        }
    }
    write_out(&sums, d, fault);
}

/// D goes through shared memory, each panel swizzled by 128 bytes.
fn write_out(sums: &[f32; N / 2], d: u64, fault: Fault) {
    let panels = shared::base() + STAGES * STAGE_BYTES;
    let (thread, lane) = (index::thread(), index::thread() % 32);
    // Matrices 0 and 1 of a store are rows 0 to 7 and 8 to 15 of 8 columns, 2 and 3 those of the next 8.
    let row = thread / 32 * 16 + lane % 16;
    for pair in 0..N as u32 / 16 {
        let column = 16 * pair + lane / 16 * 8;
        let line = panels + column / 64 * (M as u32 * 128) + row * 128;
        let address = Swizzle::Bytes128.apply(line + column % 64 * 2);
        let element = |register: usize| {
            let first = 8 * pair as usize + 2 * register;
            convert::pack_f16x2(sums[first], sums[first + 1])
        };
        stmatrix::store_x4(address, std::array::from_fn(element), false);
    }
    if !matches!(fault, Fault::NoProxyFence | Fault::LateProxyFence) {
        fence::proxy_async();
    }
    barrier::sync(1, CONSUMERS);
    if thread == 0 {
        if fault == Fault::LateProxyFence {
            fence::proxy_async();
        }
        for panel in 0..2 {
            // SAFETY: the map and the buffer are this launch's.
            unsafe { tma::store(d, panels + panel * (M as u32 * 128), [64 * panel as i32, 0]) };
        }
        tma::commit_group();
        if fault == Fault::OverwriteStore {
            shared::store(panels, 0_u32);
        }
        if fault != Fault::NoStoreWait {
            tma::wait_group_read(0);
        }
    }
}

fn map_of(values: &[u128], rows: usize, columns: usize, box_rows: usize) -> [u64; 16] {
    let map = TensorMap {
        address: values.as_ptr().expose_provenance() as u64,
        element_bytes: 2,
        rank: 2,
        dims: [columns as u64, rows as u64, 0, 0, 0],
        strides: [2 * columns as u64, 0, 0, 0],
        box_dims: [64, box_rows as u32, 0, 0, 0],
        swizzle: Swizzle::Bytes128,
    };
    map.encode().expect("a map that the device takes")
}

/// Small integers, so that sums are exact: fp16 bits in memory aligned to 16 bytes.
fn matrix(rows: usize, columns: usize, value: impl Fn(usize, usize) -> i32) -> Vec<u128> {
    let bits: Vec<u16> = (0..rows * columns)
        .map(|index| convert::f32_to_f16(value(index / columns, index % columns) as f32))
        .collect();
    bytemuck::pod_collect_to_vec(&bits)
}

fn a_at(row: usize, k: usize) -> i32 {
    ((row * 7 + k * 3) % 5) as i32 - 2
}

fn b_at(column: usize, k: usize) -> i32 {
    ((column * 5 + k) % 7) as i32 - 3
}

/// Runs the kernel; returns what it wrote.
fn run(schedule: Schedule, fault: Fault) -> Result<(Report, Vec<u16>), Error> {
    run_blocks(1, schedule, fault)
}

/// As [`run`], with blocks that all do the same.
fn run_blocks(grid: u32, schedule: Schedule, fault: Fault) -> Result<(Report, Vec<u16>), Error> {
    let (a, b) = (matrix(M, K, a_at), matrix(N, K, b_at));
    let mut d = matrix(M, N, |_, _| 1234);
    let parameters = Parameters { maps: [map_of(&a, M, K, M), map_of(&b, N, K, N), map_of(&d, M, N, M)] };
    let buffers = [Buffer::read("a", &a), Buffer::read("b", &b), Buffer::read_write("d", &mut d)];
    let config = Launch {
        name: "pipeline",
        grid,
        block: THREADS,
        shared_bytes: BARRIERS + 16 * STAGES,
        schedule,
        buffers: &buffers,
    };
    let report = fa_sim::launch(&config, &|| kernel(&parameters, fault))?;
    Ok((report, bytemuck::cast_slice(&d).to_vec()))
}

fn fails(seed: u64, fault: Fault) -> (Error, String) {
    let error = run(Schedule::from_seed(seed), fault).expect_err("the kernel is broken");
    let message = error.to_string();
    (error, message)
}

fn expected() -> Vec<f32> {
    let sum = |row, column| (0..K).map(|k| a_at(row, k) * b_at(column, k)).sum::<i32>() as f32;
    (0..M * N).map(|index| sum(index / N, index % N)).collect()
}

#[test]
fn the_pipeline_multiplies_under_every_schedule() {
    let expected = expected();
    for seed in SEEDS {
        for schedule in [Schedule::from_seed(seed), Schedule::from_seed(seed).without_race_detection()] {
            let (report, bits) =
                run(schedule, Fault::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let found: Vec<f32> = bits.iter().map(|&bits| convert::f16_to_f32(bits)).collect();
            assert_eq!(found, expected, "seed {seed}");
            // The last block of K and the second panel of D reach past the tensors.
            assert_eq!(report.global_bytes_read, 2 * (M * K + N * K) as u64);
            assert_eq!(report.global_bytes_written, 2 * (M * N) as u64);
        }
    }
}

#[test]
fn blocks_leave_nothing_to_the_next() {
    for seed in SEEDS {
        let schedule = Schedule::from_seed(seed);
        let (report, bits) =
            run_blocks(12, schedule, Fault::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let found: Vec<f32> = bits.iter().map(|&bits| convert::f16_to_f32(bits)).collect();
        assert_eq!(found, expected(), "seed {seed}");
        assert_eq!(report.global_bytes_written, 12 * 2 * (M * N) as u64);
    }
}

#[test]
fn each_fault_is_found_under_every_schedule() {
    let is_race = |error: &Error| matches!(error, Error::Race { .. } | Error::NotAwaited { .. });
    for seed in SEEDS {
        for (fault, parts) in [
            (Fault::NoFullWait, &["multiplies by wgmma at", "loads by TMA at"][..]),
            // The load meets the one before it, which nobody has seen land, or the products that read that.
            (Fault::NoEmptyWait, &["loads by TMA at"]),
            (Fault::EarlyRelease, &["loads by TMA at", "multiplies by wgmma at", "wgmma::wait_group"]),
            (Fault::OverwriteStore, &["thread 0 writes at", "stores by TMA at", "tma::wait_group_read"]),
        ] {
            let (error, message) = fails(seed, fault);
            // A stage that is loaded again while its barrier is in the phase before breaks the count first.
            let is_count = matches!(error, Error::Mbarrier { .. }) && fault == Fault::NoEmptyWait;
            assert!(is_race(&error) || is_count, "{fault:?}, seed {seed}: {message}");
            if is_race(&error) {
                assert_contains(&message, parts);
            }
        }
        for (fault, part) in [
            (Fault::NoBarrierFence, "mbarrier misused"),
            (Fault::NoProxyFence, "no fence::proxy_async by thread"),
            (Fault::LateProxyFence, "no fence::proxy_async by thread"),
            (Fault::NoWgmmaFence, "no wgmma::fence since the last wgmma::wait_group"),
            (Fault::NoStoreWait, "thread 0 stores by TMA at"),
            (Fault::NoWait, "wgmma"),
        ] {
            let (_, message) = fails(seed, fault);
            assert!(message.contains(part), "{fault:?}, seed {seed}: {message}");
        }
    }
}

#[test]
fn wrong_parities_and_counts_race_or_deadlock_in_words() {
    for seed in SEEDS {
        for fault in [Fault::WrongParity, Fault::FewBytes, Fault::ManyBytes, Fault::NoCommit] {
            let (error, message) = fails(seed, fault);
            match error {
                Error::Deadlock { .. } => {
                    assert_contains(&message, &["wait at the mbarrier at", "under way"])
                }
                Error::NotAwaited { .. }
                | Error::Mbarrier { .. }
                | Error::Race { .. }
                | Error::Wgmma { .. } => {}
                _ => panic!("{fault:?}, seed {seed}: {message}"),
            }
        }
    }
}
