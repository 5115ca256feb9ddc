//! What the algorithm is made of, compiled for one kind of tiles and of lanes.

use super::lanes::TileLanes;
use super::product::{BLOCK, Product, Tiles, multiply};
use super::softmax;
use crate::cpu::isa::Kernels;
use crate::cpu::softmax::State;

/// A table of functions as [`Kernels`] is. Each comes for panels of 32 and of 64 queries where it depends on
/// that. To call one is safe only where the CPU has the instruction sets, beside what the generic function
/// demands that it wraps.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct TileKernels {
    /// Masks and changes of scores.
    pub(super) vectors: Kernels,
    /// [`Tiles::configure`].
    pub(super) configure: unsafe fn(),
    /// [`Tiles::release`].
    pub(super) release: unsafe fn(),
    /// [`multiply`].
    pub(super) multiply: unsafe fn(&Product),
    /// [`TileLanes::transpose`].
    pub(super) transpose: unsafe fn(*const u32, usize, *mut u32, usize),
    /// [`softmax::update`] by panel, then by parts.
    update: [[Update; 2]; 2],
    rescale: [unsafe fn(*mut f32, usize, *const f32); 2],
}

/// Scores, their keys, the factor that makes them exponents of 2, and the state.
type Update = unsafe fn(*mut f32, usize, f32, State);

/// The widest panel, in queries.
pub(super) const PANEL: usize = 2 * BLOCK;

impl TileKernels {
    /// [`softmax::update`] on a panel of `width` queries.
    ///
    /// # Safety
    /// The CPU has the instruction set; `width` is 32 or 64 and `parts` 1 or 2; otherwise as
    /// [`softmax::update`].
    pub(super) unsafe fn update(
        &self,
        (width, parts): (usize, usize),
        scores: *mut f32,
        keys: usize,
        factor: f32,
        state: State,
    ) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.update[width / BLOCK - 1][parts - 1](scores, keys, factor, state) }
    }

    /// [`softmax::rescale`] on a panel of `width` queries.
    ///
    /// # Safety
    /// As [`Self::update`], but for the parts.
    pub(super) unsafe fn rescale(&self, width: usize, results: *mut f32, rows: usize, factors: *const f32) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.rescale[width / BLOCK - 1](results, rows, factors) }
    }
}

/// Compiles the functions for one kind of tiles and of lanes, as [`Kernels`]' are.
macro_rules! tile_kernels {
    (
        $(#[$cfg:meta])*
        $table:ident in $name:ident, $vectors:expr, $tiles:ty, $lanes:ty $(, #[$feature:meta])?
    ) => {
        $(#[$cfg])*
        pub(in crate::cpu) use $name::$table;

        $(#[$cfg])*
        mod $name {
            use super::*;

            pub(in crate::cpu) const $table: TileKernels = TileKernels {
                vectors: $vectors,
                configure: <$tiles>::configure,
                release: <$tiles>::release,
                multiply: multiply::<$tiles>,
                transpose,
                update: [[update::<2, 1>, update::<2, 2>], [update::<4, 1>, update::<4, 2>]],
                rescale: [rescale::<2>, rescale::<4>],
            };

            /// # Safety
            /// As [`TileLanes::transpose`].
            $(#[$feature])?
            unsafe fn transpose(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
                // SAFETY: the CPU has the instruction set, and both sides have 16 rows.
                unsafe { <$lanes>::transpose(from, from_stride, to, to_stride) }
            }

            /// # Safety
            /// As [`softmax::update`].
            $(#[$feature])?
            unsafe fn update<const N: usize, const PARTS: usize>(
                scores: *mut f32, keys: usize, factor: f32, state: State,
            ) {
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { softmax::update::<$lanes, N, PARTS>(scores, keys, factor, state) }
            }

            /// # Safety
            /// As [`softmax::rescale`].
            $(#[$feature])?
            unsafe fn rescale<const N: usize>(results: *mut f32, rows: usize, factors: *const f32) {
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { softmax::rescale::<$lanes, N>(results, rows, factors) }
            }
        }
    };
}

tile_kernels!(
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    AMX in amx,
    crate::cpu::isa::Isa::Avx512.kernels(),
    crate::cpu::amx::instructions::Amx,
    crate::cpu::lanes_x86::Avx512,
    #[target_feature(enable = "avx512f,fma")]
);
tile_kernels!(
    #[cfg(feature = "testing")]
    MODEL in model,
    crate::cpu::isa::MODEL,
    crate::cpu::amx::model::Model,
    crate::cpu::amx::model::Sixteen
);
