//! dK and dV of a tile of keys, and dS on its way to device memory, for [`backward_dq`](super::backward_dq).
//!
//! The loop has one barrier a step: a step's rows, lse and delta are copied while the one before is
//! multiplied, by streams that go on by constants. P and dS stay in the registers of the warp that computed
//! them, as the A operands of the products behind, and pieces of dS are stored from there.

mod kept;
mod stage;

use core::f32::consts::LOG2_E;

use self::kept::Kept;
use self::stage::{Stage, Streams, queries};
use super::Tile;
use super::tile::StepRows;
use crate::attention::stored_ds::{self, PANEL, PIECE, PIECE_QUERIES, ROW_BYTES};
use crate::mask::MaskCorner;
use crate::params::{AttentionParams, BackwardParams, Strides};
use crate::ptx::{barrier, cp_async, index, math, shared, warp};
use crate::registers::{Matrix, Registers as _};
use crate::scheduler::WorkTile;
use crate::tile::mma::{self, CHUNK, Lane, MmaElement as _, MmaTile};
use crate::tile::mma_copy::{ChunkCopy, TileCopy, WordCopy, is_aligned};
use crate::tile::mma_store::store_rows;
use crate::tile::simt::GlobalTile;

/// Barriers of `gradients`, which stands there once for each way of copying; the build fails when the PTX has
/// another number.
pub const KEYS_DS_BARRIERS: u32 = 2;

/// dK and dV of one tile of keys, OWNED of them, summed over the query heads that share it, and dS of these.
///
/// Launch: ⌈Sk / OWNED⌉ blocks of [`Tile::THREADS`] threads, with the shared memory of [`Tile::CONFIG`], for
/// each of some key/value heads from `params.ds.first_unit` on.
///
/// # Safety
/// `params` describes valid device memory with room for dS of those heads, `attention::backward_delta` has
/// run before with the same, and the launch is as above. Nothing but a positive factor changes scores.
#[inline(always)]
pub unsafe fn backward_keys_ds<T: Tile>(params: &BackwardParams) {
    let work = work_tile::<T>(params);
    // A packed sequence may be shorter than the longest, for which there are blocks.
    if work.tile * T::OWNED >= work.keys.len {
        return;
    }
    // SAFETY: all threads take the same branch, which can copy the operands, and store their own rows.
    unsafe {
        let (work, dk, dv) = if rows_are_aligned::<T>(params, &work) {
            gradients::<T, ChunkCopy<false, StepRows<T>>>(params, &work)
        } else {
            gradients::<T, WordCopy<StepRows<T>>>(params, &work)
        };
        store::<T>(params, &work, &dk, &dv);
    }
}

/// The tile of keys that this block works on; its head is the first of those that share them.
#[inline(always)]
fn work_tile<T: Tile>(params: &BackwardParams) -> WorkTile {
    let (attention, first) = (&params.attention, params.ds.first_unit);
    // SAFETY: valid parameters have no empty axis, and a swizzle has a head.
    unsafe {
        let tiles = attention.seqlen_k.div_ceil(T::OWNED);
        WorkTile::of_unit_swizzle(attention, tiles, params.heads_per_swizzle, first)
    }
}

/// The rows that the block owns of two tensors, each an address and strides, with the columns of K and of V.
#[inline(always)]
fn owned<T: Tile>(
    params: &BackwardParams,
    work: &WorkTile,
    tensors: [(u64, &Strides); 2],
) -> [GlobalTile; 2] {
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let kv_head = unsafe { work.kv_head(attention) };
    let of = |(address, strides), columns| {
        let tile = GlobalTile::of_head::<T::Element>(address, strides, work, kv_head, (work.keys, columns));
        tile.from::<T::Element>(work.tile * T::OWNED, 0)
    };
    [of(tensors[0], attention.head_dim), of(tensors[1], attention.head_dim_v)]
}

/// K and V.
#[inline(always)]
fn keys_and_values(attention: &AttentionParams) -> [(u64, &Strides); 2] {
    [(attention.k, &attention.k_strides), (attention.v, &attention.v_strides)]
}

