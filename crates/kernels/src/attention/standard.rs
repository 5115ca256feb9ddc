//! Standard attention as three kernels: scores, softmax, values. The baseline that FlashAttention
//! is compared with: S and P travel through device memory in the storage type.

use crate::config::{ROW_LANES, ROW_PADDING};
use crate::element::Element;
use crate::mask::TileMask;
use crate::params::AttentionParams;
use crate::ptx::{barrier, index, math, shared};
use crate::scheduler::WorkTile;
use crate::score::CapAndBias;
use crate::softmax::{reduce, with_sink};
use crate::tile::simt::{self, GlobalTile, Lane, Loaded, ROWS, SharedTile};

/// Threads of each of the three kernels.
pub const THREADS: u32 = 256;
/// Rows of the product that a block of [`scores`] or [`values`] computes.
pub const BLOCK_M: u32 = 64;
/// Columns of the product that a block of [`scores`] or [`values`] computes.
pub const BLOCK_N: u32 = 64;
/// Depth of one step through shared memory.
pub const BLOCK_K: u32 = 32;
/// Rows that a block of [`softmax`] takes: one per warp.
pub const SOFTMAX_ROWS: u32 = THREADS / 32;
/// Barriers in [`scores`] and in [`values`]; [`softmax`] has none.
pub const BARRIERS: u32 = 2;

const K_STRIDE: u32 = BLOCK_K + ROW_PADDING;
const N_STRIDE: u32 = BLOCK_N + ROW_PADDING;
/// Bytes of shared memory of [`scores`].
pub const SCORES_SHARED_BYTES: u32 = 4 * (BLOCK_M + BLOCK_N) * K_STRIDE;
/// Bytes of shared memory of [`values`].
pub const VALUES_SHARED_BYTES: u32 = 4 * (BLOCK_M * K_STRIDE + BLOCK_K * N_STRIDE);

/// What a block loads at a time.
struct Part<const ROWS: u32, const COLUMNS: u32>;

impl<const ROWS: u32, const COLUMNS: u32> Loaded for Part<ROWS, COLUMNS> {
    const ROWS: u32 = ROWS;
    const COLUMNS: u32 = COLUMNS;
    const THREADS: u32 = THREADS;
}

const COLS: usize = (BLOCK_N / ROW_LANES) as usize;
const PAIRS: usize = (BLOCK_N / (2 * ROW_LANES)) as usize;

/// S = softmax_scale·Q·Kᵀ, changed as [`CapAndBias`] says, −∞ where masked, for one tile of [`BLOCK_M`] ×
/// [`BLOCK_N`].
///
/// Launch: ⌈Sq / BLOCK_M⌉·⌈Sk / BLOCK_N⌉·H·B blocks.
///
/// # Safety
/// `params` describes valid device memory with a `scores` buffer; the launch is as above.
#[inline(always)]
pub unsafe fn scores<E: Element>(params: &AttentionParams) {
    let tiles_n = params.seqlen_k.div_ceil(BLOCK_N);
    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head, (tile_m, tile_n)) = unsafe {
        let work = WorkTile::of_block(params, params.seqlen_q.div_ceil(BLOCK_M) * tiles_n);
        (work, work.kv_head(params), work.row_and_column(tiles_n))
    };
    let (first_row, first_key) = (tile_m * BLOCK_M, tile_n * BLOCK_N);
    if first_row >= work.queries.len || first_key >= work.keys.len {
        return;
    }
    let (q_shape, k_shape) = ((work.queries, params.head_dim), (work.keys, params.head_dim));
    let q = GlobalTile::of_head::<E>(params.q, &params.q_strides, &work, work.head, q_shape);
    let k = GlobalTile::of_head::<E>(params.k, &params.k_strides, &work, kv_head, k_shape);
    let q_shared = SharedTile { address: shared::base(), stride: K_STRIDE };
    let k_shared = SharedTile { address: q_shared.at(BLOCK_M, 0), stride: K_STRIDE };
    let lane = Lane::current();
    let mut s = [[0.0; COLS]; ROWS];
    let mut depth = 0;
    while depth < params.head_dim {
        // SAFETY: barriers separate each load from the reads before and after it.
        unsafe {
            barrier::sync(0, THREADS);
            simt::load::<E, Part<BLOCK_M, BLOCK_K>>(q_shared, &q.from::<E>(first_row, depth));
            simt::load::<E, Part<BLOCK_N, BLOCK_K>>(k_shared, &k.from::<E>(first_key, depth));
            barrier::sync(0, THREADS);
            simt::multiply_transposed(&mut s, q_shared, k_shared, lane, BLOCK_K.min(params.head_dim - depth));
        }
        depth += BLOCK_K;
    }
    let (row, key) = (|i: usize| lane.row + i as u32, |j: usize| lane.x + ROW_LANES * j as u32);
    // SAFETY: valid parameters describe readable slopes.
    let score_mod = unsafe { CapAndBias::of_head(params, &work) };
    let mask = TileMask::new(params, &work, first_row, BLOCK_M, BLOCK_N);
    let (place, keys) = (mask.place(BLOCK_M, first_key), mask.seen.end.saturating_sub(first_key));
    score_mod.apply(params, &mut s, TileMask::diagonal_from(params, BLOCK_M, place), row, key);
    TileMask::apply(params, &mut s, BLOCK_M, (place, keys), row, key);
    let target = score_matrix::<E>(params, &work);
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < COLS {
            let (row, key) = (first_row + row(i), first_key + key(j));
            if row < target.rows && key < target.columns {
                // SAFETY: the element exists and belongs to this thread alone.
                unsafe { E::store(target.at::<E>(row, key), s[i][j]) };
            }
            j += 1;
        }
        i += 1;
    }
}

