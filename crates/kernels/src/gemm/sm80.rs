//! Matrix multiplication on tensor cores with `mma.sync`, for every NVIDIA GPU since sm_80.
//!
//! A block owns one tile of C at a time, in registers; steps of A and B stream past through a ring in shared
//! memory, copied asynchronously. The fragments of the next sixteen of K are loaded before the products of
//! these are issued, across the border of two steps too, and one barrier a step frees the oldest stage of the
//! ring. Blocks stay for further tiles, whose first copies are in flight while the last one is stored.

use crate::config::GemmConfig;
use crate::gemm::{corner, tiles};
use crate::params::GemmParams;
use crate::ptx::{barrier, cp_async, index, shared};
use crate::tile::mma::MmaElement;
use crate::tile::mma_block::{Cursor, Feeder, Operand, Panel};
use crate::tile::simt::GlobalTile;
use crate::tile::warp_tile::WarpTile;

/// Barriers in the source below, one for each instance of `step`; the build fails when the PTX has another
/// number.
pub const BARRIERS: u32 = 4;

/// C = A·B in tiles of `A::SPAN` rows and `B::SPAN` columns.
///
/// With `ALIGNED`, rows of A and B start at multiples of 16 bytes, those that run along the span have a
/// multiple of eight elements, and none has a leading dimension beyond `MAX_LEADING`; without, they may start
/// at any element and pass through registers.
///
/// `BLOCKS` = BLOCK_M / WARPS_M / 16 and `PAIRS` = BLOCK_N / WARPS_N / 16 are a warp's blocks of C,
/// `A_CHUNKS` and `B_CHUNKS` the 16-byte chunks that a thread copies in a step; they are parameters because
/// array lengths cannot be computed from other ones. Launch: 1 to ⌈M / BLOCK_M⌉·⌈N / BLOCK_N⌉ blocks of
/// [`GemmConfig::threads`] threads with [`GemmConfig::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn gemm_sm80<
    E: MmaElement,
    A: Panel,
    B: Panel,
    const WARPS_N: u32,
    const STAGES: u32,
    const THREADS: u32,
    const BLOCKS: usize,
    const PAIRS: usize,
    const A_CHUNKS: usize,
    const B_CHUNKS: usize,
    const ALIGNED: bool,
>(
    params: &GemmParams,
) {
    let warps_m = const {
        let warps_m = THREADS / 32 / WARPS_N;
        let (block_m, block_n, block_k) = (A::SPAN, B::SPAN, A::DEPTH);
        let config = GemmConfig { block_m, block_n, block_k, warps_m, warps_n: WARPS_N, stages: STAGES };
        assert!(config.is_well_formed() && THREADS == config.threads() && B::DEPTH == A::DEPTH);
        assert!(BLOCKS as u32 * 16 * warps_m == block_m && PAIRS as u32 * 16 * WARPS_N == block_n);
        warps_m
    };
    let warp = index::thread() / 32;
    let (warp_m, warp_n) = (warp % warps_m * (16 * BLOCKS as u32), warp / warps_m * (16 * PAIRS as u32));
    let a = Operand { address: params.a, leading: params.lda, span: params.m, depth: params.k };
    let b = Operand { address: params.b, leading: params.ldb, span: params.n, depth: params.k };
    let c = GlobalTile { address: params.c, stride: params.ldc as u64, rows: params.m, columns: params.n };
    let (tiles, steps) = (tiles(params, A::SPAN, B::SPAN), params.k.div_ceil(A::DEPTH));
    let mut warp_tile = WarpTile::<E, A, B, BLOCKS, PAIRS>::new(warp_m, warp_n);
    let mut tile = index::block();
    // SAFETY: the grid has at most one block for each tile; a stage is read after its copies were waited for
    // and a barrier, and filled again after the barrier that follows its last reads; all threads run this
    // alike.
    unsafe {
        let mut first = corner(params, tile, A::SPAN, B::SPAN);
        let mut ring = Ring::<A, B, STAGES, THREADS, A_CHUNKS, B_CHUNKS, ALIGNED>::new(a, b, first);
        ring.fill(steps);
        loop {
            warp_tile.clear();
            multiply(&mut warp_tile, &mut ring, steps);
            let (m, n) = (first.0 + warp_m, first.1 + warp_n);
            tile += index::blocks();
            if tile < tiles {
                // The next tile's first steps are under way while this one is stored.
                barrier::sync(0, THREADS);
                first = corner(params, tile, A::SPAN, B::SPAN);
                ring = Ring::new(a, b, first);
                ring.fill(steps);
            }
            warp_tile.store(&c, m, n);
            if tile >= tiles {
                break;
            }
        }
    }
}

