//! What `mma.sync` reaches at best: products of registers alone, as many as keep the tensor cores busy.

use crate::params::GemmParams;
use crate::ptx::{global, index};
use crate::tile::mma::MmaElement;

/// Threads of a block: two warps for each of a multiprocessor's four tensor cores, as in the largest tile of
/// `gemm_sm80`.
pub const THREADS: u32 = 256;

/// Independent products of 16×8×16 that each warp has in flight.
pub const PRODUCTS: u32 = 16;

/// K of a step, once around all products.
pub const STEP_K: u32 = 16;

/// Multiplies fragments that never change, K / [`STEP_K`] times, each warp a 16 × 8·[`PRODUCTS`] product, and
/// stores one fp32 for each thread at C, so that the products are not left out.
///
/// Launch: any number of blocks of [`THREADS`] threads without shared memory.
///
/// # Safety
/// C is writable memory for one fp32 of each thread of the grid, and K a multiple of [`STEP_K`].
#[inline(always)]
pub unsafe fn mma_peak<E: MmaElement>(params: &GemmParams) {
    let thread = index::block() as u64 * THREADS as u64 + index::thread() as u64;
    // Operands between −1 and 1 of changing sign and mantissa: zeros would draw less power, and clock higher.
    let value = |i: u32| ((thread as u32 * 13 + i * 29) % 63) as f32 / 32.0 - 0.96875;
    let word = |i: u32| E::pack(value(2 * i), value(2 * i + 1));
    let a = [[word(0), word(1), word(2), word(3)], [word(4), word(5), word(6), word(7)]];
    let b = [[word(8), word(9)], [word(10), word(11)]];
    let mut acc = [[0.0; 4]; PRODUCTS as usize];
    let mut k = 0;
    while k < params.k {
        let mut i = 0;
        while i < PRODUCTS as usize {
            // SAFETY: all lanes run this alike.
            unsafe { E::mma(&mut acc[i], a[i % 2], b[i / 2 % 2]) };
            i += 1;
        }
        k += STEP_K;
    }
    let mut sum = 0.0;
    let mut i = 0;
    while i < PRODUCTS as usize {
        sum += acc[i][0] + acc[i][1] + acc[i][2] + acc[i][3];
        i += 1;
    }
    // SAFETY: C has an fp32 for this thread, which no other one stores.
    unsafe { global::store_b32(params.c + 4 * thread, sum.to_bits()) };
}
