//! Which instruction set runs: chosen once per call, from what the CPU reports.

use super::lanes::{Lanes, Portable};
#[cfg(target_arch = "aarch64")]
use super::lanes_neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::lanes_x86::{Avx2, Avx512};

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
            }
        }
        found
    }

    /// The widest available one that is not wider than `limit`.
    pub(super) fn widest(limit: Option<Self>) -> Self {
        let narrow_enough = |isa: &Self| limit.is_none_or(|limit| *isa <= limit);
        Self::available().into_iter().rfind(narrow_enough).unwrap_or(Self::Portable)
    }

    /// Queries that one register panel holds, and the lanes of one register.
    pub(super) const fn panel(self) -> Panel {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Panel::of::<Avx512>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Panel::of::<Avx2>(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Panel::of::<Neon>(),
            _ => Panel::of::<Portable>(),
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
        })
    }
}

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

/// Work that is compiled once for each instruction set.
pub(super) trait Kernel {
    /// Must be `#[inline(always)]`, and so must all that it calls with `L`: what is left as a call
    /// is compiled without the instruction set.
    ///
    /// # Safety
    /// The CPU has the instruction set of `L`.
    unsafe fn run<L: Lanes>(self);
}

/// Runs the kernel with the instruction set's lanes.
///
/// # Safety
/// `isa` comes from [`Isa::available`].
pub(super) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    // SAFETY: the caller vouches that the CPU has the instruction set.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => kernel.run::<Neon>(),
            _ => kernel.run::<Portable>(),
        }
    }
}

/// # Safety
/// The CPU has AVX-512F and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,fma")]
unsafe fn avx512<K: Kernel>(kernel: K) {
    // SAFETY: the caller vouches for the features.
    unsafe { kernel.run::<Avx512>() }
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<K: Kernel>(kernel: K) {
    // SAFETY: the caller vouches for the features.
    unsafe { kernel.run::<Avx2>() }
}
