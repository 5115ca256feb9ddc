//! The arithmetic of `mma` (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type").

use half::f16;
use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};

use crate::operation::{Operands, Results};
use crate::threads::LANES;

const M: usize = 16;
const N: usize = 8;
const K: usize = 16;

/// The accumulators of all lanes after fp16 fragments have been multiplied.
pub(crate) fn multiply_f16(operands: &[Operands; LANES]) -> [Results; LANES] {
    multiply(operands, |bits, values| bits.reinterpret_cast::<f16>().convert_to_f32_slice(values))
}

/// As [`multiply_f16`], of bf16 fragments.
pub(crate) fn multiply_bf16(operands: &[Operands; LANES]) -> [Results; LANES] {
    multiply(operands, |bits, values| {
        let pairs = values.iter_mut().zip(bits);
        pairs.for_each(|(value, &bits)| *value = f32::from_bits(u32::from(bits) << 16));
    })
}

#[inline(always)]
fn multiply(operands: &[Operands; LANES], widen: impl Fn(&[u16], &mut [f32])) -> [Results; LANES] {
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
