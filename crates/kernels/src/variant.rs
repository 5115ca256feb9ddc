//! A kernel with its tile, as data: what its PTX entry is called, needs and takes, and its source.
//!
//! The lists of [`entries`](crate::entries) are made of these, and a sweep builds others beside them.

extern crate alloc;

mod axes;
mod config;
mod kernel;
mod path;
mod source;

use alloc::{format, string::String};

use crate::attention::{
    backward_simt, backward_sinks, backward_sm80, backward_sm90, decode, decode_sm90, forward_simt,
    forward_sm80, forward_sm90, mla_sm90, pack, standard, tile_schedule,
};
use crate::config::{BackwardMmaConfig, Infeasible, Limits, MmaConfig};
use crate::entries::{Algorithm, Entry, GemmAlgorithm, GemmEntry, Tile};
use crate::gemm;
pub use axes::{Axes, Sizes};
pub use config::{Config, Fixed, Layout};
pub use kernel::{Kernel, Storage};
pub use source::{Functions, Generated, generated};

/// A kernel with its tile in one storage type, and its register budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// What it computes.
    pub kernel: Kernel,
    /// Its tile.
    pub config: Config,
    /// Storage type of its inputs.
    pub dtype: Storage,
    /// Blocks that the register budget leaves room for on a multiprocessor.
    pub min_blocks: u32,
}

impl Variant {
    /// Whether it can be built, and launched on a device with these limits.
    ///
    /// # Errors
    /// Why not, with value and limit.
    pub fn check(&self, limits: &Limits) -> Result<(), Infeasible> {
        let (storage, available) = self.kernel.storage();
        if !storage.contains(&self.dtype) {
            return Err(Infeasible::StorageType { dtype: self.dtype.name(), available });
        }
        self.config.check(self.min_blocks, limits)
    }

    /// The name that the entry has in the PTX.
    pub fn name(&self) -> String {
        let (stem, suffix, dtype) = (self.kernel.stem(), self.kernel.suffix(), self.dtype.name());
        match self.kernel {
            Kernel::Attention(Algorithm::Pack | Algorithm::TileSchedule) => return stem.into(),
            Kernel::Gemm(GemmAlgorithm::ReadPeak) => return stem.into(),
            Kernel::Attention(Algorithm::Transpose) => return format!("transpose_{dtype}"),
            _ => {}
        }
        format!("{stem}_{dtype}{}{suffix}", self.tile_name())
    }

    /// The part of the name that tells tiles apart.
    fn tile_name(&self) -> String {
        let Tile { block_m, block_n, head_dim, head_dim_v } = self.tile();
        match self.config {
            Config::Fixed(_) => String::new(),
            Config::Sm90(_) if head_dim_v != head_dim => {
                format!("_m{block_m}_n{block_n}_d{head_dim}_v{head_dim_v}")
            }
            Config::Simt(_) | Config::Sm90(_) | Config::Backward(_) | Config::BackwardSm90(_) => {
                format!("_m{block_m}_n{block_n}_d{head_dim}")
            }
            Config::Mma(MmaConfig { warps, .. }) | Config::BackwardMma(BackwardMmaConfig { warps, .. }) => {
                format!("_m{block_m}_n{block_n}_d{head_dim}_w{warps}")
            }
            Config::BackwardDq(config) => {
                format!("_m{block_m}_n{block_n}_d{head_dim}_w{}_s{}", config.warps(), config.stages)
            }
            Config::Decode(config) => {
                format!("_m{block_m}_d{head_dim}_w{}_s{}", config.warps, config.stages)
            }
            Config::DecodeSm90(config) => format!("_m{block_m}_n{block_n}_d{head_dim}_s{}", config.stages),
            Config::GemmSimt(config) => format!("_m{}_n{}", config.block_m, config.block_n),
            Config::GemmSm80 { config, layout, aligned } => {
                let alignment = if aligned { "" } else { "_unaligned" };
                let (m, n, k) = (config.block_m, config.block_n, config.block_k);
                format!("_m{m}_n{n}_k{k}_{}{alignment}", layout.name())
            }
            Config::GemmSm90 { config, layout } => {
                format!("_m{}_n{}_k64_{}", config.block_m, config.block_n, layout.name())
            }
        }
    }

