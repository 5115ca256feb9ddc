//! Matrices of 8 × 8 16-bit elements between shared memory and the registers of a warp.

use std::panic::Location;

use super::Block;
use crate::error::Error;
use crate::operation::Results;
use crate::threads::LANES;

/// Elements of a row, and rows of a matrix.
const SIDE: usize = 8;

impl Block {
    /// The load of a warp all of whose lanes are there; `None` where a row has not been written, and
    /// the warp has to park as in [`Block::shared_read`].
    pub(super) fn load_matrices(
        &mut self,
        warp: usize,
        matrices: usize,
        transposed: bool,
        location: &'static Location<'static>,
    ) -> Result<Option<[Results; LANES]>, Box<Error>> {
        let mut rows = [[0_u16; SIDE]; LANES];
        for (lane, row) in rows[..matrices * SIDE].iter_mut().enumerate() {
            let address = self.warps[warp].operands[lane][0];
            let thread = warp * LANES + lane;
            let read = self.as_thread(thread, |block| block.shared_read::<[u16; SIDE]>(address, location))?;
            let Some(offset) = read else { return Ok(None) };
            *row = self.shared.get(offset);
        }
        Ok(Some(std::array::from_fn(|lane| distribute(&rows, lane, matrices, transposed))))
    }

    /// The store of a warp all of whose lanes are there.
    pub(super) fn store_matrices(
        &mut self,
        warp: usize,
        transposed: bool,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let operands = self.warps[warp].operands;
        let mut rows = [[0_u16; SIDE]; LANES];
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
            let thread = warp * LANES + lane;
            let address = operands[lane][0];
            let offset =
                self.as_thread(thread, |block| block.shared_write::<[u16; SIDE]>(address, location))?;
            self.shared.set(offset, bytemuck::bytes_of(row));
        }
        Ok(())
    }
}

/// What one lane gets of the rows of all matrices.
fn distribute(rows: &[[u16; SIDE]], lane: usize, matrices: usize, transposed: bool) -> Results {
    let (group, pair) = (lane / 4, 2 * (lane % 4));
    let element = |matrix: usize, row: usize, column: usize| u32::from(rows[matrix * SIDE + row][column]);
    std::array::from_fn(|matrix| {
        if matrix >= matrices {
            0
        } else if transposed {
            element(matrix, pair, group) | element(matrix, pair + 1, group) << 16
        } else {
            element(matrix, group, pair) | element(matrix, group, pair + 1) << 16
        }
    })
}
