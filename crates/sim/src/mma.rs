//! Matrix multiply-accumulate of a warp: D (16 × 8) += A (16 × 16) · B (16 × 8), A and B of 16-bit
//! elements and D of fp32 (PTX ISA, `mma.sync.aligned.m16n8k16.row.col.f32`).
//!
//! With g = lane / 4 and t = lane % 4, a lane holds (PTX ISA, "Matrix Fragments for mma.m16n8k16 with
//! floating point type"), the lower half of a register first:
//! * A: register 0 (g, 2t) and (g, 2t + 1), register 1 the same of row g + 8, register 2 of row g and
//!   columns 2t + 8 and 2t + 9, register 3 of row g + 8 and these columns;
//! * B: register 0 (2t, g) and (2t + 1, g), register 1 (2t + 8, g) and (2t + 9, g);
//! * D: registers 0 and 1 (g, 2t) and (g, 2t + 1), registers 2 and 3 the same of row g + 8.
//!
//! Products are those of fp32, which are exact but for bf16 ones below the normal range of fp32, and are
//! added to the accumulator one by one, in ascending k, each sum rounded to nearest even. The PTX ISA
//! leaves order and rounding of the sums open ("at least single precision"), and the hardware has others.

use std::panic::Location;

use crate::operation::Operation;
use crate::warp;

/// Adds the product of two fp16 fragments to `acc`.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn m16n8k16_f16(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    multiply_add(Operation::MmaF16, acc, a, b, Location::caller());
}

/// Adds the product of two bf16 fragments to `acc`.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn m16n8k16_bf16(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    multiply_add(Operation::MmaBf16, acc, a, b, Location::caller());
}

fn multiply_add(
    operation: Operation,
    acc: &mut [f32; 4],
    [a0, a1, a2, a3]: [u32; 4],
    [b0, b1]: [u32; 2],
    location: &'static Location<'static>,
) {
    let [c0, c1, c2, c3] = acc.map(f32::to_bits);
    let sums = warp::meet(operation, [a0, a1, a2, a3, b0, b1, c0, c1, c2, c3], location);
    *acc = sums.map(f32::from_bits);
}
