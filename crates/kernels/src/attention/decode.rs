//! Attention of few queries against a long K/V cache: Flash-Decoding (split K/V; Dao et al. 2023,
//! https://crfm.stanford.edu/2023/10/12/flashdecoding.html) on tensor cores.
//!
//! The work is bound by the bytes of K and V, so each is read once: the query heads that share a
//! key/value head are, with the rows of the sequence, the rows of one tile. Each sequence's keys are
//! split over several blocks, and within a block over its warps: all of them hold the same
//! rows, each with a running max, sum and output of its own, and each copies the keys that it will read
//! itself. So no warp waits for another until the end, when their results are merged.
//!
//! Runs on every NVIDIA GPU since sm_80.

use core::hint::assert_unchecked;

use crate::attention::combine::{Weights, partial_lse, partial_o};
use crate::attention::forward_sm80::{Lane, grew, rescale_output};
use crate::config::{DecodeConfig, WARP_KEYS};
use crate::element::Element;
use crate::params::DecodeParams;
use crate::ptx::{barrier, cp_async, global, index, math, shared, warp};
use crate::softmax::OnlineSoftmax;
use crate::tile::kv_cache::{KvCache, Rows};
use crate::tile::mma::{self, CHUNK, MmaElement, MmaTile, QUAD};

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 2;

/// Columns of a warp's step of S that a lane holds.
const COLS: usize = (WARP_KEYS / QUAD) as usize;

/// O = softmax(softmax_scale·Q·Kᵀ)·V and its log-sum-exp, for one tile of `BLOCK_M` packed query rows and
/// one split of the keys; with several splits into `partial_o` and `partial_lse`.
///
/// Packed row r of a key/value head is row r / `group` of query head r mod `group` of its group. `AHEAD` is
/// [`DecodeConfig::stages`] − 1: the tiles that are being copied while one is worked on. `ROWS` =
/// BLOCK_M / 8 and `OUT` = HEAD_DIM / 4 are a lane's rows and its columns of O.
/// Launch: ⌈Sq·group / BLOCK_M⌉·Hkv·`num_splits`·B blocks of [`DecodeConfig::threads`] threads with
/// [`DecodeConfig::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn decode<
    E: MmaElement,
    const BLOCK_M: u32,
    const HEAD_DIM: u32,
    const WARPS: usize,
    const AHEAD: usize,
    const ROWS: usize,
    const OUT: usize,