    /// Its line of the list, which stands for all storage types.
    pub fn line(&self) -> String {
        let (stem, suffix) = (self.kernel.stem(), self.kernel.suffix());
        let eight_bits = if self.dtype == Storage::E4m3 { "_e4m3" } else { "" };
        let blocks = self.min_blocks;
        let arguments = match self.config {
            Config::Fixed(_) => String::new(),
            Config::Simt(c) => format!("{}, {}, {}, {blocks}", c.block_m, c.block_n, c.head_dim),
            Config::Mma(c) => {
                format!("{}, {}, {}, {}, {blocks}", c.block_m, c.block_n, c.head_dim, c.warps)
            }
            Config::Sm90(c) if c.head_dim_v != c.head_dim => {
                format!("{}, {}, {}, {}", c.block_m, c.block_n, c.head_dim, c.head_dim_v)
            }
            Config::Sm90(c) => format!("{}, {}, {}", c.block_m, c.block_n, c.head_dim),
            Config::Decode(c) => {
                format!("{}, {}, {}, {}, {blocks}", c.block_m, c.head_dim, c.warps, c.stages)
            }
            Config::DecodeSm90(c) => {
                format!("{}, {}, {}, {}, {blocks}", c.block_m, c.block_n, c.head_dim, c.stages)
            }
            Config::Backward(c) => format!("{}, {}, {}, {blocks}", c.owned, c.step, c.head_dim),
            Config::BackwardMma(c) => {
                format!("{}, {}, {}, {}, {blocks}", c.owned, c.step, c.head_dim, c.warps)
            }
            Config::BackwardDq(c) => {
                let (m, n, d, warps_m, warps_n) = (c.block_m, c.block_n, c.head_dim, c.warps_m, c.warps_n);
                format!("({m}, {n}, {d}), ({warps_m}, {warps_n}), {}, {blocks}", c.stages)
            }
            Config::BackwardSm90(c) => format!("{}, {}", c.step, c.head_dim),
            Config::GemmSimt(c) => format!("{}, {}, {blocks}", c.block_m, c.block_n),
            Config::GemmSm80 { config: c, aligned, .. } => {
                let (m, n, k, warps_m, warps_n) = (c.block_m, c.block_n, c.block_k, c.warps_m, c.warps_n);
                format!("({m}, {n}, {k}), ({warps_m}, {warps_n}), {}, {blocks}, {aligned}", c.stages)
            }
            Config::GemmSm90 { config: c, .. } => format!("{}, {}, {}", c.block_m, c.block_n, c.stages),
        };
        let of_v = match self.config {
            Config::Sm90(c) if c.head_dim_v != c.head_dim => "_dv",
            _ => "",
        };
        format!("{stem}{eight_bits}{of_v}{suffix}({arguments}),")
    }

    /// A name that no two variants share, though an entry's says nothing of its register budget, and that of
    /// a product nothing of its stages.
    pub fn id(&self) -> String {
        let id = format!("{}_b{}", self.name(), self.min_blocks);
        match (self.kernel, self.config.stages()) {
            (Kernel::Gemm(_), Some(stages)) => format!("{id}_s{stages}"),
            _ => id,
        }
    }

    /// BLOCK_M, BLOCK_N and both HEAD_DIMs; 0 where a kernel has no such dimension.
    pub const fn tile(&self) -> Tile {
        let tile = self.config.tile();
        // A kernel of the backward pass that owns keys has its rows in its steps.
        match self.kernel {
            Kernel::Attention(
                Algorithm::BackwardKeys
                | Algorithm::BackwardKeysDropout
                | Algorithm::BackwardKeysSm80
                | Algorithm::BackwardKeysSm80ScoreMod
                | Algorithm::BackwardKeysDsSm80
                | Algorithm::BackwardKeysSm90
                | Algorithm::BackwardKeysDsSm90
                | Algorithm::BackwardKeysDqSm90
                | Algorithm::BackwardKeysDqSm90ScoreMod
                | Algorithm::BackwardKeysDsSm90ScoreMod,
            ) => Tile { block_m: tile.block_n, block_n: tile.block_m, ..tile },
            _ => tile,
        }
    }

