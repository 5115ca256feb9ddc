//! The list of kernels: every (algorithm, configuration) pair that is built, one PTX entry each.
//!
//! Adding one is adding a line. On the device a line becomes an entry point; on the host it
//! becomes a row of [`entries`], which planner, builder and simulator share.
//!
//! There is one list for each PTX target, and a device build holds the list of its own target alone.
#![cfg_attr(
    target_arch = "nvptx64",
    allow(unused_imports, unused_macros, reason = "a build for one target leaves the others' kernels out")
)]

use crate::attention::{backward_delta, backward_simt, forward_simt, standard};
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
use crate::attention::{backward_sm80, combine, decode, forward_sm80};
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use crate::attention::{forward_sm90, pack, transpose};
use crate::element::{Bf16, E4m3, F16};
#[cfg(not(target_arch = "nvptx64"))]
pub use gemm::{GemmAlgorithm, GemmEntry, GemmTile, gemm_entries};
#[cfg(not(target_arch = "nvptx64"))]
pub use host::{Algorithm, Entry, Params, Run, Target, Tile};

#[cfg(not(target_arch = "nvptx64"))]
mod host;

/// One entry: an entry point on the device. One that takes tensor maps, which stand in front of its parameters, gets
/// their address too.
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
            run: Some(Run::$run($body)),
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
        static $list: &[&[Entry]] = &[$(&for_target($target, $family! { $($arguments)* })),*];
    };
}

// A sweep builds one tile at a time, which is in none of the lists below.
#[cfg(fa_variants)]
include!(env!("FA_VARIANTS"));

#[cfg(not(fa_variants))]
entries! { sm_75;
    standard("f32", f32);
    standard("f16", F16);
    standard("bf16", Bf16);
    // (BLOCK_M, BLOCK_N, HEAD_DIM, blocks per multiprocessor that the registers leave room for).
    // Each HEAD_DIM has a tile of at most 64 KiB, the shared memory of the smallest device that the
    // PTX runs on; the larger ones reuse each K and V row more, are faster, and stand first. Two blocks, so that one computes
    // while the other loads, wherever that costs no spill.
    forward_simt(64, 64, 32, 2);
    forward_simt(64, 32, 32, 2);
    forward_simt(64, 64, 64, 2);
    forward_simt(64, 32, 64, 1);
    forward_simt(32, 32, 64, 2);
    forward_simt(64, 64, 96, 2);
    forward_simt(64, 32, 96, 1);
    forward_simt(64, 64, 128, 2);
    forward_simt(64, 32, 128, 1);
    forward_simt(32, 32, 128, 2);
    forward_simt(64, 64, 160, 1);
    forward_simt(64, 32, 160, 1);
    forward_simt(32, 32, 160, 2);
    forward_simt(64, 64, 192, 1);
    forward_simt(64, 32, 192, 1);
    forward_simt(32, 32, 192, 2);
    forward_simt(64, 64, 256, 1);
    forward_simt(64, 32, 256, 1);
    forward_simt(32, 32, 256, 2);
    forward_simt(32, 16, 256, 2);
    backward_delta();
    // (rows that a block owns, rows of a step, HEAD_DIM, blocks per multiprocessor); as above, the larger first, and one of at
    // most 64 KiB for each HEAD_DIM. dK and dV take twice the registers of dQ.
    backward_keys(64, 64, 64, 1);
    backward_keys(64, 32, 64, 1);
    backward_keys(64, 32, 128, 1);
    backward_keys(32, 16, 128, 2);
    backward_keys(64, 32, 256, 1);
    backward_keys(8, 16, 256, 4);
    backward_queries(64, 64, 64, 2);
    backward_queries(64, 32, 64, 2);
    backward_queries(32, 32, 128, 3);
    backward_queries(32, 16, 128, 2);
    backward_queries(64, 32, 256, 1);
    backward_queries(8, 16, 256, 4);
    // One tile of each HEAD_DIM, of at most 64 KiB, that draws which weights are dropped.
    forward_simt_dropout(64, 32, 64, 1);
    forward_simt_dropout(32, 32, 128, 2);
    forward_simt_dropout(32, 16, 256, 2);
    backward_keys_dropout(64, 32, 64, 1);
    backward_keys_dropout(32, 16, 128, 2);
    backward_keys_dropout(8, 16, 256, 4);
    backward_queries_dropout(64, 32, 64, 1);
    backward_queries_dropout(32, 16, 128, 2);
    backward_queries_dropout(8, 16, 256, 4);
}