>(
    params: &DecodeParams,
) {
    let config = const {
        let config = config(BLOCK_M, HEAD_DIM, WARPS, AHEAD);
        assert!(config.is_well_formed());
        assert!(ROWS as u32 * 8 == BLOCK_M && OUT as u32 * QUAD == HEAD_DIM);
        config
    };
    // SAFETY: valid parameters have no empty axis.
    let work = unsafe { Work::of_block::<BLOCK_M>(params) };
    // SAFETY: valid parameters.
    let used = unsafe { used_keys(params, work.batch) };
    let last_row = (work.first_row + BLOCK_M).min(packed_rows(params)) - 1;
    let keys = work.keys(params, visible_keys(params, used, last_row), config.block_n());
    let q_shared = MmaTile::<HEAD_DIM> { address: shared::base() };
    let rings = q_shared.address + MmaTile::<HEAD_DIM>::bytes(BLOCK_M);
    let warp = index::thread() / 32;
    // SAFETY: a warp's ring is its own: it fills a stage after the `sync` that follows its last reads of
    // it, and reads it after it has waited for the copies and a `sync`. Q is read behind a barrier.
    unsafe {
        let mut ring =
            Ring::<HEAD_DIM>::new(params, &work, keys, rings + warp * config.ring_bytes(), config.block_n());
        let mut ahead = 0;
        while ahead < AHEAD as u32 {
            ring.fill::<E>(ahead, ahead);
            ahead += 1;
        }
        fill_queries::<E, BLOCK_M, HEAD_DIM>(params, &work, q_shared, config.threads());
        barrier::sync(0, config.threads());

        let lane = Lane { warp_row: 0, group: index::thread() % 32 / QUAD, pair: index::thread() % QUAD };
        let mut visible = [0; ROWS];
        let mut i = 0;
        while i < ROWS {
            visible[i] = visible_keys(params, used, work.first_row + lane.row(i));
            i += 1;
        }
        // The tile's first row sees the fewest keys; up to there nothing is masked.
        let unmasked = visible_keys(params, used, work.first_row);
        let mut acc = [[0.0; OUT]; ROWS];
        let mut softmax = OnlineSoftmax::<ROWS, QUAD>::new(params.softmax_scale);
        let (mut step, mut stage) = (0, 0);
        while step < keys.steps {
            // The stage that the last step has read is the one before this.
            ring.fill::<E>(step + AHEAD as u32, if stage == 0 { AHEAD as u32 } else { stage - 1 });
            cp_async::wait_group::<AHEAD>();
            warp::sync();
            let mut s = [[0.0; COLS]; ROWS];
            mma::multiply_transposed::<E, HEAD_DIM, ROWS, COLS>(&mut s, q_shared, 0, ring.k_tile(stage));
            softmax.prescale(&mut s);
            let first_key = keys.first + step * config.block_n();
            if first_key + WARP_KEYS > unmasked.min(keys.end) {
                apply_mask(&mut s, &visible, keys.end, first_key, lane);
            }
            let rescale = softmax.step(&mut s);
            if warp::vote_any(grew(&rescale)) {
                rescale_output(&mut acc, &rescale);
            }
            mma::multiply_accumulate::<E, HEAD_DIM, ROWS, COLS, OUT>(&mut acc, &s, ring.v_tile(stage));
            warp::sync();
            stage = if stage == AHEAD as u32 { 0 } else { stage + 1 };
            step += 1;
        }
        let partials = Partials::<HEAD_DIM, WARPS> { config, address: rings };
        partials.write(warp, lane, &acc, &softmax);
        barrier::sync(0, config.threads());
        partials.merge::<E>(params, &work, last_row);
    }
}

const fn config(block_m: u32, head_dim: u32, warps: usize, ahead: usize) -> DecodeConfig {
    DecodeConfig { block_m, head_dim, warps: warps as u32, stages: ahead as u32 + 1 }
}

/// A block's share of the problem.
struct Work {
    /// First packed row of its tile.
    first_row: u32,
    kv_head: u32,
    split: u32,
    batch: u32,
}

/// The keys of a warp.
#[derive(Clone, Copy)]
struct Keys {
    /// The first of its first step.
    first: u32,
    /// Where the block's keys end.
    end: u32,
    /// Steps of all the block's warps.
    steps: u32,
}

/// A warp's tiles of K and V in shared memory, filled in turn.
struct Ring<'a, const HEAD_DIM: u32> {
    k: KvCache<'a>,
    v: KvCache<'a>,
    /// Of the first stage.
    address: u32,
    keys: Keys,
    /// Keys from one of the warp's steps to the next.
    block_n: u32,
    /// Where the next step's rows lie, looked up one step ahead.
    rows: Rows,
}

impl<'a, const HEAD_DIM: u32> Ring<'a, HEAD_DIM> {
    /// A ring at `address` for the warp's `keys`.
    ///
    /// # Safety
    /// `params` describes valid device memory.
    #[inline(always)]
    unsafe fn new(params: &'a DecodeParams, work: &Work, keys: Keys, address: u32, block_n: u32) -> Self {
        let k = KvCache::new(params, params.k, &params.k_strides, work.batch, work.kv_head);
        let v = KvCache::new(params, params.v, &params.v_strides, work.batch, work.kv_head);
        // SAFETY: the caller's contract.
        let rows = unsafe { k.locate(keys.first, keys.end) };
        Self { k, v, address, keys, block_n, rows }
    }

    /// The tile of K in a stage.
    #[inline(always)]
    fn k_tile(&self, stage: u32) -> MmaTile<HEAD_DIM> {
        MmaTile { address: self.address + stage * const { 2 * MmaTile::<HEAD_DIM>::bytes(WARP_KEYS) } }
    }

    /// The tile of V in a stage.
    #[inline(always)]
    fn v_tile(&self, stage: u32) -> MmaTile<HEAD_DIM> {
        MmaTile { address: self.k_tile(stage).address + const { MmaTile::<HEAD_DIM>::bytes(WARP_KEYS) } }
    }

