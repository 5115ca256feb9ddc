//! The backward pass of FlashAttention-2 on tensor cores (Dao 2023, arXiv:2307.08691, Algorithm 2), with
//! `mma.sync.m16n8k16`.
//!
//! As `backward_simt`, one kernel owns keys and one owns queries. A warp owns 16 or 32 rows of the block's,
//! so that P and dS stay in the registers of the warp that computed them, where they are the A operands of
//! the products behind. The other pair of tensors is copied a step ahead.

use super::gradient::{Place, RowStats, differentiate};
use crate::config::BackwardMmaConfig;
use crate::mask::{MaskCorner, QueryRange, TileMask};
use crate::params::BackwardParams;
use crate::ptx::{barrier, cp_async, index, shared};
use crate::scheduler::{Rows, WorkTile};
use crate::score::ScoreMod;
use crate::tile::chunk::load_chunk;
use crate::tile::mma::{self, CHUNK, Lane, MmaElement, MmaTile};
use crate::tile::simt::GlobalTile;

/// Barriers in the source of each of the two kernels; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 2;

/// dK and dV of one tile of `BLOCK_N` keys, summed over the query heads that share it.
///
/// `ROWS` = BLOCK_N / warps / 8, `COLS` = BLOCK_M / 4 and `OUT` = HEAD_DIM / 4 are what a lane holds of Sᵀ,
/// and of dK and dV. Launch: ⌈Sk / BLOCK_N⌉·H / group·B blocks of `THREADS` threads with
/// [`BackwardMmaConfig::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` describes valid device memory, `attention::backward_delta` has run before with the same, scores
/// are changed by nothing but a positive factor, and the launch is as above.
#[inline(always)]
pub unsafe fn backward_keys<
    E: MmaElement,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const THREADS: u32,
    const ROWS: usize,
    const COLS: usize,
    const OUT: usize,
