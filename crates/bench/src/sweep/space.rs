//! Which tiles a sweep tries: all combinations of what was asked for, each feasible or rejected with a
//! reason.

use fa_kernels::config::{Infeasible, Limits};
use fa_kernels::variant::{Axes, Config, Kernel as Computes, Layout, Sizes, Storage, Variant};
use flash_attention::{DType, Kernel};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::failure::usage;

/// What is swept over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Space {
    #[serde(serialize_with = "kernel_name", deserialize_with = "kernel_named")]
    pub(crate) kernel: Kernel,
    #[serde(serialize_with = "dtype_name", deserialize_with = "dtype_named")]
    pub(crate) dtype: DType,
    pub(crate) block_m: Vec<u32>,
    pub(crate) block_n: Vec<u32>,
    /// Empty where the tile says how many warps there are.
    pub(crate) warps: Vec<u32>,
    pub(crate) min_blocks: Vec<u32>,
    pub(crate) head_dims: Vec<usize>,
}

/// A tile, the head_dims that it is measured with, and whether it can be built and launched at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) variant: Variant,
    pub(crate) head_dims: Vec<usize>,
    pub(crate) verdict: Result<(), Infeasible>,
}

impl Space {
    /// Every candidate, HEAD_DIM by HEAD_DIM.
    ///
    /// # Errors
    /// When the kernel's tile cannot be chosen.
    pub(crate) fn candidates(&self, limits: &Limits) -> anyhow::Result<Vec<Candidate>> {
        let fixed = || usage(format!("--kernel {}: its tile cannot be chosen", self.kernel));
        let algorithm = self.kernel.tiled().ok_or_else(fixed)?;
        let kernel = Computes::Attention(algorithm);
        let Axes { columns, warps: has_warps, .. } = Axes::of(kernel).ok_or_else(fixed)?;
        if !has_warps && !self.warps.is_empty() {
            return Err(usage(format!("--warps: a tile of {} says itself how many there are", self.kernel)));
        }
        if has_warps && self.warps.is_empty() {
            return Err(usage(format!(
                "--warps is missing: the warps of a block of {}, as in 4,8",
                self.kernel
            )));
        }
        let warps = if has_warps { &*self.warps } else { &[0] };
        let mut candidates = Vec::new();
        for (head_dim, head_dims) in self.buckets(columns) {
            for (&block_m, &block_n) in pairs(&self.block_m, &self.block_n) {
                for &warps in warps {
                    let layout = Layout::ALL[0];
                    let sizes = Sizes { block_m, block_n, head_dim, warps, stages: 0, layout };
                    let config = Config::new(kernel, storage(self.dtype), sizes).ok_or_else(fixed)?;
                    let variants = self.budgets(kernel, config, limits);
                    candidates.extend(variants.into_iter().map(|(variant, verdict)| Candidate {
                        variant,
                        head_dims: head_dims.clone(),
                        verdict,
                    }));
                }
            }
        }
        Ok(candidates)
    }

    /// The HEAD_DIMs that hold the head_dims, with what each holds.
    fn buckets(&self, columns: u32) -> Vec<(u32, Vec<usize>)> {
        let mut buckets: Vec<(u32, Vec<usize>)> = Vec::new();
        for &head_dim in &self.head_dims {
            let tile = (head_dim as u32).next_multiple_of(columns);
            match buckets.iter_mut().find(|(columns, _)| *columns == tile) {
                Some((_, held)) if held.contains(&head_dim) => {}
                Some((_, held)) => held.push(head_dim),
                None => buckets.push((tile, vec![head_dim])),
            }
        }
        buckets
    }

    /// A tile with each register budget that makes a difference, the largest number of blocks first.
    fn budgets(
        &self,
        kernel: Computes,
        config: Config,
        limits: &Limits,
    ) -> Vec<(Variant, Result<(), Infeasible>)> {
        let mut min_blocks = self.min_blocks.clone();
        min_blocks.sort_unstable_by(|a, b| b.cmp(a));
        min_blocks.dedup();
        let registers = |variant: &Variant| limits.registers(config.threads(), variant.min_blocks);
        let mut budgets: Vec<(Variant, Result<(), Infeasible>)> = Vec::new();
        for min_blocks in min_blocks {
            let variant = Variant { kernel, config, dtype: storage(self.dtype), min_blocks };
            let verdict = variant.check(limits);
            let repeats = |(other, said): &(Variant, Result<(), Infeasible>)| {
                *said == verdict && (verdict.is_err() || registers(other) == registers(&variant))
            };
            if !budgets.iter().any(repeats) {
                budgets.push((variant, verdict));
            }
        }
        budgets
    }
}