/// All `steps` of a tile whose first ones are under way.
///
/// # Safety
/// All threads of the block call this together.
#[inline(always)]
unsafe fn multiply<
    E: MmaElement,
    A: Panel,
    B: Panel,
    const STAGES: u32,
    const THREADS: u32,
    const BLOCKS: usize,
    const PAIRS: usize,
    const A_CHUNKS: usize,
    const B_CHUNKS: usize,
    const ALIGNED: bool,
>(
    tile: &mut WarpTile<E, A, B, BLOCKS, PAIRS>,
    ring: &mut Ring<A, B, STAGES, THREADS, A_CHUNKS, B_CHUNKS, ALIGNED>,
    steps: u32,
) {
    // SAFETY: all threads of the block are here, and the copies of the first steps are under way.
    unsafe {
        cp_async::wait_for_oldest::<STAGES>();
        barrier::sync(0, THREADS);
        tile.load(0, ring.read, 0);
        let mut done = 0;
        while done + (STAGES - 1) < steps {
            step::<true, E, A, B, STAGES, THREADS, BLOCKS, PAIRS, A_CHUNKS, B_CHUNKS, ALIGNED>(tile, ring);
            done += 1;
        }
        while done + 1 < steps {
            step::<false, E, A, B, STAGES, THREADS, BLOCKS, PAIRS, A_CHUNKS, B_CHUNKS, ALIGNED>(tile, ring);
            done += 1;
        }
        tile.finish(ring.read, A::DEPTH as usize / 16);
    }
}

/// The products of one step that is not the last, and with `REFILL` the copies of another into the stage that
/// is free.
///
/// # Safety
/// The fragments of the step's first sixteen of K are loaded, and all threads of the block call this
/// together.
#[inline(always)]
#[track_caller] // Each instance has a barrier of its own.
unsafe fn step<
    const REFILL: bool,
    E: MmaElement,
    A: Panel,
    B: Panel,
    const STAGES: u32,
    const THREADS: u32,
    const BLOCKS: usize,
    const PAIRS: usize,
    const A_CHUNKS: usize,
    const B_CHUNKS: usize,
    const ALIGNED: bool,
>(
    tile: &mut WarpTile<E, A, B, BLOCKS, PAIRS>,
    ring: &mut Ring<A, B, STAGES, THREADS, A_CHUNKS, B_CHUNKS, ALIGNED>,
) {
    let parts = A::DEPTH as usize / 16;
    let mut part = 0;
    // SAFETY: all threads are here, and the fragments of the step's first sixteen of K are loaded.
    unsafe {
        while part < parts {
            if part + 1 == parts {
                cp_async::commit_group();
                cp_async::wait_for_oldest::<STAGES>();
                barrier::sync(0, THREADS); // The next stage is there, and all reads of this one are over.
                ring.rotate();
            }
            tile.load((part + 1) % 2, ring.read, (part + 1) % parts);
            if REFILL && part + 1 < parts {
                ring.refill(part, parts - 1);
            }
            tile.multiply(part % 2);
            part += 1;
        }
    }
}

/// The stages of A and B in shared memory, and the way of this thread's chunks into them.
struct Ring<
    A,
    B,
    const STAGES: u32,
    const THREADS: u32,
    const A_CHUNKS: usize,
    const B_CHUNKS: usize,
    const ALIGNED: bool,
