//! Matrix multiplication on fp32 FMA, for every NVIDIA GPU and storage type, in any order of the operands.
//!
//! One block owns one tile of C, each thread eight by eight of it in registers. Steps of A and B pass through
//! registers into two stages of shared memory, as fp32 and with K outermost: the loads of the next step are
//! in flight while this one is multiplied, and one barrier a step suffices.

use crate::config::GemmSimtConfig;
use crate::element::Element;
use crate::gemm::corner;
use crate::params::GemmParams;
use crate::ptx::{barrier, index, math, shared};

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 2;

/// K of a step.
pub const BLOCK_K: u32 = 8;

/// Rows and columns of C that a thread holds: two runs of four each, half a tile apart.
const SIDE: usize = 8;

/// C = A·B for one tile of `BLOCK_M` × `BLOCK_N`.
///
/// `A_LOADS` = BLOCK_M·[`BLOCK_K`] / THREADS and `B_LOADS` are the elements that a thread loads in a step;
/// they are parameters because array lengths cannot be computed from other ones. Launch: ⌈M / BLOCK_M⌉·⌈N /
/// BLOCK_N⌉ blocks of [`GemmSimtConfig::threads`] threads with [`GemmSimtConfig::shared_bytes`] bytes of
/// shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn gemm_simt<
    E: Element,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const THREADS: u32,
    const A_LOADS: usize,
    const B_LOADS: usize,
>(
    params: &GemmParams,
) {
    const {
        let config = GemmSimtConfig { block_m: BLOCK_M, block_n: BLOCK_N, block_k: BLOCK_K };
        assert!(THREADS == config.threads());
    }
    // SAFETY: no dimension of valid parameters is 0, and the launch has one block for each tile.
    let (first_m, first_n) = unsafe { corner(params, index::block(), BLOCK_M, BLOCK_N) };
    let mut a = Loader::<BLOCK_M, THREADS, A_LOADS>::new::<E>(
        (params.a, params.lda, params.a_along_k == 1),
        (first_m, params.m),
        params.k,
    );
    let mut b = Loader::<BLOCK_N, THREADS, B_LOADS>::new::<E>(
        (params.b, params.ldb, params.b_along_k == 1),
        (first_n, params.n),
        params.k,
    );
    let thread = index::thread();
    let (row, column) = (thread / (BLOCK_N / SIDE as u32) * 4, thread % (BLOCK_N / SIDE as u32) * 4);
    let stage_bytes =
        const { GemmSimtConfig { block_m: BLOCK_M, block_n: BLOCK_N, block_k: BLOCK_K }.shared_bytes() / 2 };
    let b_offset = const { 4 * BLOCK_K * GemmSimtConfig::row_stride(BLOCK_M) };
    let mut stage = shared::base();
    let mut acc = [[0.0; SIDE]; SIDE];
    // SAFETY: a stage is read after the barrier that follows its writes, and written again after the barrier
    // that follows its last reads; all threads run this loop alike.
    unsafe {
        let (first_a, first_b) = (a.load::<E>(), b.load::<E>());
        a.store(stage, first_a);
        b.store(stage + b_offset, first_b);
        barrier::sync(0, THREADS);
        let mut k = 0;
        while k < params.k {
            // Past the end nothing is loaded, and what is stored nobody reads.
            let (next_a, next_b) = (a.load::<E>(), b.load::<E>());
            multiply::<BLOCK_M, BLOCK_N>(&mut acc, stage, stage + b_offset, row, column);
            stage = 2 * shared::base() + stage_bytes - stage;
            a.store(stage, next_a);
            b.store(stage + b_offset, next_b);
            barrier::sync(0, THREADS);
            k += BLOCK_K;
        }
        store::<E, BLOCK_M, BLOCK_N>(params, &acc, (first_m, row), (first_n, column));
    }
}

/// A thread's share in loading one operand: `LOADS` elements of each step, neighbours in memory to
/// neighbouring lanes whichever way the operand's elements run.
struct Loader<const SPAN: u32, const THREADS: u32, const LOADS: usize> {
    /// Address of the thread's first element of the next step to be loaded.
    address: u64,
    /// Bytes from there to its next one, and to its first of the step after.
    to_next: u64,
    to_step: u64,
    /// Place of its first element in a step (span, K), and what to add for each next one.
    first: (u32, u32),
    stride: (u32, u32),
    /// What exists from the block's first of the span, and from the next step's first of K, on.
    span: u32,
    depth: u32,
}

