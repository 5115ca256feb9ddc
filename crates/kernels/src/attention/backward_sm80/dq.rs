//! dQ = dS·K, of dS that [`backward_keys_ds`](super::backward_keys_ds) stored.
//!
//! A block owns queries, and goes over keys: rows of dS, which are columns of A, and rows of K. Steps pass
//! through a ring in shared memory with one barrier each, and fragments of the next sixteen keys are loaded
//! before the products of these are issued. Queries stand in a panel in another order than in dQ: they find
//! their rows on the way out, in shared memory.

use crate::attention::stored_ds::{self, GRANULE, PANEL, PIECE, ROW_BYTES};
use crate::config::BackwardDqConfig;
use crate::params::BackwardParams;
use crate::ptx::{barrier, cp_async, index, shared};
use crate::registers::{Columns, Width};
use crate::scheduler::WorkTile;
use crate::tile::chunk::load_chunk;
use crate::tile::mma::{CHUNK, MmaElement, MmaTile};
use crate::tile::mma_block::{AlongSpan, Panel};
use crate::tile::mma_copy::is_aligned;
use crate::tile::mma_store::store_rows;
use crate::tile::simt::GlobalTile;
use crate::tile::warp_tile::WarpTile;

/// Barriers in the source below; the build fails when the PTX has another number.
pub const DQ_BARRIERS: u32 = 4;

/// dQ of one tile of `BLOCK_M` query rows.
///
/// `BLOCKS` = BLOCK_M / WARPS_M / 16 and `PAIRS` = HEAD_DIM / WARPS_N / 16 are a warp's blocks of dQ; they
/// are parameters because array lengths cannot be computed from other ones. Launch: ⌈Sq / BLOCK_M⌉ blocks of
/// [`BackwardDqConfig::threads`] threads, with its bytes of shared memory, for each query head of some
/// key/value heads from `params.ds.first_unit` on.
///
/// # Safety
/// `params` describes valid device memory, `attention::backward_keys_ds` has run before for those heads, and
/// the launch is as above.
#[inline(always)]
pub unsafe fn backward_dq<
    E: MmaElement,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const WARPS_M: u32,
    const STAGES: u32,
    const BLOCKS: usize,
    const PAIRS: usize,
>(
    params: &BackwardParams,
) where
    Columns<HEAD_DIM>: Width,
{
    let warps_n = const {
        let warps_n = HEAD_DIM / (16 * PAIRS as u32);
        let (block_m, block_n, head_dim) = (BLOCK_M, BLOCK_N, HEAD_DIM);
        let config =
            BackwardDqConfig { block_m, block_n, head_dim, warps_m: WARPS_M, warps_n, stages: STAGES };
        assert!(config.is_well_formed() && BLOCKS as u32 * 16 * WARPS_M == BLOCK_M);
        warps_n
    };
    let threads = 32 * WARPS_M * warps_n;
    let attention = &params.attention;
    let work = work_tile(params, BLOCK_M);
    let first_row = work.tile * BLOCK_M;
    // A packed sequence may be shorter than the longest, for which there are blocks.
    if first_row >= work.queries.len {
        return;
    }
    let warp = index::thread() / 32;
    let (warp_m, warp_n) = (warp % WARPS_M * (16 * BLOCKS as u32), warp / WARPS_M * (16 * PAIRS as u32));
    let mut product =
        WarpTile::<E, AlongSpan<BLOCK_M, BLOCK_N>, AlongSpan<HEAD_DIM, BLOCK_N>, BLOCKS, PAIRS>::new(
            warp_m, warp_n,
        );
    let (first, end) = keys(params, &work, (first_row, BLOCK_M));
    // SAFETY: a stage is read after its copies were waited for and a barrier, and filled again after the
    // barrier that follows its last reads; all threads run this alike.
    unsafe {
        if first < end {
            let steps = (end - first) / BLOCK_N;
            let mut ds = DsStream::<BLOCK_M, BLOCK_N>::new(params, &work, first, threads);
            let mut k = KStream::<E, HEAD_DIM, BLOCK_N>::new(params, &work, first, threads);
            let stage_bytes = const { 2 * BLOCK_N * (BLOCK_M + HEAD_DIM) };
            let ds_bytes = const { 2 * BLOCK_N * BLOCK_M };
            let after_last = shared::base() + STAGES * stage_bytes;
            let (mut read, mut write) = (shared::base(), shared::base());
            let mut copied = 0;
            while copied < STAGES - 1 {
                if copied < steps {
                    ds.copy(write);
                    k.copy(write + ds_bytes);
                }
                cp_async::commit_group();
                write += stage_bytes;
                copied += 1;
            }
            cp_async::wait_for_oldest::<STAGES>();
            barrier::sync(0, threads);
            product.load(0, read, 0);
            let parts = const { BLOCK_N as usize / 16 };
            let mut step = 1;
            while step < steps {
                let mut part = 0;
                while part < parts {
                    if part + 1 == parts {
                        cp_async::wait_for_oldest::<STAGES>();
                        // The next step is there, and all reads of this one are over.
                        barrier::sync(0, threads);
                        write = read;
                        read += stage_bytes;
                        if read == after_last {
                            read = shared::base();
                        }
                    }
                    product.load((part + 1) % 2, read, (part + 1) % parts);
                    if part == 0 {
                        if step + (STAGES - 2) < steps {
                            ds.copy(write);
                            k.copy(write + ds_bytes);
                        }
                        cp_async::commit_group();
                    }
                    product.multiply(part % 2);
                    part += 1;
                }
                step += 1;
            }
            product.finish(read, parts);
        }
        barrier::sync(0, threads); // All reads of the stages are over.
        let staged = MmaTile::<Columns<HEAD_DIM>>::new(shared::base());
        product.each_pair(attention.softmax_scale, |row, column, pair| {
            let place = warp_m + row;
            let row = place / PANEL * PANEL + stored_ds::query(place % PANEL);
            shared::store_b32(staged.at(row, warp_n + column), pair);
        });
        barrier::sync(0, threads);
        let work = work_tile(params, BLOCK_M);
        let rows = const { BLOCK_M * 16 * PAIRS as u32 / (WARPS_M * HEAD_DIM) };
        let row = index::reread_thread() / 32 * rows;
        let first_row = work.tile * BLOCK_M + row;
        if first_row < work.queries.len {
            let shape = (work.queries, attention.head_dim);
            let dq = GlobalTile::of_head::<E>(params.dq, &params.dq_strides, &work, work.head, shape);
            store_rows::<E, _>(staged.from_row(row), rows, &dq.from::<E>(first_row, 0), 0);
        }
    }
}

