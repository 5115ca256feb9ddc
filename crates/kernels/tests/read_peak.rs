//! The kernel that measures reads reads every byte that its figure counts.
#![allow(clippy::unwrap_used)]

use fa_kernels::entries::{GemmAlgorithm, Params, gemm_entries};
use fa_kernels::params::GemmParams;
use fa_sim::{Buffer, Launch, Schedule, launch};

/// The words at C after a launch over `words`.
fn read(words: &[u32]) -> u32 {
    let entry = gemm_entries().find(|entry| entry.algorithm == GemmAlgorithm::ReadPeak).unwrap();
    let mut sink = [0_u32; 4];
    let buffers = [Buffer::read("words", words), Buffer::read_write("sink", &mut sink)];
    let [a, c] = buffers.each_ref().map(|buffer| buffer.address);
    let params = Params::Gemm(GemmParams { a, c, k: (4 * words.len() / 16) as u32, ..GemmParams::default() });
    let run = entry.run.unwrap();
    let config = Launch {
        name: entry.name,
        grid: 2,
        block: entry.threads,
        shared_bytes: entry.shared_bytes,
        schedule: Schedule::from_seed(3),
        buffers: &buffers,
    };
    // SAFETY: the launch is the entry's; A has as many words as K says, and C one.
    launch(&config, &|| unsafe { run.call(&params) }).unwrap();
    sink[0]
}

#[test]
fn each_word_is_read_once_and_zeros_leave_no_trace() {
    // More than one round of all threads, and no multiple of it.
    let mut words = vec![0; 4 * (2 * 512 * 8 + 77)];
    assert_eq!(read(&words), 0);
    for index in [0, 3, 4 * 512 * 8, words.len() - 1] {
        words[index] = 1 << 7;
        assert_eq!(read(&words), 1 << 7, "{index}");
        words[index] = 0;
    }
}
