//! One file per hardware facility, one function per instruction.
//!
//! On the device each function is its PTX instruction; on the host it is the same
//! operation of `fa-sim`. Operations that synchronise threads (barriers, shuffles,
//! votes) go through LLVM intrinsics because those carry `convergent`; rustc's
//! `asm!` does not, and an optimiser may copy it into divergent branches. [`mma`] says why it
//! is the exception.
//!
//! [`cp_async`], [`ldmatrix`], [`mma`] and the packing conversions of [`convert`] need sm_80 or the PTX ISA that
//! comes with it: only entries of the sm_80 list use them.

pub mod barrier;
pub mod convert;
pub mod cp_async;
pub mod global;
pub mod index;
pub mod ldmatrix;
pub mod math;
pub mod mma;
pub mod shared;
pub mod warp;

/// Stops the whole grid with a fault (PTX ISA, `trap`).
#[cfg(target_arch = "nvptx64")]
pub fn trap() -> ! {
    // SAFETY: `trap` takes no operands and never returns.
    unsafe { core::arch::nvptx::trap() }
}