/// The tile of queries that this block works on.
#[inline(always)]
fn work_tile(params: &BackwardParams, block_m: u32) -> WorkTile {
    let (attention, first) = (&params.attention, params.ds.first_unit);
    // SAFETY: valid parameters have no empty axis, and a swizzle has a head.
    unsafe {
        let tiles = attention.seqlen_q.div_ceil(block_m);
        WorkTile::of_query_swizzle(attention, tiles, params.heads_per_swizzle, first)
    }
}

/// The keys of which dS is stored with any of `rows` queries from `first_row` on.
#[inline(always)]
fn keys(params: &BackwardParams, work: &WorkTile, (first_row, rows): (u32, u32)) -> (u32, u32) {
    let (mut first, mut end) = (u32::MAX, 0);
    let mut row = first_row;
    while row < first_row + rows && row < work.queries.len {
        let (from, to) = stored_ds::keys(&params.attention, work, row);
        if from < to {
            (first, end) = (first.min(from), end.max(to));
        }
        row += GRANULE;
    }
    (first, end)
}

/// dS of the block's queries on its way into panels, a thread's chunks of it: some queries of every so many
/// keys.
struct DsStream<const BLOCK_M: u32, const BLOCK_N: u32> {
    /// Address of the first of them in the next step.
    source: u64,
    /// Its offset in a panel.
    target: u32,
    /// Rows of a panel between two of them.
    row_step: u32,
    /// The first key of the next step, and those of which dS of the queries is stored; elsewhere it is 0.
    key: u32,
    stored: (u32, u32),
}

impl<const BLOCK_M: u32, const BLOCK_N: u32> DsStream<BLOCK_M, BLOCK_N> {
    /// Chunks of a row.
    const CHUNKS: u32 = BLOCK_M / 8;

    /// From `key` on, which begins a step.
    #[inline(always)]
    fn new(params: &BackwardParams, work: &WorkTile, key: u32, threads: u32) -> Self {
        let thread = index::thread();
        let (row, chunk) = (thread / Self::CHUNKS, thread % Self::CHUNKS);
        let panel_row = work.tile * BLOCK_M + chunk / (PANEL / 8) * PANEL;
        let stored = if panel_row < work.queries.len {
            stored_ds::keys(&params.attention, work, panel_row / GRANULE * GRANULE)
        } else {
            (0, 0)
        };
        let (attention, ds) = (&params.attention, &params.ds);
        let head = work.batch * attention.heads + work.head - ds.first_unit * attention.group;
        let panel = head * ds.head_pieces + panel_row / PANEL * ds.panel_pieces;
        let piece = panel + (key + row) * (ROW_BYTES / PIECE) + chunk % (PANEL / 8);
        Self {
            source: ds.address + PIECE as u64 * piece as u64,
            target: AlongSpan::<BLOCK_M, BLOCK_N>::chunk(row, chunk),
            row_step: threads / Self::CHUNKS,
            key,
            stored,
        }
    }