    /// Barriers in its source.
    pub const fn barriers(&self) -> u32 {
        match (self.kernel, self.config) {
            (Kernel::Attention(Algorithm::StandardScores | Algorithm::StandardValues), _) => {
                standard::BARRIERS
            }
            (Kernel::Attention(Algorithm::BackwardSinks), _) => backward_sinks::BARRIERS,
            (Kernel::Attention(Algorithm::TileSchedule), _) => tile_schedule::BARRIERS,
            (Kernel::Attention(Algorithm::Pack), _) => pack::BARRIERS,
            (Kernel::Attention(Algorithm::MlaSm90), _) => mla_sm90::BARRIERS,
            (_, Config::Simt(_)) => forward_simt::BARRIERS,
            (_, Config::Mma(config)) => forward_sm80::barriers(config),
            (Kernel::Attention(Algorithm::ForwardSm90Residues), Config::Sm90(config)) => {
                forward_sm90::residues_barriers(config)
            }
            (Kernel::Attention(algorithm), Config::Sm90(config)) if algorithm.is_cached_forward() => {
                forward_sm90::cached_barriers(config)
            }
            (_, Config::Sm90(config)) => forward_sm90::barriers(config),
            (_, Config::Decode(_)) => decode::BARRIERS,
            (_, Config::DecodeSm90(_)) => decode_sm90::BARRIERS,
            (_, Config::Backward(_)) => backward_simt::BARRIERS,
            (Kernel::Attention(Algorithm::BackwardKeysDsSm80), _) => backward_sm80::KEYS_DS_BARRIERS,
            (_, Config::BackwardDq(_)) => backward_sm80::DQ_BARRIERS,
            (_, Config::BackwardMma(_)) => backward_sm80::BARRIERS,
            (_, Config::BackwardSm90(config)) => backward_sm90::barriers(config),
            (_, Config::GemmSimt(_)) => gemm::simt::BARRIERS,
            (_, Config::GemmSm80 { .. }) => gemm::sm80::BARRIERS,
            (_, Config::GemmSm90 { .. }) => gemm::sm90::BARRIERS,
            (_, Config::Fixed(_)) => 0,
        }
    }

    /// Its row of the list, but for the native code; `name` is [`Self::name`]. `None` where it multiplies
    /// matrices.
    ///
    /// The variant has passed [`Self::check`], so its shared memory fits 32 bits.
    pub const fn entry(&self, name: &'static str) -> Option<Entry> {
        match self.kernel {
            Kernel::Attention(algorithm) => Some(self.row(name, algorithm, self.tile())),
            Kernel::Gemm(_) => None,
        }
    }

    /// As [`Self::entry`], of one that multiplies matrices.
    pub const fn gemm_entry(&self, name: &'static str) -> Option<GemmEntry> {
        match self.kernel {
            Kernel::Gemm(algorithm) => Some(self.row(name, algorithm, self.config.gemm_tile())),
            Kernel::Attention(_) => None,
        }
    }

