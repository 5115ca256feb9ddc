//! A kernel with its parameters as Rust source names it, and what it imports.

extern crate alloc;

use alloc::{format, string::String, vec::Vec};

use super::{Config, Kernel, Layout, Storage, Variant};
use crate::config::GemmSm90Config;
use crate::entries::{Algorithm, GemmAlgorithm};

impl Variant {
    /// What [`Self::path`] names.
    pub(super) fn kernel_imports(&self) -> Vec<&'static str> {
        let mut imports: Vec<&str> = match self.config {
            Config::Sm90(_) if self.kernel == Kernel::Attention(Algorithm::ForwardSm90Residues) => {
                [self.place().0, "attention::alignment::ByRows"].into()
            }
            Config::Sm90(_) if self.kernel.family() == "forward_sm90_cached" => [self.place().0].into(),
            Config::Sm90(_) => [self.place().0, "attention::alignment::ByHeads"].into(),
            Config::GemmSm80 { layout, .. } | Config::GemmSm90 { layout, .. } => {
                let panel = |along_k| {
                    if along_k { "tile::mma_block::AlongK" } else { "tile::mma_block::AlongSpan" }
                };
                [self.place().0, panel(layout.a_along_k), panel(layout.b_along_k)].into()
            }
            _ => [self.place().0].into(),
        };
        if let Kernel::Attention(algorithm) = self.kernel
            && algorithm.reads_e4m3()
        {
            imports.push("element::E4m3");
        }
        imports.extend(match self.dtype {
            Storage::F16 => Some("element::F16"),
            Storage::Bf16 => Some("element::Bf16"),
            Storage::E4m3 => Some("element::E4m3"),
            Storage::F32 | Storage::B16 | Storage::B8 => None,
        });
        imports
    }

    /// The module of the kernel, and its function there.
    const fn place(&self) -> (&'static str, &'static str) {
        match self.kernel {
            Kernel::Attention(algorithm) => match algorithm {
                Algorithm::StandardScores => ("attention::standard", "scores"),
                Algorithm::StandardSoftmax => ("attention::standard", "softmax"),
                Algorithm::StandardValues => ("attention::standard", "values"),
                Algorithm::ForwardSimt | Algorithm::ForwardSimtDropout => {
                    ("attention::forward_simt", "forward_simt")
                }
                Algorithm::ForwardSm80
                | Algorithm::ForwardSm80ScoreMod
                | Algorithm::ForwardSm80Modified
                | Algorithm::ForwardSm80Dropout => ("attention::forward_sm80", "forward_sm80"),
                Algorithm::ForwardSm90
                | Algorithm::ForwardSm90ScoreMod
                | Algorithm::ForwardSm90Modified
                | Algorithm::ForwardSm90Dropout
                | Algorithm::ForwardSm90Residues
                | Algorithm::ForwardSm90Cached
                | Algorithm::ForwardSm90CachedScoreMod => ("attention::forward_sm90", "forward_sm90"),
                Algorithm::Decode => ("attention::decode", "decode"),
                Algorithm::DecodeSm90
                | Algorithm::DecodeSm90AddsUp
                | Algorithm::DecodeSm90E4m3
                | Algorithm::DecodeSm90E4m3AddsUp => ("attention::decode_sm90", "decode_sm90"),
                Algorithm::MlaSm90 => ("attention::mla_sm90", "mla_sm90"),
                Algorithm::DecodeCombine => ("attention::combine", "combine"),
                Algorithm::DecodeCombineSm90 => ("attention::combine", "combine_dependent"),
                Algorithm::Append => ("attention::append", "append"),
                Algorithm::Merge => ("attention::merge", "merge"),
                Algorithm::Pack => ("attention::pack", "pack"),
                Algorithm::Transpose => ("attention::transpose", "transpose"),
                Algorithm::Widen => ("attention::widen", "widen"),
                Algorithm::TileSchedule => ("attention::tile_schedule", "tile_schedule"),
                Algorithm::BackwardDelta => ("attention::backward_delta", "backward_delta"),
                Algorithm::BackwardSinks => ("attention::backward_sinks", "backward_sinks"),
                Algorithm::BackwardKeys | Algorithm::BackwardKeysDropout => {
                    ("attention::backward_simt", "backward_keys")
                }
                Algorithm::BackwardQueries | Algorithm::BackwardQueriesDropout => {
                    ("attention::backward_simt", "backward_queries")
                }
                Algorithm::BackwardKeysSm80 | Algorithm::BackwardKeysSm80ScoreMod => {
                    ("attention::backward_sm80", "backward_keys")
                }
                Algorithm::BackwardQueriesSm80 | Algorithm::BackwardQueriesSm80ScoreMod => {
                    ("attention::backward_sm80", "backward_queries")
                }
                Algorithm::BackwardKeysDsSm80 => ("attention::backward_sm80", "backward_keys_ds"),
                Algorithm::BackwardDqSm80 => ("attention::backward_sm80", "backward_dq"),
                Algorithm::BackwardKeysSm90
                | Algorithm::BackwardKeysDsSm90
                | Algorithm::BackwardKeysDqSm90
                | Algorithm::BackwardKeysDqSm90ScoreMod
                | Algorithm::BackwardKeysDsSm90ScoreMod
                | Algorithm::BackwardQueriesSm90 => ("attention::backward_sm90", "backward_sm90"),
            },
            Kernel::Gemm(GemmAlgorithm::GemmSimt) => ("gemm::simt", "gemm_simt"),
            Kernel::Gemm(GemmAlgorithm::GemmSm80) => ("gemm::sm80", "gemm_sm80"),
            Kernel::Gemm(GemmAlgorithm::GemmSm90) => ("gemm::sm90", "gemm_sm90"),
            Kernel::Gemm(GemmAlgorithm::MmaPeak) => ("gemm::peak", "mma_peak"),
            Kernel::Gemm(GemmAlgorithm::ReadPeak) => ("gemm::read", "read_peak"),
        }
    }

    /// The kernel with its parameters, as in `decode::decode::<decode::DecodeTile<F16, 2, 64, 4, 4>>`.
    pub(super) fn path(&self) -> String {
        let (module, function) = self.place();
        let module = module.rsplit_once("::").map_or(module, |(_, name)| name);
        let function = format!("{module}::{function}");
        let element = self.element();
        let has = |flag: Algorithm| self.kernel == Kernel::Attention(flag);
        let arguments = match self.config {
            Config::Fixed(_) => match self.dtype {
                Storage::B16 | Storage::B8 => return function,
                _ if has(Algorithm::BackwardSinks) => return function,
                _ => element.into(),
            },
            Config::Simt(c) => {
                let dropout = has(Algorithm::ForwardSimtDropout);
                format!(
                    "{module}::SimtTile<{element}, {}, {}, {}, {dropout}>",
                    c.block_m, c.block_n, c.head_dim
                )
            }
            Config::Mma(c) => {
                let dropout = has(Algorithm::ForwardSm80Dropout);
                let score_mod = dropout || has(Algorithm::ForwardSm80ScoreMod);
                let (warps, rows, n, d) = (c.warps, c.block_m / c.warps / 8, c.block_n, c.head_dim);
                format!("{module}::Sm80Tile<{element}, {warps}, {rows}, {n}, {d}, {score_mod}, {dropout}>")
            }
            Config::Sm90(c) => {
                let alignment = match self.kernel {
                    _ if self.kernel.family() == "forward_sm90_cached" => "forward_sm90::Cached",
                    Kernel::Attention(Algorithm::ForwardSm90Residues) => "ByRows",
                    _ => "ByHeads",
                };
                let (m, n, d, dv) = (c.block_m, c.block_n, c.head_dim, c.head_dim_v);
                let dropout = has(Algorithm::ForwardSm90Dropout);
                let changes =
                    has(Algorithm::ForwardSm90ScoreMod) || has(Algorithm::ForwardSm90CachedScoreMod);
                let score_mod = dropout || changes;
                format!(
                    "{module}::Sm90Tile<{element}, {alignment}, {m}, {n}, {d}, {dv}, {score_mod}, {dropout}>"
                )
            }
            Config::Decode(c) => {
                let (rows, ahead) = (c.block_m / 8, c.stages - 1);
                format!("{module}::DecodeTile<{element}, {rows}, {}, {}, {ahead}>", c.head_dim, c.warps)
            }
            Config::DecodeSm90(c) => {
                let (m, n, d, stages) = (c.block_m, c.block_n, c.head_dim, c.stages);
                let (columns, products, keys, panels) = (m / 4, n / 64, n / 32, d / 64);
                let cache = if c.cache_bytes == 1 { "E4m3" } else { element };
                let adds_up = has(Algorithm::DecodeSm90AddsUp) || has(Algorithm::DecodeSm90E4m3AddsUp);
                format!(
                    "{module}::DecodeSm90Tile<{element}, {cache}, {m}, {columns}, {products}, {keys}, {d}, {panels}, {stages}, {adds_up}>"
                )
            }
            Config::Backward(c) => {
                let dropout = has(Algorithm::BackwardKeysDropout) || has(Algorithm::BackwardQueriesDropout);
                let (owned, step, d) = (c.owned, c.step, c.head_dim);
                format!("{module}::BackwardSimtTile<{element}, {owned}, {step}, {d}, {dropout}>")
            }
            Config::BackwardMma(c) => {
                let score_mod =
                    has(Algorithm::BackwardKeysSm80ScoreMod) || has(Algorithm::BackwardQueriesSm80ScoreMod);
                let (rows, columns) = (c.warp_rows() / 8, c.gradient_columns());
                let (warps, step, d, ds) = (c.warps, c.step, c.head_dim, c.stores_ds);
                format!(
                    "{module}::BackwardSm80Tile<{element}, {warps}, {rows}, {step}, {d}, {columns}, {score_mod}, {ds}>"
                )
            }
            Config::BackwardDq(c) => {
                let (blocks, pairs) = (c.block_m / c.warps_m / 16, c.head_dim / c.warps_n / 16);
                let (m, n, d, warps_m, stages) = (c.block_m, c.block_n, c.head_dim, c.warps_m, c.stages);
                format!("{element}, {m}, {n}, {d}, {warps_m}, {stages}, {blocks}, {pairs}")
            }
            Config::BackwardSm90(c) => {
                let score_mod =
                    has(Algorithm::BackwardKeysDsSm90ScoreMod) || has(Algorithm::BackwardKeysDqSm90ScoreMod);
                let (owns_keys, stores_ds, sums_dq) = (c.owns_keys, c.stores_ds, c.sums_dq);
                let (step, d) = (c.step, c.head_dim);
                format!(
                    "{module}::BackwardSm90Tile<{element}, {owns_keys}, {stores_ds}, {sums_dq}, {step}, {d}, {score_mod}>"
                )
            }
            Config::GemmSimt(c) => {
                let (m, n, k) = (c.block_m, c.block_n, c.block_k);
                let threads = c.threads();
                format!("{element}, {m}, {n}, {threads}, {}, {}", m * k / threads, n * k / threads)
            }
            Config::GemmSm80 { config: c, layout, aligned } => {
                let (a, b) = panels(layout, (c.block_m, c.block_n, c.block_k));
                let (threads, stages) = (c.threads(), c.stages);
                let (blocks, pairs) = (c.block_m / c.warps_m / 16, c.block_n / c.warps_n / 16);
                let chunks = |rows: u32| rows * c.block_k / 8 / threads;
                let (a_chunks, b_chunks) = (chunks(c.block_m), chunks(c.block_n));
                format!(
                    "{element}, {a}, {b}, {}, {stages}, {threads}, {blocks}, {pairs}, {a_chunks}, {b_chunks}, {aligned}",
                    c.warps_n
                )
            }
            Config::GemmSm90 { config: c, layout } => {
                let (a, b) = panels(layout, (c.block_m, c.block_n, GemmSm90Config::BLOCK_K));
                format!("{module}::GemmTile<{element}, {a}, {b}, {}, {}>", c.block_n, c.stages)
            }
        };
        format!("{function}::<{arguments}>")
    }

    const fn element(&self) -> &'static str {
        match self.dtype {
            Storage::F16 => "F16",
            Storage::Bf16 => "Bf16",
            Storage::E4m3 => "E4m3",
            other => other.name(),
        }
    }
}

/// The types of A and B.
fn panels(layout: Layout, (m, n, k): (u32, u32, u32)) -> (String, String) {
    let panel = |along_k, span| {
        let order = if along_k { "AlongK" } else { "AlongSpan" };
        format!("{order}<{span}, {k}>")
    };
    (panel(layout.a_along_k, m), panel(layout.b_along_k, n))
}
