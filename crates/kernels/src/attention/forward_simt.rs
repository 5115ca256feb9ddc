//! FlashAttention v1 on fp32 FMA (Dao et al. 2022, arXiv:2205.14135, Algorithm 1).
//!
//! Runs on any NVIDIA GPU. One block owns one tile of Q and streams the tiles of K and V past it;
//! scores live in registers and shared memory only. The paper's loops are exchanged: with K and V
//! outside, O would travel to device memory and back once per K tile.

mod tile;

use crate::config::ROW_LANES;
use crate::element::Element as _;
use crate::mask::TileMask;
use crate::params::AttentionParams;
use crate::ptx::{barrier, shared};
use crate::registers::Registers;
use crate::scheduler::{Rows, WorkTile};
use crate::score::CapAndBias;
use crate::softmax::{OnlineSoftmax, with_sink};
use crate::tile::simt::{self, GlobalTile, Lane, ROWS, SharedTile};
use tile::{Keys, Output, Queries, Scores};
pub use tile::{SimtTile, Tile};

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 4;

/// O = softmax(softmax_scale·Q·Kᵀ)·V and its log-sum-exp, for one tile of `BLOCK_M` query rows.
///
/// With dropout, weights are dropped as `params.dropout` says. Launch: ⌈Sq / BLOCK_M⌉·H·B blocks of
/// [`Tile::THREADS`] threads with the shared memory of [`Tile::CONFIG`].
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn forward_simt<T: Tile>(params: &AttentionParams) {
    let config = T::CONFIG;
    let q_shared = SharedTile { address: shared::base(), stride: config.row_stride() };
    let kv_shared = SharedTile { address: q_shared.at(T::BLOCK_M, 0), stride: config.row_stride() };
    let p_shared = SharedTile { address: kv_shared.at(T::BLOCK_N, 0), stride: config.p_stride() };

    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head) = unsafe {
        let work = WorkTile::of_block(params, params.seqlen_q.div_ceil(T::BLOCK_M));
        (work, work.kv_head(params))
    };
    let first_row = work.tile * T::BLOCK_M;
    if first_row >= work.queries.len {
        return;
    }
    let mask = TileMask::new(params, &work, first_row, T::BLOCK_M, T::BLOCK_N);
    // Keys that no row of the tile sees are not read.
    let keys = Rows { len: mask.seen.end, ..work.keys };
    let q_shape = (work.queries, params.head_dim);
    let q = GlobalTile::of_head::<T::Element>(params.q, &params.q_strides, &work, work.head, q_shape);
    let k = GlobalTile::of_head::<T::Element>(
        params.k,
        &params.k_strides,
        &work,
        kv_head,
        (keys, params.head_dim),
    );
    let v = GlobalTile::of_head::<T::Element>(
        params.v,
        &params.v_strides,
        &work,
        kv_head,
        (keys, params.head_dim_v),
    );
    let lane = Lane::current();

    let mut acc: Output<T> = [T::Pairs::splat([0.0; 2]); ROWS];
    let changes_scores = CapAndBias::is_needed(params);
    let scale = if changes_scores { 1.0 } else { params.softmax_scale };
    let mut softmax = OnlineSoftmax::<[f32; ROWS], ROW_LANES>::with_positive_scale(scale);
    // SAFETY: the buffers lie behind one another in shared memory, barriers separate each load
    // from the reads before and after it, and all threads run this loop alike.
    unsafe {
        simt::load::<T::Element, Queries<T>>(q_shared, &q.from::<T::Element>(first_row, 0));
        let score_mod = CapAndBias::of_head(params, &work);
        let mut first_key = mask.seen.first;
        while first_key < mask.seen.end {
            let (place, keys) =
                (mask.place(T::BLOCK_M, first_key), T::BLOCK_N.min(mask.seen.end - first_key));
            barrier::sync(0, T::THREADS); // The last step's reads of V and P are over.
            simt::load::<T::Element, Keys<T>>(kv_shared, &k.from::<T::Element>(first_key, 0));
            barrier::sync(0, T::THREADS);
            let mut s: Scores<T> = [T::Row::splat(0.0); ROWS];
            simt::multiply_transposed(&mut s, q_shared, kv_shared, lane, params.head_dim);
            let (row, key) = (|i: usize| lane.row + i as u32, |j: usize| lane.x + ROW_LANES * j as u32);
            if changes_scores {
                let diagonal = TileMask::diagonal_from(params, T::BLOCK_M, place);
                score_mod.apply(params, &mut s, diagonal, row, key);
            }
            if mask.hides(place) {
                TileMask::apply(params, &mut s, T::BLOCK_M, (place, keys), row, key);
            }
            let rescale = softmax.step(&mut s);
            if T::DROPOUT {
                drop_weights(params, &work, &mut s, (first_row + lane.row, first_key + lane.x));
            }
            simt::store_product(p_shared, lane, &s);
            barrier::sync(0, T::THREADS); // All reads of K are over, and P is written.
            simt::load::<T::Element, Keys<T>>(kv_shared, &v.from::<T::Element>(first_key, 0));
            rescale_output(&mut acc, &rescale);
            barrier::sync(0, T::THREADS);
            simt::multiply_accumulate(&mut acc, p_shared, kv_shared, lane, keys);
            first_key += T::BLOCK_N;
        }
        // Found once more rather than kept: the loop has no registers to spare.
        let work = WorkTile::of_block(params, params.seqlen_q.div_ceil(T::BLOCK_M));
        let first_row = work.tile * T::BLOCK_M;
        let o_shape = (work.queries, params.head_dim_v);
        let o = GlobalTile::of_head::<T::Element>(params.o, &params.o_strides, &work, work.head, o_shape);
        let kept = if T::DROPOUT { params.dropout.scale } else { 1.0 };
        let o_tile = o.from::<T::Element>(first_row, 0);
        store_output::<T>(params, &work, &o_tile, first_row, lane, &acc, &softmax, kept);
    }
}

