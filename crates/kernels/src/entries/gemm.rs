//! The entries of matrix multiplication, listed as those of attention are.

use crate::element::{Bf16, F16};
use crate::gemm::simt;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use crate::gemm::sm90;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
use crate::gemm::{peak, sm80};
#[cfg(target_arch = "nvptx64")]
use crate::params::GemmParams;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
use crate::tile::mma_block::{AlongK, AlongSpan};

#[cfg(not(target_arch = "nvptx64"))]
use super::{Run, Target, for_target};
#[cfg(not(target_arch = "nvptx64"))]
use crate::config::GemmSm90Config;
#[cfg(not(target_arch = "nvptx64"))]
use host::{GemmAlgorithm as Algorithm, GemmEntry as Entry};
#[cfg(not(target_arch = "nvptx64"))]
pub use host::{GemmAlgorithm, GemmEntry, GemmTile};

#[cfg(not(target_arch = "nvptx64"))]
mod host {
    use crate::entries::Entry;

    /// What an entry computes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum GemmAlgorithm {
        /// `gemm::simt`.
        GemmSimt,
        /// `gemm::sm80`.
        GemmSm80,
        /// `gemm::sm90`.
        GemmSm90,
        /// `gemm::peak`.
        MmaPeak,
    }

    impl GemmAlgorithm {
        /// The kernel family, which is also the name of the archive that its PTX ships in.
        pub const fn family(self) -> &'static str {
            match self {
                Self::GemmSimt => "gemm_simt",
                Self::GemmSm80 => "gemm_sm80",
                Self::GemmSm90 => "gemm_sm90",
                Self::MmaPeak => "mma_peak",
            }
        }
    }

    /// The tile of an entry, and what it asks of its operands; 0 where an algorithm has no tile.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct GemmTile {
        /// Rows of C of a block.
        pub block_m: u32,
        /// Columns of C of a block.
        pub block_n: u32,
        /// Products of a step.
        pub block_k: u32,
        /// Whether consecutive elements of A run along K, and those of B; `None` where both ways will do.
        pub along_k: Option<(bool, bool)>,
        /// Whether rows must start at multiples of 16 bytes, as `gemm::sm80` says.
        pub aligned: bool,
    }

    /// One PTX entry of matrix multiplication.
    pub type GemmEntry = Entry<GemmAlgorithm, GemmTile>;
}

/// One tile of `gemm_simt` in each storage type.
macro_rules! gemm_simt {
    ($m:literal, $n:literal, $blocks:literal) => {
        group! {
            gemm_simt { "f32", f32, $m, $n, $blocks }
            gemm_simt { "f16", F16, $m, $n, $blocks }
            gemm_simt { "bf16", Bf16, $m, $n, $blocks }
        }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $blocks:literal) => {
        entry! {
            concat!("gemm_simt_", $dtype, "_m", $m, "_n", $n),
            GemmSimt,
            $dtype,
            {
                tile: simt_tile($m, $n),
                threads: simt_config($m, $n).threads(),
                min_blocks: $blocks,
                shared_bytes: simt_config($m, $n).shared_bytes(),
                barriers: simt::BARRIERS,
            },
            simt::gemm_simt::<
                $element, $m, $n, { $m * $n / 64 }, { 64 * 8 / $n }, { 64 * 8 / $m }
            >,
            Gemm,
            GemmParams
        }
    };
}

/// One tile of `gemm_sm80` in each storage type that tensor cores take and each order of the operands:
/// BLOCK_M, BLOCK_N, BLOCK_K, warps along M and N, stages, blocks per multiprocessor, alignment.
macro_rules! gemm_sm80 {
    ($($tile:tt),*) => { tensor_core_orders! { gemm_sm80_entry, $($tile),* } };
}

/// One tile of `gemm_sm90`, likewise: BLOCK_M, BLOCK_N, stages.
macro_rules! gemm_sm90 {
    ($($tile:tt),*) => { tensor_core_orders! { gemm_sm90_entry, $($tile),* } };
}

/// One tile in each storage type that tensor cores take and each order of the operands.
macro_rules! tensor_core_orders {
    ($entry:ident, $($tile:tt),*) => {
        group! {
            $entry { "f16", F16, "row_row", AlongK, AlongSpan, $($tile),* }
            $entry { "f16", F16, "row_col", AlongK, AlongK, $($tile),* }
            $entry { "f16", F16, "col_row", AlongSpan, AlongSpan, $($tile),* }
            $entry { "f16", F16, "col_col", AlongSpan, AlongK, $($tile),* }
            $entry { "bf16", Bf16, "row_row", AlongK, AlongSpan, $($tile),* }
            $entry { "bf16", Bf16, "row_col", AlongK, AlongK, $($tile),* }
            $entry { "bf16", Bf16, "col_row", AlongSpan, AlongSpan, $($tile),* }
            $entry { "bf16", Bf16, "col_col", AlongSpan, AlongK, $($tile),* }
        }
    };
}

