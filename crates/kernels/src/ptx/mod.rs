//! One file per hardware facility, one function per instruction.
//!
//! On the device each function is its PTX instruction; on the host it is the same
//! operation of `fa-sim`. Operations that synchronise threads (barriers, shuffles,
//! votes) go through LLVM intrinsics because those carry `convergent`; rustc's
//! `asm!` does not, and an optimiser may copy it into divergent branches. [`mma`] says why it
//! is the exception.
//!
//! [`cp_async`], [`ldmatrix`], [`mma`] and the packing conversions of [`convert`] need sm_80 or the PTX ISA
//! that comes with it: only entries of the sm_80 list use them. [`mbarrier`], [`fence`], [`tma`], [`wgmma`],
//! [`setmaxnreg`] and [`stmatrix`] are Hopper's: only those of the sm_90a list do.

pub mod barrier;
pub mod bytes;
pub mod convert;
pub mod cp_async;
pub mod fence;
pub mod global;
pub mod index;
pub mod ldmatrix;
pub mod math;
pub mod mbarrier;
pub mod mma;
pub mod setmaxnreg;
pub mod shared;
pub mod stmatrix;
pub mod tma;
pub mod warp;
pub mod wgmma;

/// Stops the whole grid with a fault (PTX ISA, `trap`).
#[cfg(target_arch = "nvptx64")]
pub fn trap() -> ! {
    // SAFETY: `trap` takes no operands and never returns.
    unsafe { core::arch::nvptx::trap() }
}
