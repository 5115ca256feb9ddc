//! dQ summed by the warpgroups that own keys, half of its columns each, one step behind.

use super::block::Source;
use super::consumer::Consumer;
use super::epilogue::reread;
use super::sums::Turn;
use super::tile::{DsRows, DsStages, OwnedRows, PartRows, SavedStages, SumStages, Tile};
use super::Pipeline;
use crate::attention::alignment::row_store::store_rows_by_chunks;
use crate::hopper::epilogue::{scale_rows, wait_read};
use crate::hopper::ring::Ring;
use crate::hopper::roles::{WARP_ROWS, WARPS, leads_warp};
use crate::params::BackwardParams;
use crate::ptx::wgmma::Accumulator as _;
use crate::ptx::{global, index, shared, warp};
use crate::registers::Registers as _;
use crate::scheduler::WorkTile;
use crate::tile::panels::Panels;
use crate::tile::simt::GlobalTile;

const PIECE: u32 = 16;

/// Where a warpgroup that owns keys stands among the steps whose dQ it adds to.
#[derive(Clone, Copy)]
pub(super) struct Summer<T: Tile> {
    ds: Ring<DsStages<T>>,
    sums: Ring<SumStages<T>>,
    saved: Ring<SavedStages<T>>,
    /// The step before, of the tile at hand.
    pub(super) row: u32,
    pub(super) head: u32,
}

impl<T: Tile> Summer<T> {
    /// # Safety
    /// As those of the rings.
    #[inline(always)]
    pub(super) unsafe fn new(pipeline: Pipeline<T>) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                ds: Ring::consumer(pipeline.ds_barriers()),
                sums: Ring::consumer(pipeline.sum_barriers()),
                saved: Ring::producer(pipeline.saved_barriers()),
                row: u32::MAX,
                head: 0,
            }
        }
    }
}

impl<T: Tile> Consumer<T> {
    /// Adds this warpgroup's columns of dQ of the step before to its sum.
    ///
    /// # Safety
    /// The warpgroup's threads are together.
    #[inline(always)]
    pub(super) unsafe fn add_to_dq(&mut self, params: &BackwardParams, source: impl Source<T>) {
        let summer = &mut self.summer;
        let pipeline = self.pipeline;
        let block = source.block();
        let row = summer.row;
        let turn = Turn::new(&params.attention, &block.work, block.owned, row);
        let part = self.warpgroup.index() * WARPS + index::reread_thread() / 32 % WARPS;
        let first = (part * (T::S::LEN as u32 / 4)) * 32 + index::reread_thread() % 32;
        // SAFETY: the stages are there until they are left; threads are together.
        unsafe {
            let mut dq = T::S::ZERO;
            summer.sums.wait();
            let stage = pipeline.sum(summer.sums.stage());
            if turn.before > 0 {
                let mut piece = 0;
                while 4 * piece < T::S::LEN {
                    let at = first + 32 * piece as u32;
                    let words = shared::load4(stage.at(at / 8, at % 8));
                    let mut i = 0;
                    while i < 4 {
                        dq[4 * piece + i] = words[i];
                        i += 1;
                    }
                    piece += 1;
                }
            }
            warp::sync();
            if !turn.is_last {
                summer.sums.leave(leads_warp());
            }
            summer.ds.wait();
            self.warpgroup.fence_products();
            let a = pipeline.ds_of_keys(summer.ds.stage(), 0).descriptor();
            let b = pipeline.owned(0, 0).descriptor();
            let b = b.behind(Panels::<OwnedRows<T>>::columns(4 * self.warpgroup.index()));
            let mut depth = 0;
            while depth < const { T::CONFIG.owned() } / 16 {
                let a = a.behind(Panels::<DsRows>::rows(depth)).bits();
                let b = b.behind(Panels::<OwnedRows<T>>::rows(depth)).bits();
                dq.multiply_ss::<T::Element, true, true>(a, b, true);
                depth += 1;
            }
            self.warpgroup.commit_products();
            dq.wait_group::<0>();
            summer.ds.leave(leads_warp());
            if turn.is_last {
                let work = WorkTile { head: block.work.head + summer.head, ..block.work };
                let attention = &params.attention;
                let shape = (work.queries, attention.head_dim);
                let address = reread(params.dq);
                let mut target =
                    GlobalTile::of_head::<T::Element>(address, &params.dq_strides, &work, work.head, shape);
                let column = T::STEP * self.warpgroup.index();
                target.address += 2 * column as u64;
                target.columns = target.columns.saturating_sub(column).min(T::STEP);
                scale_rows(&mut dq, [attention.softmax_scale; 2]);
                let lines = Panels::<PartRows<T>>::new(stage.address + 4096 * part);
                let warp_row = index::reread_thread() / 32 % WARPS * WARP_ROWS;
                if target.columns > 0 {
                    store_rows_by_chunks::<T::Element, _, _>(lines, &dq, &target, |of| row + warp_row + of);
                }
                wait_read();
                warp::sync();
                summer.sums.leave(leads_warp());
            } else {
                let head = block.ds_head + summer.head;
                let at = head * params.ds.head_pieces + row / T::STEP * params.ds.panel_pieces + first;
                let address = params.ds.address + PIECE as u64 * at as u64;
                let mut piece = 0;
                while 4 * piece < T::S::LEN {
                    let words = [0, 1, 2, 3].map(|i| dq[4 * piece + i].to_bits());
                    global::store4(address + (PIECE * 32) as u64 * piece as u64, words);
                    piece += 1;
                }
            }
            summer.saved.wait_empty();
            warp::sync();
            if leads_warp() {
                summer.saved.fill();
            }
            summer.saved.advance();
        }
    }
}