    /// Begins to copy the next step into the panel at `panel`.
    ///
    /// # Safety
    /// dS is stored as `stored_ds` says, and no thread reads the panel.
    #[inline(always)]
    unsafe fn copy(&mut self, panel: u32) {
        let is_stored = self.key >= self.stored.0 && self.key < self.stored.1;
        let bytes = if is_stored { CHUNK } else { 0 };
        let mut row = 0;
        while row < BLOCK_N {
            let (source, target) = (self.source + (row * ROW_BYTES) as u64, row * 2 * BLOCK_M);
            // SAFETY: what is stored is readable, and no thread reads the panel.
            unsafe { cp_async::copy16(panel + self.target + target, source, bytes) };
            row += self.row_step;
        }
        self.key += BLOCK_N;
        self.source += (BLOCK_N * ROW_BYTES) as u64;
    }
}

/// Rows of K on their way into panels, a thread's chunks of them.
struct KStream<E, const HEAD_DIM: u32, const BLOCK_N: u32> {
    /// From the next step on, from this thread's first row and column on.
    source: GlobalTile,
    /// Offset of its first chunk in a panel.
    target: u32,
    /// Rows of a panel between two of them.
    row_step: u32,
    /// Bytes of a chunk that exist.
    bytes: u32,
    /// Whether rows are copied as they lie.
    aligned: bool,
    /// Rows that exist from this thread's first on.
    rows: u32,
    element: core::marker::PhantomData<E>,
}

impl<E: MmaElement, const HEAD_DIM: u32, const BLOCK_N: u32> KStream<E, HEAD_DIM, BLOCK_N> {
    /// Chunks of a row.
    const CHUNKS: u32 = HEAD_DIM / 8;

    /// From `key` on, which exists.
    #[inline(always)]
    fn new(params: &BackwardParams, work: &WorkTile, key: u32, threads: u32) -> Self {
        let attention = &params.attention;
        // SAFETY: valid parameters have no empty axis.
        let kv_head = unsafe { work.kv_head(attention) };
        let shape = (work.keys, attention.head_dim);
        let k = GlobalTile::of_head::<E>(attention.k, &attention.k_strides, work, kv_head, shape);
        let thread = index::thread();
        let (row, chunk) = (thread / Self::CHUNKS, thread % Self::CHUNKS);
        let columns = attention.head_dim.saturating_sub(8 * chunk);
        // Where nothing is read the address still has to be a valid one.
        let column = if columns > 0 { 8 * chunk } else { 0 };
        let address = k.at::<E>(key, column) + 2 * row as u64 * k.stride;
        Self {
            source: GlobalTile { address, ..k },
            target: AlongSpan::<HEAD_DIM, BLOCK_N>::chunk(row, chunk),
            row_step: threads / Self::CHUNKS,
            bytes: (2 * columns).min(CHUNK),
            aligned: is_aligned(&k),
            rows: (work.keys.len - key).saturating_sub(row),
            element: core::marker::PhantomData,
        }
    }

    /// Begins to copy the next step into the panel at `panel`.
    ///
    /// # Safety
    /// K is readable, and no thread reads the panel.
    #[inline(always)]
    unsafe fn copy(&mut self, panel: u32) {
        let mut row = 0;
        let mut source = self.source.address;
        while row < BLOCK_N {
            let target = panel + self.target + row * 2 * HEAD_DIM;
            let bytes = if row < self.rows { self.bytes } else { 0 };
            // SAFETY: what exists is readable, and no thread reads the panel.
            unsafe {
                if self.aligned {
                    cp_async::copy16(target, source, bytes);
                } else {
                    shared::store4(target, load_chunk(source, bytes / 2));
                }
            }
            source += 2 * self.row_step as u64 * self.source.stride;
            row += self.row_step;
        }
        self.rows = self.rows.saturating_sub(BLOCK_N);
        self.source.address += 2 * BLOCK_N as u64 * self.source.stride;
    }
}
