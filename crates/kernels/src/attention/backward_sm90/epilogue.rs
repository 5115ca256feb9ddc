//! How gradients leave.

use super::block::Block;
use super::tile::Tile;
use super::{Consumer, OwnedRows, scores};
use crate::attention::alignment::row_store::store_rows_by_chunks;
use crate::hopper::epilogue::{scale_rows, wait_read};
use crate::hopper::roles::WARP_ROWS;
use crate::params::{BackwardParams, Strides};
use crate::ptx::index;
use crate::tile::panels::Panels;
use crate::tile::simt::GlobalTile;

/// Hardware barrier of the first warpgroup; that of the other follows.
pub(super) const FIRST_BARRIER: u32 = 3;

impl<T: Tile> Consumer<T> {
    /// Begins to store the rows that exist of this warpgroup's gradients, through the memory of what it owns
    /// in a stage.
    #[inline(always)]
    pub(super) fn store(&mut self, params: &BackwardParams, block: &Block<T>, stage: u32) {
        let attention = &params.attention;
        // SAFETY: no other threads use the barrier.
        unsafe { self.warpgroup.sync(FIRST_BARRIER + self.warpgroup.index()) };
        scale_rows(&mut self.gradients[0], [attention.softmax_scale; 2]);
        if T::OWNS_KEYS {
            if scores::drops::<T>(attention) {
                scale_rows(&mut self.gradients[1], [attention.dropout.scale; 2]);
            }
            self.store_one((1, stage), block, (params.dv, &params.dv_strides), attention.head_dim_v);
            self.store_one((0, stage), block, (params.dk, &params.dk_strides), attention.head_dim);
        } else {
            self.store_one((0, stage), block, (params.dq, &params.dq_strides), attention.head_dim);
        }
    }

    /// Stores a gradient to the view at an address.
    #[inline(always)]
    fn store_one(&self, (which, stage): (u32, u32), block: &Block<T>, view: (u64, &Strides), columns: u32) {
        let warp_row = index::reread_thread() / 32 * WARP_ROWS;
        // K's is read by the warpgroup that sums dQ.
        let lines = self.pipeline.owned(if T::SUMS_DQ { 1 } else { which }, stage).from_row(warp_row);
        if T::SUMS_DQ {
            // SAFETY: all lanes of the warp are here.
            unsafe { wait_read() };
        }
        // SAFETY: all lanes of the warp are here, and the products of its warpgroup have read the rows.
        unsafe { store_warp(lines, &self.gradients[which as usize], (block, warp_row), view, columns) };
    }
}

/// The same address: what follows from it would otherwise be computed once for all tiles, and kept in
/// registers.
#[inline(always)]
pub(super) fn reread(address: u64) -> u64 {
    address + index::unknown(0) as u64
}

/// Stores those of a warp's 16 rows that exist of a gradient to the view at an address, through these lines:
/// from `warp_row` of what the block owns on.
///
/// # Safety
/// As [`store_rows_by_chunks`].
#[inline(always)]
pub(super) unsafe fn store_warp<T: Tile>(
    lines: Panels<OwnedRows<T>>,
    gradient: &T::Gradient,
    (block, warp_row): (&Block<T>, u32),
    (address, strides): (u64, &Strides),
    columns: u32,
) {
    let work = &block.work;
    let (rows, head) = if T::OWNS_KEYS { (work.keys, block.kv_head) } else { (work.queries, work.head) };
    let address = reread(address);
    let target = GlobalTile::of_head::<T::Element>(address, strides, work, head, (rows, columns));
    let first = block.owned + warp_row;
    // SAFETY: the lines are this warp's, whose lanes are here.
    unsafe { store_rows_by_chunks::<T::Element, _, _>(lines, gradient, &target, |row| first + row) };
}
