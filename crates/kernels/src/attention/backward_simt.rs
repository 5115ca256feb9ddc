//! The backward pass of FlashAttention-2 on fp32 FMA (Dao 2023, arXiv:2307.08691, Algorithm 2).
//!
//! P = exp(S − lse) and dS = P ∘ (dO·Vᵀ − delta) are computed again, tile by tile, and never leave the block.
//! The paper adds dQ up with atomics; here one kernel owns keys and goes over queries, for dK and dV, and
//! another owns queries and goes over keys, for dQ. That computes S and dO·Vᵀ twice, and gives the same bits
//! in each run.

use super::gradient::{Place, RowStats, differentiate};
use crate::config::{BackwardConfig, ROW_LANES};
use crate::element::Element;
use crate::mask::{MaskCorner, QueryRange, TileMask};
use crate::params::BackwardParams;
use crate::ptx::{barrier, index, shared, warp};
use crate::scheduler::{Rows, WorkTile};
use crate::score::ScoreMod;
use crate::tile::simt::{self, GlobalTile, Lane, ROWS, SharedTile};

/// Barriers in the source of each of the two kernels; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 2;

/// dK and dV of one tile of `BLOCK_N` keys, summed over the query heads that share it.
///
/// With `DROPOUT`, weights are dropped as `params.attention.dropout` says, as in the forward pass. `COLS` =
/// BLOCK_M / 16 and `PAIRS` = HEAD_DIM / 32 are a thread's columns of Sᵀ and column pairs of dK and dV.
/// Launch: ⌈Sk / BLOCK_N⌉·H / group·B blocks of [`BackwardConfig::threads`] threads with
/// [`BackwardConfig::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` describes valid device memory, `attention::backward_delta` has run before with the same, and the
/// launch is as above.
#[inline(always)]
pub unsafe fn backward_keys<
    E: Element,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const THREADS: u32,
    const COLS: usize,
    const PAIRS: usize,
    const DROPOUT: bool,