    /// Begins to copy the keys of `step`, the one after that of the last call, to `stage`, and closes a
    /// group of copies; past the last step the group is empty.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and none still reads the stage.
    #[inline(always)]
    unsafe fn fill<E: Element>(&mut self, step: u32, stage: u32) {
        if step < self.keys.steps {
            let (first, end) = (self.keys.first + step * self.block_n, self.keys.end);
            // SAFETY: the caller's contract; keys below `end` are the sequence's.
            unsafe {
                self.k.fill::<E, HEAD_DIM>(self.k_tile(stage), &self.rows, first, end);
                self.v.fill::<E, HEAD_DIM>(self.v_tile(stage), &self.rows, first, end);
                self.rows = self.k.locate(first + self.block_n, end);
            }
        }
        cp_async::commit_group();
    }
}

/// A row of Q, O and lse.
struct QueryRow {
    position: u32,
    head: u32,
}

impl Work {
    /// Splits the linear block index into (batch, split, head, tile), the tile fastest, so that blocks
    /// that run at the same time read the same keys, or those of neighbouring heads.
    ///
    /// # Safety
    /// Sq, `heads`, `group` and `num_splits` are at least 1, and `group` divides `heads`.
    #[inline(always)]
    unsafe fn of_block<const BLOCK_M: u32>(params: &DecodeParams) -> Self {
        // SAFETY: the caller's contract. Without it each division would carry a call to the panic
        // for a zero divisor, which a kernel cannot link.
        let (tiles, kv_heads) = unsafe {
            assert_unchecked(params.group > 0);
            assert_unchecked(params.num_splits > 0);
            let (tiles, kv_heads) = (packed_rows(params).div_ceil(BLOCK_M), params.heads / params.group);
            assert_unchecked(tiles > 0);
            assert_unchecked(kv_heads > 0);
            (tiles, kv_heads)
        };
        let (tile, rest) = (index::block() % tiles, index::block() / tiles);
        let (kv_head, rest) = (rest % kv_heads, rest / kv_heads);
        Self {
            first_row: tile * BLOCK_M,
            kv_head,
            split: rest % params.num_splits,
            batch: rest / params.num_splits,
        }
    }

    /// The keys of this warp: those of its block's split of the first `visible` keys, from the
    /// warp's own on in each step of `block_n`.
    #[inline(always)]
    fn keys(&self, params: &DecodeParams, visible: u32, block_n: u32) -> Keys {
        // SAFETY: valid parameters have at least one split.
        unsafe { assert_unchecked(params.num_splits > 0) };
        let blocks = visible.div_ceil(block_n);
        // Splits differ by at most one block; the first ones have it.
        let (least, longer) = (blocks / params.num_splits, blocks % params.num_splits);
        let first = (self.split * least + self.split.min(longer)) * block_n;
        let steps = least + (self.split < longer) as u32;
        Keys {
            first: first + index::thread() / 32 * WARP_KEYS,
            end: (first + steps * block_n).min(visible),
            steps,
        }
    }

    /// The row of the sequence and the query head that a packed row is.
    #[inline(always)]
    fn query_row(&self, params: &DecodeParams, packed: u32) -> QueryRow {
        // SAFETY: valid parameters have groups of at least one head.
        unsafe { assert_unchecked(params.group > 0) };
        QueryRow {
            position: packed / params.group,
            head: self.kv_head * params.group + packed % params.group,
        }
    }
}

/// Packed rows of a key/value head.
#[inline(always)]
fn packed_rows(params: &DecodeParams) -> u32 {
    params.seqlen_q * params.group
}

/// Keys of a sequence.
///
/// # Safety
/// `params` describes valid device memory.
#[inline(always)]
unsafe fn used_keys(params: &DecodeParams, batch: u32) -> u32 {
    if params.seqused_k == 0 {
        return params.seqlen_k;
    }
    // SAFETY: the caller's contract.
    let used = unsafe { global::load_b32_if(true, params.seqused_k + 4 * batch as u64) } as i32;
    (used.max(0) as u32).min(params.seqlen_k)
}

