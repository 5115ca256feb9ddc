//! Where an item's result goes.

use crate::attention::combine::{lse_row, partial_o};
use crate::attention::split_output::Target;
use crate::attention::work_items::Item;
use crate::hopper::epilogue::{scale_rows, store_chunk, write_panel};
use crate::hopper::roles::{WARP_ROWS, WARPGROUP};
use crate::params::DecodeParams;
use crate::ptx::{global, index, warp};
use crate::softmax::with_sink;
use crate::tile::mma::{CHUNK, Lane, MmaElement};
use crate::tile::panels::Panels;

use super::memory::{HALF, Memory, ValueHalf};

/// A thread's part of O.
type Output = [f32; HALF as usize / 2];

/// Elements of a chunk of 16 bytes.
const ELEMENTS: u32 = CHUNK / 2;

/// Stores the rows of an item that exist, this warpgroup's half of their columns, and by that of `side` 0
/// their log-sum-exps: as O and lse, or as those of a split, of which nothing reads O unless it has keys.
/// `finished` has both rows' factors and log-sum-exps.
///
/// # Safety
/// All threads of the warpgroup call this together. Those columns of O, and lse, are theirs, and so is the
/// memory of Q from [`Memory::q`] on, half of a block for each warpgroup.
#[inline(always)]
pub(super) unsafe fn store<E: MmaElement>(
    params: &DecodeParams,
    item: &Item,
    (memory, side): (Memory, u32),
    o: &mut Output,
    finished: [(f32, f32); 2],
) {
    let lane = Lane::of_thread(index::reread_thread() % WARPGROUP, 2);
    let mut factors = [0.0; 2];
    let mut i = 0;
    while i < 2 {
        let row = lane.row(i);
        let at = item.work.query_row(params, item.work.first_row + row);
        let head = (item.work.batch, at.head);
        let exists = row < item.rows;
        // SAFETY: the sinks are readable, and the head is one of the launch's; the row is this thread's.
        unsafe {
            // Of several splits, who merges them takes the sink in.
            let (factor, lse) = match item.of_split || !exists {
                true => finished[i],
                false => with_sink(finished[i], &params.per_head.sinks, head),
            };
            factors[i] = factor;
            if exists && side == 0 && lane.pair == 0 {
                Target::new(params, &item.work, at, item.of_split).store_lse(params, lse);
            }
        }
        i += 1;
    }
    scale_rows(o, factors);
    // SAFETY: as the caller says.
    unsafe {
        if !item.of_split {
            store_rows::<E>(params, item, (memory, side), o);
        } else if item.keys.has_keys() {
            store_part(params, item, side, o);
        }
    }
}

/// Stores rows of O: rounded to shared memory, and from there by chunks of 16 bytes, or element by element
/// where rows start elsewhere.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_rows<E: MmaElement>(
    params: &DecodeParams,
    item: &Item,
    (memory, side): (Memory, u32),
    o: &Output,
) {
    let thread = index::reread_thread() % WARPGROUP;
    let (first_row, lane) = (thread / 32 * WARP_ROWS, thread % 32);
    let half = Panels::<ValueHalf>::new(memory.q().address + side * Panels::<ValueHalf>::BYTES);
    let mut panel = 0;
    while panel < Panels::<ValueHalf>::COUNT {
        // SAFETY: the lines are this warp's, whose lanes are together.
        unsafe { write_panel::<E, _>(lane, half.from_row(first_row).panel(panel), o, panel) };
        panel += 1;
    }
    // SAFETY: all lanes of the warp are here.
    unsafe { warp::sync() };
    const { assert!(HALF == 32 * ELEMENTS) };
    let column = side * HALF + ELEMENTS * lane;
    let columns = params.cache.head_dim_v.saturating_sub(column).min(ELEMENTS);
    let in_chunks = params.o_strides.are_in_chunks(params.o, params.cache.head_dim_v);
    let mut row = first_row;
    while row < (first_row + WARP_ROWS).min(item.rows) {
        let at = item.work.query_row(params, item.work.first_row + row);
        let first = params.o_strides.offset(item.work.batch, at.position, at.head);
        let target = params.o + E::BYTES * (first + column as u64);
        let source = half.at(row, lane);
        // SAFETY: the elements exist, and are this thread's.
        unsafe { store_chunk(target, source, columns, in_chunks) };
        row += 1;
    }
}

/// Stores a split's rows of O, four columns at a time: of two blocks of eight, each of two neighbouring lanes
/// takes four from both.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_part(params: &DecodeParams, item: &Item, side: u32, o: &Output) {
    let lane = Lane::of_thread(index::reread_thread() % WARPGROUP, 2);
    let is_second = lane.pair % 2 == 1;
    let first = side * HALF + 8 * is_second as u32 + 4 * (lane.pair / 2);
    let mut i = 0;
    while i < 2 {
        let row = lane.row(i);
        let at = item.work.query_row(params, item.work.first_row + row);
        let address = partial_o(&params.cache, item.work.split, lse_row(params, item.work.batch, &at), first);
        let mut j = 0;
        while j < HALF as usize / 16 {
            let of = |block: usize| [o[8 * j + 4 * block + 2 * i], o[8 * j + 4 * block + 2 * i + 1]];
            let (kept, given) = if is_second { (of(1), of(0)) } else { (of(0), of(1)) };
            // SAFETY: all lanes of the warp are here.
            let got = unsafe { [warp::shuffle_xor(given[0], 1), warp::shuffle_xor(given[1], 1)] };
            let [a, b] = if is_second { [got, kept] } else { [kept, got] };
            if row < item.rows && first + 16 * (j as u32) < params.cache.head_dim_v {
                // SAFETY: a split's rows have a multiple of four columns, and these are this thread's.
                unsafe {
                    global::store4(address + 64 * j as u64, [a[0], a[1], b[0], b[1]].map(f32::to_bits));
                }
            }
            j += 1;
        }
        i += 1;
    }
}
