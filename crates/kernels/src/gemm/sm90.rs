//! Matrix multiplication on Hopper's tensor cores with `wgmma`, fed by tensor maps.
//!
//! A block stays on its multiprocessor and goes through tiles of C. One thread of its last warpgroup copies
//! steps of A and B into a ring in shared memory, ahead of the products, across the border of two tiles too.
//! The other warpgroups each own 64 rows of the tile, in registers, and wait for nobody but the ring. What
//! they have rounded leaves through shared memory by asynchronous stores, which the products of the next tile
//! run beside.

use core::marker::PhantomData;

use crate::config::GemmSm90Config;
use crate::gemm::{corner, tiles};
use crate::hopper::epilogue;
use crate::hopper::ring::{Count, Ring, Stages};
use crate::hopper::roles::{WARP_ROWS, WARPGROUP, WARPS, give_registers, leads_warp, take_registers};
use crate::params::GemmParams;
use crate::ptx::tma::{self, TensorMap};
use crate::ptx::wgmma::{self, Accumulator, Format, Span};
use crate::ptx::{barrier, fence, global, index, shared, warp};
use crate::registers::{Columns, Registers as _};
use crate::tile::mma::MmaElement;
use crate::tile::mma_block::Panel;
use crate::tile::wgmma::{BOX_BYTES, Descriptor, LINE_ELEMENTS, chunk, load};

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 1;

/// Registers of a thread that only copies, and of one that multiplies: together what the block started with.
const PRODUCER_REGISTERS: u32 = 40;
const CONSUMER_REGISTERS: u32 = 232;

/// Columns of C in a chunk of 16 bytes.
const CHUNK: u32 = 8;

/// Bytes of a warp's rows in a buffer on their way out: one line each.
const OUT_BYTES: u32 = WARP_ROWS * 2 * LINE_ELEMENTS;

/// What the kernel is compiled for.
pub trait Tile {
    /// Storage type of A, B and C.
    type Element: MmaElement + Format;
    /// A step of A, `SPAN` rows by 64 of K.
    type A: Panel;
    /// A step of B, 64 of K by `SPAN` columns.
    type B: Panel;
    /// A thread's part of its warpgroup's rows.
    type C: Accumulator;
    /// Steps that shared memory holds at once.
    type Steps: Stages;

    /// What follows from the sizes.
    const CONFIG: GemmSm90Config = {
        let (block_m, block_n) = (Self::A::SPAN, Self::B::SPAN);
        let config = GemmSm90Config { block_m, block_n, stages: Self::Steps::COUNT };
        assert!(config.is_well_formed() && Self::A::DEPTH == GemmSm90Config::BLOCK_K);
        assert!(Self::B::DEPTH == Self::A::DEPTH && 2 * Self::C::LEN as u32 == Self::B::SPAN);
        config
    };
    /// Bytes of a step of A, and of both operands.
    const STEP_BYTES: (u32, u32) = (Self::A::BYTES, Self::A::BYTES + Self::B::BYTES);
}

/// A tile of the lists of entries: `N` is `B::SPAN`.
pub struct GemmTile<E, A, B, const N: u32, const STAGES: u32>(PhantomData<(E, A, B)>);

impl<E, A, B, const N: u32, const STAGES: u32> Tile for GemmTile<E, A, B, N, STAGES>
where
    E: MmaElement + Format,
    A: Panel,
    B: Panel,
    Columns<N>: Span,
{
    type Element = E;
    type A = A;
    type B = B;
    type C = <Columns<N> as Span>::Accumulator;
    type Steps = Count<STAGES>;
}

/// C = A·B in tiles of `A::SPAN` rows and `B::SPAN` columns.
///
/// `maps` is the address of the tensor maps of A and B, as [`load`] wants them, and of C, row-major with
/// swizzled boxes of 16 rows by 64 columns, up to the last column that is a multiple of eight; that one is
/// not used where rows of C do not start at multiples of 16 bytes, or have fewer than eight columns. Launch:
/// 1 to ⌈M / BLOCK_M⌉·⌈N / BLOCK_N⌉ blocks of [`GemmSm90Config::threads`] threads with
/// [`GemmSm90Config::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` and the maps describe the same valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn gemm_sm90<T: Tile>(params: &GemmParams, maps: u64) {
    let barriers = shared::base() + T::CONFIG.stages_bytes() + T::CONFIG.out_bytes();
    // SAFETY: a stage is written after all consumers have released it and read after its bytes have landed;
    // the warps of a warpgroup run the same branch.
    unsafe {
        if index::thread() == 0 {
            tma::prefetch(maps);
            tma::prefetch(maps + TensorMap::BYTES);
            Ring::<T::Steps>::init(barriers, T::CONFIG.consumers() * WARPS);
        }
        barrier::sync(0, T::CONFIG.threads());
        let warpgroup = warp::broadcast(index::thread() / WARPGROUP, 0);
        if warpgroup == T::CONFIG.consumers() {
            give_registers(PRODUCER_REGISTERS);
            if index::thread().is_multiple_of(WARPGROUP) {
                produce::<T>(params, maps, Ring::producer(barriers));
            }
        } else {
            take_registers(CONSUMER_REGISTERS);
            let out = Out::new(params, maps, shared::base() + T::CONFIG.stages_bytes());
            consume::<T>(params, warpgroup, Ring::consumer(barriers), &out);
        }
    }
}

