//! Asynchronous matrix multiply-accumulate of a warpgroup: D (64 × N) = A (64 × K) · B (K × N) + D, A and B
//! of 16-bit elements and K = 16, or of 8-bit ones and K = 32, D of fp32, N a multiple of 8 up to 256 (PTX
//! ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation using wgmma.mma_async").
//!
//! A warpgroup is four warps, the first a multiple of four. All of its threads issue the same products, with
//! the same descriptors, in the same order and groups; they need not do so at the same time. Warp w of the
//! four holds rows 16w to 16w + 15 of D, and of A where that is in registers.
//!
//! A product reads its operands in shared memory from its issue until the [`wait_group`] that covers the
//! group which [`commit_group`] has closed over it. Meanwhile nobody writes them. All threads of the
//! warpgroup come after whoever wrote them: after the wait for a TMA load, or after a
//! [`fence::proxy_async`](crate::fence::proxy_async) of the writer and a synchronisation.
//!
//! An accumulator under way holds a signalling NaN that names its product. The `wait_group` that covers the
//! product and is given the accumulator replaces it with the sums; a wait that covers it but names another
//! accumulator leaves the NaN, and a later one that names it takes it away. Arithmetic on it makes another
//! NaN of it, which the next operation that is given the accumulator reports. So does the end of the thread
//! report an accumulator that no wait was given or that was overwritten.
//!
//! Sums of 8-bit products are Hopper's to the last bit, with 13 bits behind the first (`tensor_core/e4m3.rs`
//! has the rule). Those of 16-bit products are rounded as those of [`mma`](crate::mma): one by one, in
//! ascending k, to nearest even. An H200 aligns the 16 products and the accumulator to the largest exponent,
//! cuts each toward zero 25 bits below that, and the sum to fp32 toward zero. That is not modelled: each
//! step differs in its last bits, and over n values of one sign the hardware loses about n · 2⁻²⁷·⁷ of their
//! sum (6e-4 at 131,072).
//!
//! 8-bit operands are K-major. Two of their elements, neighbours along K, lie where one of 16 bits does, in
//! shared memory and in registers alike.

use std::panic::Location;

pub use crate::operation::{Element, Options};

use crate::context;
use crate::operation::Operation;
use crate::warp;

/// Orders this warp's accesses to its registers before the products that it issues next
/// (`wgmma.fence.sync.aligned`).
///
/// A product needs one since the last [`wait_group`] if it takes A from registers or an accumulator that is
/// not under way. What the registers go through in between is not seen.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn fence() {
    warp::meet(Operation::WgmmaFence, [], Location::caller());
}

/// Closes a group of all products since the last one, be it empty (`wgmma.commit_group.sync.aligned`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn commit_group() {
    warp::meet(Operation::WgmmaCommit, [], Location::caller());
}

/// Waits until at most the `pending` youngest groups are under way (`wgmma.wait_group.sync.aligned`), and
/// gives `accumulator` its sums if its products are among the others. It may be empty.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn wait_group(pending: usize, accumulator: &mut [f32]) {
    let location = Location::caller();
    // More groups than that are never under way.
    let pending = pending.try_into().unwrap_or(u32::MAX);
    warp::meet(Operation::WgmmaWait { pending }, [], location);
    context::unwrap_or_fail(context::with(|block| block.take_sums(accumulator, location)));
}

/// Issues D = A·B + D with both operands in shared memory (`wgmma.mma_async.sync.aligned.m64nNk16.f32`,
/// descriptors `a` and `b`). `accumulator` is this thread's N / 2 elements of D.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn multiply_ss(accumulator: &mut [f32], a: u64, b: u64, options: Options) {
    let words = [a as u32, (a >> 32) as u32, 0, 0];
    multiply(accumulator, words, b, options, false, Location::caller());
}

/// As [`multiply_ss`] with this thread's four registers of A (`options.transposed_a` has no meaning).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn multiply_rs(accumulator: &mut [f32], a: [u32; 4], b: u64, options: Options) {
    multiply(accumulator, a, b, options, true, Location::caller());
}

fn multiply(
    accumulator: &mut [f32],
    [a0, a1, a2, a3]: [u32; 4],
    b: u64,
    options: Options,
    registers: bool,
    location: &'static Location<'static>,
) {
    let staged = context::with(|block| block.stage_accumulator(accumulator, options.accumulate, location));
    let tag = context::unwrap_or_fail(staged);
    let operation = Operation::Wgmma { n: 2 * accumulator.len() as u32, registers, options };
    let operands = [a0, a1, a2, a3, b as u32, (b >> 32) as u32, tag];
    let [poison, ..] = warp::meet(operation, operands, location);
    accumulator.fill(f32::from_bits(poison));
}
