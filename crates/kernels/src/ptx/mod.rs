//! One file per hardware facility, one function per instruction.
//!
//! On the device each function is its PTX instruction; on the host it is the same operation of `fa-sim`, with
//! the feature `sim`: without it there are no kernels to run on the host, and a call is a panic, as it is
//! outside of a kernel. Operations that synchronise threads (barriers, shuffles, votes) go through LLVM
//! intrinsics because those carry `convergent`; rustc's `asm!` does not, and an optimiser may copy it into
//! divergent branches. [`mma`] says why it is the exception.
//!
//! [`cp_async`], [`ldmatrix`], [`mma`] and the packing conversions of [`convert`] need sm_80 or the PTX ISA
//! that comes with it: only entries of the sm_80 list use them. [`mbarrier`], [`fence`], [`tma`], [`wgmma`],
//! [`setmaxnreg`], [`stmatrix`], [`cluster`] and [`grid`] are Hopper's: only those of the sm_90a list do.
// Arguments go to twins alone.
#![cfg_attr(not(any(target_arch = "nvptx64", feature = "sim")), allow(unused_variables))]

/// The operation of `fa-sim` that an instruction is on the host.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! twin {
    ($operation:expr) => {
        cfg_select! {
            feature = "sim" => { $operation }
            _ => { $crate::ptx::no_simulator() }
        }
    };
}

pub mod barrier;
pub mod bytes;
pub mod cluster;
pub mod convert;
pub mod cp_async;
pub mod fence;
pub mod global;
pub mod grid;
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

/// Whether this is a thread of a simulated kernel.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn is_simulated() -> bool {
    cfg_select! {
        feature = "sim" => { fa_sim::is_in_kernel() }
        _ => { false }
    }
}

/// Ends a kernel that is called where nothing can run it.
#[cfg(not(any(target_arch = "nvptx64", feature = "sim")))]
#[cold]
#[track_caller]
fn no_simulator() -> ! {
    panic!("kernels run on the host in the simulator alone, which the feature `sim` of fa-kernels brings")
}