/// Whether all rows of K, V, Q and dO start at multiples of 16 bytes, of all heads that share the keys.
#[inline(always)]
fn rows_are_aligned<T: Tile>(params: &BackwardParams, work: &WorkTile) -> bool {
    let ([q, dout], [k, v]) =
        (queries::<T>(params, work, 0), owned::<T>(params, work, keys_and_values(&params.attention)));
    let head_strides = params.attention.q_strides.head | params.dout_strides.head;
    let alike = params.attention.group == 1 || (2 * head_strides).is_multiple_of(CHUNK as u64);
    alike && is_aligned(&q) && is_aligned(&dout) && is_aligned(&k) && is_aligned(&v)
}

/// A thread's part of dK / softmax_scale and of dV, with one way of copying; dS is stored on the way. The
/// work comes back with them, since the loop has no registers to keep it in.
///
/// # Safety
/// As [`backward_keys_ds`]; `C` can copy the operands.
#[inline(always)]
unsafe fn gradients<T: Tile, C: TileCopy<T::HeadDim>>(
    params: &BackwardParams,
    work: &WorkTile,
) -> (WorkTile, T::Gradient, T::Gradient) {
    const { assert!(T::STORES_DS && !T::SCORE_MOD && !T::DROPOUT && T::COLUMN_WARPS == 1) };
    let attention = &params.attention;
    let first_key = work.tile * T::OWNED;
    let (mut dk, mut dv) = (T::Gradient::zero(), T::Gradient::zero());
    // A piece of dS is half a panel, and whole panels are read.
    let seen = stored_ds::queries(attention, work, first_key);
    let end = seen.end.next_multiple_of(PANEL);
    if seen.first >= seen.end {
        return (*work, dk, dv);
    }
    let [k_tile, v_tile] = owned_tiles::<T>();
    // SAFETY: the buffers lie behind one another in shared memory; a stage is read after its copies were
    // waited for and a barrier, and filled again after the barrier that follows its last reads; all threads
    // run this alike.
    unsafe {
        let kept = Kept::new::<T>();
        if index::thread() == 0 {
            kept.write::<T>(params, work, (seen.first, end));
        }
        clear_columns::<T, C>(attention);
        let [k, v] = owned::<T>(params, work, keys_and_values(&params.attention));
        let (keys, rows) = (k.rows, index::unknown(T::OWNED));
        let (mut k, mut v) = (C::new::<T::Element>(&k), C::new::<T::Element>(&v));
        let mut row = 0;
        while row < rows {
            k.copy(keys.saturating_sub(row), k_tile.from_row(row));
            v.copy(keys.saturating_sub(row), v_tile.from_row(row));
            row += T::STEP;
        }
        let (mut stage, mut next) = (Stage::<T>::new(0), Stage::<T>::new(1));
        let (mut member, mut row) = (0, seen.first);
        let mut streams = Streams::<C>::new::<T>(params, work, row);
        streams.copy(work.queries.len - row, stage);
        cp_async::commit_group();
        cp_async::wait_group::<0>();
        let mut settled = 0;
        while settled < rows {
            k.settle(k_tile.from_row(settled));
            v.settle(v_tile.from_row(settled));
            settled += T::STEP;
        }
        loop {
            cp_async::wait_group::<0>();
            streams.settle(stage);
            barrier::sync(0, T::THREADS); // This stage is there, and all reads of the other are over.
            let (this_member, first_row) = (member, row);
            row += T::STEP;
            let (end, queries) = kept.end_and_queries();
            if row >= end {
                (member, row) = (member + 1, kept.first());
                if member < attention.group {
                    let work = kept.work::<T>();
                    let work = WorkTile { head: work.head + member, ..work };
                    streams = Streams::new::<T>(params, &work, row);
                }
            }
            let goes_on = member < attention.group;
            if goes_on {
                streams.copy(queries.saturating_sub(row), next);
                cp_async::commit_group();
            }
            let corner = kept.corner().behind(0, first_row);
            let (p, ds) = differentiate::<T>(attention, [k_tile, v_tile], stage, corner);
            let (head, first_key) = kept.ds_head_and_key();
            store_ds::<T>(params, head + this_member, (first_row, first_key), &ds);
            mma::multiply_packed::<T::Element, _, _, T::S>(&mut dv, &p, stage.dout());
            mma::multiply_packed::<T::Element, _, _, T::S>(&mut dk, &ds, stage.q);
            if !goes_on {
                return (kept.work::<T>(), dk, dv);
            }
            (stage, next) = (next, stage);
        }
    }
}

