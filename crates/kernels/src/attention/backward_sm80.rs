//! The backward pass of FlashAttention-2 on tensor cores (Dao 2023, arXiv:2307.08691, Algorithm 2), with
//! `mma.sync.m16n8k16`.
//!
//! As `backward_simt`, one kernel owns keys and one owns queries. A warp owns 16 or 32 rows of the block's,
//! so that P and dS stay in the registers of the warp that computed them, where they are the A operands of
//! the products behind. The other pair of tensors is copied a step ahead. No warp holds whole rows of dK and
//! dV of the widest heads: two warps compute the same P and dS there, and half of the gradients' columns
//! each.

mod dq;
mod keys_ds;
mod scores;
mod tile;

use super::gradient::{Place, RowStats, differentiate};
use crate::dropout::fragment::kept_bit;
use crate::element::Element as _;
use crate::mask::MaskCorner;
use crate::params::BackwardParams;
use crate::ptx::{barrier, cp_async, index, shared};
use crate::registers::{Matrix, Registers, Width as _};
use crate::scheduler::{Rows, WorkTile};
use crate::tile::chunk::load_chunk;
use crate::tile::mma::{self, CHUNK, Lane, MmaTile};
use crate::tile::simt::GlobalTile;
pub use dq::{DQ_BARRIERS, backward_dq};
pub use keys_ds::{KEYS_DS_BARRIERS, backward_keys_ds};
pub use tile::{BackwardSm80Tile, Tile};

/// One for each of a lane's columns of the scores, where those are queries.
type OfColumns<T> = <<<T as Tile>::S as Matrix>::Row as Registers>::Of<RowStats>;

/// One for each of its rows.
type OfRows<T> = <<T as Tile>::S as Matrix>::Column<RowStats>;

/// Barriers in the source of each of the two kernels; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 2;

