//! Attention of few queries against a long K/V cache: Flash-Decoding (split K/V; Dao et al. 2023,
//! <https://crfm.stanford.edu/2023/10/12/flashdecoding.html>) on tensor cores.
//!
//! The work is bound by the bytes of K and V, so each is read once: the query heads that share a
//! key/value head are, with the rows of the sequence, the rows of one tile. Each sequence's keys are
//! split over several blocks, and within a block over its warps: all of them hold the same
//! rows, each with a running max, sum and output of its own, and each copies the keys that it will read
//! itself. So no warp waits for another until the end, when their results are merged.
//!
//! Runs on every NVIDIA GPU since sm_80.

mod merge;
mod scores;
mod tile;

use core::marker::PhantomData;

use crate::attention::split_work::{QueryRow, Work, packed_rows, seen_keys};
use crate::attention::splits::{Splits, used_keys};
use crate::attention::tree_mask;
use crate::config::WARP_KEYS;
use crate::element::Element as _;
use crate::mask::KeyRange;
use crate::params::DecodeParams;
use crate::ptx::{barrier, cp_async, index, shared, warp};
use crate::registers::{Matrix as _, Width as _};
use crate::softmax::{OnlineSoftmax, rescale_where_needed};
use crate::tile::chunk::load_chunk;
use crate::tile::kv_cache::{KvCache, Rows as CacheRows};
use crate::tile::mma::{self, CHUNK, Lane, MmaTile};

use merge::Partials;
use scores::{Rows, fill_slopes};
pub use tile::{DecodeTile, Tile};

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 2;

/// O = softmax(softmax_scale·Q·Kᵀ)·V and its log-sum-exp, for one tile of `BLOCK_M` packed query rows and
/// one split of the keys; with several splits into `partial_o` and `partial_lse`.
///
/// Packed row r of a key/value head is row r / `group` of query head r mod `group` of its group.
/// Launch: ⌈Sq·group / BLOCK_M⌉·Hkv·`num_splits`·B blocks of [`Tile::THREADS`] threads with the
/// shared memory of [`Tile::CONFIG`].
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn decode<T: Tile>(params: &DecodeParams) {
    let config = T::CONFIG;
    let work = Work::of_batch(params, T::BLOCK_M, index::block());
    // SAFETY: valid parameters.
    let used = unsafe { used_keys(params, work.batch) };
    let splits = Splits::of(params).count(used);
    if work.split >= splits {
        return; // Nothing reads this split.
    }
    let last_row = (work.first_row + T::BLOCK_M).min(packed_rows(params)) - 1;
    let seen = KeyRange {
        first: seen_keys(params, used, work.first_row).first,
        end: seen_keys(params, used, last_row).end,
    };
    let part = Splits::of(params).part(work.split, used, seen, config.block_n());
    let keys = Keys::of_warp(part, config.block_n());
    let q_shared = MmaTile::<T::HeadDim>::new(shared::base());
    let rings = q_shared.address + MmaTile::<T::HeadDim>::bytes(T::BLOCK_M);
    let warp = index::thread() / 32;
    // SAFETY: a warp's ring is its own: it fills a stage after the `sync` that follows its last reads of
    // it, and reads it after it has waited for the copies and a `sync`. Q is read behind a barrier.
    unsafe {
        let mut ring =
            Ring::<T>::new(params, &work, keys, rings + warp * config.ring_bytes(), config.block_n());
        let mut ahead = 0;
        while ahead < T::AHEAD {
            ring.fill(ahead, ahead);
            ahead += 1;
        }
        fill_queries::<T>(params, &work, q_shared);
        fill_slopes::<T>(params, &work, q_shared);
        barrier::sync(0, T::THREADS);

        let lane = Lane { warp_row: 0, ..Lane::current(T::S::ROWS) };
        let rows = Rows::<T::S, _>::new(params, &work, (used, last_row), q_shared, lane);
        let mut acc = T::O::zero();
        let mut softmax = OnlineSoftmax::with_positive_scale(rows.softmax_scale(params));
        let (mut step, mut stage) = (0, 0);
        while step < keys.steps {
            // The stage that the last step has read is the one before this.
            ring.fill(step + T::AHEAD, if stage == 0 { T::AHEAD } else { stage - 1 });
            T::wait();
            warp::sync();
            let mut s = T::S::zero();
            mma::multiply_transposed::<T::Element, _, _>(&mut s, q_shared, 0, ring.k_tile(stage), !0);
            let first_key = keys.first + step * config.block_n();
            rows.apply(params, &mut s, lane, first_key, keys.end);
            if params.tree_mask != 0 {
                // Found anew: tiles that fill the registers have none to keep these in.
                let work = Work::of_batch(params, T::BLOCK_M, index::block());
                let of = (work.batch, used_keys(params, work.batch));
                let position = |i| work.query_row(params, work.first_row + lane.row(i)).position;
                tree_mask::hide(params, &mut s, of, (first_key, WARP_KEYS), position, |j| lane.column(j));
            }
            let rescale = softmax.step(&mut s);
            rescale_where_needed(&mut acc, &rescale);
            mma::multiply_accumulate::<T::Element, _, _, _>(&mut acc, &s, ring.v_tile(stage));
            warp::sync();
            stage = if stage == T::AHEAD { 0 } else { stage + 1 };
            step += 1;
        }
        let partials = Partials::<T>::new(rings, splits > 1);
        partials.write(warp, lane, &acc, &softmax);
        barrier::sync(0, T::THREADS);
        partials.merge(params, &work, last_row, keys.steps > 0);
    }
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

impl Keys {
    /// Those of this warp in the block's, from its own on in each step of `block_n`.
    #[inline(always)]
    fn of_warp(KeyRange { first, end }: KeyRange, block_n: u32) -> Self {
        Self {
            first: first + index::thread() / 32 * WARP_KEYS,
            end,
            steps: end.saturating_sub(first).div_ceil(block_n),
        }
    }
}

/// A warp's tiles of K and V in shared memory, filled in turn.
struct Ring<'a, T> {
    k: KvCache<'a>,
    v: KvCache<'a>,
    /// Of the first stage.
    address: u32,
    keys: Keys,
    /// Keys from one of the warp's steps to the next.
    block_n: u32,
    /// Where the next step's rows lie, looked up one step ahead.
    rows: CacheRows,
    tile: PhantomData<T>,
}

