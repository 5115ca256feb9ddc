//! Tiles beside those of the list: what a sweep builds, described without compiling it natively.
//!
//! A variant is one line of an `entries!` list ([`Variant::source`]) that a device build takes in place of
//! the lists under `entries/`, and the [`Entry`] that the line would be there.

extern crate alloc;

use alloc::{format, string::String};

use crate::attention::{forward_simt, forward_sm80, forward_sm90};
use crate::config::{Infeasible, Limits, MmaConfig, SimtConfig, Sm90Config};
use crate::entries::{Algorithm, Entry, Target, Tile};

/// The storage type whose lines of the list are its own.
const E4M3: &str = "e4m3";

/// The tile of a kernel that comes in many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// Of `forward_simt`.
    Simt(SimtConfig),
    /// Of `forward_sm80`.
    Mma(MmaConfig),
    /// Of `forward_sm90`.
    Sm90(Sm90Config),
}

impl Config {
    /// A tile of `algorithm` in a storage type; `warps` is nothing to one whose tile says how many there are.
    /// `None` where the algorithm's tile cannot be chosen.
    pub fn new(
        (algorithm, dtype): (Algorithm, &str),
        block_m: u32,
        block_n: u32,
        head_dim: u32,
        warps: u32,
    ) -> Option<Self> {
        let element_bytes = if dtype == E4M3 { 1 } else { 2 };
        match algorithm {
            Algorithm::ForwardSimt => Some(Self::Simt(SimtConfig { block_m, block_n, head_dim })),
            Algorithm::ForwardSm80 => Some(Self::Mma(MmaConfig { block_m, block_n, head_dim, warps })),
            Algorithm::ForwardSm90 => {
                Some(Self::Sm90(Sm90Config { block_m, block_n, head_dim, element_bytes }))
            }
            _ => None,
        }
    }

    /// Columns that a tile of `algorithm` comes in multiples of, where it can be chosen; the number of warps
    /// can be chosen too where the second value says so.
    pub const fn steps(algorithm: Algorithm) -> Option<(u32, bool)> {
        match algorithm {
            Algorithm::ForwardSimt => Some((32, false)),
            Algorithm::ForwardSm80 => Some((16, true)),
            Algorithm::ForwardSm90 => Some((16, false)),
            _ => None,
        }
    }

    /// The kernel.
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Simt(_) => Algorithm::ForwardSimt,
            Self::Mma(_) => Algorithm::ForwardSm80,
            Self::Sm90(_) => Algorithm::ForwardSm90,
        }
    }

    /// BLOCK_M, BLOCK_N and HEAD_DIM.
    pub const fn tile(&self) -> Tile {
        let (block_m, block_n, head_dim) = match *self {
            Self::Simt(SimtConfig { block_m, block_n, head_dim })
            | Self::Mma(MmaConfig { block_m, block_n, head_dim, .. })
            | Self::Sm90(Sm90Config { block_m, block_n, head_dim, .. }) => (block_m, block_n, head_dim),
        };
        Tile { block_m, block_n, head_dim }
    }

    /// Warps of a block.
    pub const fn warps(&self) -> u32 {
        self.threads() / 32
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        match self {
            Self::Simt(config) => config.threads(),
            Self::Mma(config) => config.threads(),
            Self::Sm90(config) => config.threads(),
        }
    }

    /// Bytes of shared memory, for sizes that nobody has checked yet.
    pub const fn shared_needed(&self) -> u64 {
        match self {
            Self::Simt(config) => config.shared_needed(),
            Self::Mma(config) => config.shared_needed(),
            Self::Sm90(config) => config.shared_needed(),
        }
    }

    /// Whether the tile can be built and launched with so many blocks on a multiprocessor.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        match self {
            Self::Simt(config) => config.check(min_blocks, limits),
            Self::Mma(config) => config.check(min_blocks, limits),
            Self::Sm90(config) => config.check(min_blocks, limits),
        }
    }
}

/// A tile in one storage type, with its register budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The kernel and its tile.
    pub config: Config,
    /// Storage type: `f32`, `f16`, `bf16` or `e4m3`.
    pub dtype: &'static str,
    /// Blocks that the register budget leaves room for on a multiprocessor.
    pub min_blocks: u32,
}

impl Variant {
    /// Whether it can be built, and launched on a device with these limits.
    ///
    /// # Errors
    /// Why not, with value and limit.
    pub fn check(&self, limits: &Limits) -> Result<(), Infeasible> {
        let available = match self.config {
            Config::Simt(_) => "f32, f16, bf16",
            Config::Mma(_) => "f16, bf16",
            Config::Sm90(_) => "f16, bf16, e4m3",
        };
        if !available.split(", ").any(|dtype| dtype == self.dtype) {
            return Err(Infeasible::StorageType { dtype: self.dtype, available });
        }
        self.config.check(self.min_blocks, limits)
    }

    /// The name that the entry has in the PTX, and in the list where it stands there.
    pub fn name(&self) -> String {
        let (family, Tile { block_m, block_n, head_dim }) =
            (self.config.algorithm().family(), self.config.tile());
        let name = format!("{family}_{}_m{block_m}_n{block_n}_d{head_dim}", self.dtype);
        match self.config {
            Config::Simt(_) | Config::Sm90(_) => name,
            Config::Mma(MmaConfig { warps, .. }) => format!("{name}_w{warps}"),
        }
    }

    /// A name that variants which differ in their register budget alone do not share.
    pub fn id(&self) -> String {
        format!("{}_b{}", self.name(), self.min_blocks)
    }