>(
    params: &BackwardParams,
) {
    const { check(BLOCK_N, BLOCK_M, HEAD_DIM, THREADS, ROWS, COLS, OUT) };
    let shared = SharedTiles::<HEAD_DIM>::new(BLOCK_N);
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
    let lane = Lane::current::<ROWS>();
    let seen = QueryRange::of_keys(attention, &work, first_key, BLOCK_N);
    // Found anew where it is needed: the loop has no registers to spare.
    // SAFETY: as above.
    let anew = |member| unsafe {
        let work = WorkTile::of_key_block(attention, attention.seqlen_k.div_ceil(BLOCK_N));
        WorkTile { head: work.head + member, ..work }
    };
    let fetch = |member: u32, first_row: u32, stage: u32| {
        let work = anew(member);
        // Queries that see no key of the tile are not read.
        let queries = Rows { len: seen.end, ..work.queries };
        let (q_shape, dout_shape) = ((queries, head_dim), (queries, head_dim_v));
        let q = GlobalTile::of_head::<E>(attention.q, &attention.q_strides, &work, work.head, q_shape);
        let dout = GlobalTile::of_head::<E>(params.dout, &params.dout_strides, &work, work.head, dout_shape);
        let [q_tile, dout_tile] = shared.step(BLOCK_M, stage);
        // SAFETY: the row exists, and no thread reads the stage.
        unsafe {
            copy::<E, HEAD_DIM, THREADS>(q_tile, BLOCK_M, &q.from::<E>(first_row, 0));
            copy::<E, HEAD_DIM, THREADS>(dout_tile, BLOCK_M, &dout.from::<E>(first_row, 0));
        }
    };
    let mut dk = [[0.0; OUT]; ROWS];
    let mut dv = [[0.0; OUT]; ROWS];
    // SAFETY: the buffers lie behind one another in shared memory; a barrier separates each copy from the
    // reads before it, and a wait and a barrier from those behind it; all threads run the loop alike.
    unsafe {
        // Which of the heads that share the keys; none of them where no query sees one.
        let mut member = if seen.first < seen.end { 0 } else { attention.group };
        if member < attention.group {
            let (k_shape, v_shape) = ((work.keys, head_dim), (work.keys, head_dim_v));
            let k = GlobalTile::of_head::<E>(attention.k, &attention.k_strides, &work, kv_head, k_shape);
            let v = GlobalTile::of_head::<E>(attention.v, &attention.v_strides, &work, kv_head, v_shape);
            copy::<E, HEAD_DIM, THREADS>(shared.owned[0], BLOCK_N, &k.from::<E>(first_key, 0));
            copy::<E, HEAD_DIM, THREADS>(shared.owned[1], BLOCK_N, &v.from::<E>(first_key, 0));
            fetch(member, seen.first, 0);
        }
        cp_async::commit_group();
        let (mut first_row, mut stage) = (seen.first, 0);
        while member < attention.group {
            let (next_member, next_row) = if first_row + BLOCK_M < seen.end {
                (member, first_row + BLOCK_M)
            } else {
                (member + 1, seen.first)
            };
            barrier::sync(0, THREADS); // The last step's reads of the other stage are over.
            if next_member < attention.group {
                fetch(next_member, next_row, 1 - stage);
            }
            cp_async::commit_group();
            cp_async::wait_group::<1>();
            barrier::sync(0, THREADS);
            let [q_tile, dout_tile] = shared.step(BLOCK_M, stage);
            let (mut p, mut ds) = ([[0.0; COLS]; ROWS], [[0.0; COLS]; ROWS]);
            mma::multiply_transposed::<E, HEAD_DIM, ROWS, COLS>(
                &mut p,
                shared.owned[0],
                lane.warp_row,
                q_tile,
                !0,
            );
            mma::multiply_transposed::<E, HEAD_DIM, ROWS, COLS>(
                &mut ds,
                shared.owned[1],
                lane.warp_row,
                dout_tile,
                !0,
            );
            // Warps of 32 rows have no registers left to keep it in.
            let work = if ROWS > 2 { anew(member) } else { WorkTile { head: work.head + member, ..work } };
            let first_key = work.tile * BLOCK_N;
            let row = first_row + lane.column(0);
            let stats = RowStats::load::<COLS>(params, &work, row, |j| lane.column(j) - lane.column(0));
            let tile = MaskCorner::new(attention, &work, first_row, first_key);
            let place =
                Place { row, key: first_key + lane.row(0), whole: tile.all_see(attention, BLOCK_N, BLOCK_M) };
            differentiate::<ROWS, COLS, COLS, false, false>(
                attention,
                &work,
                ScoreMod::default(),
                (&mut p, &mut ds),
                place,
                &stats,
                |_, j| (8 * (j / 2) as u32 + (j % 2) as u32, j),
                |i, _| 8 * i as u32,
            );
            mma::multiply_accumulate::<E, HEAD_DIM, ROWS, COLS, OUT>(&mut dv, &p, dout_tile);
            mma::multiply_accumulate::<E, HEAD_DIM, ROWS, COLS, OUT>(&mut dk, &ds, q_tile);
            (member, first_row, stage) = (next_member, next_row, 1 - stage);
        }
        let work = anew(0);
        let (kv_head, first_key) = (work.kv_head(attention), work.tile * BLOCK_N);
        let (k_shape, v_shape) = ((work.keys, head_dim), (work.keys, head_dim_v));
        let dk_tile = GlobalTile::of_head::<E>(params.dk, &params.dk_strides, &work, kv_head, k_shape);
        let dv_tile = GlobalTile::of_head::<E>(params.dv, &params.dv_strides, &work, kv_head, v_shape);
        store::<E, ROWS, OUT>(&dk_tile.from::<E>(first_key, 0), &dk, attention.softmax_scale);
        store::<E, ROWS, OUT>(&dv_tile.from::<E>(first_key, 0), &dv, 1.0);
    }
}

/// dQ of one tile of `BLOCK_M` query rows.
///
/// `ROWS` = BLOCK_M / warps / 8, `COLS` = BLOCK_N / 4 and `OUT` = HEAD_DIM / 4 are what a lane holds of S,
/// and of dQ. Launch: ⌈Sq / BLOCK_M⌉·H·B blocks, otherwise as [`backward_keys`].
///
/// # Safety
/// As [`backward_keys`].
#[inline(always)]
pub unsafe fn backward_queries<
    E: MmaElement,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const THREADS: u32,
    const ROWS: usize,
    const COLS: usize,
    const OUT: usize,
