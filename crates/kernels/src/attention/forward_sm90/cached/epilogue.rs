//! How rows of packed heads leave, or their parts that are merged with others.

use core::marker::PhantomData;

use super::query_head;
use crate::attention::combine::{partial_lse, partial_o};
use crate::attention::forward_sm90::scheduler::TileSlots;
use crate::attention::forward_sm90::tile::{OutputRows, Tile};
use crate::attention::forward_sm90::{Operand, Pipeline, first_row};
use crate::attention::splits::Splits;
use crate::element::Element;
use crate::hopper::epilogue::{scale_rows, store_chunk, write_panel};
use crate::hopper::roles::{WARP_ROWS, WARPGROUP};
use crate::params::{AttentionParams, PersistentParams, Strides};
use crate::ptx::{index, warp};
use crate::registers::Registers as _;
use crate::softmax::with_sink;
use crate::tile::mma::{CHUNK, Lane};
use crate::tile::panels::Panels;
use crate::tile::wgmma::chunk;

/// Storage type of O.
type Rounded<T> = <<T as Tile>::Element as Operand>::Output;

/// Elements of a chunk of 16 bytes.
const ELEMENTS: u32 = CHUNK / 2;

/// Chunks of a row of a panel.
const CHUNKS: u32 = 8;

/// Stores the rows that exist, and their log-sum-exp; `finished` has both rows' 1/l and lse.
///
/// # Safety
/// All lanes of the warp call this together; these rows of O, or of the split's, are its alone.
#[inline(always)]
pub(in crate::attention::forward_sm90) unsafe fn store<T: Tile>(
    params: &PersistentParams,
    pipeline: Pipeline<T>,
    slots: &TileSlots,
    o: &mut T::O,
    finished: [(f32, f32); 2],
) {
    let splits = Splits::of_cache(&params.cache).count(slots.work().keys.len);
    if slots.split() >= splits {
        return;
    }
    let rows = RowsOfPack { params, slots, tile: PhantomData::<T> };
    let mut finished = finished;
    // SAFETY: the rows are this warp's, whose lanes are together; the head is one of the launch's.
    unsafe {
        // Of several splits, who merges them takes the sink in.
        if splits == 1 {
            let work = slots.work();
            let head = (work.batch, query_head(params, work.head, Lane::reread(2).row(0)));
            finished = finished.map(|row| with_sink(row, &params.attention.per_head.sinks, head));
        }
        let v_descale = slots.v_descale();
        scale_rows(o, [finished[0].0 * v_descale, finished[1].0 * v_descale]);
        if splits == 1 {
            store_rows(&rows, pipeline, o);
        }
        store_rest(&rows, splits > 1, o, [finished[0].1, finished[1].1]);
    }
}

/// The rows of the tile at hand. What is known of it is read again by each call: O leaves no registers.
struct RowsOfPack<'a, T> {
    params: &'a PersistentParams,
    slots: &'a TileSlots,
    tile: PhantomData<T>,
}

impl<T: Tile> RowsOfPack<'_, T> {
    /// Offset of a row in elements of a tensor with these strides, if the row exists.
    #[inline(always)]
    fn offset(&self, strides: &Strides, row: u32) -> Option<u64> {
        let work = self.slots.work();
        let position = (first_row::<T>(self.params, work.tile) + row) >> self.params.cache.head_bits;
        let head = query_head(self.params, work.head, row);
        if position >= work.queries.len {
            return None;
        }
        Some(work.offset(strides, work.queries, head) + position as u64 * strides.row)
    }

    /// Index of a row in lse, if it exists.
    #[inline(always)]
    fn lse(&self, row: u32) -> Option<u64> {
        self.offset(&self.params.attention.lse_strides, row)
    }

    /// Address of the first column of a row of O, if it exists.
    #[inline(always)]
    fn o(&self, row: u32) -> Option<u64> {
        let AttentionParams { o, o_strides, .. } = &self.params.attention;
        Some(o + 2 * self.offset(o_strides, row)?)
    }
}

/// Stores the log-sum-exps of a thread's two rows, and of a split its part of their O.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_rest<T: Tile>(rows: &RowsOfPack<'_, T>, of_split: bool, o: &T::O, lse: [f32; 2]) {
    let (cache, lane) = (&rows.params.cache, Lane::reread(2));
    let split = rows.slots.split();
    let mut i = 0;
    while i < 2 {
        if let Some(row) = rows.lse(lane.row(i)) {
            let target = rows.params.attention.lse + 4 * row;
            let target = if of_split { partial_lse(cache, split, row) } else { target };
            // SAFETY: row and columns exist, and are this thread's.
            unsafe {
                if lane.pair == 0 && (of_split || rows.params.attention.lse != 0) {
                    f32::store(target, lse[i]);
                }
                let first = partial_o(cache, split, row, 2 * lane.pair);
                // Nothing reads what a split without keys has of O.
                let columns = if of_split && lse[i] > f32::NEG_INFINITY { cache.head_dim_v } else { 0 };
                let mut j = 0;
                while j < T::O::LEN / 4 {
                    let column = 8 * j as u32;
                    if column + 2 * lane.pair < columns {
                        f32::store(first + 4 * column as u64, o[4 * j + 2 * i]);
                        f32::store(first + 4 * column as u64 + 4, o[4 * j + 2 * i + 1]);
                    }
                    j += 1;
                }
            }
        }
        i += 1;
    }
}

/// Rounds a warp's rows to shared memory panel by panel, and stores them from there by chunks of 16 bytes, or
/// element by element where rows start elsewhere.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_rows<T: Tile>(rows: &RowsOfPack<'_, T>, pipeline: Pipeline<T>, o: &T::O) {
    // Other kernels instantiate this too, and never call it.
    const { assert!(!T::IN_CACHE || T::CONFIG.output_panels() > 0) };
    let lines = || {
        let thread = index::reread_thread();
        let in_warpgroup = thread % WARPGROUP / 32 * WARP_ROWS;
        pipeline.o(thread / WARPGROUP).from_row(in_warpgroup).panel(0)
    };
    let mut panel = 0;
    while panel < Panels::<OutputRows<T>>::COUNT {
        // SAFETY: the lines are this warp's, whose lanes are together; elements that exist are stored by one.
        unsafe {
            write_panel::<Rounded<T>, _>(index::reread_thread() % 32, lines(), o, panel);
            warp::sync();
            let mut at = index::reread_thread() % 32;
            while at < WARP_ROWS * CHUNKS {
                store_chunk_of(rows, lines(), panel, at);
                at += 32;
            }
            warp::sync();
        }
        panel += 1;
    }
}

/// Stores the `at`-th chunk of a warp's part of a panel, if it exists.
///
/// # Safety
/// As [`store`]; the chunk is in `lines`.
#[inline(always)]
unsafe fn store_chunk_of<T: Tile>(rows: &RowsOfPack<'_, T>, lines: u32, panel: u32, at: u32) {
    let AttentionParams { o, o_strides, head_dim_v, .. } = &rows.params.attention;
    let row = index::reread_thread() / 32 * WARP_ROWS + at / CHUNKS;
    let Some(first) = rows.o(row) else { return };
    let column = Panels::<OutputRows<T>>::LINE_ELEMENTS * panel + ELEMENTS * (at % CHUNKS);
    let columns = head_dim_v.saturating_sub(column).min(ELEMENTS);
    let (source, target) = (chunk(lines, at / CHUNKS, at % CHUNKS), first + 2 * column as u64);
    // SAFETY: the elements exist, and are this thread's.
    unsafe { store_chunk(target, source, columns, o_strides.are_in_chunks(*o, *head_dim_v)) };
}
