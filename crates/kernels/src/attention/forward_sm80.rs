//! FlashAttention v2 on tensor cores with `mma.sync` (Dao 2023, arXiv:2307.08691, Algorithm 1).
//!
//! Runs on every NVIDIA GPU since sm_80. One block owns one tile of Q, its warps 16 or 32 rows of it
//! each; K and V stream past through a ring of two stages in shared memory, copied asynchronously: the next
//! stage fills while this one is worked on, and one barrier a step leaves the warps free to drift, so that
//! some multiply while others exponentiate. Scores and P stay in registers.

mod seen_blocks;
mod tile;

use crate::config::MmaConfig;
use crate::dropout;
use crate::element::Element as _;
use crate::functions::{MaskMod as _, Position, Queries, Score, ScoreMod as _, Visible, within};
use crate::mask::{KeyRange, TileMask};
use crate::params::AttentionParams;
use crate::ptx::{barrier, cp_async, index, shared, warp};
use crate::registers::{Matrix, Width as _};
use crate::scheduler::WorkTile;
use crate::score::{CapAndBias, for_each};
use crate::softmax::{OnlineSoftmax, rescale_where_needed, with_sink};
use crate::tile::mma::{self, CHUNK, Lane, MmaElement as _, MmaTile};
use crate::tile::mma_copy::{
    ChunkCopy, Copied as _, TileCopy, WordCopy, is_aligned, keep_columns, shift, shifts_alike,
};
use crate::tile::mma_store::store_rows;
use crate::tile::simt::GlobalTile;
use seen_blocks::SeenBlocks;
use tile::{KeyBlock, QueryRows, Softmax};
pub use tile::{Modified, Sm80Tile, Tile};

/// Barriers of `attend`, which stands there once for each way of copying; the build fails when the PTX has
/// another number.
pub const fn barriers(config: MmaConfig) -> u32 {
    if MmaConfig::shifted_rows(config.head_dim) { 3 } else { 2 }
}

/// O = softmax(softmax_scale·Q·Kᵀ)·V and its log-sum-exp, for one tile of `BLOCK_M` query rows.
///
/// With dropout, weights are dropped as `params.dropout` says. Launch: ⌈Sq / BLOCK_M⌉·H·B blocks of
/// [`Tile::THREADS`] threads with the shared memory of [`Tile::CONFIG`].
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn forward_sm80<T: Tile>(params: &AttentionParams) {
    let work = work_tile::<T>(params);
    // A packed sequence may be shorter than the longest, for which there are blocks.
    if work.tile * T::BLOCK_M >= work.queries.len {
        return;
    }
    let operands = Operands::of::<T>(params, &work);
    // SAFETY: the operands are this block's, and all threads take the same branch, which can copy them.
    let ((acc, softmax), first_column) = unsafe {
        match operands.rows {
            Rows::Aligned => (
                attend::<T, ChunkCopy<false, QueryRows<T>>, ChunkCopy<false, KeyBlock<T>>>(
                    params, &operands, !0,
                ),
                0,
            ),
            Rows::Alike => {
                let keep = keep_columns(shift(&operands.k));
                let result = attend::<T, ChunkCopy<true, QueryRows<T>>, ChunkCopy<true, KeyBlock<T>>>(
                    params, &operands, keep,
                );
                let v = Operands::of::<T>(params, &work_tile::<T>(params)).v;
                (result, shift(&v))
            }
            Rows::Any => {
                (attend::<T, WordCopy<QueryRows<T>>, WordCopy<KeyBlock<T>>>(params, &operands, !0), 0)
            }
        }
    };
    // Found anew rather than kept in registers over the loop, which needs all of them.
    let work = work_tile::<T>(params);
    // SAFETY: all threads are here, the rows of O are the block's, and each warp has read its rows of Q.
    unsafe { store_output::<T>(params, &work, first_column, &acc, &softmax) };
}

/// What one block reads.
struct Operands {
    /// From the block's first row on.
    q: GlobalTile,
    k: GlobalTile,
    v: GlobalTile,
    rows: Rows,
}

/// Where the rows of all three operands start.
enum Rows {
    /// At multiples of 16 bytes, and they are a multiple of 16 bytes long.
    Aligned,
    /// At one distance from multiples of 16 bytes in Q and K, at one in V. They are copied as they lie, from
    /// the last such multiple on: Q·Kᵀ stays the same if Q and K come late alike, and V's shift moves the
    /// columns of O.
    Alike,
    /// Anywhere.
    Any,
}

