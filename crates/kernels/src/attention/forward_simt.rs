//! FlashAttention v1 on fp32 FMA (Dao et al. 2022, arXiv:2205.14135, Algorithm 1).
//!
//! Runs on any NVIDIA GPU. One block owns one tile of Q and streams the tiles of K and V past it;
//! scores live in registers and shared memory only. The paper's loops are exchanged: with K and V
//! outside, O would travel to device memory and back once per K tile.

use crate::config::{ROW_LANES, SimtConfig};
use crate::element::Element;
use crate::mask::TileMask;
use crate::params::AttentionParams;
use crate::ptx::{barrier, shared};
use crate::scheduler::{Rows, WorkTile};
use crate::score::ScoreMod;
use crate::softmax::{OnlineSoftmax, with_sink};
use crate::tile::simt::{self, GlobalTile, Lane, ROWS, SharedTile};

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 4;

/// O = softmax(softmax_scale·Q·Kᵀ)·V and its log-sum-exp, for one tile of `BLOCK_M` query rows.
///
/// With `DROPOUT`, weights are dropped as `params.dropout` says. `COLS` = BLOCK_N / 16 and `PAIRS` = HEAD_DIM
/// / 32 are a thread's columns of S and column pairs of O; they are parameters because array lengths cannot
/// be computed from other ones. Launch: ⌈Sq / BLOCK_M⌉·H·B blocks of [`SimtConfig::threads`] threads with
/// [`SimtConfig::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn forward_simt<
    E: Element,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const THREADS: u32,
    const COLS: usize,
    const PAIRS: usize,
    const DROPOUT: bool,
>(
    params: &AttentionParams,
) {
    let config = const {
        let config = SimtConfig { block_m: BLOCK_M, block_n: BLOCK_N, head_dim: HEAD_DIM };
        assert!(config.is_well_formed() && THREADS == config.threads());
        assert!(COLS as u32 * ROW_LANES == BLOCK_N && PAIRS as u32 * 2 * ROW_LANES == HEAD_DIM);
        config
    };
    let q_shared = SharedTile { address: shared::base(), stride: config.row_stride() };
    let kv_shared = SharedTile { address: q_shared.at(BLOCK_M, 0), stride: config.row_stride() };
    let p_shared = SharedTile { address: kv_shared.at(BLOCK_N, 0), stride: config.p_stride() };

    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head) = unsafe {
        let work = WorkTile::of_block(params, params.seqlen_q.div_ceil(BLOCK_M));
        (work, work.kv_head(params))
    };
    let first_row = work.tile * BLOCK_M;
    if first_row >= work.queries.len {
        return;
    }
    let mask = TileMask::new(params, &work, first_row, BLOCK_M, BLOCK_N);
    // Keys that no row of the tile sees are not read.
    let keys = Rows { len: mask.seen.end, ..work.keys };
    let q_shape = (work.queries, params.head_dim);
    let q = GlobalTile::of_head::<E>(params.q, &params.q_strides, &work, work.head, q_shape);
    let k = GlobalTile::of_head::<E>(params.k, &params.k_strides, &work, kv_head, (keys, params.head_dim));
    let v = GlobalTile::of_head::<E>(params.v, &params.v_strides, &work, kv_head, (keys, params.head_dim_v));
    let lane = Lane::current();

    let mut acc = [[[0.0; 2]; PAIRS]; ROWS];
    let changes_scores = ScoreMod::is_needed(params);
    let scale = if changes_scores { 1.0 } else { params.softmax_scale };
    let mut softmax = OnlineSoftmax::<ROWS, ROW_LANES>::with_positive_scale(scale);
    // SAFETY: the buffers lie behind one another in shared memory, barriers separate each load
    // from the reads before and after it, and all threads run this loop alike.
    unsafe {
        simt::load::<E, THREADS, BLOCK_M, HEAD_DIM>(q_shared, &q.from::<E>(first_row, 0));
        let score_mod = ScoreMod::of_head(params, &work);
        let mut first_key = mask.seen.first;
        while first_key < mask.seen.end {
            let (place, keys) = (mask.place(BLOCK_M, first_key), BLOCK_N.min(mask.seen.end - first_key));
            barrier::sync(0, THREADS); // The last step's reads of V and P are over.
            simt::load::<E, THREADS, BLOCK_N, HEAD_DIM>(kv_shared, &k.from::<E>(first_key, 0));
            barrier::sync(0, THREADS);
            let mut s = [[0.0; COLS]; ROWS];
            simt::multiply_transposed(&mut s, q_shared, kv_shared, lane, params.head_dim);
            let (row, key) = (|i: usize| lane.row + i as u32, |j: usize| lane.x + ROW_LANES * j as u32);
            if changes_scores {
                let diagonal = TileMask::diagonal_from(params, BLOCK_M, place);
                score_mod.apply(params, &mut s, diagonal, row, key);
            }
            if mask.hides(place) {
                TileMask::apply(params, &mut s, BLOCK_M, (place, keys), row, key);
            }
            let rescale = softmax.step(&mut s);
            if DROPOUT {
                drop_weights(params, &work, &mut s, (first_row + lane.row, first_key + lane.x));
            }
            simt::store_product(p_shared, lane, &s);
            barrier::sync(0, THREADS); // All reads of K are over, and P is written.
            simt::load::<E, THREADS, BLOCK_N, HEAD_DIM>(kv_shared, &v.from::<E>(first_key, 0));
            rescale_output(&mut acc, &rescale);
            barrier::sync(0, THREADS);
            simt::multiply_accumulate(&mut acc, p_shared, kv_shared, lane, keys);
            first_key += BLOCK_N;
        }
        // Found once more rather than kept: the loop has no registers to spare.
        let work = WorkTile::of_block(params, params.seqlen_q.div_ceil(BLOCK_M));
        let first_row = work.tile * BLOCK_M;
        let o_shape = (work.queries, params.head_dim_v);
        let o = GlobalTile::of_head::<E>(params.o, &params.o_strides, &work, work.head, o_shape);
        let kept = if DROPOUT { params.dropout.scale } else { 1.0 };
        let o_tile = o.from::<E>(first_row, 0);
        store_output::<E, PAIRS>(params, &work, &o_tile, first_row, lane, &acc, &softmax, kept);
    }
}

/// Sets the weights that are dropped to 0; the sums, which are of all weights, are taken already. `place` is
/// the query and the key of the thread's first weight.
#[inline(always)]
fn drop_weights<const COLS: usize>(
    params: &AttentionParams,
    work: &WorkTile,
    p: &mut [[f32; COLS]; ROWS],
    place: (u32, u32),
) {
    let head = work.batch * params.heads + work.head;
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < COLS {
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
fn rescale_output<const PAIRS: usize>(o: &mut [[[f32; 2]; PAIRS]; ROWS], rescale: &[f32; ROWS]) {
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < PAIRS {
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
unsafe fn store_output<E: Element, const PAIRS: usize>(
    params: &AttentionParams,
    work: &WorkTile,
    o_tile: &GlobalTile,
    first_row: u32,
    lane: Lane,
    o: &[[[f32; 2]; PAIRS]; ROWS],
    softmax: &OnlineSoftmax<ROWS, ROW_LANES>,
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
                simt::store_row::<E, PAIRS>(o_tile, row, lane, &o[i], inverse_sum * kept);
                if params.lse != 0 && lane.x == 0 {
                    f32::store(params.lse + 4 * work.lse_index(params, first_row + row), lse);
                }
            }
        }
        i += 1;
    }
}
