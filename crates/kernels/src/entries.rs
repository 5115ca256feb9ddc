//! The list of kernels: every (algorithm, configuration) pair that is built, one PTX entry each.
//!
//! Adding one is adding a line. On the device a line becomes an entry point; on the host it
//! becomes a row of [`entries`], which planner, builder and simulator share.
//!
//! There is one list for each PTX target, in a file of its own, and a device build holds the list of its own
//! target alone.
#![cfg_attr(
    any(target_arch = "nvptx64", test, not(feature = "simulator")),
    allow(
        unused_imports,
        unused_macros,
        reason = "a build for one target leaves the others' kernels out, one without the simulator all"
    )
)]

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use crate::attention::{
    alignment::{ByHeads, ByRows},
    forward_sm90, pack, transpose,
};
use crate::attention::{backward_delta, backward_simt, forward_simt, standard};
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
use crate::attention::{backward_sm80, combine, decode, forward_sm80};
use crate::element::{Bf16, E4m3, F16};
#[cfg(not(target_arch = "nvptx64"))]
pub use gemm::{GemmAlgorithm, GemmEntry, GemmTile, gemm_entries};
#[cfg(not(target_arch = "nvptx64"))]
pub use host::{Algorithm, Entry, Params, Run, Target, Tile};

#[cfg(not(target_arch = "nvptx64"))]
mod host;

/// One entry: an entry point on the device. One that takes tensor maps, which stand in front of its
/// parameters, gets their address too.
#[cfg(target_arch = "nvptx64")]
macro_rules! entry {
    ($name:expr, $algorithm:ident, $dtype:literal, $facts:tt, $body:expr) => {
        entry! { $name, $algorithm, $dtype, $facts, $body, Attention, crate::params::AttentionParams }
    };
    ($name:expr, $algorithm:ident, $dtype:literal, $facts:tt, $body:expr, $run:ident, Mapped<$maps:ty, $params:ty>) => {
        const _: () = {
            #[unsafe(export_name = $name)]
            unsafe extern "ptx-kernel" fn entry(mapped: crate::params::Mapped<$maps, $params>) {
                let maps = crate::ptx::tma::parameter_address!($name);
                // SAFETY: the host launches an entry as its row of the list says.
                unsafe { $body(&mapped.params, maps) }
            }
        };
    };
    ($name:expr, $algorithm:ident, $dtype:literal, $facts:tt, $body:expr, $run:ident, $params:ty) => {
        const _: () = {
            #[unsafe(export_name = $name)]
            unsafe extern "ptx-kernel" fn entry(params: $params) {
                // SAFETY: the host launches an entry as its row of the list says.
                unsafe { $body(&params) }
            }
        };
    };
}

/// One entry: a row of the list on the host.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! entry {
    ($name:expr, $algorithm:ident, $dtype:literal, $facts:tt, $body:expr) => {
        entry! { $name, $algorithm, $dtype, $facts, $body, Attention, crate::params::AttentionParams }
    };
    ($name:expr, $algorithm:ident, $dtype:literal,
     { tile: $tile:expr, threads: $threads:expr, min_blocks: $min_blocks:expr, shared_bytes: $shared_bytes:expr, barriers: $barriers:expr $(,)? },
     $body:expr, $run:ident, $($params:tt)*) => {
        Entry {
            name: $name,
            algorithm: Algorithm::$algorithm,
            dtype: $dtype,
            tile: $tile,
            // `for_target` knows.
            target: Target::Sm75,
            threads: $threads,
            min_blocks: $min_blocks,
            shared_bytes: $shared_bytes,
            barriers: $barriers,
            #[cfg(all(feature = "simulator", not(test)))]
            run: Some(Run::$run($body)),
            // The unit tests run no kernel, and would compile all of them once more.
            #[cfg(any(not(feature = "simulator"), test))]
            run: None,
        }
    };
}

// Behind the macro that a line of them becomes.
#[macro_use]
mod families;
#[macro_use]
mod backward;

/// Several entries: items on the device, an array on the host.
#[cfg(target_arch = "nvptx64")]
macro_rules! group {
    ($($line:ident { $($arguments:tt)* })*) => { $($line! { $($arguments)* })* };
}

/// Several entries: items on the device, an array on the host.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! group {
    ($($line:ident { $($arguments:tt)* })*) => { [$($line! { $($arguments)* }),*] };
}

