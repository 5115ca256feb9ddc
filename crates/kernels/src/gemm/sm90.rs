//! Matrix multiplication on Hopper's tensor cores with `wgmma`, fed by tensor maps.
//!
//! A block stays on its multiprocessor and goes through tiles of C. One thread of its last warpgroup copies
//! steps of A and B into a ring in shared memory, ahead of the products, across the border of two tiles too.
//! The other warpgroups each own 64 rows of the tile, in registers, and wait for nobody but the ring. What
//! they have rounded leaves through shared memory by asynchronous stores, which the products of the next tile
//! run beside.

use crate::config::GemmSm90Config;
use crate::gemm::{corner, tiles};
use crate::params::GemmParams;
use crate::ptx::tma::{self, TensorMap};
use crate::ptx::wgmma::{self, Accumulator, Format};
use crate::ptx::{barrier, fence, global, index, setmaxnreg, shared, stmatrix, warp};
use crate::tile::mma::MmaElement;
use crate::tile::mma_block::Panel;
use crate::tile::ring::{Count, Ring};
use crate::tile::wgmma::{BOX_BYTES, Descriptor, LINE_ELEMENTS, chunk, load};

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 1;

/// Threads of a warpgroup.
const WARPGROUP: u32 = 128;

/// Registers of a thread that only copies, and of one that multiplies: together what the block started with.
const PRODUCER_REGISTERS: u32 = 40;
const CONSUMER_REGISTERS: u32 = 232;

/// Columns of C in a chunk of 16 bytes.
const CHUNK: u32 = 8;

/// Rows of C of a warp, and bytes of them in a buffer on their way out: one line each.
const WARP_ROWS: u32 = 16;
const OUT_BYTES: u32 = WARP_ROWS * 2 * LINE_ELEMENTS;

/// C = A·B in tiles of `A::SPAN` rows and `B::SPAN` columns.
///
/// `maps` is the address of the tensor maps of A and B, as [`load`] wants them, and of C, row-major with
/// swizzled boxes of 16 rows by 64 columns, up to the last column that is a multiple of eight; that one is
/// not used where rows of C do not start at multiples of 16 bytes, or have fewer than eight columns.
/// `ACCUMULATORS` = BLOCK_N / 2 is a thread's part of its warpgroup's rows; it is a parameter because array
/// lengths cannot be computed from other ones. Launch: 1 to ⌈M / BLOCK_M⌉·⌈N / BLOCK_N⌉ blocks of
/// [`GemmSm90Config::threads`] threads with [`GemmSm90Config::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` and the maps describe the same valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn gemm_sm90<
    E: MmaElement + Format,
    A: Panel,
    B: Panel,
    const STAGES: u32,
    const ACCUMULATORS: usize,
>(
    params: &GemmParams,
    maps: u64,
) where
    [f32; ACCUMULATORS]: Accumulator,
{
    let config = const {
        let config = GemmSm90Config { block_m: A::SPAN, block_n: B::SPAN, stages: STAGES };
        assert!(config.is_well_formed() && A::DEPTH == GemmSm90Config::BLOCK_K && B::DEPTH == A::DEPTH);
        assert!(ACCUMULATORS as u32 * 2 == B::SPAN);
        config
    };
    let barriers = shared::base() + config.stages_bytes() + config.out_bytes();
    // SAFETY: a stage is written after all consumers have released it and read after its bytes have landed;
    // the warps of a warpgroup run the same branch.
    unsafe {
        if index::thread() == 0 {
            tma::prefetch(maps);
            tma::prefetch(maps + TensorMap::BYTES);
            Ring::<Count<STAGES>>::init(barriers, config.consumers() * (WARPGROUP / 32));
        }
        barrier::sync(0, config.threads());
        let warpgroup = warp::broadcast(index::thread() / WARPGROUP, 0);
        if warpgroup == config.consumers() {
            setmaxnreg::decrease::<PRODUCER_REGISTERS>();
            if index::thread().is_multiple_of(WARPGROUP) {
                produce::<A, B, STAGES>(params, maps, Ring::producer(barriers));
            }
        } else {
            setmaxnreg::increase::<CONSUMER_REGISTERS>();
            let out = Out::new(params, maps, shared::base() + config.stages_bytes());
            consume::<E, A, B, STAGES, ACCUMULATORS>(params, warpgroup, Ring::consumer(barriers), &out);
        }
    }
}

