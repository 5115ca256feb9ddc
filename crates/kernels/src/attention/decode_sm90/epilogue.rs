//! Where an item's result goes.

use crate::attention::split_output::Target;
use crate::params::DecodeParams;
use crate::registers::Matrix;
use crate::softmax::with_sink;
use crate::tile::mma::Lane;

use super::consumer::register;
use super::fragments::column_of;
use super::tile::Tile;
use crate::attention::work_items::Item;

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
                    let of_panel = if T::WIDENS { column_of(lane, j) } else { lane.row(j) };
                    let column = 64 * panel as u32 + of_panel;
                    if stores_o && column < params.cache.head_dim_v {
                        let mut value = o[panel][register(i, j)] * (factor / T::WEIGHT_SCALE);
                        if T::WIDENS {
                            value *= item.v_descale;
                        }
                        // SAFETY: the element exists and is this thread's.
                        unsafe { target.store_o::<T::Element>(params, column, value) };
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
