//! FlashAttention v2 on tensor cores with `mma.sync` (Dao 2023, arXiv:2307.08691, Algorithm 1).
//!
//! Runs on every NVIDIA GPU since sm_80. One block owns one tile of Q, its warps 16 or 32 rows of it
//! each; K and V stream past through a ring of two stages in shared memory, copied asynchronously: the next
//! stage fills while this one is worked on, and one barrier a step leaves the warps free to drift, so that
//! some multiply while others exponentiate. Scores and P stay in registers.

use crate::config::MmaConfig;
use crate::element::Element;
use crate::mask::TileMask;
use crate::params::AttentionParams;
use crate::ptx::{barrier, cp_async, global, index, shared, warp};
use crate::scheduler::{Rows, WorkTile};
use crate::score::ScoreMod;
use crate::softmax::OnlineSoftmax;
use crate::tile::mma::{self, MmaElement, MmaTile, QUAD};
use crate::tile::simt::GlobalTile;

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 1;

/// O = softmax(softmax_scale·Q·Kᵀ)·V and its log-sum-exp, for one tile of `BLOCK_M` query rows.
///
/// `ROWS` = BLOCK_M / WARPS / 8, `COLS` = BLOCK_N / 4 and `OUT` = HEAD_DIM / 4 are a thread's rows and its
/// columns of S and O; they are parameters because array lengths cannot be computed from other ones.
/// `SCORE_MOD` is whether there is something between scores and mask ([`ScoreMod`]): it has entries of its
/// own, so that the others do not pay for it.
/// Launch: ⌈Sq / BLOCK_M⌉·H·B blocks of [`MmaConfig::threads`] threads with
/// [`MmaConfig::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn forward_sm80<
    E: MmaElement,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const THREADS: u32,
    const ROWS: usize,
    const COLS: usize,
    const OUT: usize,
    const SCORE_MOD: bool,
>(
    params: &AttentionParams,
) {
    const {
        let config =
            MmaConfig { block_m: BLOCK_M, block_n: BLOCK_N, head_dim: HEAD_DIM, warps: THREADS / 32 };
        assert!(config.is_well_formed() && THREADS == config.threads());
        assert!(ROWS as u32 * 8 * config.warps == BLOCK_M);
        assert!(COLS as u32 * QUAD == BLOCK_N && OUT as u32 * QUAD == HEAD_DIM);
    }
    // SAFETY: valid parameters have no empty axis.
    let (work, kv_head) = unsafe {
        let work = WorkTile::of_block(params, params.seqlen_q.div_ceil(BLOCK_M));
        (work, work.kv_head(params))
    };
    let first_row = work.tile * BLOCK_M;
    if first_row >= work.queries.len {
        return;
    }
    let mask = TileMask::new(params, &work, first_row, BLOCK_M);
    // Keys that no row of the tile sees are not read.
    let keys = Rows { len: mask.seen.end, ..work.keys };
    let q_shape = (work.queries, params.head_dim);
    let q = GlobalTile::of_head::<E>(params.q, &params.q_strides, &work, work.head, q_shape);
    let k = GlobalTile::of_head::<E>(params.k, &params.k_strides, &work, kv_head, (keys, params.head_dim));
    let v = GlobalTile::of_head::<E>(params.v, &params.v_strides, &work, kv_head, (keys, params.head_dim_v));
    let q_shared = MmaTile::<HEAD_DIM> { address: shared::base() };
    let stages = q_shared.address + MmaTile::<HEAD_DIM>::bytes(BLOCK_M);
    let tile =
        |index: u32| MmaTile::<HEAD_DIM> { address: stages + index * MmaTile::<HEAD_DIM>::bytes(BLOCK_N) };
    let lane = Lane::current::<ROWS>();

    let mut acc = [[0.0; OUT]; ROWS];
    let scale = if SCORE_MOD { 1.0 } else { params.softmax_scale };
    let mut softmax = OnlineSoftmax::<ROWS, QUAD>::new(scale);
    // SAFETY: the buffers lie behind one another in shared memory; a stage is read after its copies were
    // waited for and a barrier, and filled again after the barrier that follows its last reads; all
    // threads run this loop alike.
    unsafe {
        let score_mod = ScoreMod::of_head(params, &work);
        q_shared.fill::<E, THREADS, BLOCK_M>(&q.from::<E>(first_row, 0));
        if mask.seen.first < mask.seen.end {
            tile(0).fill::<E, THREADS, BLOCK_N>(&k.from::<E>(mask.seen.first, 0));
            tile(1).fill::<E, THREADS, BLOCK_N>(&v.from::<E>(mask.seen.first, 0));
        }
        cp_async::commit_group();
        let (mut first_key, mut stage) = (mask.seen.first, 0);
        while first_key < mask.seen.end {
            cp_async::wait_group::<0>();
            barrier::sync(0, THREADS); // This stage is there, and all reads of the other are over.
            let (k_shared, v_shared) = (tile(stage), tile(stage + 1));
            let next_key = first_key + BLOCK_N;
            stage = 2 - stage;
            if next_key < mask.seen.end {
                tile(stage).fill::<E, THREADS, BLOCK_N>(&k.from::<E>(next_key, 0));
                tile(stage + 1).fill::<E, THREADS, BLOCK_N>(&v.from::<E>(next_key, 0));
                cp_async::commit_group();
            }
            let mut s = [[0.0; COLS]; ROWS];
            mma::multiply_transposed::<E, HEAD_DIM, ROWS, COLS>(&mut s, q_shared, lane.warp_row, k_shared);
            if SCORE_MOD {
                let diagonal = mask.diagonal_from(params, first_key);
                score_mod.apply(params, &mut s, diagonal, |i| lane.row(i), |j| lane.column(j));
            }
            softmax.prescale(&mut s);
            if mask.hides(params, BLOCK_M, first_key, BLOCK_N) {
                mask.apply(params, &mut s, first_key, |i| lane.row(i), |j| lane.column(j));
            }
            let rescale = softmax.step(&mut s);
            // The max rarely grows after the first blocks: then the products of a whole pass are saved.
            if warp::vote_any(grew(&rescale)) {
                rescale_output(&mut acc, &rescale);
            }
            mma::multiply_accumulate::<E, HEAD_DIM, ROWS, COLS, OUT>(&mut acc, &s, v_shared);
            first_key = next_key;
        }
        cp_async::wait_group::<0>();
        // Found once more rather than kept: the loop has no registers to spare.
        let work = WorkTile::of_block_again(params, params.seqlen_q.div_ceil(BLOCK_M));
        let first_row = work.tile * BLOCK_M;
        let o_shape = (work.queries, params.head_dim_v);
        let o = GlobalTile::of_head::<E>(params.o, &params.o_strides, &work, work.head, o_shape);
        store_output::<E, ROWS, OUT>(
            params,
            &work,
            &o.from::<E>(first_row, 0),
            first_row,
            lane,
            &acc,
            &softmax,
        );
    }
}