/// The rows of K and V that the block owns, in shared memory.
#[inline(always)]
fn owned_tiles<T: Tile>() -> [MmaTile<T::HeadDim>; 2] {
    let first = MmaTile::new(shared::base());
    [first, first.from_row(T::OWNED)]
}

/// Clears what no copy writes of all tiles.
///
/// # Safety
/// All threads of the block call this together, before any copy.
#[inline(always)]
unsafe fn clear_columns<T: Tile, C: TileCopy<T::HeadDim>>(attention: &AttentionParams) {
    let (first, first_v) = (C::copied_columns(attention.head_dim), C::copied_columns(attention.head_dim_v));
    let [k_tile, v_tile] = owned_tiles::<T>();
    // SAFETY: all threads are here, and nothing else is written there.
    unsafe {
        k_tile.clear_columns(first, T::OWNED, T::THREADS);
        v_tile.clear_columns(first_v, T::OWNED, T::THREADS);
        let mut index = 0;
        while index < index::unknown(2) {
            let stage = Stage::<T>::new(index);
            stage.q.clear_columns(first, T::STEP, T::THREADS);
            stage.dout().clear_columns(first_v, T::STEP, T::THREADS);
            index += 1;
        }
    }
}

/// P and dS / softmax_scale of a step, rounded and packed: in both, rows are keys.
type Both<T> =
    ([mma::Packed<<T as Tile>::S>; mma::PACKED_BLOCKS], [mma::Packed<<T as Tile>::S>; mma::PACKED_BLOCKS]);

/// P and dS of a stage that is there. `corner` is the mask from its first query and the block's first key on.
///
/// # Safety
/// K, V and the stage are written, with a barrier between; all lanes of the warp call this together.
#[inline(always)]
unsafe fn differentiate<T: Tile>(
    attention: &AttentionParams,
    [k_tile, v_tile]: [MmaTile<T::HeadDim>; 2],
    stage: Stage<T>,
    corner: MaskCorner,
) -> Both<T> {
    let lane = Lane::reread(T::S::ROWS);
    let (mut p, mut ds) = (T::S::zero(), T::S::zero());
    // SAFETY: the tiles are written, with a barrier between, and all lanes are here.
    unsafe { mma::multiply_transposed::<T::Element, _, _>(&mut p, k_tile, lane.warp_row, stage.q, !0) };
    if !corner.all_see(attention, T::OWNED, T::STEP) {
        let near = corner.behind(lane.row(0), lane.column(0));
        near.apply(attention, &mut p, |i, j| (8 * i as u32, 8 * (j / 2) as u32 + (j % 2) as u32));
    }
    // SAFETY: as above.
    unsafe {
        mma::multiply_transposed::<T::Element, _, _>(&mut ds, v_tile, lane.warp_row, stage.dout(), !0);
    }
    let scale = attention.softmax_scale * LOG2_E;
    let stats = stage.stats() + 8 * lane.pair;
    let mut j = 0;
    while j < T::S::COLS {
        // SAFETY: lse and delta of the stage's rows are written, with a barrier between.
        let (lse, delta) = unsafe {
            let at = stats + 16 * j as u32;
            (shared::load2(at), shared::load2(at + 4 * T::STEP))
        };
        let mut column = 0;
        while column < 2 {
            // A row that does not exist or sees no key has no P.
            let sees = lse[column] != f32::NEG_INFINITY;
            let shift = if sees { lse[column] * LOG2_E } else { f32::INFINITY };
            let mut i = 0;
            while i < T::S::ROWS {
                let weight = math::exp2(math::fma(p[i][j + column], scale, -shift));
                ds[i][j + column] = weight * (ds[i][j + column] - delta[column]);
                p[i][j + column] = weight;
                i += 1;
            }
            column += 1;
        }
        j += 2;
    }
    let mut packed = [[mma::Packed::<T::S>::ZERO; mma::PACKED_BLOCKS]; 2];
    let mut m = 0;
    while m < T::S::ROWS / 2 {
        packed[0][m] = mma::pack_rows::<T::Element, T::S>(&p, m);
        packed[1][m] = mma::pack_rows::<T::Element, T::S>(&ds, m);
        m += 1;
    }
    (packed[0], packed[1])
}

