//! The arithmetic of `wgmma`, and which lane holds what (PTX ISA, "Register Fragments and Shared Memory
//! Matrix Layouts" of `wgmma.mma_async`).

use half::f16;
use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};

use super::e4m3;
use crate::operation::Element;

/// Rows of A and D.
pub(crate) const M: usize = 64;
/// Columns of A and rows of B, in units of 16 bits: of 8-bit elements, there are twice as many.
pub(crate) const K: usize = 16;
/// Elements of a chunk of 16 bytes.
pub(crate) const CHUNK: usize = 8;
/// Rows of a warp.
pub(crate) const WARP_ROWS: usize = 16;

/// Row and column of element `index` of a lane's accumulator, in the 16 rows of its warp: with g = lane / 4
/// and t = lane % 4, elements 4j and 4j + 1 are (g, 8j + 2t) and (g, 8j + 2t + 1), the next two the same of
/// row g + 8.
pub(crate) fn accumulator_place(lane: usize, index: usize) -> (usize, usize) {
    (lane / 4 + 8 * (index / 2 % 2), index / 4 * 8 + 2 * (lane % 4) + index % 2)
}

/// Writes a lane's four registers of A to the 16 rows of its warp. They are those of `mma.m16n8k16`.
pub(crate) fn place_a(bits: &mut [u16], lane: usize, [a0, a1, a2, a3]: [u32; 4]) {
    let (group, pair) = (lane / 4, 2 * (lane % 4));
    for (register, row, column) in
        [(a0, group, pair), (a1, group + 8, pair), (a2, group, pair + 8), (a3, group + 8, pair + 8)]
    {
        bits[row * K + column] = register as u16;
        bits[row * K + column + 1] = (register >> 16) as u16;
    }
}

/// A (M × K, by rows) from its chunks in the order of `Descriptor::chunks`.
pub(crate) fn gather_a(chunks: impl Iterator<Item = [u16; CHUNK]>, transposed: bool) -> Vec<u16> {
    let mut bits = vec![0; M * K];
    for (index, chunk) in chunks.enumerate() {
        if transposed {
            let (k, row) = (index / (M / CHUNK), index % (M / CHUNK) * CHUNK);
            chunk.iter().enumerate().for_each(|(step, &element)| bits[(row + step) * K + k] = element);
        } else {
            bits[index * CHUNK..(index + 1) * CHUNK].copy_from_slice(&chunk);
        }
    }
    bits
}

/// B (K × `n`, by rows) likewise.
pub(crate) fn gather_b(chunks: impl Iterator<Item = [u16; CHUNK]>, n: usize, transposed: bool) -> Vec<u16> {
    let mut bits = vec![0; K * n];
    for (index, chunk) in chunks.enumerate() {
        if transposed {
            bits[index * CHUNK..(index + 1) * CHUNK].copy_from_slice(&chunk);
        } else {
            let (column, k) = (index / 2, index % 2 * CHUNK);
            chunk.iter().enumerate().for_each(|(step, &element)| bits[(k + step) * n + column] = element);
        }
    }
    bits
}

/// d (M × `n`, by rows) += a · b, the products of 16-bit elements added one by one in ascending k.
pub(crate) fn multiply_add(d: &mut [f32], a: &[u16], b: &[u16], n: usize, element: Element) {
    match element {
        Element::F16 => add_products(d, &widen_f16(a), &widen_f16(b), n),
        Element::Bf16 => add_products(d, &widen_bf16(a), &widen_bf16(b), n),
        Element::E4m3 => add_e4m3_products(d, a, b, n),
    }
}

/// [`multiply_add`] of pairs of e4m3, neighbours along K.
fn add_e4m3_products(d: &mut [f32], a: &[u16], b: &[u16], n: usize) {
    let line = |pair: &dyn Fn(usize) -> u16| {
        e4m3::Line::new(std::array::from_fn(|k| pair(k / 2).to_le_bytes()[k % 2]))
    };
    let columns: Vec<_> = (0..n).map(|column| line(&|k| b[k * n + column])).collect();
    for (sums, a) in d.chunks_exact_mut(n).zip(a.as_chunks::<K>().0) {
        let row = line(&|k| a[k]);
        sums.iter_mut().zip(&columns).for_each(|(sum, column)| *sum = e4m3::add(*sum, &row, column));
    }
}

/// [`multiply_add`] of 16-bit elements, in fp32.
fn add_products(d: &mut [f32], a: &[f32], b: &[f32], n: usize) {
    for (sums, a_row) in d.chunks_exact_mut(n).zip(a.as_chunks::<K>().0) {
        let (wide, narrow) = sums.as_chunks_mut::<WIDE>();
        let first = wide.len() * WIDE;
        wide.iter_mut().enumerate().for_each(|(block, sums)| add_block(sums, a_row, &b[block * WIDE..], n));
        let narrow = narrow.as_chunks_mut::<CHUNK>().0;
        narrow.iter_mut().enumerate().for_each(|(block, sums)| {
            add_block(sums, a_row, &b[first + block * CHUNK..], n);
        });
    }
}

/// Columns whose sums stay in registers.
const WIDE: usize = 32;

/// Adds the products of a row of A and of `W` columns of B, whose rows are `n` apart.
#[inline(always)]
fn add_block<const W: usize>(sums: &mut [f32; W], a: &[f32; K], b: &[f32], n: usize) {
    let mut registers = *sums;
    for (a, b_row) in a.iter().zip(b.chunks(n)) {
        registers.iter_mut().zip(&b_row[..W]).for_each(|(sum, b)| *sum += a * b);
    }
    *sums = registers;
}

fn widen_f16(bits: &[u16]) -> Vec<f32> {
    bits.reinterpret_cast::<f16>().to_f32_vec()
}

fn widen_bf16(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
}
