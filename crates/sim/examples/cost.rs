//! What the simulator's operations cost: nanoseconds per shared access and per thread switch.

use std::hint::black_box;
use std::time::Instant;

use fa_sim::{Error, Launch, Report, Schedule, barrier, index, launch, ldmatrix, mma, shared, warp};

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
        }
    }
    Ok(())
}

fn run(schedule: Schedule, kernel: &(dyn Fn() + Sync)) -> Result<(f64, Report), Error> {
    let config =
        Launch { name: "cost", grid: 1, block: BLOCK, shared_bytes: SHARED_BYTES, schedule, buffers: &[] };
    let start = Instant::now();
    let report = launch(&config, kernel)?;
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

fn fill() {
    for word in (index::thread()..SHARED_BYTES / 4).step_by(BLOCK as usize) {
        shared::store(shared::base() + 4 * word, 1.0_f32);
    }
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
