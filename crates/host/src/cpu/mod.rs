//! The CPU backend: FlashAttention over all cores, in the widest vector instructions that the CPU has.
//!
//! [`forward`] never holds more than a tile of scores per thread. [`standard`] is the unfused
//! computation with the same microkernels, which holds all of them: what FlashAttention is compared with.

mod amx;
pub(crate) mod backend;
mod backward;
mod dropout;
mod exp;
mod flash;
mod gradient;
mod isa;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod lanes_neon;
#[cfg(target_arch = "x86_64")]
mod lanes_x86;
mod memory;
mod microkernel;
mod pack;
mod schedule;
mod score;
mod softmax;
mod tiles;
mod unfused;

pub use backward::backward;
pub use isa::Isa;
pub use tiles::TileChoice;

use crate::{Element, Error, Problem, Result};
use flash::{Call, Scratch, Task};
use memory::Buffer;
use pack::{Outputs, Source};
use tiles::Machine;

/// What the caller may fix; everything absent is chosen for the problem and the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// BLOCK_M: queries that one task holds, 1 to 65536, rounded up to whole register panels.
    pub block_m: Option<usize>,
    /// BLOCK_N: keys between two updates of the running softmax, 1 to 65536.
    pub block_n: Option<usize>,
    /// The widest instruction set to use; the CPU's widest when absent.
    pub isa: Option<Isa>,
}

/// How a call ran.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Bytes allocated beside the tensors, over all threads.
    pub extra_bytes: usize,
    /// The tile.
    pub tile: TileChoice,
    /// Threads that worked.
    pub threads: usize,
    /// The instruction set.
    pub isa: Isa,
}

/// O = softmax(softmax_scale · Q·Kᵀ + mask) · V, by FlashAttention's tiled online softmax
/// (FlashAttention-2, Algorithm 1), on the threads of the current rayon pool.
///
/// `q`, `k`, `v` and `o` are laid out as `problem.tensors()` says; elements of `o` outside its view
/// stay untouched. `lse` is [B, H, Sq], natural-log.
///
/// Whatever the storage type, all arithmetic is in fp32, but where [`Isa::Amx`] serves the problem: Q, K and
/// V in fp16 or bf16, 32 queries or more for each head of K, and no dropout. There the weights are rounded to
/// bf16 before they are multiplied with V, or in fp16 to the sum of two bf16 numbers. With fp16 an infinite
/// element makes NaN of whatever it is multiplied with.
///
/// # Errors
/// When a buffer is too short or of another type than the problem, and when the scratch memory cannot be had:
/// a few tiles per thread, and with [`Isa::Amx`] K and V once more.
pub fn forward<T: Element>(
    problem: &Problem,
    q: &[T],
    k: &[T],
    v: &[T],
    o: &mut [T::Output],
    lse: Option<&mut [f32]>,
) -> Result<Stats> {
    forward_with(problem, Config::default(), q, k, v, o, lse)
}

/// [`forward`] with a tile and an instruction set of the caller's choice.
///
/// # Errors
/// As [`forward`], and when the configuration asks for a tile of 0 or of more than 65536.
pub fn forward_with<T: Element>(
    problem: &Problem,
    config: Config,
    q: &[T],
    k: &[T],
    v: &[T],
    o: &mut [T::Output],
    lse: Option<&mut [f32]>,
) -> Result<Stats> {
    let outputs = outputs(problem, q, k, v, o, lse)?;
    fused(problem, config, [q, k, v].map(Source::new), outputs)
}

/// The same attention without fusion: all scores are written to memory, then their softmax, then the
/// product with V. The mask, where there is one, is applied to scores that were computed anyway.
///
/// Takes 4·B·H·Sq·Sk bytes for the scores, plus K and V in fp32 where they cannot be read in place.
///
/// # Errors
/// When a buffer is too short or of another type than the problem, when the problem has dropout, and when the
/// memory cannot be had.
pub fn standard<T: Element>(
    problem: &Problem,
    q: &[T],
    k: &[T],
    v: &[T],
    o: &mut [T::Output],
    lse: Option<&mut [f32]>,
) -> Result<Stats> {
    if problem.dropout().is_some() {
        let reason = "it drops no weights; forward_cpu does".to_owned();
        return Err(Error::UnfitKernel { kernel: "standard", reason });
    }
    let outputs = outputs(problem, q, k, v, o, lse)?;
    unfused::run(problem, [q, k, v].map(Source::new), outputs)
}

/// [`forward_with`] in a model of AMX's tiles and of vectors in plain Rust, on any CPU; as it where tiles do
/// not serve the problem. It is as slow as a model is.
///
/// # Errors
/// As [`forward_with`].
#[cfg(feature = "testing")]
pub fn forward_in_modelled_tiles<T: Element>(
    problem: &Problem,
    config: Config,
    q: &[T],
    k: &[T],
    v: &[T],
    o: &mut [T::Output],
    lse: Option<&mut [f32]>,
) -> Result<Stats> {
    let outputs = outputs(problem, q, k, v, o, lse)?;
    let inputs = [q, k, v].map(Source::new);
    if !amx::serves(problem) {
        return fused(problem, config, inputs, outputs);
    }
    // SAFETY: the model is plain Rust.
    unsafe { amx::forward(problem, config, inputs, outputs, amx::MODEL) }
}

/// Checks the buffers and takes the addresses of the outputs.
fn outputs<T: Element>(
    problem: &Problem,
    q: &[T],
    k: &[T],
    v: &[T],
    o: &mut [T::Output],
    lse: Option<&mut [f32]>,
) -> Result<Outputs> {
    problem.check_buffers::<T>(q.len(), k.len(), v.len(), o.len(), lse.as_ref().map(|lse| lse.len()))?;
    Ok(Outputs::new(o, lse))
}

/// [`forward_with`] past the types.
fn fused(problem: &Problem, config: Config, [q, k, v]: [Source; 3], outputs: Outputs) -> Result<Stats> {
    let isa = Isa::serving(problem, config.isa);
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if isa == Isa::Amx {
        // SAFETY: the instruction set is available, and with it AVX-512.
        return unsafe { amx::forward(problem, config, [q, k, v], outputs, amx::AMX) };
    }
    let kernels = isa.kernels();
    let machine = Machine::here(kernels.panel);
    let tile = tiles::choose(problem, machine, config)?;
    let scratch = Scratch::new(problem, &tile, kernels.panel);
    let tasks = schedule::Tasks::new(problem, tile.block_m);
    let threads = machine.threads.min(tasks.len());
    let mut memory =
        Buffer::new("the scratch memory of all threads", scratch.total as u128 * threads as u128)?;
    let (block_m, block_n) = (tile.block_m, tile.block_n);
    let call = Call { problem, q, k, v, outputs, block_m, block_n, kernels };
    schedule::run(tasks.len(), threads, &mut memory, scratch.total, |index, memory| {
        if let Some(columns) = tasks.get(index).existing(problem) {
            let task = Task { call, columns, scratch, memory };
            // SAFETY: the instruction set is available; the memory is this thread's own, and holds
            // `scratch.total` elements; tasks share no columns.
            unsafe { task.run() }
        }
    });
    Ok(Stats { extra_bytes: memory.bytes(), tile, threads, isa })
}