    const fn row<A: Copy, T: Copy>(&self, name: &'static str, algorithm: A, tile: T) -> Entry<A, T> {
        Entry {
            name,
            algorithm,
            dtype: self.dtype.name(),
            tile,
            target: self.kernel.target(),
            threads: self.config.threads(),
            min_blocks: self.min_blocks,
            shared_bytes: self.config.shared_needed() as u32,
            barriers: self.barriers(),
            begins_early: self.kernel.begins_early(),
            run: None,
            image: None,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::config::GemmSm90Config;
    use crate::entries::{GemmAlgorithm, variants};
    use std::collections::BTreeSet;
    use std::string::ToString as _;
    use std::vec::Vec;

    /// Sizes of a tile without stages, in the first order of operands.
    fn sizes((block_m, block_n, head_dim): (u32, u32, u32), warps: u32) -> Sizes {
        let (head_dim_v, layout) = (head_dim, Layout::ALL[0]);
        Sizes { block_m, block_n, head_dim, head_dim_v, warps, stages: 0, layout }
    }

    fn tile(algorithm: Algorithm, dtype: Storage, of: (u32, u32, u32), warps: u32) -> Variant {
        let kernel = Kernel::Attention(algorithm);
        let config = Config::new(kernel, dtype, sizes(of, warps)).expect("it has tiles");
        Variant { kernel, config, dtype, min_blocks: 2 }
    }

    #[test]
    fn every_listed_tile_is_feasible_where_its_registers_were_budgeted() {
        for variant in variants() {
            // A budget for two blocks is asked for on Hopper; on smaller devices just one may run.
            assert_eq!(variant.check(&Limits::of(90)), Ok(()), "{}", variant.id());
        }
    }

    #[test]
    fn a_tile_that_can_be_chosen_is_the_one_that_is_listed() {
        let mut compared = BTreeSet::new();
        for listed in variants() {
            let Tile { block_m, block_n, head_dim, head_dim_v } = listed.tile();
            let sizes = Sizes {
                head_dim_v,
                stages: listed.config.stages().unwrap_or(0),
                layout: listed.config.layout().unwrap_or(Layout::ALL[0]),
                ..sizes((block_m, block_n, head_dim), listed.config.warps())
            };
            let config = Config::new(listed.kernel, listed.dtype, sizes);
            assert_eq!(config.is_some(), Axes::of(listed.kernel).is_some(), "{}", listed.name());
            let Some(config) = config else { continue };
            assert_eq!(config, listed.config, "{}", listed.name());
            compared.insert(listed.kernel.stem());
        }
        let families = [
            "backward_keys_sm80",
            "backward_keys_sm90",
            "backward_queries_sm80",
            "backward_queries_sm90",
            "decode",
            "decode_sm90",
            "forward_simt",
            "forward_sm80",
            "forward_sm90",
            "gemm_sm90",
        ];
        assert_eq!(compared.into_iter().collect::<Vec<_>>(), families);
        // Blocks of Hopper's backward pass own as many rows as there are warpgroups for.
        let kernel = Kernel::Attention(Algorithm::BackwardKeysSm90);
        assert_eq!(Config::new(kernel, Storage::F16, sizes((64, 64, 64), 0)), None);
    }

    #[test]
    fn ids_tell_apart_what_entries_names_do_not() {
        let config = GemmSm90Config { block_m: 128, block_n: 128, stages: 5 };
        let config = Config::GemmSm90 { config, layout: Layout::ALL[1] };
        let kernel = Kernel::Gemm(GemmAlgorithm::GemmSm90);
        let variant = Variant { kernel, config, dtype: Storage::F16, min_blocks: 1 };
        assert_eq!(variant.name(), "gemm_sm90_f16_m128_n128_k64_row_col");
        assert_eq!(variant.id(), "gemm_sm90_f16_m128_n128_k64_row_col_b1_s5");
        let decode = variants().find(|variant| variant.kernel == Kernel::Attention(Algorithm::Decode));
        assert_eq!(decode.expect("it is listed").id(), "decode_f16_m16_d64_w4_s5_b2");
    }

    #[test]
    fn a_line_is_what_a_person_would_add_to_the_list() {
        let mma = tile(Algorithm::ForwardSm80, Storage::Bf16, (64, 48, 144), 4);
        assert_eq!(mma.line(), "forward_sm80(64, 48, 144, 4, 2),");
        assert_eq!(mma.id(), "forward_sm80_bf16_m64_n48_d144_w4_b2");
        let e4m3 = tile(Algorithm::ForwardSm90, Storage::E4m3, (192, 128, 64), 0);
        assert_eq!(e4m3.line(), "forward_sm90_e4m3(192, 128, 64),");
        let list = include_str!("entries/list.rs");
        for variant in variants().filter(|variant| !matches!(variant.config, Config::Fixed(_))) {
            assert!(list.contains(&variant.line()), "{} is not in the list", variant.line());
        }
    }

    #[test]
    fn tensor_cores_take_no_fp32() {
        let variant = tile(Algorithm::ForwardSm80, Storage::F32, (128, 64, 64), 4);
        let reason = variant.check(&Limits::of(90)).expect_err("it is infeasible");
        assert_eq!(reason.to_string(), "no f32 entry; there is f16, bf16");
    }
}
