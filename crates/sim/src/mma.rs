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

use half::f16;
use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};

use crate::operation::Operation;
use crate::threads::WARP;
use crate::warp::{self, Operands};

const M: usize = 16;
const N: usize = 8;
const K: usize = 16;

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

/// The accumulators of all lanes after fp16 fragments have been multiplied.
pub(crate) fn multiply_f16(operands: &[Operands; WARP as usize]) -> [[u32; 4]; WARP as usize] {
    multiply(operands, |bits, values| bits.reinterpret_cast::<f16>().convert_to_f32_slice(values))
}

/// As [`multiply_f16`], of bf16 fragments.
pub(crate) fn multiply_bf16(operands: &[Operands; WARP as usize]) -> [[u32; 4]; WARP as usize] {
    multiply(operands, |bits, values| {
        let pairs = values.iter_mut().zip(bits);
        pairs.for_each(|(value, &bits)| *value = f32::from_bits(u32::from(bits) << 16));
    })
}

#[inline(always)]
fn multiply(
    operands: &[Operands; WARP as usize],
    widen: impl Fn(&[u16], &mut [f32]),
) -> [[u32; 4]; WARP as usize] {
    let (mut a_bits, mut b_bits, mut d) = ([0_u16; M * K], [0_u16; K * N], [[0.0_f32; N]; M]);
    for (lane, &[a0, a1, a2, a3, b0, b1, c0, c1, c2, c3]) in operands.iter().enumerate() {
        let (group, pair) = (lane / 4, 2 * (lane % 4));
        for (register, row, column) in
            [(a0, group, pair), (a1, group + 8, pair), (a2, group, pair + 8), (a3, group + 8, pair + 8)]
        {
            a_bits[row * K + column] = register as u16;
            a_bits[row * K + column + 1] = (register >> 16) as u16;
        }
        for (register, row) in [(b0, pair), (b1, pair + 8)] {
            b_bits[row * N + group] = register as u16;
            b_bits[(row + 1) * N + group] = (register >> 16) as u16;
        }
        for (register, row, column) in
            [(c0, group, pair), (c1, group, pair + 1), (c2, group + 8, pair), (c3, group + 8, pair + 1)]
        {
            d[row][column] = f32::from_bits(register);
        }
    }
    let (mut a, mut b) = ([0.0_f32; M * K], [0.0_f32; K * N]);
    widen(&a_bits, &mut a);
    widen(&b_bits, &mut b);
    for (sums, a_row) in d.iter_mut().zip(a.as_chunks::<K>().0) {
        for (&a, b_row) in a_row.iter().zip(b.as_chunks::<N>().0) {
            sums.iter_mut().zip(b_row).for_each(|(sum, b)| *sum += a * b);
        }
    }
    std::array::from_fn(|lane| {
        let (group, pair) = (lane / 4, 2 * (lane % 4));
        [d[group][pair], d[group][pair + 1], d[group + 8][pair], d[group + 8][pair + 1]].map(f32::to_bits)
    })
}
