//! Which instruction set runs: chosen once per call, from what the CPU reports.
//!
//! All that depends on it is a table of functions, so that the algorithms are compiled once.

use super::gradient::{self, Queries, RowStats};
use super::lanes::{Lanes, Portable};
#[cfg(target_arch = "aarch64")]
use super::lanes_neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::lanes_x86::{Avx2, Avx512};
use super::microkernel::{self, Broadcast, Start};
use super::pack::Rows;
use super::score::{self, Alibi};
use super::softmax::{self, Limits, State};
use crate::Problem;

/// A set of vector instructions that the kernels are compiled for, from narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust on the target's baseline.
    Portable,
    /// 64-bit Arm.
    Neon,
    /// x86 with AVX2 and FMA.
    Avx2,
    /// x86 with AVX-512F.
    Avx512,
    /// x86 with AVX-512F and tiles of bf16, for forward passes on 16-bit inputs. All else is as with AVX-512.
    Amx,
}

impl Isa {
    /// What this CPU can run, from narrow to wide; never empty.
    pub fn available() -> Vec<Self> {
        let mut found = vec![Self::Portable];
        #[cfg(target_arch = "aarch64")]
        found.push(Self::Neon);
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                found.push(Self::Avx2);
            }
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
                found.push(Self::Avx512);
                #[cfg(target_os = "linux")]
                if super::amx::is_available() {
                    found.push(Self::Amx);
                }
            }
        }
        found
    }

    /// The widest available one that is not wider than `limit`.
    pub(super) fn widest(limit: Option<Self>) -> Self {
        let narrow_enough = |isa: &Self| limit.is_none_or(|limit| *isa <= limit);
        Self::available().into_iter().rfind(narrow_enough).unwrap_or(Self::Portable)
    }

    /// The widest of vectors.
    pub(super) fn widest_vectors() -> Self {
        Self::widest(Some(Self::Avx512))
    }

    /// The widest not wider than `limit` that has a way to run the forward pass of a problem.
    pub(super) fn serving(problem: &Problem, limit: Option<Self>) -> Self {
        match Self::widest(limit) {
            Self::Amx if !super::amx::serves(problem) => Self::widest_vectors(),
            isa => isa,
        }
    }

    /// The functions compiled for it: beside tiles those of AVX-512.
    pub(super) const fn kernels(self) -> Kernels {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Amx => avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::KERNELS,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => neon::KERNELS,
            _ => portable::KERNELS,
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Portable => "portable",
            Self::Neon => "NEON",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
            Self::Amx => "AMX",
        })
    }
}

/// What the algorithms are made of, compiled for one instruction set.
///
/// Each function comes once for each number of registers across a panel, from one up, so that the
/// last panel of few queries costs little. To call one is safe only where the CPU has the instruction
/// set, beside what the generic function that it wraps demands.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    pub(super) panel: Panel,
    /// [`microkernel::multiply`] with depth contiguous in the broadcast operand: K.
    scores: [Multiply; MAX_REGISTERS],
    /// [`microkernel::multiply`] with rows contiguous in the broadcast operand: V.
    values: [Multiply; MAX_REGISTERS],
    update: [unsafe fn(*mut f32, usize, State); MAX_REGISTERS],
    mask: [unsafe fn(*mut f32, usize, Limits); MAX_REGISTERS],
    softcap: [unsafe fn(*mut f32, usize, f32); MAX_REGISTERS],
    alibi: [unsafe fn(*mut f32, usize, Alibi); MAX_REGISTERS],
    differentiate: [Differentiate; MAX_REGISTERS],
    #[cfg(test)]
    pub(super) exp2: unsafe fn(&mut [f32]),
}

/// Broadcast operand and its stride, rows, depth, panel, result, start.
type Multiply = unsafe fn(Rows, usize, usize, *const f32, *mut f32, Start);

/// P and dS, their rows, and what their queries need.
type Differentiate = unsafe fn((*mut f32, *mut f32), usize, RowStats, Queries);

/// The largest number of registers across a panel.
const MAX_REGISTERS: usize = 4;

/// The register tile of an instruction set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel {
    /// Lanes of one register.
    pub(super) lanes: usize,
    /// Queries side by side in one full panel.
    pub(super) width: usize,
    /// Keys, or columns of V, that a tile takes at once.
    pub(super) rows: usize,
}