impl Operands {
    #[inline(always)]
    fn of<T: Tile>(params: &AttentionParams, work: &WorkTile) -> Self {
        // SAFETY: valid parameters have no empty axis.
        let kv_head = unsafe { work.kv_head(params) };
        let (q_shape, k_shape) = ((work.queries, params.head_dim), (work.keys, params.head_dim));
        let v_shape = (work.keys, params.head_dim_v);
        let q = GlobalTile::of_head::<T::Element>(params.q, &params.q_strides, work, work.head, q_shape);
        let q = q.from::<T::Element>(work.tile * T::BLOCK_M, 0);
        let k = GlobalTile::of_head::<T::Element>(params.k, &params.k_strides, work, kv_head, k_shape);
        let v = GlobalTile::of_head::<T::Element>(params.v, &params.v_strides, work, kv_head, v_shape);
        let fits =
            |tile: &GlobalTile| shifts_alike(tile) && shift(tile) + tile.columns <= T::HeadDim::COLUMNS;
        // A tensor's first row must not be copied from before the tensor.
        let starts = (params.q | params.k | params.v).is_multiple_of(CHUNK as u64);
        let rows = if is_aligned(&q) && is_aligned(&k) && is_aligned(&v) {
            Rows::Aligned
        } else if MmaConfig::shifted_rows(T::HeadDim::COLUMNS)
            && starts
            && fits(&q)
            && fits(&k)
            && fits(&v)
            && shift(&q) == shift(&k)
        {
            Rows::Alike
        } else {
            Rows::Any
        };
        Self { q, k, v, rows }
    }
}

