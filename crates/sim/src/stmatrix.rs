//! Matrices of 8 × 8 16-bit elements from registers to shared memory (PTX ISA, `stmatrix`).

use std::panic::Location;

use crate::block::Block;
use crate::error::Error;
use crate::operation::Operation;
use crate::threads::WARP;
use crate::warp;

/// Elements of a row, and rows of a matrix.
const SIDE: usize = 8;

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

impl Block {
    /// The store of a warp all of whose lanes are there.
    pub(crate) fn store_matrices(
        &mut self,
        warp: usize,
        transposed: bool,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let operands = self.warps[warp].operands;
        let mut rows = [[0_u16; SIDE]; WARP as usize];
        for (lane, registers) in operands.iter().enumerate() {
            let (group, pair) = (lane / 4, 2 * (lane % 4));
            for (matrix, &register) in registers[1..5].iter().enumerate() {
                for (step, half) in [register as u16, (register >> 16) as u16].into_iter().enumerate() {
                    let (row, column) = if transposed { (pair + step, group) } else { (group, pair + step) };
                    rows[matrix * SIDE + row][column] = half;
                }
            }
        }
        for (lane, row) in rows.iter().enumerate() {
            let thread = warp * WARP as usize + lane;
            let address = operands[lane][0];
            let offset =
                self.as_thread(thread, |block| block.shared_write::<[u16; SIDE]>(address, location))?;
            self.shared.set(offset, bytemuck::bytes_of(row));
        }
        Ok(())
    }
}