// Kernels with asynchronous copies and the tensor cores' m16n8k16.
#[cfg(not(fa_variants))]
entries! { sm_80;
    // (BLOCK_M, BLOCK_N, HEAD_DIM, warps, blocks per multiprocessor that the registers leave room for);
    // of each HEAD_DIM the fastest first, as measured on an H200. Four warps of 32 rows load each row of
    // K and V half as often as eight warps of 16, where the accumulators leave registers for it.
    forward_sm80(128, 48, 32, 4, 2);
    forward_sm80(128, 64, 48, 4, 2);
    forward_sm80(128, 64, 64, 4, 2);
    forward_sm80(128, 64, 80, 4, 2);
    forward_sm80(128, 64, 96, 4, 2);
    forward_sm80(128, 48, 112, 4, 2);
    forward_sm80(128, 48, 128, 4, 2);
    forward_sm80(128, 32, 144, 4, 2);
    forward_sm80(128, 64, 160, 8, 1);
    forward_sm80(128, 16, 176, 4, 2);
    forward_sm80(128, 64, 192, 8, 1);
    forward_sm80(64, 32, 192, 4, 2);
    forward_sm80(128, 64, 208, 8, 1);
    forward_sm80(64, 32, 208, 4, 2);
    forward_sm80(128, 64, 224, 8, 1);
    forward_sm80(64, 32, 224, 4, 2);
    forward_sm80(128, 64, 256, 8, 1);
    forward_sm80(64, 32, 256, 4, 2);
    // One tile of each HEAD_DIM, which leaves registers for what is done to scores.
    forward_sm80_score_mod(128, 64, 32, 4, 2);
    forward_sm80_score_mod(128, 64, 64, 4, 2);
    forward_sm80_score_mod(128, 64, 96, 4, 2);
    forward_sm80_score_mod(128, 32, 128, 4, 2);
    forward_sm80_score_mod(128, 64, 144, 8, 1);
    forward_sm80_score_mod(128, 64, 160, 8, 1);
    forward_sm80_score_mod(128, 64, 192, 8, 1);
    forward_sm80_score_mod(128, 32, 256, 8, 1);
    // (BLOCK_M, HEAD_DIM, warps, stages, blocks per multiprocessor that registers and Hopper's shared memory
    // leave room for). Of each HEAD_DIM and BLOCK_M the ring with the most bytes in flight stands first, and
    // each HEAD_DIM has one that fits the 99 KiB of the smallest devices since sm_80.
    decode(16, 64, 4, 5, 2);
    decode(32, 64, 4, 5, 2);
    decode(64, 64, 4, 5, 2);
    decode(16, 96, 4, 3, 2);
    decode(32, 96, 4, 3, 2);
    decode(16, 128, 4, 3, 2);
    decode(16, 128, 4, 2, 2);
    decode(32, 128, 4, 3, 2);
    decode(16, 192, 4, 2, 2);
    decode(16, 192, 2, 3, 2);
    decode(16, 256, 2, 3, 2);
    decode(16, 256, 2, 2, 2);
    decode_combine();
    // (rows that a block owns, rows of a step, HEAD_DIM, warps, blocks per multiprocessor that the registers leave room for). Warps
    // of 32 rows load each row of the others half as often as those of 16, where the accumulators leave registers for it.
    backward_keys_sm80(128, 32, 64, 4, 2);
    backward_keys_sm80(64, 32, 128, 4, 2);
    backward_queries_sm80(128, 32, 64, 4, 2);
    backward_queries_sm80(128, 32, 128, 4, 2);
}

// Kernels of Hopper alone: copies by tensor maps, and wgmma.
#[cfg(not(fa_variants))]
entries! { sm_90a;
    // (BLOCK_M, BLOCK_N, HEAD_DIM): the fastest of those that were swept on an H200, of 64 and 128 for full rounds of
    // long sequences, for short ones, and at 64 for short ones under a causal mask, where fewer keys are masked in
    // vain. More than 64 keys a step lose from 144 columns on, where two warpgroups have shared memory for three
    // blocks of them, or three for larger tiles of queries.
    forward_sm90(192, 128, 32);
    forward_sm90(192, 128, 64);
    forward_sm90(128, 128, 64);
    forward_sm90(192, 64, 64);
    forward_sm90(192, 64, 80);
    forward_sm90(192, 64, 96);
    forward_sm90(192, 64, 112);
    forward_sm90(192, 80, 128);
    forward_sm90(128, 128, 128);
    forward_sm90(192, 64, 144);
    forward_sm90(128, 64, 160);
    forward_sm90(128, 64, 176);
    forward_sm90(128, 64, 192);
    forward_sm90(128, 64, 208);
    forward_sm90(128, 64, 224);
    forward_sm90(128, 64, 240);
    forward_sm90(128, 64, 256);
    // One tile of each HEAD_DIM, which leaves registers for what is done to scores.
    forward_sm90_score_mod(128, 128, 64);
    forward_sm90_score_mod(128, 96, 128);
    forward_sm90_score_mod(128, 64, 256);
    // Rows that lie no multiple of 16 bytes apart, in tiles of three warpgroups, which take no turns. Their steps are short, for
    // each class of keys ends with one that is not full. Wider rows are copied in as little time as their classes take.
    forward_sm90_row_classes(192, 64, 32);
    forward_sm90_row_classes(192, 64, 64);
    forward_sm90_row_classes(192, 64, 80);
    forward_sm90_row_classes(192, 64, 96);
    forward_sm90_row_classes(192, 64, 112);
    forward_sm90_row_classes(192, 64, 128);
    forward_sm90_row_classes(192, 64, 144);
    // Of 8 bits: as many keys a step as registers hold, and no more than a sum may have.
    forward_sm90_e4m3(192, 128, 64);
    forward_sm90_e4m3(192, 96, 64);
    forward_sm90_e4m3(192, 96, 128);
    forward_sm90_e4m3(128, 128, 128);
    forward_sm90_e4m3(128, 96, 256);
    // Copies what tensor maps cannot describe.
    pack();
    // Copies V of 8 bits for the tensor cores.
    transpose();
}

// Behind the macros that it lists its entries with.
#[cfg(not(fa_variants))]
mod gemm;

/// All entries of attention.
#[cfg(not(target_arch = "nvptx64"))]
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    [SM_75, SM_80, SM_90A].into_iter().flatten().copied().flatten()
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

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
const fn sm90(block_m: u32, block_n: u32, head_dim: u32, element_bytes: u32) -> crate::config::Sm90Config {
    crate::config::Sm90Config { block_m, block_n, head_dim, element_bytes }
}
