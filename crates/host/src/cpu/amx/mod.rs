//! FlashAttention with both products in tiles of AMX, for inputs of 16 bits.
//!
//! As in [`flash`](super::flash) queries lie across: Sᵀ = K·Qᵀ and Oᵀ = Vᵀ·Pᵀ, so that the softmax is
//! lane-wise and whatever changes scores is shared with it. A tile is 16 rows of 64 bytes, and a product of
//! tiles takes 32 bf16 of the depth: rows of the left operand, and rows of pairs along the depth of the right
//! one ([`product`]).
//!
//! Two scores of a lane are such a pair, so that P needs no shuffle. V has to be transposed, and once per
//! call it is: [`operands`] writes K and V of all heads as whole tiles before the first task, padded with
//! zeros. An fp16 operand is the exact sum of two bf16 ones, whose products are added up.
#![cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    allow(dead_code, unused_imports, reason = "elsewhere only the model of the tiles runs, in tests")
)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod instructions;
mod kernels;
mod lanes;
#[cfg(feature = "testing")]
mod model;
mod operands;
mod product;
mod softmax;
mod task;
#[cfg(test)]
mod tests;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) use instructions::is_available;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) use kernels::AMX;
#[cfg(feature = "testing")]
pub(super) use kernels::MODEL;
pub(super) use kernels::TileKernels;
#[cfg(feature = "testing")]
pub(super) use model::Sixteen;

use super::isa::Isa;
use super::memory::Buffer;
use super::pack::{Outputs, Source};
use super::tiles::{self, Machine};
use super::{Config, Stats, schedule};
use crate::{DType, Problem, Result};
use operands::{Keys, Layout};
use task::{Call, Scratch, Task};

/// Queries of a kv head below which tiles would be empty for the most part.
const FEWEST_QUERIES: usize = 32;

/// Whether tiles serve a problem: inputs of 16 bits, and enough queries for each kv head. Dropout, which
/// draws for each weight in scalar code, gains nothing from them and is left to the vector instructions.
pub(super) fn serves(problem: &Problem) -> bool {
    matches!(problem.dtype(), DType::F16 | DType::Bf16)
        && problem.dropout().is_none()
        && problem.seqlen_q() * problem.group() >= FEWEST_QUERIES
}

/// The forward pass of a problem that tiles serve.
///
/// # Errors
/// When `config` asks for a tile of 0 or of more than 65536, and when memory cannot be had.
///
/// # Safety
/// The CPU has the instruction sets of `kernels`.
pub(super) unsafe fn forward(
    problem: &Problem,
    config: Config,
    [q, k, v]: [Source; 3],
    outputs: Outputs,
    kernels: TileKernels,
) -> Result<Stats> {
    let machine = Machine::with_tiles();
    let tile = tiles::choose(problem, machine, config)?;
    let layout = Layout::new(problem);
    let scratch = Scratch::new(&layout, &tile);
    let tasks = schedule::Tasks::new(problem, tile.block_m);
    let chunks = operands::Chunks::new(problem);
    let threads = machine.threads.min(tasks.len().max(chunks.len()));
    let mut packed = Buffer::new("K and V in tiles", layout.elements(problem))?;
    let mut memory =
        Buffer::new("the scratch memory of all threads", scratch.total as u128 * threads as u128)?;
    let extra_bytes = packed.bytes() + memory.bytes();
    let keys = Keys::new(problem, layout, packed.as_mut_ptr().cast());
    schedule::run(chunks.len(), threads, &mut memory, scratch.total, |index, memory| {
        let rows = memory.wrapping_add(scratch.rows);
        // SAFETY: the caller vouches for the instruction set; the scratch memory is this thread's own and has
        // room for rows; chunks share no tiles.
        unsafe { keys.pack(chunks.get(index), [k, v], &kernels, rows) }
    });
    let call =
        Call { problem, q, keys: &keys, outputs, block_m: tile.block_m, block_n: tile.block_n, kernels };
    schedule::run(tasks.len(), threads, &mut memory, scratch.total, |index, memory| {
        if let Some(columns) = tasks.get(index).existing(problem) {
            let task = Task { call: &call, columns, scratch, memory };
            // SAFETY: the caller vouches for the instruction sets; the memory is this thread's own and holds
            // `scratch.total` elements; all keys are packed; tasks share no columns.
            unsafe { task.run() }
        }
    });
    Ok(Stats { extra_bytes, tile, threads, isa: Isa::Amx })
}