impl Panel {
    const fn of<L: Lanes>() -> Self {
        Self { lanes: L::WIDTH, width: L::WIDTH * L::TILE_VECTORS, rows: L::TILE_ROWS }
    }
}

impl Kernels {
    /// scores[keys, width] = k[keys, head_dim] · queries[head_dim, width].
    ///
    /// # Safety
    /// The CPU has the instruction set; `width` is 1 to [`Panel::width`] whole registers; otherwise
    /// as [`microkernel::multiply`].
    pub(super) unsafe fn scores(
        &self,
        width: usize,
        k: Rows,
        keys: usize,
        head_dim: usize,
        queries: *const f32,
        scores: *mut f32,
    ) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.scores[width / self.panel.lanes - 1](k, keys, head_dim, queries, scores, Start::Zero) }
    }

    /// results[head_dim, width] = start + vᵀ[head_dim, keys] · weights[keys, width].
    ///
    /// # Safety
    /// As [`Self::scores`].
    #[expect(clippy::too_many_arguments, reason = "a matrix product has three operands and three sizes")]
    pub(super) unsafe fn values(
        &self,
        width: usize,
        v: Rows,
        head_dim: usize,
        keys: usize,
        weights: *const f32,
        results: *mut f32,
        start: Start,
    ) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.values[width / self.panel.lanes - 1](v, head_dim, keys, weights, results, start) }
    }

    /// [`softmax::update`] on a panel of `width` queries.
    ///
    /// # Safety
    /// The CPU has the instruction set; `width` as in [`Self::scores`]; otherwise as [`softmax::update`].
    pub(super) unsafe fn update(&self, width: usize, scores: *mut f32, keys: usize, state: State) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.update[width / self.panel.lanes - 1](scores, keys, state) }
    }

    /// [`softmax::mask`] on a panel of `width` queries.
    ///
    /// # Safety
    /// The CPU has the instruction set; `width` as in [`Self::scores`]; otherwise as [`softmax::mask`].
    pub(super) unsafe fn mask(&self, width: usize, scores: *mut f32, keys: usize, limits: Limits) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.mask[width / self.panel.lanes - 1](scores, keys, limits) }
    }

    /// [`score::softcap`] on a panel of `width` queries.
    ///
    /// # Safety
    /// The CPU has the instruction set; `width` as in [`Self::scores`]; otherwise as [`score::softcap`].
    pub(super) unsafe fn softcap(&self, width: usize, scores: *mut f32, keys: usize, factor: f32) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.softcap[width / self.panel.lanes - 1](scores, keys, factor) }
    }

    /// [`score::alibi`] on a panel of `width` queries.
    ///
    /// # Safety
    /// The CPU has the instruction set; `width` as in [`Self::scores`]; otherwise as [`score::alibi`].
    pub(super) unsafe fn alibi(&self, width: usize, scores: *mut f32, keys: usize, alibi: Alibi) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.alibi[width / self.panel.lanes - 1](scores, keys, alibi) }
    }

    /// [`gradient::differentiate`] on a panel of `width` lanes.
    ///
    /// # Safety
    /// The CPU has the instruction set; `width` as in [`Self::scores`]; otherwise as
    /// [`gradient::differentiate`].
    pub(super) unsafe fn differentiate(
        &self,
        width: usize,
        both: (*mut f32, *mut f32),
        rows: usize,
        stats: RowStats,
        queries: Queries,
    ) {
        // SAFETY: the CPU has the instruction set, and the panel is `width` lanes wide.
        unsafe { self.differentiate[width / self.panel.lanes - 1](both, rows, stats, queries) }
    }
}

