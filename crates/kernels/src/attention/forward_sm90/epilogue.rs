//! How O and lse leave.

use super::scheduler::TileSlots;
use super::tile::{OutputRows, Tile};
use super::{Operand, Pipeline, first_row};
use crate::attention::alignment::Alignment as _;
use crate::attention::alignment::row_store::store_rows;
use crate::element::Element;
use crate::hopper::epilogue;
use crate::hopper::roles::{WARP_ROWS, WARPGROUP, WARPGROUP_ROWS, Warpgroup};
use crate::params::PersistentParams;
use crate::ptx::{fence, index, tma, warp};
use crate::softmax::with_sink;
use crate::tile::mma::Lane;
use crate::tile::panels::Panels;

/// Storage type of O.
type Rounded<T> = <<T as Tile>::Element as Operand>::Output;

/// Hardware barrier of the first warpgroup; those of the others follow.
pub(super) const FIRST_BARRIER: u32 = 4;

/// Normalises and stores the rows that exist, and their log-sum-exp where it is wanted; `finished` has both
/// rows' 1/l and lse. Each warp rounds its rows into shared memory, from where tensor copies fetch them and
/// clip what is not there, or copies of single rows where no tensor map can.
///
/// # Safety
/// These rows of O are the warpgroup's alone.
#[inline(always)]
pub(super) unsafe fn store<T: Tile>(
    warpgroup: Warpgroup,
    params: &PersistentParams,
    map: u64,
    pipeline: Pipeline<T>,
    schedule: &TileSlots,
    o: &mut T::O,
    finished: [(f32, f32); 2],
) {
    let sinks = &params.attention.per_head.sinks;
    let mut finished = finished;
    if sinks.are_there() {
        // SAFETY: the tile at hand is not left yet, and its head has a sink.
        unsafe {
            let work = schedule.work();
            let head = (work.batch, work.head);
            finished = [with_sink(finished[0], sinks, head), with_sink(finished[1], sinks, head)];
        }
    }
    epilogue::scale_rows(o, [finished[0].0, finished[1].0]);
    // Read again rather than kept in registers over the loop, which needs all of them.
    let thread = index::reread_thread();
    let lane = Lane::of_thread(thread, 2);
    // SAFETY: the tile at hand is not left yet; the rows in shared memory are this warp's own, and no copy
    // still reads them.
    unsafe {
        let work = schedule.work();
        let tile_row = first_row::<T>(params, work.tile);
        let through_queries = Pipeline::<T>::leaves_through_queries(params);
        let warpgroup_rows = if through_queries {
            // The products of the whole warpgroup have read them.
            warpgroup.sync(FIRST_BARRIER + warpgroup.index());
            pipeline.q(thread / WARPGROUP).cast()
        } else {
            epilogue::wait_read();
            pipeline.o(thread / WARPGROUP)
        };
        let rows = warpgroup_rows.from_row(thread % WARPGROUP / 32 * WARP_ROWS);
        // Behind the next `warp::sync` the first lane may leave the tile.
        let (o_by_rows, lse_address) = (schedule.o_by_rows(), schedule.lse());
        // Row of the tile that one of the warp's is.
        let place =
            |row: u32| T::Alignment::row_of_tile(&params.attention, WARPGROUP_ROWS, lane.warp_row, row);
        let rows_left = work.queries.len.saturating_sub(tile_row);
        let is_cut = rows_left < lane.warp_row + WARP_ROWS;
        let by_rows = T::Alignment::BY_RESIDUES || o_by_rows == 2 || o_by_rows == 1 && is_cut;
        if warp::broadcast(by_rows as u32, 0) != 0 {
            let target = schedule.o(rows_left);
            let first_column = schedule.first_column();
            store_rows::<Rounded<T>, _, _>(rows, o, (&target, first_column), place);
        } else {
            // The sequences of a packed batch have one batch index.
            let batch = if o_by_rows == 0 { work.batch } else { 0 };
            let at = [work.queries.first + tile_row + lane.warp_row, work.head, batch];
            if T::CONFIG.own_output() || through_queries {
                store_boxes::<T, false>(rows, o, map, at);
            } else {
                store_boxes::<T, true>(rows, o, map, at);
            }
        }
        let mut i = 0;
        while i < 2 {
            let row = place(8 * i as u32 + lane.group);
            if lse_address != 0 && lane.pair == 0 && row < rows_left {
                f32::store(lse_address + 4 * row as u64, finished[i].1);
            }
            i += 1;
        }
    }
}

/// Rounds a warp's rows of O to the panels of `rows`, from where boxes leave for the row, head and batch
/// `at`; with `STAGED`, to two panels in turn.
///
/// # Safety
/// All 32 lanes of the warp call this together; nobody else accesses the rows, and the map describes O.
#[inline(always)]
unsafe fn store_boxes<T: Tile, const STAGED: bool>(
    rows: Panels<OutputRows<T>>,
    o: &T::O,
    map: u64,
    at: [u32; 3],
) {
    let address = |panel: u32| rows.panel(if STAGED { panel % 2 } else { panel });
    let mut panel = 0;
    // SAFETY: the map is O's, all lanes are here, and a panel is rewritten once its box was waited for.
    unsafe {
        while panel < Panels::<OutputRows<T>>::COUNT {
            if STAGED && panel >= 2 {
                tma::wait_group_read::<1>();
                warp::sync();
            }
            epilogue::write_panel::<Rounded<T>, _>(index::reread_thread() % 32, address(panel), o, panel);
            if STAGED || panel + 1 == Panels::<OutputRows<T>>::COUNT {
                fence::proxy_async();
                warp::sync();
                if index::reread_thread().is_multiple_of(32) {
                    let mut written = if STAGED { panel } else { 0 };
                    while written <= panel {
                        Panels::<OutputRows<T>>::store_panel(address(written), map, written, at);
                        written += 1;
                    }
                    tma::commit_group();
                }
            }
            panel += 1;
        }
    }
}
