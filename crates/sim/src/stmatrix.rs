//! Matrices of 8 × 8 16-bit elements from registers to shared memory (PTX ISA, `stmatrix`).

use std::panic::Location;

use crate::operation::Operation;
use crate::warp;

/// Stores four matrices (`stmatrix.sync.aligned.m8n8.x4.shared.b16`), the inverse of
/// [`ldmatrix::load`](crate::ldmatrix::load).
///
/// Lane 8·m + r names the `address` of row r of matrix m, 16 bytes at a multiple of 16. Register m of lane l
/// holds of matrix m the elements (l / 4, 2·(l % 4)) in its lower half and (l / 4, 2·(l % 4) + 1) in its
/// upper one; with `transposed` (`.trans`) it holds (2·(l % 4), l / 4) and (2·(l % 4) + 1, l / 4).
///
/// A row is written, as far as the detectors are concerned, by the lane that names it. Lanes wait for each
/// other and their accesses to memory are not ordered, as at a shuffle.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn store_x4(address: u32, registers: [u32; 4], transposed: bool) {
    let [r0, r1, r2, r3] = registers;
    warp::meet(Operation::StoreMatrix { transposed }, [address, r0, r1, r2, r3], Location::caller());
}