/// dK and dV of one tile of keys, OWNED of them, summed over the query heads that share it.
///
/// Launch: ⌈Sk / OWNED⌉·H / group·B blocks of [`Tile::THREADS`] threads with the shared memory of
/// [`Tile::CONFIG`].
///
/// # Safety
/// `params` describes valid device memory, `attention::backward_delta` has run before with the same, and the
/// launch is as above. One that changes scores by more than a positive factor, or drops weights, has a tile
/// for it ([`BackwardSm80Tile`]).
#[inline(always)]
pub unsafe fn backward_keys<T: Tile>(params: &BackwardParams) {
    let shared = SharedTiles::<T>::new();
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
    let lane = lane::<T>(index::thread());
    let seen = scores::queries::<T>(attention, &work, first_key);
    // Found anew where it is needed: the loop has no registers to spare.
    // SAFETY: as above.
    let anew = |member| unsafe {
        let work = WorkTile::of_key_block(attention, attention.seqlen_k.div_ceil(T::OWNED));
        WorkTile { head: work.head + member, ..work }
    };
    let fetch = |member: u32, first_row: u32, stage: u32| {
        let work = anew(member);
        // Queries that see no key of the tile are not read.
        let queries = Rows { len: seen.end, ..work.queries };
        let (q_shape, dout_shape) = ((queries, head_dim), (queries, head_dim_v));
        let q =
            GlobalTile::of_head::<T::Element>(attention.q, &attention.q_strides, &work, work.head, q_shape);
        let dout = GlobalTile::of_head::<T::Element>(
            params.dout,
            &params.dout_strides,
            &work,
            work.head,
            dout_shape,
        );
        let [q_tile, dout_tile] = shared.step(stage);
        // SAFETY: the row exists, and no thread reads the stage.
        unsafe {
            copy::<T>(q_tile, T::STEP, &q.from::<T::Element>(first_row, 0));
            copy::<T>(dout_tile, T::STEP, &dout.from::<T::Element>(first_row, 0));
        }
    };
    let mut dk = T::Gradient::zero();
    let mut dv = T::Gradient::zero();
    // SAFETY: the buffers lie behind one another in shared memory; a barrier separates each copy from the
    // reads before it, and a wait and a barrier from those behind it; all threads run the loop alike.
    unsafe {
        // Which of the heads that share the keys; none of them where no query sees one.
        let mut member = if seen.first < seen.end { 0 } else { attention.group };
        if member < attention.group {
            let (k_shape, v_shape) = ((work.keys, head_dim), (work.keys, head_dim_v));
            let k =
                GlobalTile::of_head::<T::Element>(attention.k, &attention.k_strides, &work, kv_head, k_shape);
            let v =
                GlobalTile::of_head::<T::Element>(attention.v, &attention.v_strides, &work, kv_head, v_shape);
            copy::<T>(shared.owned[0], T::OWNED, &k.from::<T::Element>(first_key, 0));
            copy::<T>(shared.owned[1], T::OWNED, &v.from::<T::Element>(first_key, 0));
            fetch(member, seen.first, 0);
        }
        cp_async::commit_group();
        let (mut first_row, mut stage) = (seen.first, 0);
        while member < attention.group {
            let (next_member, next_row) = if first_row + T::STEP < seen.end {
                (member, first_row + T::STEP)
            } else {
                (member + 1, seen.first)
            };
            barrier::sync(0, T::THREADS); // The last step's reads of the other stage are over.
            if next_member < attention.group {
                fetch(next_member, next_row, 1 - stage);
            }
            cp_async::commit_group();
            cp_async::wait_group::<1>();
            barrier::sync(0, T::THREADS);
            let [q_tile, dout_tile] = shared.step(stage);
            let (mut p, mut ds) = (T::S::zero(), T::S::zero());
            mma::multiply_transposed::<T::Element, _, _>(&mut p, shared.owned[0], lane.warp_row, q_tile, !0);
            mma::multiply_transposed::<T::Element, _, _>(
                &mut ds,
                shared.owned[1],
                lane.warp_row,
                dout_tile,
                !0,
            );
            // Warps of 32 rows have no registers left to keep it in.
            let work =
                if T::S::ROWS > 2 { anew(member) } else { WorkTile { head: work.head + member, ..work } };
            let first_key = work.tile * T::OWNED;
            let (row, key) = (first_row + lane.column(0), first_key + lane.row(0));
            let kept = scores::kept_of_keys::<T>(attention, &work, (row, key));
            let stats =
                RowStats::load::<OfColumns<T>>(params, &work, row, |j| lane.column(j) - lane.column(0));
            let tile = MaskCorner::new(attention, &work, first_row, first_key);
            let place = Place { row, key, whole: tile.all_see(attention, T::OWNED, T::STEP) };
            differentiate::<T, _, _>(
                attention,
                &work,
                scores::score_mod::<T>(attention, &work),
                (&mut p, &mut ds),
                place,
                &stats,
                |_, j| (8 * (j / 2) as u32 + (j % 2) as u32, j),
                |i, _| 8 * i as u32,
                |_, i, j| kept >> kept_bit(i, j) & 1 != 0,
            );
            let first_column = first_column::<T>();
            let (dout_tile, q_tile) = (dout_tile.from_column(first_column), q_tile.from_column(first_column));
            mma::multiply_accumulate::<T::Element, _, _, _>(&mut dv, &p, dout_tile);
            mma::multiply_accumulate::<T::Element, _, _, _>(&mut dk, &ds, q_tile);
            (member, first_row, stage) = (next_member, next_row, 1 - stage);
        }
        let work = anew(0);
        let (kv_head, first_key) = (work.kv_head(attention), work.tile * T::OWNED);
        let (k_shape, v_shape) = ((work.keys, head_dim), (work.keys, head_dim_v));
        let dk_tile =
            GlobalTile::of_head::<T::Element>(params.dk, &params.dk_strides, &work, kv_head, k_shape);
        let dv_tile =
            GlobalTile::of_head::<T::Element>(params.dv, &params.dv_strides, &work, kv_head, v_shape);
        store::<T>(&dk_tile.from::<T::Element>(first_key, 0), &dk, attention.softmax_scale);
        store::<T>(&dv_tile.from::<T::Element>(first_key, 0), &dv, 1.0);
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
    let shared = SharedTiles::<T>::new();
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let anew = || unsafe { WorkTile::of_block(attention, attention.seqlen_q.div_ceil(T::OWNED)) };
    let work = anew();
    let first_row = work.tile * T::OWNED;
    if first_row >= work.queries.len {
        return;
    }
    let (head_dim, head_dim_v) = (attention.head_dim, attention.head_dim_v);
    let lane = lane::<T>(index::thread());
    let seen = scores::keys::<T>(attention, &work, first_row);
    // `work` is found anew where it is needed, as in `backward_keys`.
    let fetch = |first_key: u32, stage: u32| {
        let work = anew();
        // SAFETY: as above.
        let kv_head = unsafe { work.kv_head(attention) };
        let keys = Rows { len: seen.end, ..work.keys };
        let (k_shape, v_shape) = ((keys, head_dim), (keys, head_dim_v));
        let k = GlobalTile::of_head::<T::Element>(attention.k, &attention.k_strides, &work, kv_head, k_shape);
        let v = GlobalTile::of_head::<T::Element>(attention.v, &attention.v_strides, &work, kv_head, v_shape);
        let [k_tile, v_tile] = shared.step(stage);
        // SAFETY: the key exists, and no thread reads the stage.
        unsafe {
            copy::<T>(k_tile, T::STEP, &k.from::<T::Element>(first_key, 0));
            copy::<T>(v_tile, T::STEP, &v.from::<T::Element>(first_key, 0));
        }
    };
    let mut dq = T::Gradient::zero();
    // SAFETY: as in `backward_keys`.
    unsafe {
        if seen.first < seen.end {
            let (q_shape, dout_shape) = ((work.queries, head_dim), (work.queries, head_dim_v));
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
            copy::<T>(shared.owned[0], T::OWNED, &q.from::<T::Element>(first_row, 0));
            copy::<T>(shared.owned[1], T::OWNED, &dout.from::<T::Element>(first_row, 0));
            fetch(seen.first, 0);
        }
        cp_async::commit_group();
        let (mut first_key, mut stage) = (seen.first, 0);
        while first_key < seen.end {
            barrier::sync(0, T::THREADS); // The last step's reads of the other stage are over.
            if first_key + T::STEP < seen.end {
                fetch(first_key + T::STEP, 1 - stage);
            }
            cp_async::commit_group();
            cp_async::wait_group::<1>();
            barrier::sync(0, T::THREADS);
            let [k_tile, v_tile] = shared.step(stage);
            let (mut p, mut ds) = (T::S::zero(), T::S::zero());
            mma::multiply_transposed::<T::Element, _, _>(&mut p, shared.owned[0], lane.warp_row, k_tile, !0);
            mma::multiply_transposed::<T::Element, _, _>(&mut ds, shared.owned[1], lane.warp_row, v_tile, !0);
            let work = anew();
            let first_row = work.tile * T::OWNED;
            let (row, key) = (first_row + lane.row(0), first_key + lane.column(0));
            let kept = scores::kept_of_queries::<T>(attention, &work, (row, key));
            let stats = RowStats::load::<OfRows<T>>(params, &work, row, |i| 8 * i as u32);
            let tile = MaskCorner::new(attention, &work, first_row, first_key);
            let place = Place { row, key, whole: tile.all_see(attention, T::STEP, T::OWNED) };
            differentiate::<T, _, _>(
                attention,
                &work,
                scores::score_mod::<T>(attention, &work),
                (&mut p, &mut ds),
                place,
                &stats,
                |i, _| (8 * i as u32, i),
                |_, j| 8 * (j / 2) as u32 + (j % 2) as u32,
                |_, i, j| kept >> kept_bit(i, j) & 1 != 0,
            );
            let k_tile = k_tile.from_column(first_column::<T>());
            mma::multiply_accumulate::<T::Element, _, _, _>(&mut dq, &ds, k_tile);
            (first_key, stage) = (first_key + T::STEP, 1 - stage);
        }
        let work = anew();
        let (first_row, q_shape) = (work.tile * T::OWNED, (work.queries, head_dim));
        let dq_tile =
            GlobalTile::of_head::<T::Element>(params.dq, &params.dq_strides, &work, work.head, q_shape);
        store::<T>(&dq_tile.from::<T::Element>(first_row, 0), &dq, attention.softmax_scale);
    }
}

/// Where a thread stands among the rows of the block: warps that share rows stand in the same ones.
#[inline(always)]
fn lane<T: Tile>(thread: u32) -> Lane {
    let warp = thread / 32 / T::COLUMN_WARPS;
    Lane::of_thread(32 * warp + thread % 32, T::S::ROWS)
}

/// The first of the gradients' columns that this thread's warp has.
#[inline(always)]
fn first_column<T: Tile>() -> u32 {
    index::reread_thread() / 32 % T::COLUMN_WARPS * T::GRADIENT_COLUMNS
}

/// The tiles of a block: what it owns (K and V, or Q and dO), and two stages of what it goes over (the
/// others).
struct SharedTiles<T: Tile> {
    owned: [MmaTile<T::HeadDim>; 2],
    first_step: MmaTile<T::HeadDim>,
}

impl<T: Tile> SharedTiles<T> {
    #[inline(always)]
    fn new() -> Self {
        let first = MmaTile::new(shared::base());
        Self { owned: [first, first.from_row(T::OWNED)], first_step: first.from_row(2 * T::OWNED) }
    }

    /// Both tiles of a stage.
    #[inline(always)]
    fn step(&self, stage: u32) -> [MmaTile<T::HeadDim>; 2] {
        let first = self.first_step.from_row(2 * T::STEP * stage);
        [first, first.from_row(T::STEP)]
    }
}

/// Begins to copy `rows` rows; what does not exist becomes 0. Rows at multiples of 16 bytes are copied
/// asynchronously, others through registers.
///
/// # Safety
/// `source` describes readable memory with a row, the tile fits, and no thread still reads it.
#[inline(always)]
unsafe fn copy<T: Tile>(tile: MmaTile<T::HeadDim>, rows: u32, source: &GlobalTile) {
    let chunks = const { T::HeadDim::COLUMNS * 2 / CHUNK };
    let aligned = (source.address | (T::Element::BYTES * source.stride)).is_multiple_of(CHUNK as u64);
    let mut index = index::reread_thread();
    while index < rows * chunks {
        let (row, column) = (index / chunks, index % chunks * (CHUNK / 2));
        let exist = row < source.rows && column < source.columns;
        let elements = if exist { (source.columns - column).min(CHUNK / 2) } else { 0 };
        // Where nothing is read the address still has to be a valid one.
        let address = if exist { source.at::<T::Element>(row, column) } else { source.address };
        // SAFETY: no element is read that does not exist, and no thread still reads the tile.
        unsafe {
            if aligned {
                cp_async::copy16(tile.at(row, column), address, 2 * elements);
            } else {
                shared::store4(tile.at(row, column), load_chunk(address, elements));
            }
        }
        index += T::THREADS;
    }
}

/// Rounds a lane's part of a gradient, times `factor`, into the rows and columns of the tile that exist.
///
/// # Safety
/// The tile is writable and this block's own.
#[inline(always)]
unsafe fn store<T: Tile>(tile: &GlobalTile, gradient: &T::Gradient, factor: f32) {
    let (lane, first_column) = (lane::<T>(index::reread_thread()), first_column::<T>());
    let mut i = 0;
    while i < T::Gradient::ROWS {
        let row = lane.row(i);
        let mut j = 0;
        while j < T::Gradient::COLS {
            let column = first_column + lane.column(j);
            if row < tile.rows && column < tile.columns {
                // SAFETY: the element exists in the block's tile, and is this lane's alone.
                unsafe { T::Element::store(tile.at::<T::Element>(row, column), gradient[i][j] * factor) };
            }
            j += 1;
        }
        i += 1;
    }
}
