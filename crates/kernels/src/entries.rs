//! The list of kernels: every (algorithm, configuration) pair that is built, one PTX entry each.
//!
//! The list is data. The rows that planner, builder and simulator share follow from it, and so does the
//! source of the entry points, which `cargo xtask kernels` writes below `generated/`, a module for each
//! family. A device build holds the entry points of its own target alone.

#[cfg(not(target_arch = "nvptx64"))]
pub use gemm::{GemmAlgorithm, GemmEntry, GemmTile};
#[cfg(not(target_arch = "nvptx64"))]
pub use host::{Algorithm, Entry, Image, Params, Run, Target, Tile};
#[cfg(not(target_arch = "nvptx64"))]
pub use rows::{entries, gemm_entries, variants};

#[cfg(not(target_arch = "nvptx64"))]
mod gemm;
#[cfg(not(fa_variants))]
mod generated;
#[cfg(not(target_arch = "nvptx64"))]
mod host;
#[cfg(not(target_arch = "nvptx64"))]
mod line;
#[cfg(not(target_arch = "nvptx64"))]
mod list;
#[cfg(not(target_arch = "nvptx64"))]
mod rows;

// A sweep builds one tile at a time, which is in none of the lists.
#[cfg(fa_variants)]
include!(env!("FA_VARIANTS"));