/// Sets the weights that are dropped to 0; the sums, which are of all weights, are taken already. `place` is
/// the query and the key of the thread's first weight.
#[inline(always)]
fn drop_weights<R: Registers<Value = f32>>(
    params: &AttentionParams,
    work: &WorkTile,
    p: &mut [R; ROWS],
    place: (u32, u32),
) {
    let head = work.batch * params.heads + work.head;
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < R::LEN {
            if !params.dropout.keeps(head, place.0 + i as u32, place.1 + ROW_LANES * j as u32) {
                p[i][j] = 0.0;
            }
            j += 1;
        }
        i += 1;
    }
}

/// Brings what was accumulated so far to the new running max.
#[inline(always)]
fn rescale_output<P: Registers<Value = [f32; 2]>>(o: &mut [P; ROWS], rescale: &[f32; ROWS]) {
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < P::LEN {
            o[i][j][0] *= rescale[i];
            o[i][j][1] *= rescale[i];
            j += 1;
        }
        i += 1;
    }
}

/// Normalises and stores the rows that exist, times the factor on weights that were `kept`, and their
/// log-sum-exp where it is wanted.
///
/// # Safety
/// All threads of the block call this together; `o_tile` is writable and this block's own.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the end of a kernel needs all that it has")]
unsafe fn store_output<T: Tile>(
    params: &AttentionParams,
    work: &WorkTile,
    o_tile: &GlobalTile,
    first_row: u32,
    lane: Lane,
    o: &Output<T>,
    softmax: &OnlineSoftmax<[f32; ROWS], ROW_LANES>,
    kept: f32,
) {
    let mut i = 0;
    while i < ROWS {
        let row = lane.row + i as u32;
        // SAFETY: all lanes are here, and a row is stored only where it exists, by one half-warp.
        unsafe {
            let (inverse_sum, lse) =
                with_sink(softmax.finish(i), &params.per_head.sinks, (work.batch, work.head));
            if row < o_tile.rows {
                simt::store_row::<T::Element, _>(o_tile, row, lane, &o[i], inverse_sum * kept);
                if params.lse != 0 && lane.x == 0 {
                    f32::store(params.lse + 4 * work.lse_index(params, first_row + row), lse);
                }
            }
        }
        i += 1;
    }
}