> {
    a: Feeder<A, THREADS, A_CHUNKS>,
    b: Feeder<B, THREADS, B_CHUNKS>,
    a_source: Cursor<A_CHUNKS>,
    b_source: Cursor<B_CHUNKS>,
    /// First of K of the panels at the cursors.
    k: u32,
    /// Addresses of the stage that is read and of the one that is filled.
    read: u32,
    write: u32,
}

impl<
    A: Panel,
    B: Panel,
    const STAGES: u32,
    const THREADS: u32,
    const A_CHUNKS: usize,
    const B_CHUNKS: usize,
    const ALIGNED: bool,
> Ring<A, B, STAGES, THREADS, A_CHUNKS, B_CHUNKS, ALIGNED>
{
    /// Bytes of a stage: a panel of A, and one of B behind it.
    const STAGE_BYTES: u32 = A::BYTES + B::BYTES;

    /// For the tile whose first row and column of C these are.
    #[inline(always)]
    fn new(a: Operand, b: Operand, (first_m, first_n): (u32, u32)) -> Self {
        const { assert!(STAGES >= 2 && STAGES <= 4, "`wait_for_oldest` knows these") };
        let (a, b) = (Feeder::new(a, first_m), Feeder::new(b, first_n));
        // The first stage has the last step of K, as `fill` says.
        let k = (STAGES - 2) * A::DEPTH;
        let read = shared::base();
        let write = read + (STAGES - 1) * Self::STAGE_BYTES;
        Self { a_source: a.cursor(k), b_source: b.cursor(k), a, b, k, read, write }
    }

    /// Begins to fill all stages but one. The last of the `steps`, of which a part may exist, comes first, so
    /// that all steps of the main loop are whole.
    ///
    /// # Safety
    /// All threads of the block call this together, before anybody has used the ring; the rows and columns of
    /// A and B that `steps` takes are readable.
    #[inline(always)]
    unsafe fn fill(&self, steps: u32) {
        let mut stage = 0;
        while stage < STAGES - 1 && stage < steps {
            let step = if stage == 0 { steps - 1 } else { stage - 1 };
            let (k, address) = (step * A::DEPTH, self.read + stage * Self::STAGE_BYTES);
            // SAFETY: the step exists, the operands are readable, and no thread still reads the stage.
            unsafe {
                if ALIGNED {
                    self.a.copy_to_end(k, address);
                    self.b.copy_to_end(k, address + A::BYTES);
                } else {
                    self.a.realign(k, address);
                    self.b.realign(k, address + A::BYTES);
                }
            }
            cp_async::commit_group();
            stage += 1;
        }
        // Groups are counted from the youngest: stages that no step needs have an empty one.
        while stage < STAGES - 1 {
            cp_async::commit_group();
            stage += 1;
        }
    }

    /// Issues the `part`-th of `parts` of the copies into the free stage.
    ///
    /// # Safety
    /// The whole step at the cursors exists, and nobody still reads the stage.
    #[inline(always)]
    unsafe fn refill(&mut self, part: usize, parts: usize) {
        let share = |count: usize| (count * part / parts, count * (part + 1) / parts);
        // SAFETY: the whole step at the cursors exists, and no thread still reads the stage.
        unsafe {
            if ALIGNED {
                self.a.copy(&self.a_source, self.write, share(A_CHUNKS));
                self.b.copy(&self.b_source, self.write + A::BYTES, share(B_CHUNKS));
            } else if part == 0 {
                self.a.realign(self.k, self.write);
                self.b.realign(self.k, self.write + A::BYTES);
            }
        }
        if part + 1 == parts {
            self.a_source.advance();
            self.b_source.advance();
            self.k += A::DEPTH;
        }
    }

    /// On to the next stage.
    #[inline(always)]
    fn rotate(&mut self) {
        self.write = self.read;
        let next = self.read + Self::STAGE_BYTES;
        self.read = if next == shared::base() + STAGES * Self::STAGE_BYTES { shared::base() } else { next };
    }
}