/// Stores a thread's part of dS of a step, of the `head`-th of those that the launch stores dS of.
///
/// # Safety
/// dS of the head has room for the step's queries and the block's keys, which are this block's own.
#[inline(always)]
unsafe fn store_ds<T: Tile>(
    params: &BackwardParams,
    head: u32,
    (row, first_key): (u32, u32),
    ds: &[mma::Packed<T::S>; mma::PACKED_BLOCKS],
) {
    let half = row % PANEL / PIECE_QUERIES * (ROW_BYTES / 2 / PIECE);
    let key = first_key + Lane::reread(T::S::ROWS).row(0);
    let first = stored_ds::piece(&params.ds, head, (row, key)) + half;
    // Pieces and operands are neighbours in other registers: without words of their own, ptxas moves the
    // operands again for each product.
    let zero = index::zero();
    let mut m = 0;
    while m < T::S::ROWS / 2 {
        let mut words = ds[m];
        let mut i = 0;
        while i < T::S::COLS {
            words[i] |= zero;
            i += 1;
        }
        let behind = 16 * m as u32 * (ROW_BYTES / PIECE);
        // SAFETY: the pieces are this thread's, in rows that are writable.
        unsafe { stored_ds::store(&params.ds, first + behind, &words) };
        m += 1;
    }
}

/// Stores a thread's part of both gradients, by way of the rows of K and V, which its warp alone read.
///
/// # Safety
/// All threads of the block call this together; the gradients are writable, and these rows the block's own.
#[inline(always)]
unsafe fn store<T: Tile>(params: &BackwardParams, work: &WorkTile, dk: &T::Gradient, dv: &T::Gradient) {
    let tiles = owned_tiles::<T>();
    let targets =
        owned::<T>(params, work, [(params.dk, &params.dk_strides), (params.dv, &params.dv_strides)]);
    let lane = Lane::reread(T::S::ROWS);
    let stage = |tile: MmaTile<T::HeadDim>, gradient: &T::Gradient, factor: f32| {
        let mut i = 0;
        while i < T::Gradient::ROWS {
            let mut j = 0;
            while j < T::Gradient::COLS {
                let pair = T::Element::pack(gradient[i][j] * factor, gradient[i][j + 1] * factor);
                // SAFETY: the word lies in a row that no other warp accesses any more.
                unsafe { shared::store_b32(tile.at(lane.row(i), lane.column(j)), pair) };
                j += 2;
            }
            i += 1;
        }
    };
    // SAFETY: all lanes are here, and the rows are their warp's.
    unsafe {
        warp::sync();
        stage(tiles[0], dk, params.attention.softmax_scale);
        stage(tiles[1], dv, 1.0);
        warp::sync();
        let mut i = 0;
        while i < 2 {
            if lane.warp_row < targets[i].rows {
                let target = targets[i].from::<T::Element>(lane.warp_row, 0);
                store_rows::<T::Element, _>(tiles[i].from_row(lane.warp_row), T::WARP_ROWS, &target, 0);
            }
            i += 1;
        }
    }
}
