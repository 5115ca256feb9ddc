//! dK and dV of a tile of keys, and dS on its way to device memory, for [`backward_dq`](super::backward_dq).
//!
//! The loop has one barrier a step: a step's rows, lse and delta are copied while the one before is
//! multiplied, by streams that go on by constants. P and dS stay in the registers of the warp that computed
//! them, as the A operands of the products behind, and pieces of dS are stored from there.

use core::f32::consts::LOG2_E;

use super::Tile;
use super::tile::StepRows;
use crate::attention::stored_ds::{self, PANEL, PIECE, PIECE_QUERIES, ROW_BYTES};
use crate::mask::MaskCorner;
use crate::params::{AttentionParams, BackwardParams};
use crate::ptx::{barrier, cp_async, index, math, shared, warp};
use crate::registers::{Matrix, Registers as _};
use crate::scheduler::{Rows, WorkTile};
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

/// Q and dO of the tile's query head, from `row` on.
#[inline(always)]
fn queries<T: Tile>(params: &BackwardParams, work: &WorkTile, row: u32) -> [GlobalTile; 2] {
    let attention = &params.attention;
    let of = |address, strides, columns| {
        let tile =
            GlobalTile::of_head::<T::Element>(address, strides, work, work.head, (work.queries, columns));
        tile.from::<T::Element>(row, 0)
    };
    [
        of(attention.q, &attention.q_strides, attention.head_dim),
        of(params.dout, &params.dout_strides, attention.head_dim_v),
    ]
}

/// The rows that the block owns of two tensors in the layout of K and of V.
#[inline(always)]
fn owned<T: Tile>(params: &BackwardParams, work: &WorkTile, gradients: bool) -> [GlobalTile; 2] {
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let kv_head = unsafe { work.kv_head(attention) };
    let of = |address, strides, columns| {
        let tile = GlobalTile::of_head::<T::Element>(address, strides, work, kv_head, (work.keys, columns));
        tile.from::<T::Element>(work.tile * T::OWNED, 0)
    };
    if gradients {
        let k = of(params.dk, &params.dk_strides, attention.head_dim);
        [k, of(params.dv, &params.dv_strides, attention.head_dim_v)]
    } else {
        let k = of(attention.k, &attention.k_strides, attention.head_dim);
        [k, of(attention.v, &attention.v_strides, attention.head_dim_v)]
    }
}

/// Whether all rows of K, V, Q and dO start at multiples of 16 bytes, of all heads that share the keys.
#[inline(always)]
fn rows_are_aligned<T: Tile>(params: &BackwardParams, work: &WorkTile) -> bool {
    let ([q, dout], [k, v]) = (queries::<T>(params, work, 0), owned::<T>(params, work, false));
    let head_strides = params.attention.q_strides.head | params.dout_strides.head;
    let alike = params.attention.group == 1 || (2 * head_strides).is_multiple_of(CHUNK as u64);
    alike && is_aligned(&q) && is_aligned(&dout) && is_aligned(&k) && is_aligned(&v)
}

/// A step in shared memory: Q, dO, then lse and delta.
#[derive(Clone, Copy)]
struct Stage<T: Tile> {
    q: MmaTile<T::HeadDim>,
}

impl<T: Tile> Stage<T> {
    /// Bytes of it.
    const BYTES: u32 = MmaTile::<T::HeadDim>::bytes(2 * T::STEP) + T::CONFIG.stats_bytes();

    /// The `index`-th of both, behind the rows that the block owns.
    #[inline(always)]
    fn new(index: u32) -> Self {
        let owned = MmaTile::<T::HeadDim>::new(shared::base()).from_row(2 * T::OWNED);
        Self { q: MmaTile::new(owned.address + index * Self::BYTES) }
    }

    #[inline(always)]
    fn dout(self) -> MmaTile<T::HeadDim> {
        self.q.from_row(T::STEP)
    }

    /// Address of lse of the step's rows; delta stands behind it.
    #[inline(always)]
    fn stats(self) -> u32 {
        self.q.from_row(2 * T::STEP).address
    }
}

/// What the loop seldom needs of the block's work, in shared memory: there are no registers to keep it in.
#[derive(Clone, Copy)]
struct Kept {
    address: u32,
}

impl Kept {
    /// Behind the stages.
    #[inline(always)]
    fn new<T: Tile>() -> Self {
        Self { address: Stage::<T>::new(2).q.address }
    }

    /// Writes it; a barrier must follow before others read it.
    ///
    /// # Safety
    /// No thread accesses it.
    #[inline(always)]
    unsafe fn write<T: Tile>(self, params: &BackwardParams, work: &WorkTile, (first, end): (u32, u32)) {
        let attention = &params.attention;
        let (corner, keys) = MaskCorner::new(attention, work, 0, work.tile * T::OWNED).parts();
        let head = work.batch * attention.heads + work.head;
        let ds_head = head.wrapping_sub(params.ds.first_unit * attention.group);
        // SAFETY: there is room for these words, and no thread accesses them.
        unsafe {
            shared::store4(self.address, [end, work.queries.len, corner, keys]);
            shared::store4(self.address + 16, [ds_head, work.tile * T::OWNED, work.head, work.batch]);
            shared::store4(self.address + 32, [work.queries.first, first, work.keys.first, 0]);
        }
    }