impl<const SPAN: u32, const THREADS: u32, const LOADS: usize> Loader<SPAN, THREADS, LOADS> {
    #[inline(always)]
    fn new<E: Element>(
        (address, leading, along_k): (u64, u32, bool),
        (first, end): (u32, u32),
        depth: u32,
    ) -> Self {
        const {
            assert!(THREADS.is_multiple_of(SPAN) && THREADS.is_multiple_of(BLOCK_K));
            assert!(LOADS as u32 * THREADS == SPAN * BLOCK_K);
        }
        let thread = index::thread();
        let (element, leading) = (E::BYTES, E::BYTES * leading as u64);
        let (of_span, of_k) = if along_k { (leading, element) } else { (element, leading) };
        let (place, stride) = if along_k {
            ((thread / BLOCK_K, thread % BLOCK_K), (THREADS / BLOCK_K, 0))
        } else {
            ((thread % SPAN, thread / SPAN), (0, THREADS / SPAN))
        };
        Self {
            address: address + (first + place.0) as u64 * of_span + place.1 as u64 * of_k,
            to_next: stride.0 as u64 * of_span + stride.1 as u64 * of_k,
            to_step: BLOCK_K as u64 * of_k,
            first: place,
            stride,
            span: end - first,
            depth,
        }
    }

    /// Place of the thread's `i`-th element in a step.
    #[inline(always)]
    fn place(&self, i: usize) -> (u32, u32) {
        (self.first.0 + i as u32 * self.stride.0, self.first.1 + i as u32 * self.stride.1)
    }

    /// The thread's elements of the next step; what does not exist is 0.
    ///
    /// # Safety
    /// The operand is readable.
    #[inline(always)]
    unsafe fn load<E: Element>(&mut self) -> [f32; LOADS] {
        let mut values = [0.0; LOADS];
        let mut i = 0;
        while i < LOADS {
            let (s, k) = self.place(i);
            let exists = s < self.span && k < self.depth;
            // SAFETY: the operand is readable, and an element is loaded only where it exists.
            values[i] = unsafe { E::load_if(exists, self.address + i as u64 * self.to_next) };
            i += 1;
        }
        self.address += self.to_step;
        self.depth = self.depth.saturating_sub(BLOCK_K);
        values
    }

    /// Stores them into the part of a stage at `target`.
    ///
    /// # Safety
    /// No thread still reads it.
    #[inline(always)]
    unsafe fn store(&self, target: u32, values: [f32; LOADS]) {
        let mut i = 0;
        while i < LOADS {
            let (s, k) = self.place(i);
            // SAFETY: the element lies in the part of the stage, which no thread still reads.
            unsafe { shared::store(target + 4 * (k * GemmSimtConfig::row_stride(SPAN) + s), values[i]) };
            i += 1;
        }
    }
}

/// `acc` += A·B of one step, from `row` and `column` of the tile on.
///
/// # Safety
/// The stage is written, and a barrier stands between those writes and this call.
#[inline(always)]
unsafe fn multiply<const BLOCK_M: u32, const BLOCK_N: u32>(
    acc: &mut [[f32; SIDE]; SIDE],
    a: u32,
    b: u32,
    row: u32,
    column: u32,
) {
    let mut k = 0;
    while k < BLOCK_K {
        let a = a + 4 * (k * GemmSimtConfig::row_stride(BLOCK_M) + row);
        let b = b + 4 * (k * GemmSimtConfig::row_stride(BLOCK_N) + column);
        // SAFETY: the step is written, with a barrier between; rows and runs start at multiples of 16 bytes.
        let (a, b) = unsafe {
            (
                [shared::load4(a), shared::load4(a + 2 * BLOCK_M)],
                [shared::load4(b), shared::load4(b + 2 * BLOCK_N)],
            )
        };
        let mut i = 0;
        while i < SIDE {
            let mut j = 0;
            while j < SIDE {
                acc[i][j] = math::fma(a[i / 4][i % 4], b[j / 4][j % 4], acc[i][j]);
                j += 1;
            }
            i += 1;
        }
        k += 1;
    }
}

/// Rounds and stores what exists of a thread's part of C.
///
/// # Safety
/// C is writable.
#[inline(always)]
unsafe fn store<E: Element, const BLOCK_M: u32, const BLOCK_N: u32>(
    params: &GemmParams,
    acc: &[[f32; SIDE]; SIDE],
    (first_m, row): (u32, u32),
    (first_n, column): (u32, u32),
) {
    let mut i = 0;
    while i < SIDE {
        let m = first_m + row + i as u32 / 4 * (BLOCK_M / 2) + i as u32 % 4;
        let mut j = 0;
        while j < SIDE {
            let n = first_n + column + j as u32 / 4 * (BLOCK_N / 2) + j as u32 % 4;
            if m < params.m && n < params.n {
                let address = params.c + E::BYTES * (m as u64 * params.ldc as u64 + n as u64);
                // SAFETY: the element exists, and belongs to this thread.
                unsafe { E::store(address, acc[i][j]) };
            }
            j += 1;
        }
        i += 1;
    }
}