/// Keys that a packed row sees of the sequence's `used`: with the causal mask, aligned bottom-right, row i of
/// the sequence sees the first `used` − Sq + i + 1. Rows past the last see no more than `used`.
#[inline(always)]
fn visible_keys(params: &DecodeParams, used: u32, packed: u32) -> u32 {
    // SAFETY: valid parameters have groups of at least one head.
    unsafe { assert_unchecked(params.group > 0) };
    if params.causal == 0 {
        return used;
    }
    (packed / params.group + 1 + used).saturating_sub(params.seqlen_q).min(used)
}

/// Sets the scores of keys that a row does not see, or that are the next block's, to −∞.
#[inline(always)]
fn apply_mask<const ROWS: usize>(
    s: &mut [[f32; COLS]; ROWS],
    visible: &[u32; ROWS],
    end: u32,
    first_key: u32,
    lane: Lane,
) {
    let mut i = 0;
    while i < ROWS {
        let visible = visible[i].min(end);
        let mut j = 0;
        while j < COLS {
            if first_key + lane.column(j) >= visible {
                s[i][j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
        i += 1;
    }
}

/// Writes the tile's rows of Q to shared memory, 0 where there are none.
///
/// # Safety
/// Q is readable; all `threads` threads of the block call this together, and a barrier follows.
#[inline(always)]
unsafe fn fill_queries<E: MmaElement, const BLOCK_M: u32, const HEAD_DIM: u32>(
    params: &DecodeParams,
    work: &Work,
    tile: MmaTile<HEAD_DIM>,
    threads: u32,
) {
    let chunks = HEAD_DIM * 2 / CHUNK;
    let mut chunk = index::thread();
    while chunk < BLOCK_M * chunks {
        let (row, column) = (chunk / chunks, chunk % chunks * (CHUNK / 2));
        let exists = work.first_row + row < packed_rows(params) && column < params.head_dim;
        let elements = if exists { (params.head_dim - column).min(CHUNK / 2) } else { 0 };
        let QueryRow { position, head } = work.query_row(params, work.first_row + row);
        let strides = &params.q_strides;
        let element = work.batch as u64 * strides.batch
            + position as u64 * strides.row
            + head as u64 * strides.head
            + column as u64;
        // SAFETY: the caller's contract; elements are loaded only where they exist.
        unsafe {
            let words = mma::load_chunk(params.q + E::BYTES * element, elements);
            shared::store4(tile.address + row * MmaTile::<HEAD_DIM>::STRIDE + 2 * column, words);
        }
        chunk += threads;
    }
}

/// The warps' normalised O and their log-sum-exps, fp32, each where the warp's ring was.
struct Partials<const HEAD_DIM: u32, const WARPS: usize> {
    config: DecodeConfig,
    /// Of the first warp.
    address: u32,
}

impl<const HEAD_DIM: u32, const WARPS: usize> Partials<HEAD_DIM, WARPS> {
    /// Address of an element of a warp's O.
    #[inline(always)]
    fn o(&self, warp: u32, row: u32, column: u32) -> u32 {
        self.address + warp * self.config.ring_bytes() + 4 * (row * self.config.partial_stride() + column)
    }

    /// Address of a warp's log-sum-exp of a row.
    #[inline(always)]
    fn lse(&self, warp: u32, row: u32) -> u32 {
        self.o(warp, self.config.block_m, row)
    }

    /// Writes this warp's result.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together, its copies have arrived and its tiles have been read.
    #[inline(always)]
    unsafe fn write<const ROWS: usize, const OUT: usize>(
        &self,
        warp: u32,
        lane: Lane,
        acc: &[[f32; OUT]; ROWS],
        softmax: &OnlineSoftmax<ROWS, QUAD>,
    ) {
        let mut i = 0;
        while i < ROWS {
            let row = lane.row(i);
            // SAFETY: the caller's contract; each element is one lane's.
            unsafe {
                let (inverse_sum, lse) = softmax.finish(i);
                let mut j = 0;
                while j < OUT {
                    shared::store(self.o(warp, row, lane.column(j)), acc[i][j] * inverse_sum);
                    j += 1;
                }
                if lane.pair == 0 {
                    shared::store(self.lse(warp, row), lse);
                }
            }
            i += 1;
        }
    }

    /// Merges the warps' results and stores the rows that exist: as O and lse, or as those of a split.
    ///
    /// # Safety
    /// All threads of the block call this together, behind a barrier after [`Self::write`].
    #[inline(always)]
    unsafe fn merge<E: Element>(&self, params: &DecodeParams, work: &Work, last_row: u32) {
        let lane = index::thread() % 32;
        let mut row = index::thread() / 32;
        while work.first_row + row <= last_row {
            // SAFETY: the caller's contract.
            let (shares, lse) = unsafe { self.shares(row) };
            let at = work.query_row(params, work.first_row + row);
            let sequence_head = work.batch as u64 * params.heads as u64 + at.head as u64;
            let target =
                Target { work, at: &at, row: sequence_head * params.seqlen_q as u64 + at.position as u64 };
            let mut column = lane;
            let mut part = 0;
            while part < HEAD_DIM / 32 {
                let mut value = 0.0;
                let mut warp = 0;
                while warp < WARPS {
                    // SAFETY: the caller's contract.
                    let share = unsafe { shared::load(self.o(warp as u32, row, column)) };
                    value = math::fma(shares[warp], share, value);
                    warp += 1;
                }
                if column < params.head_dim {
                    // SAFETY: the element exists and is this lane's.
                    unsafe { target.store_o::<E>(params, column, value) };
                }
                column += 32;
                part += 1;
            }
            if lane == 0 {
                // SAFETY: the row exists and is this warp's.
                unsafe { target.store_lse(params, lse) };
            }
            row += WARPS as u32;
        }
    }

    /// The warps' shares in a row, and its log-sum-exp.
    ///
    /// # Safety
    /// As [`Self::merge`].
    #[inline(always)]
    unsafe fn shares(&self, row: u32) -> ([f32; WARPS], f32) {
        let mut shares = [0.0; WARPS];
        let mut max = f32::NEG_INFINITY;
        let mut warp = 0;
        while warp < WARPS {
            // SAFETY: the caller's contract.
            shares[warp] = unsafe { shared::load(self.lse(warp as u32, row)) };
            max = math::max(max, shares[warp]);
            warp += 1;
        }
        let weights = Weights::new(max);
        let mut sum = 0.0;
        let mut warp = 0;
        while warp < WARPS {
            shares[warp] = weights.of(shares[warp]);
            sum += shares[warp];
            warp += 1;
        }
        let (inverse_sum, lse) = weights.finish(sum);
        let mut warp = 0;
        while warp < WARPS {
            shares[warp] *= inverse_sum;
            warp += 1;
        }
        (shares, lse)
    }
}

/// Where a row of the result goes.
struct Target<'a> {
    work: &'a Work,
    at: &'a QueryRow,
    /// Index of the row in lse, [B, H, Sq].
    row: u64,
}

impl Target<'_> {
    /// Stores one element.
    ///
    /// # Safety
    /// It exists, and no other thread stores it.
    #[inline(always)]
    unsafe fn store_o<E: Element>(&self, params: &DecodeParams, column: u32, value: f32) {
        // SAFETY: the caller's contract.
        unsafe {
            if params.num_splits > 1 {
                return f32::store(partial_o(params, self.work.split, self.row, column), value);
            }
            let strides = &params.o_strides;
            let element = self.work.batch as u64 * strides.batch
                + self.at.position as u64 * strides.row
                + self.at.head as u64 * strides.head
                + column as u64;
            E::store(params.o + E::BYTES * element, value);
        }
    }

    /// Stores the log-sum-exp, where it is wanted.
    ///
    /// # Safety
    /// As [`Self::store_o`].
    #[inline(always)]
    unsafe fn store_lse(&self, params: &DecodeParams, lse: f32) {
        // SAFETY: the caller's contract.
        unsafe {
            if params.num_splits > 1 {
                f32::store(partial_lse(params, self.work.split, self.row), lse);
            } else if params.lse != 0 {
                f32::store(params.lse + 4 * self.row, lse);
            }
        }
    }
}