/// A thread's part of O before its rows are divided by their sums, and those sums, with one way of copying.
/// Of this lane's two columns in the first eight of Q and K, `keep` masks those that are theirs.
///
/// # Safety
/// As [`forward_sm80`]; `Q` and `KV` can copy `operands`, which are this block's.
#[inline(always)]
unsafe fn attend<T: Tile, Q: TileCopy<T::HeadDim>, KV: TileCopy<T::HeadDim>>(
    params: &AttentionParams,
    operands: &Operands,
    keep: u32,
) -> (T::O, Softmax<T>) {
    let work = work_tile::<T>(params);
    let (first_row, head) = (work.tile * T::BLOCK_M, work.batch * params.heads + work.head);
    let mut mask = TileMask::new(params, &work, first_row, T::BLOCK_M, T::BLOCK_N);
    let q_shared = MmaTile::<T::HeadDim>::new(shared::base());
    let stages = q_shared.from_row(T::BLOCK_M);
    let lane = Lane::current(T::S::ROWS);

    let mut acc = T::O::zero();
    let mut softmax = OnlineSoftmax::new(if T::SCORE_MOD { 1.0 } else { params.softmax_scale });
    if T::DROPOUT {
        mask.seen.first -= mask.seen.first % dropout::KEY_MULTIPLE;
    }
    if T::MaskMod::MASKS {
        let queries = Queries::of_tile(&work, first_row, T::BLOCK_M);
        mask.seen = within::<T::MaskMod>(&params.functions, queries, mask.seen);
    }
    let functions = FunctionsOfBlock { work, first_row };
    let (first_key, mut seen_blocks) = (mask.seen.first, SeenBlocks::UNKNOWN);
    if T::MaskMod::KNOWS_BLOCKS {
        // SAFETY: all threads of the block are here.
        let first = unsafe { functions.next::<T>(params, &mut seen_blocks, (first_key, mask.seen), 0) };
        mask.seen.first += T::BLOCK_N * first;
    }
    if mask.seen.first >= mask.seen.end {
        return (acc, softmax);
    }
    // SAFETY: the buffers lie behind one another in shared memory; a stage is read after its copies were
    // waited for and a barrier, and filled again after the barrier that follows its last reads; all
    // threads run this loop alike.
    unsafe {
        let score_mod = CapAndBias::of_head(params, &work);
        let (first_of_k, first_of_v) =
            (KV::copied_columns(params.head_dim), KV::copied_columns(params.head_dim_v));
        q_shared.clear_columns(first_of_k, T::BLOCK_M, T::THREADS);
        let mut row = 0;
        while row < index::unknown(4 * T::BLOCK_N) {
            stages.from_row(row).clear_columns(first_of_k, T::BLOCK_N, T::THREADS);
            stages.from_row(row + T::BLOCK_N).clear_columns(first_of_v, T::BLOCK_N, T::THREADS);
            row += 2 * T::BLOCK_N;
        }
        let rows = index::unknown(T::BLOCK_M);
        let mut q = Q::new::<T::Element>(&operands.q);
        let mut row = 0;
        while row < rows {
            q.copy(operands.q.rows.saturating_sub(row), q_shared.from_row(row));
            row += QueryRows::<T>::ROWS;
        }
        let keys = mask.seen.end - mask.seen.first;
        let [mut k, mut v] = [operands.k, operands.v]
            .map(|kv| KV::new::<T::Element>(&kv.from::<T::Element>(mask.seen.first, 0)));
        k.copy(keys, stages);
        v.copy(keys, stages.from_row(T::BLOCK_N));
        cp_async::commit_group();
        cp_async::wait_group::<0>();
        let mut row = 0;
        while row < rows {
            q.settle(q_shared.from_row(row));
            row += QueryRows::<T>::ROWS;
        }
        if softmax.prescales() || T::MaskMod::MASKS {
            mask.whole = 0; // Scores are scaled in the branch of those that are masked.
        }
        let mut place = mask.place(T::BLOCK_M, mask.seen.first);
        let end = place.wrapping_add(keys);
        let (mut k_shared, mut next) = (stages, stages.from_row(2 * T::BLOCK_N));
        loop {
            let v_shared = k_shared.from_row(T::BLOCK_N);
            cp_async::wait_group::<0>();
            k.settle(k_shared);
            v.settle(v_shared);
            barrier::sync(0, T::THREADS); // This stage is there, and all reads of the other are over.
            let keys = end.wrapping_sub(place);
            let mut to_next = T::BLOCK_N;
            let mut sees_all = false;
            if T::MaskMod::KNOWS_BLOCKS {
                let block = (mask.seen.end - keys - first_key) / T::BLOCK_N;
                sees_all = seen_blocks.is_whole(block);
                let next = functions.next::<T>(params, &mut seen_blocks, (first_key, mask.seen), block + 1);
                to_next = T::BLOCK_N * (next - block);
                k.skip(to_next - T::BLOCK_N);
                v.skip(to_next - T::BLOCK_N);
            }
            if keys > to_next {
                k.copy(keys - to_next, next);
                v.copy(keys - to_next, next.from_row(T::BLOCK_N));
                cp_async::commit_group();
            }
            let mut s = T::S::zero();
            mma::multiply_transposed::<T::Element, _, _>(&mut s, q_shared, lane.warp_row, k_shared, keep);
            if T::SCORE_MOD && T::ScoreMod::CHANGES {
                let first_key = mask.seen.end - end.wrapping_sub(place);
                functions.change::<T>(params, &mut s, first_key);
            } else if T::SCORE_MOD {
                let diagonal = TileMask::diagonal_from(params, T::BLOCK_M, place);
                score_mod.apply(params, &mut s, diagonal, |i| lane.row(i), |j| lane.column(j));
            }
            if T::MaskMod::MASKS {
                let first_key = mask.seen.end - end.wrapping_sub(place);
                if !sees_all {
                    functions.mask::<T>(params, &mut s, first_key);
                }
            }
            if mask.hides(place) {
                let lane = Lane::reread(T::S::ROWS);
                softmax.prescale(&mut s);
                TileMask::apply(
                    params,
                    &mut s,
                    T::BLOCK_M,
                    (place, keys),
                    |i| lane.row(i),
                    |j| lane.column(j),
                );
            }
            let rescale = softmax.step(&mut s);
            rescale_where_needed(&mut acc, &rescale);
            if T::DROPOUT {
                let (row, key) = (first_row + lane.row(0), mask.seen.end - keys + lane.column(0));
                let dropout = params.dropout.reread();
                let masks = |m: usize, k: usize| {
                    let (row, key) = (row + 16 * m as u32, key + 32 * (k / 2) as u32);
                    let masks = dropout.masks(dropout.draw_of_fragment(head, row, key));
                    let first = 4 * (k % 2);
                    [masks[first], masks[first + 1], masks[first + 2], masks[first + 3]]
                };
                mma::multiply_accumulate_masked::<T::Element, _, _, _>(&mut acc, &s, v_shared, masks);
            } else {
                mma::multiply_accumulate::<T::Element, _, _, _>(&mut acc, &s, v_shared);
            }
            if keys <= to_next {
                return (acc, softmax);
            }
            place = place.wrapping_add(to_next);
            (k_shared, next) = (next, k_shared);
        }
    }
}

/// What functions of scores are told about a block's tile.
#[derive(Clone, Copy)]
struct FunctionsOfBlock {
    work: WorkTile,
    first_row: u32,
}