/// P = softmax(S) in place, and the log-sum-exp; one warp per row, [`SOFTMAX_ROWS`] rows per block.
///
/// Launch: ⌈Sq / SOFTMAX_ROWS⌉·H·B blocks. A row that sees no key becomes 0, its log-sum-exp −∞.
///
/// # Safety
/// As [`scores`], which ran before.
#[inline(always)]
pub unsafe fn softmax<E: Element>(params: &AttentionParams) {
    let thread = index::thread();
    // SAFETY: valid parameters have no empty axis.
    let work = unsafe { WorkTile::of_block(params, params.seqlen_q.div_ceil(SOFTMAX_ROWS)) };
    let row = work.tile * SOFTMAX_ROWS + thread / 32;
    if row >= work.queries.len {
        return;
    }
    let scores = score_matrix::<E>(params, &work);
    let lane = thread % 32;
    let address = |key: u32| scores.at::<E>(row, key);
    // SAFETY: each element is read and written by one lane; whole warps run this alike.
    unsafe {
        let mut max = f32::NEG_INFINITY;
        let mut key = lane;
        while key < scores.columns {
            max = math::max(max, E::load(address(key)));
            key += 32;
        }
        max = reduce::<32>(max, math::max);
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max * core::f32::consts::LOG2_E };
        let exp = |score: f32| math::exp2(math::fma(score, core::f32::consts::LOG2_E, -shift));
        let mut sum = 0.0;
        let mut key = lane;
        while key < scores.columns {
            sum += exp(E::load(address(key)));
            key += 32;
        }
        sum = reduce::<32>(sum, |a, b| a + b);
        // The row's largest score alone adds 1, so a sum of 0 means that there was none.
        let row_end = if sum == 0.0 {
            (0.0, f32::NEG_INFINITY)
        } else {
            (math::reciprocal(sum), (shift + math::log2(sum)) * core::f32::consts::LN_2)
        };
        let (inverse_sum, lse) = with_sink(row_end, &params.per_head.sinks, (work.batch, work.head));
        let mut key = lane;
        while key < scores.columns {
            E::store(address(key), exp(E::load(address(key))) * inverse_sum);
            key += 32;
        }
        if params.lse != 0 && lane == 0 {
            f32::store(params.lse + 4 * work.lse_index(params, row), lse);
        }
    }
}

/// O = P·V for one tile of [`BLOCK_M`] rows × [`BLOCK_N`] columns.
///
/// Launch: ⌈Sq / BLOCK_M⌉·⌈D / BLOCK_N⌉·H·B blocks.
///
/// # Safety
/// As [`scores`], which ran before, and [`softmax`] after it.
#[inline(always)]
pub unsafe fn values<E: Element>(params: &AttentionParams) {
    let tiles_d = params.head_dim_v.div_ceil(BLOCK_N);
    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head, (tile_m, tile_d)) = unsafe {
        let work = WorkTile::of_block(params, params.seqlen_q.div_ceil(BLOCK_M) * tiles_d);
        (work, work.kv_head(params), work.row_and_column(tiles_d))
    };
    let (first_row, first_column) = (tile_m * BLOCK_M, tile_d * BLOCK_N);
    if first_row >= work.queries.len {
        return;
    }
    let (o_shape, v_shape) = ((work.queries, params.head_dim_v), (work.keys, params.head_dim_v));
    let v = GlobalTile::of_head::<E>(params.v, &params.v_strides, &work, kv_head, v_shape);
    let o = GlobalTile::of_head::<E>(params.o, &params.o_strides, &work, work.head, o_shape);
    let p = score_matrix::<E>(params, &work);
    let p_shared = SharedTile { address: shared::base(), stride: K_STRIDE };
    let v_shared = SharedTile { address: p_shared.at(BLOCK_M, 0), stride: N_STRIDE };
    let lane = Lane::current();
    let mut acc = [[[0.0; 2]; PAIRS]; ROWS];
    let mut key = 0;
    while key < work.keys.len {
        // SAFETY: barriers separate each load from the reads before and after it.
        unsafe {
            barrier::sync(0, THREADS);
            simt::load::<E, Part<BLOCK_M, BLOCK_K>>(p_shared, &p.from::<E>(first_row, key));
            simt::load::<E, Part<BLOCK_K, BLOCK_N>>(v_shared, &v.from::<E>(key, first_column));
            barrier::sync(0, THREADS);
            simt::multiply_accumulate(&mut acc, p_shared, v_shared, lane, BLOCK_K.min(work.keys.len - key));
        }
        key += BLOCK_K;
    }
    let target = o.from::<E>(first_row, first_column);
    let mut i = 0;
    while i < ROWS {
        let row = lane.row + i as u32;
        if row < target.rows {
            // SAFETY: the row exists and belongs to this half-warp alone.
            unsafe { simt::store_row::<E, _>(&target, row, lane, &acc[i], 1.0) };
        }
        i += 1;
    }
}

/// One head's [Sq, Sk] scores, in the order of lse's rows.
#[inline(always)]
fn score_matrix<E: Element>(params: &AttentionParams, work: &WorkTile) -> GlobalTile {
    let stride = params.seqlen_k as u64;
    GlobalTile {
        address: params.scores + E::BYTES * work.lse_index(params, 0) * stride,
        stride,
        rows: work.queries.len,
        columns: work.keys.len,
    }
}