impl<'a, T: Tile> Ring<'a, T> {
    /// A ring at `address` for the warp's `keys`.
    ///
    /// # Safety
    /// `params` describes valid device memory.
    #[inline(always)]
    unsafe fn new(params: &'a DecodeParams, work: &Work, keys: Keys, address: u32, block_n: u32) -> Self {
        let k = KvCache::k(params, work.batch, work.kv_head);
        let v = KvCache::v(params, work.batch, work.kv_head);
        // SAFETY: the page table, where there is one, has an entry for each key below `keys.end`.
        let rows = unsafe { k.locate(keys.first, keys.end) };
        Self { k, v, address, keys, block_n, rows, tile: PhantomData }
    }

    /// The tile of K in a stage.
    #[inline(always)]
    fn k_tile(&self, stage: u32) -> MmaTile<T::HeadDim> {
        MmaTile::new(self.address + stage * const { 2 * MmaTile::<T::HeadDim>::bytes(WARP_KEYS) })
    }

    /// The tile of V in a stage.
    #[inline(always)]
    fn v_tile(&self, stage: u32) -> MmaTile<T::HeadDim> {
        MmaTile::new(self.k_tile(stage).address + const { MmaTile::<T::HeadDim>::bytes(WARP_KEYS) })
    }

    /// Begins to copy the keys of `step`, the one after that of the last call, to `stage`, and closes a
    /// group of copies; past the last step the group is empty.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and none still reads the stage.
    #[inline(always)]
    unsafe fn fill(&mut self, step: u32, stage: u32) {
        if step < self.keys.steps {
            let (first, end) = (self.keys.first + step * self.block_n, self.keys.end);
            // SAFETY: keys below `end` exist, all lanes are here, and none still reads the stage.
            unsafe {
                self.k.fill::<T::Element, _>(self.k_tile(stage), &self.rows, first, end);
                self.v.fill::<T::Element, _>(self.v_tile(stage), &self.rows, first, end);
                self.rows = self.k.locate(first + self.block_n, end);
            }
        }
        cp_async::commit_group();
    }
}

/// Writes the tile's rows of Q to shared memory, 0 where there are none.
///
/// # Safety
/// Q is readable; all threads of the block call this together, and a barrier follows.
#[inline(always)]
unsafe fn fill_queries<T: Tile>(params: &DecodeParams, work: &Work, tile: MmaTile<T::HeadDim>) {
    let chunks = T::HeadDim::COLUMNS * 2 / CHUNK;
    let mut chunk = index::thread();
    while chunk < T::BLOCK_M * chunks {
        let (row, column) = (chunk / chunks, chunk % chunks * (CHUNK / 2));
        let exists = work.first_row + row < packed_rows(params) && column < params.head_dim;
        let elements = if exists { (params.head_dim - column).min(CHUNK / 2) } else { 0 };
        let QueryRow { position, head } = work.query_row(params, work.first_row + row);
        let element = params.q_strides.offset(work.batch, position, head) + column as u64;
        // SAFETY: only elements of Q that exist are loaded, and no thread reads the tile before a barrier.
        unsafe {
            let words = load_chunk(params.q + T::Element::BYTES * element, elements);
            shared::store4(tile.address + row * MmaTile::<T::HeadDim>::STRIDE + 2 * column, words);
        }
        chunk += T::THREADS;
    }
}
