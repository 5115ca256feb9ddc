//! Matrices of 8 × 8 16-bit elements from shared memory to registers (PTX ISA, `ldmatrix`).

use std::panic::Location;

use crate::block::Block;
use crate::error::Error;
use crate::operation::Operation;
use crate::threads::WARP;
use crate::warp;

/// Elements of a row, and rows of a matrix.
const SIDE: usize = 8;

/// Registers of a lane for the most matrices of one load.
pub(crate) type Registers = [u32; 4];

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

impl Block {
    /// The load of a warp all of whose lanes are there; `None` where a row has not been written, and
    /// the warp has to park as in `Block::shared_read`.
    pub(crate) fn load_matrices(
        &mut self,
        warp: usize,
        matrices: usize,
        transposed: bool,
        location: &'static Location<'static>,
    ) -> Result<Option<[Registers; WARP as usize]>, Box<Error>> {
        let mut rows = [[0_u16; SIDE]; WARP as usize];
        for (lane, row) in rows[..matrices * SIDE].iter_mut().enumerate() {
            let address = self.warps[warp].operands[lane][0];
            let thread = warp * WARP as usize + lane;
            let read = self.as_thread(thread, |block| block.shared_read::<[u16; SIDE]>(address, location))?;
            let Some(offset) = read else { return Ok(None) };
            *row = self.shared.get(offset);
        }
        Ok(Some(std::array::from_fn(|lane| distribute(&rows, lane, matrices, transposed))))
    }
}

/// What one lane gets of the rows of all matrices.
fn distribute(rows: &[[u16; SIDE]], lane: usize, matrices: usize, transposed: bool) -> Registers {
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
