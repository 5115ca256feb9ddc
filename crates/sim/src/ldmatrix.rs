//! Matrices of 8 × 8 16-bit elements from shared memory to registers (PTX ISA, `ldmatrix`).

use std::panic::Location;

use crate::operation::Operation;
use crate::warp;

/// Loads `MATRICES` (1, 2 or 4) matrices (`ldmatrix.sync.aligned.m8n8.x1/.x2/.x4.shared.b16`).
///
/// Lane 8·m + r names the `address` of row r of matrix m, 16 bytes at a multiple of 16; lanes past
/// 8·`MATRICES` name none. Register m of lane l gets of matrix m the elements (l / 4, 2·(l % 4)) in its
/// lower half and (l / 4, 2·(l % 4) + 1) in its upper one; with `transposed` (`.trans`) it gets
/// (2·(l % 4), l / 4) and (2·(l % 4) + 1, l / 4).
///
/// A row is read, as far as the detectors are concerned, by the lane that names it. Lanes wait for each
/// other and their accesses to memory are not ordered, as at a shuffle.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn load<const MATRICES: usize>(address: u32, transposed: bool) -> [u32; MATRICES] {
    const { assert!(matches!(MATRICES, 1 | 2 | 4), "a load takes 1, 2 or 4 matrices") };
    let operation = Operation::LoadMatrix { matrices: MATRICES as u32, transposed };
    let registers = warp::meet(operation, [address], Location::caller());
    std::array::from_fn(|matrix| registers[matrix])
}
