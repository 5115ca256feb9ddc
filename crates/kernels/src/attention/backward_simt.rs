//! The backward pass of FlashAttention-2 on fp32 FMA (Dao 2023, arXiv:2307.08691, Algorithm 2).
//!
//! P = exp(S − lse) and dS = P ∘ (dO·Vᵀ − delta) are computed again, tile by tile, and never leave the block.
//! The paper adds dQ up with atomics; here one kernel owns keys and goes over queries, for dK and dV, and
//! another owns queries and goes over keys, for dQ. That computes S and dO·Vᵀ twice, and gives the same bits
//! in each run.

mod tile;

use super::gradient::{Place, RowStats, differentiate};
use crate::config::{BackwardConfig, ROW_LANES};
use crate::mask::{MaskCorner, QueryRange, TileMask};
use crate::params::BackwardParams;
use crate::ptx::{barrier, index, shared, warp};
use crate::registers::Registers;
use crate::scheduler::{Rows, WorkTile};
use crate::score::CapAndBias;
use crate::tile::simt::{self, GlobalTile, Lane, ROWS, SharedTile};
pub use tile::{BackwardSimtTile, Tile};
use tile::{Gradient, Owned, Scores, Step};

/// Barriers in the source of each of the two kernels; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 2;

/// dK and dV of one tile of keys, OWNED of them, summed over the query heads that share it.
///
/// With dropout, weights are dropped as `params.attention.dropout` says, as in the forward pass.
/// Launch: ⌈Sk / OWNED⌉·H / group·B blocks of [`Tile::THREADS`] threads with the shared memory of
/// [`Tile::CONFIG`].
///
/// # Safety
/// `params` describes valid device memory, `attention::backward_delta` has run before with the same, and the
/// launch is as above.
#[inline(always)]
pub unsafe fn backward_keys<T: Tile>(params: &BackwardParams) {
    let shared = SharedTiles::new(T::CONFIG);
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head) = unsafe {
        let work = WorkTile::of_key_block(attention, attention.seqlen_k.div_ceil(T::OWNED));
        (work, work.kv_head(attention))
    };
    let first_key = work.tile * T::OWNED;
    if first_key >= work.keys.len {
        return;
    }
    let (head_dim, head_dim_v) = (attention.head_dim, attention.head_dim_v);
    let lane = Lane::current();
    let mut dk = [T::Pairs::splat([0.0; 2]); ROWS];
    let mut dv = [T::Pairs::splat([0.0; 2]); ROWS];
    // SAFETY: the buffers lie behind one another in shared memory, barriers separate each load from the reads
    // before and after it, and all threads run these loops alike. A half-warp alone writes and reads its rows
    // of P and dS.
    unsafe {
        let (k_shape, v_shape) = ((work.keys, head_dim), (work.keys, head_dim_v));
        let k = GlobalTile::of_head::<T::Element>(attention.k, &attention.k_strides, &work, kv_head, k_shape);
        let v = GlobalTile::of_head::<T::Element>(attention.v, &attention.v_strides, &work, kv_head, v_shape);
        simt::load::<T::Element, Owned<T>>(shared.owned[0], &k.from::<T::Element>(first_key, 0));
        simt::load::<T::Element, Owned<T>>(shared.owned[1], &v.from::<T::Element>(first_key, 0));
        let seen = QueryRange::of_keys(attention, &work, first_key, T::OWNED);
        // Queries that see no key of the tile are not read.
        let queries = Rows { len: seen.end, ..work.queries };
        let mut head = 0;
        while head < attention.group {
            let work = WorkTile { head: work.head + head, ..work };
            let score_mod = CapAndBias::of_head(attention, &work);
            let mut first_row = seen.first;
            while first_row < seen.end {
                // From a head that is read anew: the loops have no registers to spare for addresses.
                let work = WorkTile { head: index::unknown(work.head), ..work };
                let (q_shape, dout_shape) = ((queries, head_dim), (queries, head_dim_v));
                let q = GlobalTile::of_head::<T::Element>(
                    attention.q,
                    &attention.q_strides,
                    &work,
                    work.head,
                    q_shape,
                );
                let dout = GlobalTile::of_head::<T::Element>(
                    params.dout,
                    &params.dout_strides,
                    &work,
                    work.head,
                    dout_shape,
                );
                barrier::sync(0, T::THREADS); // The last step's reads of Q and dO are over.
                simt::load_as::<T::Element, Step<T>>(
                    index::reread_thread(),
                    shared.step[0],
                    &q.from::<T::Element>(first_row, 0),
                );
                simt::load_as::<T::Element, Step<T>>(
                    index::reread_thread(),
                    shared.step[1],
                    &dout.from::<T::Element>(first_row, 0),
                );
                barrier::sync(0, T::THREADS);
                let (mut p, mut ds): (Scores<T>, Scores<T>) =
                    ([T::Row::splat(0.0); ROWS], [T::Row::splat(0.0); ROWS]);
                simt::multiply_transposed(&mut p, shared.owned[0], shared.step[0], lane, head_dim);
                simt::multiply_transposed(&mut ds, shared.owned[1], shared.step[1], lane, head_dim_v);
                let row = first_row + lane.x;
                let stats = RowStats::load::<<T::Row as Registers>::Of<RowStats>>(params, &work, row, |j| {
                    ROW_LANES * j as u32
                });
                let tile = MaskCorner::new(attention, &work, first_row, first_key);
                let place = Place {
                    row,
                    key: first_key + lane.row,
                    whole: tile.all_see(attention, T::OWNED, T::STEP),
                };
                let query = |_, j: usize| (ROW_LANES * j as u32, j);
                let key = |i: usize, _| i as u32;
                differentiate::<T, _, _>(
                    attention,
                    &work,
                    score_mod,
                    (&mut p, &mut ds),
                    place,
                    &stats,
                    query,
                    key,
                    keeps(params, place, query, key),
                );
                // Those behind see no key of the tile.
                let rows = T::STEP.min(seen.end - first_row);
                simt::store_product(shared.product, lane, &p);
                warp::sync();
                simt::multiply_accumulate(&mut dv, shared.product, shared.step[1], lane, rows);
                warp::sync();
                simt::store_product(shared.product, lane, &ds);
                warp::sync();
                simt::multiply_accumulate(&mut dk, shared.product, shared.step[0], lane, rows);
                first_row += T::STEP;
            }
            head += 1;
        }
        // Found once more rather than kept: the loops have no registers to spare.
        let work = WorkTile::of_key_block(attention, attention.seqlen_k.div_ceil(T::OWNED));
        let (kv_head, first_key) = (work.kv_head(attention), work.tile * T::OWNED);
        let (k_shape, v_shape) = ((work.keys, head_dim), (work.keys, head_dim_v));
        let dk_tile =
            GlobalTile::of_head::<T::Element>(params.dk, &params.dk_strides, &work, kv_head, k_shape);
        let dv_tile =
            GlobalTile::of_head::<T::Element>(params.dv, &params.dv_strides, &work, kv_head, v_shape);
        store::<T>(&dk_tile.from::<T::Element>(first_key, 0), lane, &dk, attention.softmax_scale);
        store::<T>(&dv_tile.from::<T::Element>(first_key, 0), lane, &dv, 1.0);
    }
}