/// Copies all steps of all tiles of this block.
///
/// # Safety
/// One thread of the block calls this.
#[inline(always)]
unsafe fn produce<A: Panel, B: Panel, const STAGES: u32>(
    params: &GemmParams,
    maps: u64,
    mut ring: Ring<Count<STAGES>>,
) {
    let tiles = tiles(params, A::SPAN, B::SPAN);
    let (a_map, b_map) = (maps, maps + TensorMap::BYTES);
    // SAFETY: the caller's contract and the kernel's; the tile exists.
    unsafe {
        let mut tile = index::block();
        while tile < tiles {
            let (m, n) = corner(params, tile, A::SPAN, B::SPAN);
            let mut k = 0;
            while k < params.k {
                let stage = shared::base() + ring.stage() * (A::BYTES + B::BYTES);
                let full = ring.acquire(A::BYTES + B::BYTES);
                load::<A>(a_map, stage, full, (m, k));
                load::<B>(b_map, stage + A::BYTES, full, (n, k));
                ring.advance();
                k += A::DEPTH;
            }
            tile += index::blocks();
        }
    }
}

/// Multiplies and stores this warpgroup's rows of all tiles of this block.
///
/// # Safety
/// All threads of the warpgroup call this together.
#[inline(always)]
unsafe fn consume<E: MmaElement + Format, A: Panel, B: Panel, const STAGES: u32, const ACCUMULATORS: usize>(
    params: &GemmParams,
    warpgroup: u32,
    mut ring: Ring<Count<STAGES>>,
    out: &Out,
) where
    [f32; ACCUMULATORS]: Accumulator,
{
    let tiles = tiles(params, A::SPAN, B::SPAN);
    let leader = index::thread().is_multiple_of(32);
    // 64 rows of A are a box in either order.
    let a = Descriptor::new::<A>(shared::base() + warpgroup * BOX_BYTES);
    let b = Descriptor::new::<B>(shared::base() + A::BYTES);
    let mut acc = [0.0; ACCUMULATORS];
    let mut tile = index::block();
    // SAFETY: the caller's contract and the kernel's; the tile exists.
    unsafe {
        if index::thread() == 0 && out.map != 0 {
            tma::prefetch(out.map);
        }
        while tile < tiles {
            let (m, n) = corner(params, tile, A::SPAN, B::SPAN);
            let mut k = 0;
            let mut last = ring;
            while k < params.k {
                ring.wait();
                wgmma::fence();
                let stage = ring.stage() * (A::BYTES + B::BYTES);
                multiply::<E, A, B, ACCUMULATORS>(&mut acc, a.behind(stage), b.behind(stage), k > 0);
                wgmma::commit_group();
                // The products of the step before are over, and those of this one under way.
                acc.wait_group::<1>();
                if leader && k > 0 {
                    last.release();
                }
                last = ring;
                ring.advance();
                k += A::DEPTH;
            }
            acc.wait_group::<0>();
            if leader {
                last.release();
            }
            out.store::<E, ACCUMULATORS>(&acc, m, n);
            tile += index::blocks();
        }
        if leader {
            tma::wait_group::<0>();
        }
    }
}

/// Begins the products of the step that these describe.
///
/// # Safety
/// As [`Accumulator::multiply_ss`].
#[inline(always)]
unsafe fn multiply<E: Format, A: Panel, B: Panel, const ACCUMULATORS: usize>(
    acc: &mut [f32; ACCUMULATORS],
    a: Descriptor,
    b: Descriptor,
    accumulate: bool,
) where
    [f32; ACCUMULATORS]: Accumulator,
{
    let mut step = 0;
    while step < A::DEPTH / 16 {
        let (a, b, accumulate) = (a.at::<A>(step), b.at::<B>(step), accumulate || step > 0);
        // SAFETY: the caller's contract.
        unsafe {
            match (A::ALONG_K, B::ALONG_K) {
                (true, true) => acc.multiply_ss::<E, false, false>(a, b, accumulate),
                (true, false) => acc.multiply_ss::<E, false, true>(a, b, accumulate),
                (false, true) => acc.multiply_ss::<E, true, false>(a, b, accumulate),
                (false, false) => acc.multiply_ss::<E, true, true>(a, b, accumulate),
            }
        }
        step += 1;
    }
}

/// The way out of a warp's rows of C.
struct Out<'a> {
    params: &'a GemmParams,
    /// Address of the tensor map of C, or 0 where it is not used.
    map: u64,
    /// Address of the warp's two buffers.
    buffers: u32,
}

