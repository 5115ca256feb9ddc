//! The same seed gives the same execution, other seeds others, and a sound kernel one result under all.

mod common;

use common::{one_block, word};
use fa_sim::{Buffer, Launch, Report, Schedule, barrier, global, index, launch, shared, warp};

const BLOCK: u32 = 128;
const GRID: u32 = 6;

/// The sum of `BLOCK` values of the block, by shuffles within warps and shared memory across them.
fn block_sum(value: f32) -> f32 {
    let mut sum = value;
    for step in [16, 8, 4, 2, 1] {
        sum += f32::from_bits(warp::shuffle_xor(sum.to_bits(), step));
    }
    if index::thread().is_multiple_of(32) {
        shared::store(word(index::thread() / 32), sum);
    }
    barrier::sync(0, BLOCK);
    (0..BLOCK / 32).map(|warp| shared::load::<f32>(word(warp))).sum()
}

/// Sums each row of `input` and writes the sum to each of the row's elements of `output`.
fn reduce(seed: u64, input: &[f32]) -> (Report, Vec<f32>) {
    let mut output = vec![0.0; input.len()];
    let buffers = [Buffer::read("input", input), Buffer::read_write("output", &mut output)];
    let [from, to] = buffers.each_ref().map(|buffer| buffer.address);
    let config = Launch { grid: GRID, buffers: &buffers, ..one_block(BLOCK, seed) };
    let kernel = || {
        let offset = 4 * u64::from(index::block() * BLOCK + index::thread());
        // SAFETY: the buffers are this launch's alone, and each thread writes its own element.
        let value = unsafe { global::load::<f32>(from + offset) };
        let sum = block_sum(value);
        // SAFETY: as above.
        unsafe { global::store(to + offset, sum) };
    };
    let report = launch(&config, &kernel).expect("the reduction is sound");
    (report, output)
}

fn input() -> Vec<f32> {
    (0..GRID * BLOCK).map(|i| (i % 17) as f32 - 4.0).collect()
}

#[test]
fn a_block_reduction_is_right_under_every_schedule() {
    let input = input();
    for seed in 0..32 {
        let (report, output) = reduce(seed, &input);
        for (row, sums) in input.chunks(BLOCK as usize).zip(output.chunks(BLOCK as usize)) {
            let expected: f32 = row.iter().sum();
            assert!(sums.iter().all(|&sum| sum == expected), "seed {seed}: {sums:?} is not {expected}");
        }
        assert_eq!(report.barriers, u64::from(GRID));
        assert_eq!(report.barrier_sites, 1);
        assert_eq!(report.shared_bytes_written, u64::from(GRID * BLOCK / 32 * 4));
        assert_eq!(report.shared_bytes_read, u64::from(GRID * BLOCK * BLOCK / 32 * 4));
    }
}

#[test]
fn the_same_seed_repeats_and_others_differ() {
    let input = input();
    let mut traces: Vec<u64> = (0..32).map(|seed| reduce(seed, &input).0.trace).collect();
    for (seed, &trace) in traces.iter().enumerate() {
        assert_eq!(reduce(seed as u64, &input).0.trace, trace, "seed {seed}");
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 32, "each seed has an order of its own");
}

#[test]
fn the_execution_does_not_depend_on_the_cores() {
    let input = input();
    for seed in 0..8 {
        let on_cores = |cores| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build();
            pool.expect("threads can be started").install(|| reduce(seed, &input))
        };
        assert_eq!(on_cores(1), on_cores(4), "seed {seed}");
    }
}

#[test]
fn a_failure_is_the_same_on_any_number_of_cores() {
    let kernel = || shared::store(word(index::thread() % 100), index::block());
    for seed in 0..8 {
        let config = Launch { grid: 9, ..one_block(BLOCK, seed) };
        let on_cores = |cores| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build();
            let result = pool.expect("threads can be started").install(|| launch(&config, &kernel));
            result.expect_err("threads 0 and 100 write the same word")
        };
        assert_eq!(on_cores(1), on_cores(3), "seed {seed}");
    }
}

#[test]
fn race_detection_changes_no_execution() {
    let kernel = || {
        block_sum(index::thread() as f32);
    };
    for seed in 0..16 {
        let with = Launch { grid: 3, ..one_block(BLOCK, seed) };
        let without = Launch { schedule: Schedule::from_seed(seed).without_race_detection(), ..with };
        let trace = |config: &Launch<'_>| launch(config, &kernel).expect("the kernel is sound").trace;
        assert_eq!(trace(&with), trace(&without), "seed {seed}");
    }
}