/// What a lane holds of its warp's products: rows and columns as `tile::mma` says.
#[derive(Clone, Copy)]
struct Lane {
    /// First row of the warp.
    warp_row: u32,
    /// g: row within each block of eight.
    group: u32,
    /// t: pair of columns within each block of eight.
    pair: u32,
}

impl Lane {
    #[inline(always)]
    fn current<const ROWS: usize>() -> Self {
        let (warp, lane) = (index::thread() / 32, index::thread() % 32);
        Self { warp_row: warp * 8 * ROWS as u32, group: lane / QUAD, pair: lane % QUAD }
    }

    /// Row of the block's tile that the lane's row `i` is.
    #[inline(always)]
    fn row(self, i: usize) -> u32 {
        self.warp_row + 8 * i as u32 + self.group
    }

    /// Column of the product that the lane's column `j` is.
    #[inline(always)]
    fn column(self, j: usize) -> u32 {
        8 * (j / 2) as u32 + 2 * self.pair + (j % 2) as u32
    }
}

/// Whether any row's max grew.
#[inline(always)]
fn grew<const ROWS: usize>(rescale: &[f32; ROWS]) -> bool {
    let mut grew = false;
    let mut i = 0;
    while i < ROWS {
        grew |= rescale[i] != 1.0;
        i += 1;
    }
    grew
}

/// Brings what was accumulated so far to the new running max.
#[inline(always)]
fn rescale_output<const ROWS: usize, const OUT: usize>(acc: &mut [[f32; OUT]; ROWS], rescale: &[f32; ROWS]) {
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < OUT {
            acc[i][j] *= rescale[i];
            j += 1;
        }
        i += 1;
    }
}

/// Normalises and stores the rows that exist, and their log-sum-exp where it is wanted.
///
/// # Safety
/// All threads of the block call this together; `o` is writable and this block's own.
#[inline(always)]
unsafe fn store_output<E: MmaElement, const ROWS: usize, const OUT: usize>(
    params: &AttentionParams,
    work: &WorkTile,
    o: &GlobalTile,
    first_row: u32,
    lane: Lane,
    acc: &[[f32; OUT]; ROWS],
    softmax: &OnlineSoftmax<ROWS, QUAD>,
) {
    let in_pairs = (o.address | (2 * o.stride)).is_multiple_of(4);
    let mut i = 0;
    while i < ROWS {
        let row = lane.row(i);
        // SAFETY: the caller's contract; an element is stored only where it exists, by one lane.
        unsafe {
            let (inverse_sum, lse) = softmax.finish(i);
            if row < o.rows {
                let mut j = 0;
                while j < OUT {
                    let column = lane.column(j);
                    let (low, high) = (acc[i][j] * inverse_sum, acc[i][j + 1] * inverse_sum);
                    if in_pairs && column + 1 < o.columns {
                        global::store_b32(o.at::<E>(row, column), E::pack(low, high));
                    } else {
                        if column < o.columns {
                            E::store(o.at::<E>(row, column), low);
                        }
                        if column + 1 < o.columns {
                            E::store(o.at::<E>(row, column + 1), high);
                        }
                    }
                    j += 2;
                }
                if params.lse != 0 && lane.pair == 0 {
                    f32::store(params.lse + 4 * work.lse_index(params, first_row + row), lse);
                }
            }
        }
        i += 1;
    }
}