>(
    params: &BackwardParams,
) {
    let config = const { config(BLOCK_N, BLOCK_M, HEAD_DIM, THREADS, COLS, PAIRS) };
    let shared = SharedTiles::new(config);
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head) = unsafe {
        let work = WorkTile::of_key_block(attention, attention.seqlen_k.div_ceil(BLOCK_N));
        (work, work.kv_head(attention))
    };
    let first_key = work.tile * BLOCK_N;
    if first_key >= work.keys.len {
        return;
    }
    let (head_dim, head_dim_v) = (attention.head_dim, attention.head_dim_v);
    let lane = Lane::current();
    let mut dk = [[[0.0; 2]; PAIRS]; ROWS];
    let mut dv = [[[0.0; 2]; PAIRS]; ROWS];
    // SAFETY: the buffers lie behind one another in shared memory, barriers separate each load from the reads
    // before and after it, and all threads run these loops alike. A half-warp alone writes and reads its rows
    // of P and dS.
    unsafe {
        let (k_shape, v_shape) = ((work.keys, head_dim), (work.keys, head_dim_v));
        let k = GlobalTile::of_head::<E>(attention.k, &attention.k_strides, &work, kv_head, k_shape);
        let v = GlobalTile::of_head::<E>(attention.v, &attention.v_strides, &work, kv_head, v_shape);
        simt::load::<E, THREADS, BLOCK_N, HEAD_DIM>(shared.owned[0], &k.from::<E>(first_key, 0));
        simt::load::<E, THREADS, BLOCK_N, HEAD_DIM>(shared.owned[1], &v.from::<E>(first_key, 0));
        let seen = QueryRange::of_keys(attention, &work, first_key, BLOCK_N);
        // Queries that see no key of the tile are not read.
        let queries = Rows { len: seen.end, ..work.queries };
        let mut head = 0;
        while head < attention.group {
            let work = WorkTile { head: work.head + head, ..work };
            let score_mod = ScoreMod::of_head(attention, &work);
            let mut first_row = seen.first;
            while first_row < seen.end {
                // From a head that is read anew: the loops have no registers to spare for addresses.
                let work = WorkTile { head: index::unknown(work.head), ..work };
                let (q_shape, dout_shape) = ((queries, head_dim), (queries, head_dim_v));
                let q =
                    GlobalTile::of_head::<E>(attention.q, &attention.q_strides, &work, work.head, q_shape);
                let dout =
                    GlobalTile::of_head::<E>(params.dout, &params.dout_strides, &work, work.head, dout_shape);
                barrier::sync(0, THREADS); // The last step's reads of Q and dO are over.
                simt::load_as::<E, THREADS, BLOCK_M, HEAD_DIM>(
                    index::reread_thread(),
                    shared.step[0],
                    &q.from::<E>(first_row, 0),
                );
                simt::load_as::<E, THREADS, BLOCK_M, HEAD_DIM>(
                    index::reread_thread(),
                    shared.step[1],
                    &dout.from::<E>(first_row, 0),
                );
                barrier::sync(0, THREADS);
                let (mut p, mut ds) = ([[0.0; COLS]; ROWS], [[0.0; COLS]; ROWS]);
                simt::multiply_transposed(&mut p, shared.owned[0], shared.step[0], lane, head_dim);
                simt::multiply_transposed(&mut ds, shared.owned[1], shared.step[1], lane, head_dim_v);
                let row = first_row + lane.x;
                let stats = RowStats::load::<COLS>(params, &work, row, |j| ROW_LANES * j as u32);
                let tile = MaskCorner::new(attention, &work, first_row, first_key);
                let place = Place {
                    row,
                    key: first_key + lane.row,
                    whole: tile.all_see(attention, BLOCK_N, BLOCK_M),
                };
                let query = |_, j: usize| (ROW_LANES * j as u32, j);
                let key = |i: usize, _| i as u32;
                differentiate::<ROWS, COLS, COLS, true, DROPOUT>(
                    attention,
                    &work,
                    score_mod,
                    (&mut p, &mut ds),
                    place,
                    &stats,
                    query,
                    key,
                );
                // Those behind see no key of the tile.
                let rows = BLOCK_M.min(seen.end - first_row);
                simt::store_product(shared.product, lane, &p);
                warp::sync();
                simt::multiply_accumulate(&mut dv, shared.product, shared.step[1], lane, rows);
                warp::sync();
                simt::store_product(shared.product, lane, &ds);
                warp::sync();
                simt::multiply_accumulate(&mut dk, shared.product, shared.step[0], lane, rows);
                first_row += BLOCK_M;
            }
            head += 1;
        }
        // Found once more rather than kept: the loops have no registers to spare.
        let work = WorkTile::of_key_block(attention, attention.seqlen_k.div_ceil(BLOCK_N));
        let (kv_head, first_key) = (work.kv_head(attention), work.tile * BLOCK_N);
        let (k_shape, v_shape) = ((work.keys, head_dim), (work.keys, head_dim_v));
        let dk_tile = GlobalTile::of_head::<E>(params.dk, &params.dk_strides, &work, kv_head, k_shape);
        let dv_tile = GlobalTile::of_head::<E>(params.dv, &params.dv_strides, &work, kv_head, v_shape);
        store::<E, PAIRS>(&dk_tile.from::<E>(first_key, 0), lane, &dk, attention.softmax_scale);
        store::<E, PAIRS>(&dv_tile.from::<E>(first_key, 0), lane, &dv, 1.0);
    }
}

/// dQ of one tile of `BLOCK_M` query rows.
///
/// `DROPOUT` as in [`backward_keys`]; `COLS` = BLOCK_N / 16 and `PAIRS` = HEAD_DIM / 32 are a thread's
/// columns of S and column pairs of dQ. Launch: ⌈Sq / BLOCK_M⌉·H·B blocks, otherwise as [`backward_keys`].
///
/// # Safety
/// As [`backward_keys`].
#[inline(always)]
pub unsafe fn backward_queries<
    E: Element,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const THREADS: u32,
    const COLS: usize,
    const PAIRS: usize,
    const DROPOUT: bool,