const fn storage(dtype: DType) -> Storage {
    match dtype {
        DType::F32 => Storage::F32,
        DType::F16 => Storage::F16,
        DType::Bf16 => Storage::Bf16,
        DType::E4m3 => Storage::E4m3,
    }
}

fn pairs<'a>(first: &'a [u32], second: &'a [u32]) -> impl Iterator<Item = (&'a u32, &'a u32)> {
    first.iter().flat_map(move |a| second.iter().map(move |b| (a, b)))
}

fn kernel_name<S: Serializer>(kernel: &Kernel, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kernel.name())
}

fn kernel_named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kernel, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = Kernel::ALL.into_iter().find(|kernel| kernel.name() == text);
    found.ok_or_else(|| de::Error::custom(format!("no kernel {text}")))
}

fn dtype_name<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(dtype.name())
}

fn dtype_named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = DType::ALL.into_iter().find(|dtype| dtype.name() == text);
    found.ok_or_else(|| de::Error::custom(format!("no storage type {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(kernel: Kernel, warps: &[u32]) -> Space {
        Space {
            kernel,
            dtype: DType::F16,
            block_m: vec![64, 128],
            block_n: vec![32, 64],
            warps: warps.to_vec(),
            min_blocks: vec![1, 2],
            head_dims: vec![128, 129],
        }
    }

    #[test]
    fn head_dims_go_to_the_smallest_tile_that_holds_them() {
        let mut space = space(Kernel::ForwardSm80, &[4]);
        space.head_dims = vec![129, 64, 144, 129];
        assert_eq!(space.buckets(16), [(144, vec![129, 144]), (64, vec![64])]);
        assert_eq!(space.buckets(32), [(160, vec![129, 144]), (64, vec![64])]);
    }

    #[test]
    fn every_combination_is_there_and_budgets_that_change_nothing_are_not() {
        let candidates = space(Kernel::ForwardSm80, &[4, 8]).candidates(&Limits::of(90)).unwrap();
        let of = |m: u32, n: u32, d: u32, warps: u32| {
            let is_it = |candidate: &&Candidate| {
                let tile = candidate.variant.config.tile();
                (tile.block_m, tile.block_n, tile.head_dim) == (m, n, d)
                    && candidate.variant.config.warps() == warps
            };
            let budgets = candidates.iter().filter(is_it);
            budgets.map(|one| (one.variant.min_blocks, one.verdict.is_ok())).collect::<Vec<_>>()
        };
        // Four warps have 255 registers either way, if two blocks fit.
        assert_eq!(of(128, 32, 128, 4), [(2, true)]);
        // Eight warps have 128 or 255: here S and O need 96.
        assert_eq!(of(128, 64, 128, 8), [(2, true), (1, true)]);
        // A tile that cannot be split over eight warps is rejected once.
        assert_eq!(of(64, 64, 144, 8), [(2, false)]);
        assert!(candidates.iter().all(|one| one.head_dims == [128] || one.head_dims == [129]));
    }

    #[test]
    fn warps_belong_to_kernels_that_let_them_be_chosen() {
        let error =
            |kernel, warps: &[u32]| space(kernel, warps).candidates(&Limits::of(90)).unwrap_err().to_string();
        assert_eq!(
            error(Kernel::ForwardSimt, &[4]),
            "--warps: a tile of forward_simt says itself how many there are"
        );
        assert_eq!(
            error(Kernel::ForwardSm80, &[]),
            "--warps is missing: the warps of a block of forward_sm80, as in 4,8"
        );
        assert_eq!(error(Kernel::Standard, &[]), "--kernel standard: its tile cannot be chosen");
        let simt = space(Kernel::ForwardSimt, &[]).candidates(&Limits::of(90)).unwrap();
        assert!(simt.iter().any(|one| one.variant.name() == "forward_simt_f16_m128_n64_d160"));
    }

    #[test]
    fn a_space_survives_its_document() {
        let space = space(Kernel::ForwardSm80, &[4, 8]);
        let text = serde_json::to_string(&space).unwrap();
        assert!(text.contains("\"kernel\":\"forward_sm80\",\"dtype\":\"f16\""), "{text}");
        assert_eq!(serde_json::from_str::<Space>(&text).unwrap(), space);
        assert!(serde_json::from_str::<Space>(&text.replace("sm80", "sm8")).is_err());
    }
}