    /// Its PTX target.
    pub const fn target(&self) -> Target {
        match self.config {
            Config::Simt(_) => Target::Sm75,
            Config::Mma(_) => Target::Sm80,
            Config::Sm90(_) => Target::Sm90a,
        }
    }

    /// Its line of the list, as the lists under `entries/` have it for all storage types.
    pub fn line(&self) -> String {
        let (family, sizes) = (self.config.algorithm().family(), self.sizes());
        if self.dtype == E4M3 { format!("{family}_{E4M3}({sizes});") } else { format!("{family}({sizes});") }
    }

    /// An `entries!` list of this variant alone.
    pub fn source(&self) -> String {
        let (target, family) = (self.target(), self.config.algorithm().family());
        let element = match self.dtype {
            "f16" => "F16",
            "bf16" => "Bf16",
            E4M3 => return format!("entries! {{ {target}; {} }}\n", self.line()),
            other => other,
        };
        format!("entries! {{ {target}; {family}({:?}, {element}, {}); }}\n", self.dtype, self.sizes())
    }

    fn sizes(&self) -> String {
        let Tile { block_m, block_n, head_dim } = self.config.tile();
        match self.config {
            Config::Simt(_) => format!("{block_m}, {block_n}, {head_dim}, {}", self.min_blocks),
            Config::Sm90(_) => format!("{block_m}, {block_n}, {head_dim}"),
            Config::Mma(MmaConfig { warps, .. }) => {
                format!("{block_m}, {block_n}, {head_dim}, {warps}, {}", self.min_blocks)
            }
        }
    }

    /// Its row of the list, but for the native code, which it has none of; `name` is [`Self::name`].
    ///
    /// The variant has passed [`Self::check`], so its shared memory fits 32 bits.
    pub const fn entry(&self, name: &'static str) -> Entry {
        let barriers = match self.config {
            Config::Simt(_) => forward_simt::BARRIERS,
            Config::Mma(config) => forward_sm80::barriers(config),
            Config::Sm90(config) => forward_sm90::barriers(config),
        };
        Entry {
            name,
            algorithm: self.config.algorithm(),
            dtype: self.dtype,
            tile: self.config.tile(),
            target: self.target(),
            threads: self.config.threads(),
            min_blocks: self.min_blocks,
            shared_bytes: self.config.shared_needed() as u32,
            barriers,
            run: None,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::entries::entries;
    use std::string::ToString as _;

    /// The variant that an entry of the list is.
    fn of_entry(entry: &Entry) -> Option<Variant> {
        let Tile { block_m, block_n, head_dim } = entry.tile;
        let config =
            Config::new((entry.algorithm, entry.dtype), block_m, block_n, head_dim, entry.threads / 32)?;
        Some(Variant { config, dtype: entry.dtype, min_blocks: entry.min_blocks })
    }

    #[test]
    fn a_variant_says_of_a_listed_tile_what_the_list_says() {
        let mut compared = 0;
        for listed in entries() {
            let Some(variant) = of_entry(listed) else { continue };
            assert_eq!(variant.name(), listed.name);
            let entry = variant.entry(listed.name);
            assert_eq!(
                (
                    entry.algorithm,
                    entry.tile,
                    entry.target,
                    entry.threads,
                    entry.shared_bytes,
                    entry.barriers
                ),
                (
                    listed.algorithm,
                    listed.tile,
                    listed.target,
                    listed.threads,
                    listed.shared_bytes,
                    listed.barriers
                ),
                "{}",
                listed.name
            );
            compared += 1;
        }
        assert!(compared >= 22);
    }

    #[test]
    fn every_listed_tile_is_feasible_where_its_registers_were_budgeted() {
        for variant in entries().filter_map(of_entry) {
            // A budget for two blocks is asked for on Hopper; on smaller devices just one may run.
            assert_eq!(variant.check(&Limits::of(90)), Ok(()), "{}", variant.id());
        }
    }

    #[test]
    fn a_line_is_what_a_person_would_add_to_the_list() {
        let config = Config::new((Algorithm::ForwardSm80, "bf16"), 64, 48, 144, 4).expect("it has tiles");
        let variant = Variant { config, dtype: "bf16", min_blocks: 2 };
        assert_eq!(variant.line(), "forward_sm80(64, 48, 144, 4, 2);");
        assert_eq!(
            variant.source(),
            "entries! { sm_80; forward_sm80(\"bf16\", Bf16, 64, 48, 144, 4, 2); }\n"
        );
        assert_eq!(variant.id(), "forward_sm80_bf16_m64_n48_d144_w4_b2");
        let config = Config::new((Algorithm::ForwardSimt, "f32"), 64, 32, 96, 9).expect("it has tiles");
        let variant = Variant { config, dtype: "f32", min_blocks: 1 };
        assert_eq!(variant.source(), "entries! { sm_75; forward_simt(\"f32\", f32, 64, 32, 96, 1); }\n");
        let config = Config::new((Algorithm::ForwardSm90, "e4m3"), 192, 128, 64, 0).expect("it has tiles");
        let variant = Variant { config, dtype: "e4m3", min_blocks: 1 };
        assert_eq!(variant.source(), "entries! { sm_90a; forward_sm90_e4m3(192, 128, 64); }\n");
        assert_eq!(Config::new((Algorithm::StandardScores, "f32"), 64, 64, 64, 4), None);
    }

    #[test]
    fn tensor_cores_take_no_fp32() {
        let config = Config::new((Algorithm::ForwardSm80, "f32"), 128, 64, 64, 4).expect("it has tiles");
        let reason = Variant { config, dtype: "f32", min_blocks: 2 }
            .check(&Limits::of(90))
            .expect_err("it is infeasible");
        assert_eq!(reason.to_string(), "no f32 entry; there is f16, bf16");
    }
}
