//! Where an item's result goes.

use crate::attention::combine::merge_row;
use crate::attention::split_output::Target;
use crate::attention::split_work::tiles_and_heads;
use crate::attention::splits;
use crate::hopper::roles::{WARPS, Warpgroup};
use crate::params::DecodeParams;
use crate::ptx::{global, index, shared};
use crate::registers::Matrix;
use crate::softmax::with_sink;
use crate::tile::mma::Lane;

use super::consumer::{BARRIER, register};
use super::items::Item;
use super::tile::{Memory, Tile};

/// Stores the rows of an item that exist: as O and lse, or as those of a split, of which nothing reads O
/// unless it has keys. `finish` gives a row's factor and its log-sum-exp.
///
/// # Safety
/// All threads of the warpgroup call this together; the rows of O and lse are this block's.
#[inline(always)]
pub(super) unsafe fn store<T: Tile>(
    params: &DecodeParams,
    item: &Item,
    lane: Lane,
    o: &T::O,
    finish: impl Fn(usize) -> (f32, f32),
) {
    let Item { work, of_split, rows, keys, .. } = item;
    let stores_o = keys.has_keys() || !of_split;
    let mut i = 0;
    while i < <T::Scores as Matrix>::ROWS {
        let row = lane.column(i);
        if row < *rows {
            let at = work.query_row(params, work.first_row + row);
            let head = (work.batch, at.head);
            // SAFETY: the sinks are readable, and the head is one of the launch's.
            let (factor, lse) = unsafe {
                // Of several splits, who merges them takes the sink in.
                if *of_split { finish(i) } else { with_sink(finish(i), &params.per_head.sinks, head) }
            };
            let target = Target::new(params, work, at, *of_split);
            let mut panel = 0;
            while panel < T::O::ROWS {
                let mut j = 0;
                while j < 2 {
                    let column = 64 * panel as u32 + lane.row(j);
                    if stores_o && column < params.head_dim_v {
                        // SAFETY: the element exists and is this thread's.
                        unsafe {
                            target.store_o::<T::Element>(params, column, o[panel][register(i, j)] * factor)
                        };
                    }
                    j += 1;
                }
                panel += 1;
            }
            if lane.row(0) == 0 {
                // SAFETY: the row exists and is this thread's.
                unsafe { target.store_lse(params, lse) };
            }
        }
        i += 1;
    }
}

/// Counts a split that [`store`] has stored, and merges all of its tile where it is the last.
///
/// # Safety
/// As [`store`], behind it; counters are 0 when the launch begins.
#[inline(always)]
pub(super) unsafe fn merge<T: Tile>(
    params: &DecodeParams,
    item: &Item,
    warpgroup: Warpgroup,
    memory: Memory<T>,
) {
    if !item.of_split || params.counters == 0 {
        return;
    }
    let Item { work, rows, used, .. } = item;
    let splits = splits::count(params, *used);
    // SAFETY: no others come to the barrier. The counter is the tile's; the word in shared memory is written
    // between barriers, behind which the last item's was read.
    unsafe {
        warpgroup.sync(BARRIER);
        if index::thread() == 0 {
            let [tiles, heads] = tiles_and_heads(params, T::BLOCK_M);
            let tile = (work.batch * heads + work.kv_head) * tiles + work.first_row / T::BLOCK_M;
            let done = global::fetch_add_acq_rel(params.counters + 4 * tile as u64, 1);
            shared::store_b32(memory.is_last(), (done + 1 == splits) as u32);
        }
        warpgroup.sync(BARRIER);
        if shared::load_b32(memory.is_last()) != 0 {
            let mut row = index::thread() / 32;
            while row < *rows {
                let at = work.query_row(params, work.first_row + row);
                merge_row::<T::Element>(params, splits, work.batch, &at);
                row += WARPS;
            }
        }
    }
}