impl<'a> Out<'a> {
    /// For this thread's warp, whose buffers stand among those at `buffers`.
    #[inline(always)]
    fn new(params: &'a GemmParams, maps: u64, buffers: u32) -> Self {
        let in_chunks = (params.c | (2 * params.ldc as u64)).is_multiple_of(16) && params.n >= CHUNK;
        Self {
            params,
            map: if in_chunks { maps + 2 * TensorMap::BYTES } else { 0 },
            buffers: buffers + index::thread() / 32 * (2 * OUT_BYTES),
        }
    }

    /// Rounds the warp's rows of the tile whose first row and column are `m` and `n`, and begins to store
    /// what exists of them, a line of each at a time, in one buffer while the other one is still read.
    ///
    /// # Safety
    /// C is writable, and all 32 lanes of the warp call this together.
    #[inline(always)]
    unsafe fn store<E: MmaElement, const ACCUMULATORS: usize>(
        &self,
        acc: &[f32; ACCUMULATORS],
        m: u32,
        n: u32,
    ) {
        let lane = index::thread() % 32;
        let m = m + index::thread() / 32 * WARP_ROWS;
        let mut line = 0;
        while line < ACCUMULATORS / 32 {
            let buffer = self.buffers + line as u32 % 2 * OUT_BYTES;
            let n = n + line as u32 * LINE_ELEMENTS;
            // SAFETY: the caller's contract; the store that last read the buffer was waited for by the lane
            // that began it.
            unsafe {
                if lane == 0 {
                    tma::wait_group_read::<1>();
                }
                warp::sync();
                write::<E, ACCUMULATORS>(acc, line, buffer);
                fence::proxy_async();
                warp::sync();
                // A tensor map would write whole chunks of 16 bytes, past the last column too.
                let mapped = if self.map == 0 { 0 } else { self.params.n / CHUNK * CHUNK };
                if lane == 0 && self.map != 0 {
                    tma::store_2d(self.map, buffer, [n as i32, m as i32]);
                    tma::commit_group();
                }
                if mapped < self.params.n && mapped < n + LINE_ELEMENTS {
                    self.store_elements(buffer, m, n, mapped);
                }
            }
            line += 1;
        }
    }

    /// Stores what exists of the lines in `buffer`, from column `first` of C on, one element at a time.
    ///
    /// # Safety
    /// As [`Self::store`]; the buffer is written, with a barrier between.
    #[inline(always)]
    unsafe fn store_elements(&self, buffer: u32, m: u32, n: u32, first: u32) {
        let lane = index::thread() % 32;
        let GemmParams { c, ldc, .. } = *self.params;
        let column = n + 2 * lane;
        let rows = self.params.m.saturating_sub(m).min(index::unknown(WARP_ROWS));
        let mut row = 0;
        while row < rows {
            let address = c + 2 * ((m + row) as u64 * ldc as u64 + column as u64);
            // SAFETY: the caller's contract; what is stored exists, and belongs to this lane.
            unsafe {
                let pair = shared::load_b32(chunk(buffer, row, lane / 4) + 4 * (lane % 4));
                if column >= first && column < self.params.n {
                    global::store_b16(address, pair as u16);
                }
                if column + 1 >= first && column + 1 < self.params.n {
                    global::store_b16(address + 2, (pair >> 16) as u16);
                }
            }
            row += 1;
        }
    }
}

/// Writes the warp's `line`-th 64 columns, rounded, to `buffer`.
///
/// # Safety
/// Nobody accesses the buffer; all 32 lanes of the warp call this together.
#[inline(always)]
unsafe fn write<E: MmaElement, const ACCUMULATORS: usize>(
    acc: &[f32; ACCUMULATORS],
    line: usize,
    buffer: u32,
) {
    // Lanes name the rows of four 8×8 matrices: rows 0–7 and 8–15 of eight columns, then of the next eight.
    let lane = index::thread() % 32;
    let mut pair = 0;
    while pair < 4 {
        let word = |i: usize| {
            let first = 32 * line + 8 * pair + 2 * i;
            E::pack(acc[first], acc[first + 1])
        };
        let address = chunk(buffer, lane % 16, 2 * pair as u32 + lane / 16);
        // SAFETY: the caller's contract.
        unsafe { stmatrix::store_x4(address, [word(0), word(1), word(2), word(3)]) };
        pair += 1;
    }
}