/// Compiles the kernels for one instruction set: everything generic is inlined into functions that enable it.
macro_rules! kernels {
    ($(#[$cfg:meta])* $name:ident, $lanes:ty, $(#[$feature:meta])? [$n0:literal, $n1:literal, $n2:literal, $n3:literal]) => {
        $(#[$cfg])*
        mod $name {
            use super::*;

            pub(super) const KERNELS: Kernels = Kernels {
                panel: Panel::of::<$lanes>(),
                scores: [scores::<$n0>, scores::<$n1>, scores::<$n2>, scores::<$n3>],
                values: [values::<$n0>, values::<$n1>, values::<$n2>, values::<$n3>],
                update: [update::<$n0>, update::<$n1>, update::<$n2>, update::<$n3>],
                mask: [mask::<$n0>, mask::<$n1>, mask::<$n2>, mask::<$n3>],
                softcap: [softcap::<$n0>, softcap::<$n1>, softcap::<$n2>, softcap::<$n3>],
                alibi: [alibi::<$n0>, alibi::<$n1>, alibi::<$n2>, alibi::<$n3>],
                differentiate: [
                    differentiate::<$n0>,
                    differentiate::<$n1>,
                    differentiate::<$n2>,
                    differentiate::<$n3>,
                ],
                #[cfg(test)]
                exp2,
            };

            /// # Safety
            /// As [`Kernels::scores`].
            $(#[$feature])?
            unsafe fn scores<const N: usize>(
                k: Rows, keys: usize, depth: usize, panel: *const f32, result: *mut f32, start: Start,
            ) {
                let k = Broadcast { data: k.data, row_stride: k.stride, depth_stride: 1, prefetch: false };
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { microkernel::multiply::<$lanes, N>(k, keys, depth, panel, result, start) }
            }

            /// # Safety
            /// As [`Kernels::values`].
            $(#[$feature])?
            unsafe fn values<const N: usize>(
                v: Rows, rows: usize, depth: usize, panel: *const f32, result: *mut f32, start: Start,
            ) {
                let v = Broadcast { data: v.data, row_stride: 1, depth_stride: v.stride, prefetch: true };
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { microkernel::multiply::<$lanes, N>(v, rows, depth, panel, result, start) }
            }

            /// # Safety
            /// As [`Kernels::update`].
            $(#[$feature])?
            unsafe fn update<const N: usize>(scores: *mut f32, keys: usize, state: State) {
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { softmax::update::<$lanes, N>(scores, keys, state) }
            }

            /// # Safety
            /// As [`Kernels::mask`].
            $(#[$feature])?
            unsafe fn mask<const N: usize>(scores: *mut f32, keys: usize, limits: Limits) {
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { softmax::mask::<$lanes, N>(scores, keys, limits) }
            }

            /// # Safety
            /// As [`Kernels::softcap`].
            $(#[$feature])?
            unsafe fn softcap<const N: usize>(scores: *mut f32, keys: usize, factor: f32) {
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { score::softcap::<$lanes, N>(scores, keys, factor) }
            }

            /// # Safety
            /// As [`Kernels::alibi`].
            $(#[$feature])?
            unsafe fn alibi<const N: usize>(scores: *mut f32, keys: usize, alibi: Alibi) {
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { score::alibi::<$lanes, N>(scores, keys, alibi) }
            }

            /// # Safety
            /// As [`Kernels::differentiate`].
            $(#[$feature])?
            unsafe fn differentiate<const N: usize>(
                both: (*mut f32, *mut f32), rows: usize, stats: RowStats, queries: Queries,
            ) {
                // SAFETY: the CPU has the instruction set, and the panel has `N` registers of lanes.
                unsafe { gradient::differentiate::<$lanes, N>(both, rows, stats, queries) }
            }

            /// # Safety
            /// The CPU has the instruction set; there are whole registers of values.
            #[cfg(test)]
            $(#[$feature])?
            unsafe fn exp2(values: &mut [f32]) {
                for chunk in values.chunks_exact_mut(<$lanes>::WIDTH) {
                    // SAFETY: the caller vouches, and the chunk has a register's lanes.
                    unsafe { super::super::exp::exp2(<$lanes>::load(chunk.as_ptr())).store(chunk.as_mut_ptr()) };
                }
            }
        }
    };
}

// Beyond an instruction set's own panel, the widest stands again: a wider one never comes up.
kernels!(portable, Portable, [1, 2, 3, 3]);
kernels!(
    #[cfg(target_arch = "aarch64")]
    neon,
    Neon,
    [1, 2, 3, 4]
);
kernels!(
    #[cfg(target_arch = "x86_64")]
    avx2,
    Avx2,
    #[target_feature(enable = "avx2,fma")]
    [1, 2, 2, 2]
);
kernels!(
    #[cfg(target_arch = "x86_64")]
    avx512,
    Avx512,
    #[target_feature(enable = "avx512f,fma")]
    [1, 2, 3, 4]
);
kernels!(
    #[cfg(feature = "testing")]
    model,
    crate::cpu::amx::Sixteen,
    [1, 2, 3, 4]
);

/// Those of sixteen lanes in plain Rust, beside the model of tiles.
#[cfg(feature = "testing")]
pub(super) const MODEL: Kernels = model::KERNELS;