/// dQ of one tile of query rows, OWNED of them.
///
/// Launch: ⌈Sq / OWNED⌉·H·B blocks, otherwise as [`backward_keys`].
///
/// # Safety
/// As [`backward_keys`].
#[inline(always)]
pub unsafe fn backward_queries<T: Tile>(params: &BackwardParams) {
    let shared = SharedTiles::new(T::CONFIG);
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head) = unsafe {
        let work = WorkTile::of_block(attention, attention.seqlen_q.div_ceil(T::OWNED));
        (work, work.kv_head(attention))
    };
    let first_row = work.tile * T::OWNED;
    if first_row >= work.queries.len {
        return;
    }
    let (head_dim, head_dim_v) = (attention.head_dim, attention.head_dim_v);
    let lane = Lane::current();
    let mut dq = [T::Pairs::splat([0.0; 2]); ROWS];
    // SAFETY: as in `backward_keys`.
    unsafe {
        let (q_shape, dout_shape) = ((work.queries, head_dim), (work.queries, head_dim_v));
        let q =
            GlobalTile::of_head::<T::Element>(attention.q, &attention.q_strides, &work, work.head, q_shape);
        let dout = GlobalTile::of_head::<T::Element>(
            params.dout,
            &params.dout_strides,
            &work,
            work.head,
            dout_shape,
        );
        simt::load::<T::Element, Owned<T>>(shared.owned[0], &q.from::<T::Element>(first_row, 0));
        simt::load::<T::Element, Owned<T>>(shared.owned[1], &dout.from::<T::Element>(first_row, 0));
        let score_mod = CapAndBias::of_head(attention, &work);
        let seen = TileMask::new(attention, &work, first_row, T::OWNED, T::STEP).seen;
        let keys = Rows { len: seen.end, ..work.keys };
        let (k_shape, v_shape) = ((keys, head_dim), (keys, head_dim_v));
        let k = GlobalTile::of_head::<T::Element>(attention.k, &attention.k_strides, &work, kv_head, k_shape);
        let v = GlobalTile::of_head::<T::Element>(attention.v, &attention.v_strides, &work, kv_head, v_shape);
        let mut first_key = seen.first;
        while first_key < seen.end {
            barrier::sync(0, T::THREADS); // The last step's reads of K are over.
            simt::load_as::<T::Element, Step<T>>(
                index::reread_thread(),
                shared.step[0],
                &k.from::<T::Element>(first_key, 0),
            );
            simt::load_as::<T::Element, Step<T>>(
                index::reread_thread(),
                shared.step[1],
                &v.from::<T::Element>(first_key, 0),
            );
            barrier::sync(0, T::THREADS);
            let (mut p, mut ds): (Scores<T>, Scores<T>) =
                ([T::Row::splat(0.0); ROWS], [T::Row::splat(0.0); ROWS]);
            simt::multiply_transposed(&mut p, shared.owned[0], shared.step[0], lane, head_dim);
            simt::multiply_transposed(&mut ds, shared.owned[1], shared.step[1], lane, head_dim_v);
            let tile = MaskCorner::new(attention, &work, first_row, first_key);
            let place = Place {
                row: first_row + lane.row,
                key: first_key + lane.x,
                whole: tile.all_see(attention, T::STEP, T::OWNED),
            };
            let stats = RowStats::load::<[RowStats; ROWS]>(params, &work, place.row, |i| i as u32);
            let query = |i: usize, _| (i as u32, i);
            let key = |_, j: usize| ROW_LANES * j as u32;
            differentiate::<T, _, _>(
                attention,
                &work,
                score_mod,
                (&mut p, &mut ds),
                place,
                &stats,
                query,
                key,
                keeps(params, place, query, key),
            );
            simt::store_product(shared.product, lane, &ds);
            warp::sync();
            simt::multiply_accumulate(
                &mut dq,
                shared.product,
                shared.step[0],
                lane,
                T::STEP.min(seen.end - first_key),
            );
            first_key += T::STEP;
        }
        // As in `backward_keys`.
        let work = WorkTile::of_block(attention, attention.seqlen_q.div_ceil(T::OWNED));
        let (first_row, q_shape) = (work.tile * T::OWNED, (work.queries, head_dim));
        let dq_tile =
            GlobalTile::of_head::<T::Element>(params.dq, &params.dq_strides, &work, work.head, q_shape);
        store::<T>(&dq_tile.from::<T::Element>(first_row, 0), lane, &dq, attention.softmax_scale);
    }
}