    /// One past the last query that the loop goes over, and how many there are.
    ///
    /// # Safety
    /// It is written, with a barrier between.
    #[inline(always)]
    unsafe fn end_and_queries(self) -> (u32, u32) {
        // SAFETY: it is written, with a barrier between.
        let [end, queries] = unsafe { shared::load2(self.address) };
        (end.to_bits(), queries.to_bits())
    }

    /// The mask from the sequence's first query and the block's first key on.
    ///
    /// # Safety
    /// As [`Self::end_and_queries`].
    #[inline(always)]
    unsafe fn corner(self) -> MaskCorner {
        // SAFETY: it is written, with a barrier between.
        let [corner, keys] = unsafe { shared::load2(self.address + 8) };
        MaskCorner::of_parts(corner.to_bits(), keys.to_bits())
    }

    /// The first query that the loop goes over.
    ///
    /// # Safety
    /// As [`Self::end_and_queries`].
    #[inline(always)]
    unsafe fn first(self) -> u32 {
        // SAFETY: it is written, with a barrier between.
        unsafe { shared::load_b32(self.address + 36) }
    }

    /// The first of the query heads that share the keys, of those that the launch stores dS of, and the first
    /// of the keys.
    ///
    /// # Safety
    /// As [`Self::end_and_queries`].
    #[inline(always)]
    unsafe fn ds_head_and_key(self) -> (u32, u32) {
        // SAFETY: it is written, with a barrier between.
        let [head, key] = unsafe { shared::load2(self.address + 16) };
        (head.to_bits(), key.to_bits())
    }

    /// The block's work.
    ///
    /// # Safety
    /// As [`Self::end_and_queries`].
    #[inline(always)]
    unsafe fn work<T: Tile>(self) -> WorkTile {
        // SAFETY: it is written, with a barrier between.
        unsafe {
            let [_, queries, _, keys] = shared::load4(self.address).map(f32::to_bits);
            let [_, first_key, head, batch] = shared::load4(self.address + 16).map(f32::to_bits);
            let [first_query, _, first, _] = shared::load4(self.address + 32).map(f32::to_bits);
            let queries = Rows { first: first_query, len: queries };
            let keys = Rows { first, len: first_key + keys };
            WorkTile { tile: first_key / T::OWNED, head, batch, queries, keys }
        }
    }
}

/// Q, dO, lse and delta of a query head, on their way into stages.
struct Streams<C> {
    q: C,
    dout: C,
    /// Address of this thread's row of lse, or of delta.
    stats: u64,
}

impl<C> Streams<C> {
    /// Those of the tile's query head, from `row` on.
    #[inline(always)]
    fn new<T: Tile>(params: &BackwardParams, work: &WorkTile, row: u32) -> Self
    where
        C: TileCopy<T::HeadDim>,
    {
        const { assert!(T::THREADS >= 2 * T::STEP) };
        let thread = index::reread_thread();
        let stats = if thread < T::STEP { params.attention.lse } else { params.delta };
        let [q, dout] = queries::<T>(params, work, row);
        Self {
            q: C::new::<T::Element>(&q),
            dout: C::new::<T::Element>(&dout),
            stats: stats + 4 * work.lse_index(&params.attention, row + thread % T::STEP),
        }
    }

    /// Begins to copy a step of which `rows` rows exist. Of the others lse is −∞, so that every P is 0.
    ///
    /// # Safety
    /// All threads of the block call this together, the rows are readable, and no thread reads the stage.
    #[inline(always)]
    unsafe fn copy<T: Tile>(&mut self, rows: u32, stage: Stage<T>)
    where
        C: TileCopy<T::HeadDim>,
    {
        // SAFETY: all threads are here, the rows are readable, and no thread reads the stage.
        unsafe {
            self.q.copy(rows, stage.q);
            self.dout.copy(rows, stage.dout());
            let thread = index::reread_thread();
            if thread < 2 * T::STEP {
                let target = stage.stats() + 4 * thread;
                if thread % T::STEP < rows {
                    cp_async::copy4(target, self.stats, 4);
                } else {
                    let absent = if thread < T::STEP { f32::NEG_INFINITY } else { 0.0 };
                    shared::store_b32(target, absent.to_bits());
                }
            }
        }
        self.stats += 4 * T::STEP as u64;
    }

    /// Brings into place what this warp's copies brought.
    ///
    /// # Safety
    /// As [`TileCopy::settle`].
    #[inline(always)]
    unsafe fn settle<T: Tile>(&self, stage: Stage<T>)
    where
        C: TileCopy<T::HeadDim>,
    {
        // SAFETY: all threads are here, after the stage's copies were waited for.
        unsafe {
            self.q.settle(stage.q);
            self.dout.settle(stage.dout());
        }
    }
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
        let [k, v] = owned::<T>(params, work, false);
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
        hide::<T>(attention, &mut p, corner);
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

/// Sets the scores of queries that do not see their key to −∞.
#[inline(always)]
fn hide<T: Tile>(attention: &AttentionParams, scores: &mut T::S, corner: MaskCorner) {
    let lane = Lane::reread(T::S::ROWS);
    let near = corner.behind(lane.row(0), lane.column(0));
    let mut i = 0;
    while i < T::S::ROWS {
        let mut j = 0;
        while j < T::S::COLS {
            if near.hides(attention, 8 * i as u32, 8 * (j / 2) as u32 + (j % 2) as u32) {
                scores[i][j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
        i += 1;
    }
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
    let targets = owned::<T>(params, work, true);
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