>(
    params: &BackwardParams,
) {
    let config = const { config(BLOCK_M, BLOCK_N, HEAD_DIM, THREADS, COLS, PAIRS) };
    let shared = SharedTiles::new(config);
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head) = unsafe {
        let work = WorkTile::of_block(attention, attention.seqlen_q.div_ceil(BLOCK_M));
        (work, work.kv_head(attention))
    };
    let first_row = work.tile * BLOCK_M;
    if first_row >= work.queries.len {
        return;
    }
    let (head_dim, head_dim_v) = (attention.head_dim, attention.head_dim_v);
    let lane = Lane::current();
    let mut dq = [[[0.0; 2]; PAIRS]; ROWS];
    // SAFETY: as in `backward_keys`.
    unsafe {
        let (q_shape, dout_shape) = ((work.queries, head_dim), (work.queries, head_dim_v));
        let q = GlobalTile::of_head::<E>(attention.q, &attention.q_strides, &work, work.head, q_shape);
        let dout = GlobalTile::of_head::<E>(params.dout, &params.dout_strides, &work, work.head, dout_shape);
        simt::load::<E, THREADS, BLOCK_M, HEAD_DIM>(shared.owned[0], &q.from::<E>(first_row, 0));
        simt::load::<E, THREADS, BLOCK_M, HEAD_DIM>(shared.owned[1], &dout.from::<E>(first_row, 0));
        let score_mod = ScoreMod::of_head(attention, &work);
        let seen = TileMask::new(attention, &work, first_row, BLOCK_M, BLOCK_N).seen;
        let keys = Rows { len: seen.end, ..work.keys };
        let (k_shape, v_shape) = ((keys, head_dim), (keys, head_dim_v));
        let k = GlobalTile::of_head::<E>(attention.k, &attention.k_strides, &work, kv_head, k_shape);
        let v = GlobalTile::of_head::<E>(attention.v, &attention.v_strides, &work, kv_head, v_shape);
        let mut first_key = seen.first;
        while first_key < seen.end {
            barrier::sync(0, THREADS); // The last step's reads of K are over.
            simt::load_as::<E, THREADS, BLOCK_N, HEAD_DIM>(
                index::reread_thread(),
                shared.step[0],
                &k.from::<E>(first_key, 0),
            );
            simt::load_as::<E, THREADS, BLOCK_N, HEAD_DIM>(
                index::reread_thread(),
                shared.step[1],
                &v.from::<E>(first_key, 0),
            );
            barrier::sync(0, THREADS);
            let (mut p, mut ds) = ([[0.0; COLS]; ROWS], [[0.0; COLS]; ROWS]);
            simt::multiply_transposed(&mut p, shared.owned[0], shared.step[0], lane, head_dim);
            simt::multiply_transposed(&mut ds, shared.owned[1], shared.step[1], lane, head_dim_v);
            let tile = MaskCorner::new(attention, &work, first_row, first_key);
            let place = Place {
                row: first_row + lane.row,
                key: first_key + lane.x,
                whole: tile.all_see(attention, BLOCK_N, BLOCK_M),
            };
            let stats = RowStats::load::<ROWS>(params, &work, place.row, |i| i as u32);
            let query = |i: usize, _| (i as u32, i);
            let key = |_, j: usize| ROW_LANES * j as u32;
            differentiate::<ROWS, COLS, ROWS, true, DROPOUT>(
                attention,
                &work,
                score_mod,
                (&mut p, &mut ds),
                place,
                &stats,
                query,
                key,
            );
            simt::store_product(shared.product, lane, &ds);
            warp::sync();
            simt::multiply_accumulate(
                &mut dq,
                shared.product,
                shared.step[0],
                lane,
                BLOCK_N.min(seen.end - first_key),
            );
            first_key += BLOCK_N;
        }
        // As in `backward_keys`.
        let work = WorkTile::of_block(attention, attention.seqlen_q.div_ceil(BLOCK_M));
        let (first_row, q_shape) = (work.tile * BLOCK_M, (work.queries, head_dim));
        let dq_tile = GlobalTile::of_head::<E>(params.dq, &params.dq_strides, &work, work.head, q_shape);
        store::<E, PAIRS>(&dq_tile.from::<E>(first_row, 0), lane, &dq, attention.softmax_scale);
    }
}

/// The tile, checked where the kernel is compiled.
#[inline(always)]
const fn config(
    owned: u32,
    step: u32,
    head_dim: u32,
    threads: u32,
    cols: usize,
    pairs: usize,
) -> BackwardConfig {
    let config = BackwardConfig { owned, step, head_dim };
    assert!(config.is_well_formed() && threads == config.threads());
    assert!(cols as u32 * ROW_LANES == step && pairs as u32 * 2 * ROW_LANES == head_dim);
    config
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
unsafe fn store<E: Element, const PAIRS: usize>(
    tile: &GlobalTile,
    lane: Lane,
    gradient: &[[[f32; 2]; PAIRS]; ROWS],
    factor: f32,
) {
    let mut i = 0;
    while i < ROWS {
        let row = lane.row + i as u32;
        if row < tile.rows {
            // SAFETY: the row exists in the block's tile, and is one half-warp's alone.
            unsafe { simt::store_row::<E, PAIRS>(tile, row, lane, &gradient[i], factor) };
        }
        i += 1;
    }
}