/// One entry of `gemm_sm80`; `aligned` or `unaligned` ends its name.
macro_rules! gemm_sm80_entry {
    ($dtype:literal, $element:ty, $orders:literal, $a:ident, $b:ident, $m:literal, $n:literal, $k:literal,
     $warps_m:literal, $warps_n:literal, $stages:literal, $blocks:literal, $alignment:ident) => {
        entry! {
            concat!("gemm_sm80_", $dtype, "_m", $m, "_n", $n, "_k", $k, "_", $orders, alignment!(suffix $alignment)),
            GemmSm80,
            $dtype,
            {
                tile: tile(($m, $n, $k), $orders, alignment!($alignment)),
                threads: sm80_config($m, $n, $k, $warps_m, $warps_n, $stages).threads(),
                min_blocks: $blocks,
                shared_bytes: sm80_config($m, $n, $k, $warps_m, $warps_n, $stages).shared_bytes(),
                barriers: sm80::BARRIERS,
            },
            sm80::gemm_sm80::<
                $element, $a<$m, $k>, $b<$n, $k>, $warps_n, $stages, { 32 * $warps_m * $warps_n },
                { $m / $warps_m / 16 }, { $n / $warps_n / 16 },
                { $m * $k / 256 / $warps_m / $warps_n }, { $n * $k / 256 / $warps_m / $warps_n },
                { alignment!($alignment) }
            >,
            Gemm,
            GemmParams
        }
    };
}

/// One entry of `gemm_sm90`.
macro_rules! gemm_sm90_entry {
    ($dtype:literal, $element:ty, $orders:literal, $a:ident, $b:ident, $m:literal, $n:literal, $stages:literal) => {
        entry! {
            concat!("gemm_sm90_", $dtype, "_m", $m, "_n", $n, "_k64_", $orders),
            GemmSm90,
            $dtype,
            {
                tile: tile(($m, $n, GemmSm90Config::BLOCK_K), $orders, true),
                threads: GemmSm90Config { block_m: $m, block_n: $n, stages: $stages }.threads(),
                min_blocks: 1,
                shared_bytes: GemmSm90Config { block_m: $m, block_n: $n, stages: $stages }.shared_bytes(),
                barriers: sm90::BARRIERS,
            },
            sm90::gemm_sm90::<sm90::GemmTile<$element, $a<$m, 64>, $b<$n, 64>, $n, $stages>>,
            MappedGemm,
            Mapped<[crate::ptx::tma::TensorMap; 3], GemmParams>
        }
    };
}

/// What follows from the alignment that an entry asks for.
macro_rules! alignment {
    (aligned) => {
        true
    };
    (unaligned) => {
        false
    };
    (suffix aligned) => {
        ""
    };
    (suffix unaligned) => {
        "_unaligned"
    };
}

/// `mma_peak` in one storage type.
macro_rules! mma_peak {
    ($dtype:literal, $element:ty) => {
        group! {
            entry {
                concat!("mma_peak_", $dtype),
                MmaPeak,
                $dtype,
                {
                    tile: GemmTile { block_m: 0, block_n: 0, block_k: peak::STEP_K, along_k: None, aligned: false },
                    threads: peak::THREADS,
                    min_blocks: 2,
                    shared_bytes: 0,
                    barriers: 0,
                },
                peak::mma_peak::<$element>,
                Gemm,
                GemmParams
            }
        }
    };
}

entries! { sm_75;
    // (BLOCK_M, BLOCK_N, blocks per multiprocessor that the registers leave room for), the largest first.
    gemm_simt(128, 64, 3);
    gemm_simt(64, 64, 4);
}

entries! { sm_80;
    // The larger a warp's part, the fewer bytes of shared memory for each product; the largest first.
    gemm_sm80(128, 256, 64, 2, 4, 3, 1, aligned);
    gemm_sm80(128, 128, 32, 2, 2, 4, 2, aligned);
    gemm_sm80(64, 64, 64, 2, 2, 3, 4, aligned);
    gemm_sm80(128, 128, 32, 4, 2, 3, 1, unaligned);
    mma_peak("f16", F16);
    mma_peak("bf16", Bf16);
}

entries! { sm_90a;
    // (BLOCK_M, BLOCK_N, stages): the whole shared memory of a multiprocessor.
    gemm_sm90(128, 256, 4);
    gemm_sm90(128, 128, 6);
}

/// All entries of matrix multiplication.
#[cfg(not(target_arch = "nvptx64"))]
pub fn gemm_entries() -> impl Iterator<Item = &'static GemmEntry> {
    [SM_75, SM_80, SM_90A].into_iter().flatten().copied().flatten()
}

#[cfg(not(target_arch = "nvptx64"))]
const fn simt_config(block_m: u32, block_n: u32) -> crate::config::GemmSimtConfig {
    crate::config::GemmSimtConfig { block_m, block_n, block_k: simt::BLOCK_K }
}

#[cfg(not(target_arch = "nvptx64"))]
const fn simt_tile(block_m: u32, block_n: u32) -> GemmTile {
    GemmTile { block_m, block_n, block_k: simt::BLOCK_K, along_k: None, aligned: false }
}

#[cfg(not(target_arch = "nvptx64"))]
const fn sm80_config(
    block_m: u32,
    block_n: u32,
    block_k: u32,
    warps_m: u32,
    warps_n: u32,
    stages: u32,
) -> crate::config::GemmConfig {
    crate::config::GemmConfig { block_m, block_n, block_k, warps_m, warps_n, stages }
}

/// (BLOCK_M, BLOCK_N, BLOCK_K) of an entry whose operands' orders are `orders`, as in `row_col`.
#[cfg(not(target_arch = "nvptx64"))]
const fn tile((block_m, block_n, block_k): (u32, u32, u32), orders: &str, aligned: bool) -> GemmTile {
    let orders = orders.as_bytes();
    GemmTile { block_m, block_n, block_k, along_k: Some((orders[0] == b'r', orders[4] == b'c')), aligned }
}
