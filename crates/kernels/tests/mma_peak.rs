//! The ceiling of `mma.sync` does the work that its figure counts: K more of K adds as much again.
#![allow(clippy::unwrap_used)]

use fa_kernels::entries::{GemmAlgorithm, Params, gemm_entries};
use fa_kernels::gemm::peak::STEP_K;
use fa_kernels::params::GemmParams;
use fa_sim::{Buffer, Launch, Schedule, launch};

#[test]
fn sums_grow_with_k_and_every_thread_stores_one() {
    for entry in gemm_entries().filter(|entry| entry.algorithm == GemmAlgorithm::MmaPeak) {
        let sums = |steps: u32| {
            let mut sums = vec![f32::NAN; 2 * entry.threads as usize];
            let buffers = [Buffer::read_write("sums", &mut sums)];
            let params = GemmParams { c: buffers[0].address, k: steps * STEP_K, ..GemmParams::default() };
            let (run, params) = (entry.run.unwrap(), Params::Gemm(params));
            let config = Launch {
                name: entry.name,
                grid: 2,
                block: entry.threads,
                shared_bytes: entry.shared_bytes,
                schedule: Schedule::from_seed(1),
                buffers: &buffers,
            };
            // SAFETY: the launch is the entry's, and the buffer has one fp32 for each thread.
            launch(&config, &|| unsafe { run.call(&params) }).unwrap();
            sums
        };
        let (once, four_times) = (sums(1), sums(4));
        assert!(once.iter().all(|sum| sum.is_finite()), "{}", entry.name);
        assert!(once.iter().any(|&sum| sum != once[0]) && once.iter().any(|&sum| sum.abs() > 1.0));
        // Operands are multiples of 1/64 below 1 and sums far below 2^24 of their products' unit: fp16's are
        // exact, and bf16's operands are the same numbers for every step.
        for (once, four_times) in once.iter().zip(four_times) {
            assert!((4.0 * once - four_times).abs() <= 1e-5 * once.abs().max(1.0), "{}: {once}", entry.name);
        }
    }
}