/// Whether dropout keeps the weight of an element of a query head, which lies behind `place` as `query` and
/// `key` say. Drawn by each call, from a seed read anew: the loops have no registers to keep it in.
#[inline(always)]
fn keeps(
    params: &BackwardParams,
    place: Place,
    query: impl Fn(usize, usize) -> (u32, usize),
    key: impl Fn(usize, usize) -> u32,
) -> impl Fn(u32, usize, usize) -> bool {
    let dropout = params.attention.dropout;
    move |head, i, j| dropout.reread().keeps(head, place.row + query(i, j).0, place.key + key(i, j))
}

/// The tiles of a block: what it owns (K and V, or Q and dO), what it goes over (the others), and P and dS in
/// turn.
struct SharedTiles {
    owned: [SharedTile; 2],
    step: [SharedTile; 2],
    product: SharedTile,
}

impl SharedTiles {
    #[inline(always)]
    fn new(config: BackwardConfig) -> Self {
        let stride = config.product().row_stride();
        let first = SharedTile { address: shared::base(), stride };
        let behind = |tile: SharedTile, rows| SharedTile { address: tile.at(rows, 0), stride };
        let owned = [first, behind(first, config.owned)];
        let third = behind(owned[1], config.owned);
        let step = [third, behind(third, config.step)];
        let product = SharedTile { stride: config.product().p_stride(), ..behind(step[1], config.step) };
        Self { owned, step, product }
    }
}

/// Rounds a thread's rows of a gradient, times `factor`, into those of the tile that exist.
///
/// # Safety
/// The tile is writable and this block's own.
#[inline(always)]
unsafe fn store<T: Tile>(tile: &GlobalTile, lane: Lane, gradient: &Gradient<T>, factor: f32) {
    let mut i = 0;
    while i < ROWS {
        let row = lane.row + i as u32;
        if row < tile.rows {
            // SAFETY: the row exists in the block's tile, and is one half-warp's alone.
            unsafe { simt::store_row::<T::Element, _>(tile, row, lane, &gradient[i], factor) };
        }
        i += 1;
    }
}