/// Copies all steps of all tiles of this block.
///
/// # Safety
/// One thread of the block calls this; the maps describe A and B.
#[inline(always)]
unsafe fn produce<T: Tile>(params: &GemmParams, maps: u64, mut ring: Ring<T::Steps>) {
    let tiles = tiles(params, T::A::SPAN, T::B::SPAN);
    let (a_map, b_map) = (maps, maps + TensorMap::BYTES);
    let (a_bytes, bytes) = T::STEP_BYTES;
    let mut tile = index::block();
    while tile < tiles {
        // SAFETY: the tile exists.
        let (m, n) = unsafe { corner(params, tile, T::A::SPAN, T::B::SPAN) };
        let mut k = 0;
        while k < params.k {
            let stage = shared::base() + ring.stage() * bytes;
            let full = ring.acquire(bytes);
            // SAFETY: the maps are those of A and B, and the stage is empty.
            unsafe {
                load::<T::A>(a_map, stage, full, (m, k));
                load::<T::B>(b_map, stage + a_bytes, full, (n, k));
            }
            ring.advance();
            k += T::A::DEPTH;
        }
        tile += index::blocks();
    }
}

/// Multiplies and stores this warpgroup's rows of all tiles of this block.
///
/// # Safety
/// All threads of the warpgroup call this together.
#[inline(always)]
unsafe fn consume<T: Tile>(params: &GemmParams, warpgroup: u32, mut ring: Ring<T::Steps>, out: &Out) {
    let tiles = tiles(params, T::A::SPAN, T::B::SPAN);
    let (a_bytes, bytes) = T::STEP_BYTES;
    // 64 rows of A are a box in either order.
    let a = Descriptor::new::<T::A>(shared::base() + warpgroup * BOX_BYTES);
    let b = Descriptor::new::<T::B>(shared::base() + a_bytes);
    let mut acc = T::C::ZERO;
    let mut tile = index::block();
    // SAFETY: the warpgroup's threads are together; a stage is there until it is released, behind its
    // products.
    unsafe {
        if index::thread() == 0 && out.map != 0 {
            tma::prefetch(out.map);
        }
        while tile < tiles {
            let (m, n) = corner(params, tile, T::A::SPAN, T::B::SPAN);
            let mut k = 0;
            let mut last = ring;
            while k < params.k {
                ring.wait();
                wgmma::fence();
                let stage = ring.stage() * bytes;
                multiply::<T>(&mut acc, a.behind(stage), b.behind(stage), k > 0);
                wgmma::commit_group();
                // The products of the step before are over, and those of this one under way.
                acc.wait_group::<1>();
                if leads_warp() && k > 0 {
                    last.release();
                }
                last = ring;
                ring.advance();
                k += T::A::DEPTH;
            }
            acc.wait_group::<0>();
            if leads_warp() {
                last.release();
            }
            out.store::<T>(&acc, m, n);
            tile += index::blocks();
        }
        if leads_warp() {
            epilogue::wait_all();
        }
    }
}

/// Begins the products of the step that these describe.
///
/// # Safety
/// As [`Accumulator::multiply_ss`].
#[inline(always)]
unsafe fn multiply<T: Tile>(acc: &mut T::C, a: Descriptor, b: Descriptor, accumulate: bool) {
    let mut step = 0;
    while step < T::A::DEPTH / 16 {
        let (a, b, accumulate) = (a.at::<T::A>(step), b.at::<T::B>(step), accumulate || step > 0);
        // SAFETY: the operands are there and stay until the wait; the warpgroup's threads are together.
        unsafe {
            match (T::A::ALONG_K, T::B::ALONG_K) {
                (true, true) => acc.multiply_ss::<T::Element, false, false>(a, b, accumulate),
                (true, false) => acc.multiply_ss::<T::Element, false, true>(a, b, accumulate),
                (false, true) => acc.multiply_ss::<T::Element, true, false>(a, b, accumulate),
                (false, false) => acc.multiply_ss::<T::Element, true, true>(a, b, accumulate),
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
    unsafe fn store<T: Tile>(&self, acc: &T::C, m: u32, n: u32) {
        let lane = index::thread() % 32;
        let m = m + index::thread() / 32 * WARP_ROWS;
        let mut line = 0;
        while line < T::B::SPAN / LINE_ELEMENTS {
            let buffer = self.buffers + line % 2 * OUT_BYTES;
            let n = n + line * LINE_ELEMENTS;
            // SAFETY: the warp's lanes are together, and the lane that began the store that last read the
            // buffer has waited for it.
            unsafe {
                if lane == 0 {
                    tma::wait_group_read::<1>();
                }
                warp::sync();
                epilogue::write_panel::<T::Element, _>(lane, buffer, acc, line);
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
            // SAFETY: the buffer is written, and each lane stores only elements that exist and are its own.
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