>(
    params: &BackwardParams,
) {
    const { check(BLOCK_M, BLOCK_N, HEAD_DIM, THREADS, ROWS, COLS, OUT) };
    let shared = SharedTiles::<HEAD_DIM>::new(BLOCK_M);
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let anew = || unsafe { WorkTile::of_block(attention, attention.seqlen_q.div_ceil(BLOCK_M)) };
    let work = anew();
    let first_row = work.tile * BLOCK_M;
    if first_row >= work.queries.len {
        return;
    }
    let (head_dim, head_dim_v) = (attention.head_dim, attention.head_dim_v);
    let lane = Lane::current::<ROWS>();
    let seen = TileMask::new(attention, &work, first_row, BLOCK_M, BLOCK_N).seen;
    // `work` is found anew where it is needed, as in `backward_keys`.
    let fetch = |first_key: u32, stage: u32| {
        let work = anew();
        // SAFETY: as above.
        let kv_head = unsafe { work.kv_head(attention) };
        let keys = Rows { len: seen.end, ..work.keys };
        let (k_shape, v_shape) = ((keys, head_dim), (keys, head_dim_v));
        let k = GlobalTile::of_head::<E>(attention.k, &attention.k_strides, &work, kv_head, k_shape);
        let v = GlobalTile::of_head::<E>(attention.v, &attention.v_strides, &work, kv_head, v_shape);
        let [k_tile, v_tile] = shared.step(BLOCK_N, stage);
        // SAFETY: the key exists, and no thread reads the stage.
        unsafe {
            copy::<E, HEAD_DIM, THREADS>(k_tile, BLOCK_N, &k.from::<E>(first_key, 0));
            copy::<E, HEAD_DIM, THREADS>(v_tile, BLOCK_N, &v.from::<E>(first_key, 0));
        }
    };
    let mut dq = [[0.0; OUT]; ROWS];
    // SAFETY: as in `backward_keys`.
    unsafe {
        if seen.first < seen.end {
            let (q_shape, dout_shape) = ((work.queries, head_dim), (work.queries, head_dim_v));
            let q = GlobalTile::of_head::<E>(attention.q, &attention.q_strides, &work, work.head, q_shape);
            let dout =
                GlobalTile::of_head::<E>(params.dout, &params.dout_strides, &work, work.head, dout_shape);
            copy::<E, HEAD_DIM, THREADS>(shared.owned[0], BLOCK_M, &q.from::<E>(first_row, 0));
            copy::<E, HEAD_DIM, THREADS>(shared.owned[1], BLOCK_M, &dout.from::<E>(first_row, 0));
            fetch(seen.first, 0);
        }
        cp_async::commit_group();
        let (mut first_key, mut stage) = (seen.first, 0);
        while first_key < seen.end {
            barrier::sync(0, THREADS); // The last step's reads of the other stage are over.
            if first_key + BLOCK_N < seen.end {
                fetch(first_key + BLOCK_N, 1 - stage);
            }
            cp_async::commit_group();
            cp_async::wait_group::<1>();
            barrier::sync(0, THREADS);
            let [k_tile, v_tile] = shared.step(BLOCK_N, stage);
            let (mut p, mut ds) = ([[0.0; COLS]; ROWS], [[0.0; COLS]; ROWS]);
            mma::multiply_transposed::<E, HEAD_DIM, ROWS, COLS>(
                &mut p,
                shared.owned[0],
                lane.warp_row,
                k_tile,
                !0,
            );
            mma::multiply_transposed::<E, HEAD_DIM, ROWS, COLS>(
                &mut ds,
                shared.owned[1],
                lane.warp_row,
                v_tile,
                !0,
            );
            let work = anew();
            let first_row = work.tile * BLOCK_M;
            let row = first_row + lane.row(0);
            let stats = RowStats::load::<ROWS>(params, &work, row, |i| 8 * i as u32);
            let tile = MaskCorner::new(attention, &work, first_row, first_key);
            let place = Place {
                row,
                key: first_key + lane.column(0),
                whole: tile.all_see(attention, BLOCK_N, BLOCK_M),
            };
            differentiate::<ROWS, COLS, ROWS, false, false>(
                attention,
                &work,
                ScoreMod::default(),
                (&mut p, &mut ds),
                place,
                &stats,
                |i, _| (8 * i as u32, i),
                |_, j| 8 * (j / 2) as u32 + (j % 2) as u32,
            );
            mma::multiply_accumulate::<E, HEAD_DIM, ROWS, COLS, OUT>(&mut dq, &ds, k_tile);
            (first_key, stage) = (first_key + BLOCK_N, 1 - stage);
        }
        let work = anew();
        let (first_row, q_shape) = (work.tile * BLOCK_M, (work.queries, head_dim));
        let dq_tile = GlobalTile::of_head::<E>(params.dq, &params.dq_strides, &work, work.head, q_shape);
        store::<E, ROWS, OUT>(&dq_tile.from::<E>(first_row, 0), &dq, attention.softmax_scale);
    }
}