impl FunctionsOfBlock {
    /// The first step from `step` on, of those that begin at `first_key`, of which the block's rows see
    /// something, or one behind the keys that are `seen`.
    ///
    /// # Safety
    /// As [`SeenBlocks::next`].
    #[inline(always)]
    unsafe fn next<T: Tile>(
        self,
        params: &AttentionParams,
        blocks: &mut SeenBlocks,
        (first_key, seen): (u32, KeyRange),
        step: u32,
    ) -> u32 {
        let end = seen.end.saturating_sub(first_key).div_ceil(T::BLOCK_N);
        let queries = Queries::of_tile(&self.work, self.first_row, T::BLOCK_M);
        let visible = |step: u32| -> Visible {
            let first = first_key + T::BLOCK_N * step;
            let keys = KeyRange { first, end: first + T::BLOCK_N };
            T::MaskMod::block(&params.functions, queries, keys)
        };
        // SAFETY: all lanes are here.
        unsafe { blocks.next(step, end, visible) }
    }

    /// Changes a thread's scores of the keys from `first_key` on.
    #[inline(always)]
    fn change<T: Tile>(self, params: &AttentionParams, s: &mut T::S, first_key: u32) {
        let lane = Lane::reread(T::S::ROWS);
        for_each(s, |product, i, j| {
            let score = Score::new(product, params.softmax_scale);
            T::ScoreMod::score(&params.functions, score, self.position(lane, first_key, (i, j)))
        });
    }

    /// Sets a thread's scores of hidden keys to −∞.
    #[inline(always)]
    fn mask<T: Tile>(self, params: &AttentionParams, s: &mut T::S, first_key: u32) {
        let lane = Lane::reread(T::S::ROWS);
        for_each(s, |score, i, j| {
            let sees = T::MaskMod::sees(&params.functions, self.position(lane, first_key, (i, j)));
            if sees { score } else { f32::NEG_INFINITY }
        });
    }

    #[inline(always)]
    fn position(self, lane: Lane, first_key: u32, (i, j): (usize, usize)) -> Position {
        Position {
            batch: self.work.batch,
            head: self.work.head,
            query: self.first_row + lane.row(i),
            key: first_key + lane.column(j),
        }
    }
}

/// The tile of Q that this block works on.
#[inline(always)]
fn work_tile<T: Tile>(params: &AttentionParams) -> WorkTile {
    // SAFETY: valid parameters have no empty axis.
    unsafe { WorkTile::of_block(params, params.seqlen_q.div_ceil(T::BLOCK_M)) }
}

/// Normalises and stores the rows that exist, and their log-sum-exp where it is wanted. O's columns begin at
/// the product's `first_column`.
///
/// # Safety
/// All threads of the block call this together; O is writable, these rows are this block's own, and each warp
/// has read its rows of Q for the last time.
#[inline(always)]
unsafe fn store_output<T: Tile>(
    params: &AttentionParams,
    work: &WorkTile,
    first_column: u32,
    acc: &T::O,
    softmax: &Softmax<T>,
) {
    let (first_row, lane) = (work.tile * T::BLOCK_M, Lane::reread(T::S::ROWS));
    let rows = work.queries.len - first_row;
    let staged = MmaTile::<T::HeadDim>::new(shared::base());
    // SAFETY: all lanes are here, O's rows are the warp's, and so is the part of Q's tile that takes them.
    unsafe {
        warp::sync();
        let mut i = 0;
        while i < T::O::ROWS {
            let row = lane.row(i);
            let (inverse_sum, lse) =
                with_sink(softmax.finish(i), &params.per_head.sinks, (work.batch, work.head));
            let inverse_sum = if T::DROPOUT { inverse_sum * params.dropout.scale } else { inverse_sum };
            let mut j = 0;
            while j < T::O::COLS {
                let pair = T::Element::pack(acc[i][j] * inverse_sum, acc[i][j + 1] * inverse_sum);
                shared::store_b32(staged.at(row, lane.column(j)), pair);
                j += 2;
            }
            if params.lse != 0 && lane.pair == 0 && row < rows {
                f32::store(params.lse + 4 * work.lse_index(params, first_row + row), lse);
            }
            i += 1;
        }
        warp::sync();
        if lane.warp_row < rows {
            let shape = (work.queries, params.head_dim_v);
            let o = GlobalTile::of_head::<T::Element>(params.o, &params.o_strides, work, work.head, shape);
            let o = o.from::<T::Element>(first_row + lane.warp_row, 0);
            store_rows::<T::Element, _>(
                staged.from_row(lane.warp_row),
                8 * T::O::ROWS as u32,
                &o,
                first_column,
            );
        }
    }
}
