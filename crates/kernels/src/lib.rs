//! Attention and matrix multiplication as ordinary Rust: written once, compiled to PTX for the GPU
//! and natively against [`fa-sim`](https://docs.rs/fa-sim) for tests.
//!
//! * [`ptx`] is the only layer that knows which of the two it is on: one function per instruction.
//! * [`tile`] moves and multiplies tiles in shared memory.
//! * [`hopper`] is the frame of kernels in which some warps copy and others multiply.
//! * [`attention`] and [`gemm`] hold the algorithms; they read like the papers they come from.
//! * [`params`] is the launch contract with the host, [`config`] the tile configurations.
//! * `entries` lists every (algorithm, configuration) pair that becomes one PTX entry.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, abi_unadjusted, asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx),
    allow(internal_features)
)]

// Functions that a program brings along are compiled into this crate, which they know by its name.
#[cfg(fa_variants)]
extern crate self as fa_kernels;

pub mod attention;
pub mod config;
pub mod dropout;
pub mod element;
pub mod entries;
pub mod functions;
pub mod gemm;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod hopper;
pub mod mask;
pub mod params;
pub mod ptx;
pub mod registers;
pub mod scheduler;
pub mod score;
pub mod softmax;
pub mod tile;

#[cfg(not(target_arch = "nvptx64"))]
pub mod shipped;
#[cfg(not(target_arch = "nvptx64"))]
pub mod variant;

/// A kernel has nowhere to unwind to: a panic stops the grid, and the driver reports the fault.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    ptx::trap()
}