/// The list of one target. On the device its items, where it is the target of the build: a build for
/// one target has the features of all older ones too.
#[cfg(target_arch = "nvptx64")]
macro_rules! entries {
    (sm_75; $($family:ident($($arguments:tt)*);)*) => {
        $(#[cfg(not(target_feature = "sm_80"))] $family! { $($arguments)* })*
    };
    (sm_80; $($family:ident($($arguments:tt)*);)*) => {
        $(#[cfg(all(target_feature = "sm_80", not(target_feature = "sm_90a")))] $family! { $($arguments)* })*
    };
    (sm_90a; $($family:ident($($arguments:tt)*);)*) => {
        $(#[cfg(target_feature = "sm_90a")] $family! { $($arguments)* })*
    };
}

/// The list of one target. On the host an array of arrays.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! entries {
    (sm_75; $($lines:tt)*) => { entries! { SM_75, Target::Sm75; $($lines)* } };
    (sm_80; $($lines:tt)*) => { entries! { SM_80, Target::Sm80; $($lines)* } };
    (sm_90a; $($lines:tt)*) => { entries! { SM_90A, Target::Sm90a; $($lines)* } };
    ($list:ident, $target:expr; $($family:ident($($arguments:tt)*);)*) => {
        pub(super) static $list: &[&[Entry]] = &[$(&for_target($target, $family! { $($arguments)* })),*];
    };
}

// A sweep builds one tile at a time, which is in none of the lists below.
#[cfg(fa_variants)]
include!(env!("FA_VARIANTS"));

// A module each, for the compiler builds the modules of a crate beside each other.
#[cfg(not(fa_variants))]
mod sm75;
#[cfg(not(fa_variants))]
mod sm80;
#[cfg(not(fa_variants))]
mod sm90;

// Behind the macros that it lists its entries with.
#[cfg(not(fa_variants))]
mod gemm;

/// Whether entries carry their native code, which the simulator runs: the feature `simulator`.
#[cfg(not(target_arch = "nvptx64"))]
pub const HAS_NATIVE: bool = cfg!(all(feature = "simulator", not(test)));

/// All entries of attention.
#[cfg(not(target_arch = "nvptx64"))]
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    [sm75::SM_75, sm80::SM_80, sm90::SM_90A].into_iter().flatten().copied().flatten()
}

/// The entries of one line, as rows of a target's list.
#[cfg(not(target_arch = "nvptx64"))]
const fn for_target<A: Copy, T: Copy, const N: usize>(
    target: Target,
    mut entries: [Entry<A, T>; N],
) -> [Entry<A, T>; N] {
    let mut index = 0;
    while index < N {
        entries[index].target = target;
        index += 1;
    }
    entries
}

#[cfg(not(target_arch = "nvptx64"))]
const fn simt(block_m: u32, block_n: u32, head_dim: u32) -> crate::config::SimtConfig {
    crate::config::SimtConfig { block_m, block_n, head_dim }
}

#[cfg(not(target_arch = "nvptx64"))]
const fn backward(owned: u32, step: u32, head_dim: u32) -> crate::config::BackwardConfig {
    crate::config::BackwardConfig { owned, step, head_dim }
}

#[cfg(not(target_arch = "nvptx64"))]
const fn backward_mma(owned: u32, step: u32, head_dim: u32, warps: u32) -> crate::config::BackwardMmaConfig {
    crate::config::BackwardMmaConfig { owned, step, head_dim, warps }
}

#[cfg(not(target_arch = "nvptx64"))]
const fn decode_config(block_m: u32, head_dim: u32, warps: u32, stages: u32) -> crate::config::DecodeConfig {
    crate::config::DecodeConfig { block_m, head_dim, warps, stages }
}

#[cfg(not(target_arch = "nvptx64"))]
const fn standard_tile(block_m: u32, block_n: u32) -> Tile {
    Tile { block_m, block_n, head_dim: u32::MAX }
}

#[cfg(not(target_arch = "nvptx64"))]
const fn mma(block_m: u32, block_n: u32, head_dim: u32, warps: u32) -> crate::config::MmaConfig {
    crate::config::MmaConfig { block_m, block_n, head_dim, warps }
}

#[cfg(not(target_arch = "nvptx64"))]
const fn sm90(block_m: u32, block_n: u32, head_dim: u32, element_bytes: u32) -> crate::config::Sm90Config {
    crate::config::Sm90Config { block_m, block_n, head_dim, element_bytes }
}