/// Fails the build of a kernel whose parameters do not belong together.
#[inline(always)]
const fn check(owned: u32, step: u32, head_dim: u32, threads: u32, rows: usize, cols: usize, out: usize) {
    let config = BackwardMmaConfig { owned, step, head_dim, warps: threads / 32 };
    assert!(config.is_well_formed() && threads == config.threads());
    assert!(rows as u32 * 8 * threads / 32 == owned && cols as u32 * 4 == step && out as u32 * 4 == head_dim);
}

/// The tiles of a block: what it owns (K and V, or Q and dO), and two stages of what it goes over (the
/// others).
struct SharedTiles<const HEAD_DIM: u32> {
    owned: [MmaTile<HEAD_DIM>; 2],
    first_step: MmaTile<HEAD_DIM>,
}

impl<const HEAD_DIM: u32> SharedTiles<HEAD_DIM> {
    #[inline(always)]
    fn new(owned: u32) -> Self {
        let first = MmaTile { address: shared::base() };
        Self { owned: [first, first.from_row(owned)], first_step: first.from_row(2 * owned) }
    }

    /// Both tiles of a stage, of `rows` rows each.
    #[inline(always)]
    fn step(&self, rows: u32, stage: u32) -> [MmaTile<HEAD_DIM>; 2] {
        let first = self.first_step.from_row(2 * rows * stage);
        [first, first.from_row(rows)]
    }
}

/// Begins to copy `rows` rows; what does not exist becomes 0. Rows at multiples of 16 bytes are copied
/// asynchronously, others through registers.
///
/// # Safety
/// `source` describes readable memory with a row, the tile fits, and no thread still reads it.
#[inline(always)]
unsafe fn copy<E: MmaElement, const COLUMNS: u32, const THREADS: u32>(
    tile: MmaTile<COLUMNS>,
    rows: u32,
    source: &GlobalTile,
) {
    let chunks = const { COLUMNS * 2 / CHUNK };
    let aligned = (source.address | (E::BYTES * source.stride)).is_multiple_of(CHUNK as u64);
    let mut index = index::reread_thread();
    while index < rows * chunks {
        let (row, column) = (index / chunks, index % chunks * (CHUNK / 2));
        let exist = row < source.rows && column < source.columns;
        let elements = if exist { (source.columns - column).min(CHUNK / 2) } else { 0 };
        // Where nothing is read the address still has to be a valid one.
        let address = if exist { source.at::<E>(row, column) } else { source.address };
        // SAFETY: no element is read that does not exist, and no thread still reads the tile.
        unsafe {
            if aligned {
                cp_async::copy16(tile.at(row, column), address, 2 * elements);
            } else {
                shared::store4(tile.at(row, column), load_chunk(address, elements));
            }
        }
        index += THREADS;
    }
}

/// Rounds a lane's part of a gradient, times `factor`, into the rows and columns of the tile that exist.
///
/// # Safety
/// The tile is writable and this block's own.
#[inline(always)]
unsafe fn store<E: MmaElement, const ROWS: usize, const OUT: usize>(
    tile: &GlobalTile,
    gradient: &[[f32; OUT]; ROWS],
    factor: f32,
) {
    let lane = Lane::reread::<ROWS>();
    let mut i = 0;
    while i < ROWS {
        let row = lane.row(i);
        let mut j = 0;
        while j < OUT {
            let column = lane.column(j);
            if row < tile.rows && column < tile.columns {
                // SAFETY: the element exists in the block's tile, and is this lane's alone.
                unsafe { E::store(tile.at::<E>(row, column), gradient[i][j] * factor) };
            }
            j += 1;
        }
        i += 1;
    }
}
