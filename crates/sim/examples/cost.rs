//! What the simulator's operations cost: nanoseconds per shared access and per thread switch, microseconds
//! per product of a warpgroup and per tensor transfer.

use std::hint::black_box;
use std::time::Instant;

use fa_sim::tma::{self, Swizzle, TensorMap};
use fa_sim::wgmma::{self, Element, Options};
use fa_sim::{
    Buffer, Error, Launch, Report, Schedule, barrier, fence, index, launch, ldmatrix, mbarrier, mma, shared,
    warp,
};

const BLOCK: u32 = 256;
const SHARED_BYTES: u32 = 96 * 1024;
const ROUNDS: u32 = 64;

fn main() -> Result<(), Error> {
    for seed in [0, 2] {
        let checked = Schedule::from_seed(seed);
        for schedule in [checked, checked.without_race_detection()] {
            println!("{schedule:?}");
            report("store 4 bytes, own word", 64, schedule, &|| stores())?;
            report("load 4 bytes, each word by 8 warps", 64, schedule, &|| loads::<f32>())?;
            report("load 16 bytes, each word by 8 warps", 64, schedule, &|| loads::<[f32; 4]>())?;
            switches("block barrier", schedule, &|| barrier::sync(0, BLOCK))?;
            switches("warp::sync", schedule, &|| warp::sync())?;
            switches("shuffle_xor", schedule, &|| {
                black_box(warp::shuffle_xor(index::thread(), 1));
            })?;
            switches("mma::m16n8k16_f16", schedule, &|| {
                mma::m16n8k16_f16(black_box(&mut [0.0; 4]), [index::thread(); 4], [1; 2]);
            })?;
            switches("mma::m16n8k16_bf16", schedule, &|| {
                mma::m16n8k16_bf16(black_box(&mut [0.0; 4]), [index::thread(); 4], [1; 2]);
            })?;
            matrices(schedule)?;
            products(schedule)?;
            transfers(schedule)?;
        }
    }
    Ok(())
}

fn config(schedule: Schedule) -> Launch<'static> {
    Launch { name: "cost", grid: 1, block: BLOCK, shared_bytes: SHARED_BYTES, schedule, buffers: &[] }
}

fn run(schedule: Schedule, kernel: &(dyn Fn() + Sync)) -> Result<(f64, Report), Error> {
    let start = Instant::now();
    let report = launch(&config(schedule), kernel)?;
    Ok((start.elapsed().as_nanos() as f64, report))
}

fn report(name: &str, accesses: u32, schedule: Schedule, body: &(dyn Fn() + Sync)) -> Result<(), Error> {
    let (setup, _) = run(schedule, &fill)?;
    let (time, _) = run(schedule, &|| {
        fill();
        for _ in 0..ROUNDS {
            body();
            barrier::sync(0, BLOCK);
        }
    })?;
    let total = f64::from(ROUNDS * BLOCK * accesses);
    println!("  {name:36} {:6.1} ns", (time - setup) / total);
    Ok(())
}

fn switches(name: &str, schedule: Schedule, body: &(dyn Fn() + Sync)) -> Result<(), Error> {
    let (time, report) = run(schedule, &|| (0..2000).for_each(|_| body()))?;
    println!("  {name:36} {:6.1} ns per switch", time / report.switches as f64);
    Ok(())
}

/// As [`switches`], of a load that reads shared memory.
fn matrices(schedule: Schedule) -> Result<(), Error> {
    let (setup, _) = run(schedule, &fill)?;
    let (time, report) = run(schedule, &|| {
        fill();
        for _ in 0..2000 {
            black_box(ldmatrix::load::<4>(shared::base() + 16 * (index::thread() % 32), false));
        }
    })?;
    println!("  {:36} {:6.1} ns per switch", "ldmatrix::load_x4", (time - setup) / report.switches as f64);
    Ok(())
}

/// Products of both warpgroups, m64n256k16 from K-major operands, in groups of four.
fn products(schedule: Schedule) -> Result<(), Error> {
    const GROUPS: u32 = 50;
    let options =
        Options { element: Element::F16, transposed_a: false, transposed_b: false, accumulate: true };
    let descriptor = |offset: u32| u64::from((shared::base() + offset) >> 4) | 64 << 32 | 1 << 62;
    let (setup, _) = run(schedule, &fill)?;
    let (time, _) = run(schedule, &|| {
        fill();
        let mut sums = [0.0; 128];
        for _ in 0..GROUPS {
            wgmma::fence();
            for _ in 0..4 {
                wgmma::multiply_ss(&mut sums, descriptor(0), descriptor(8 * 1024), options);
            }
            wgmma::commit_group();
            wgmma::wait_group(0, &mut sums);
        }
    })?;
    let total = f64::from(2 * 4 * GROUPS);
    println!("  {:36} {:6.1} µs", "wgmma::multiply_ss, n = 256", (time - setup) / total / 1000.0);
    Ok(())
}

/// Boxes of 128 rows of 128 bytes that one thread loads and all wait for.
fn transfers(schedule: Schedule) -> Result<(), Error> {
    const LOADS: u32 = 200;
    let values = vec![0_u128; 1024];
    let map = TensorMap {
        address: values.as_ptr().expose_provenance() as u64,
        element_bytes: 2,
        rank: 2,
        dims: [64, 128, 0, 0, 0],
        strides: [128, 0, 0, 0],
        box_dims: [64, 128, 0, 0, 0],
        swizzle: Swizzle::Bytes128,
    };
    // What the device would not take has no cost.
    let Ok(map) = map.encode() else { return Ok(()) };
    let map = map.as_ptr().expose_provenance() as u64;
    let buffers = [Buffer::read("values", &values)];
    let barrier = shared::base() + SHARED_BYTES - 8;
    let config = Launch { buffers: &buffers, ..config(schedule) };
    let start = Instant::now();
    launch(&config, &|| {
        if index::thread() == 0 {
            mbarrier::init(barrier, 1);
            mbarrier::fence_init();
        }
        barrier::sync(0, BLOCK);
        for step in 0..LOADS {
            if index::thread() == 0 {
                mbarrier::arrive_expect_tx(barrier, 16 * 1024);
                // SAFETY: the map and the buffer are this launch's.
                unsafe { tma::load(shared::base(), map, barrier, [0, 0]) };
            }
            mbarrier::wait(barrier, step % 2);
            barrier::sync(0, BLOCK);
        }
    })?;
    let time = start.elapsed().as_nanos() as f64;
    println!("  {:36} {:6.1} µs", "tma::load of 16 KiB, waits and all", time / f64::from(LOADS) / 1000.0);
    Ok(())
}

fn fill() {
    for word in (index::thread()..SHARED_BYTES / 4).step_by(BLOCK as usize) {
        shared::store(shared::base() + 4 * word, 1.0_f32);
    }
    fence::proxy_async();
    barrier::sync(0, BLOCK);
}

fn stores() {
    for step in 0..64 {
        shared::store(shared::base() + 4 * (step * BLOCK + index::thread()), 1.0_f32);
    }
}

fn loads<T: bytemuck::Pod>() {
    let lane = index::thread() % 32;
    for step in 0..64 {
        let address = shared::base() + size_of::<T>() as u32 * (step * 32 + lane);
        black_box(shared::load::<T>(address));
    }
}
