//! The kernels whose tiles are swept, and what is tried of each where nothing is asked for.

use fa_kernels::entries::{Algorithm, GemmAlgorithm};
use fa_kernels::variant::{Axes, Kernel};
use serde::{Deserialize, Serialize};

/// What is swept at a time: a kernel, or the kernels of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Family {
    ForwardSimt,
    ForwardSm80,
    ForwardSm90,
    Decode,
    DecodeSm90,
    BackwardSm80,
    BackwardSm90,
    GemmSm90,
}

/// Sizes to try; of an axis that the family does not have, none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tried {
    pub(crate) block_m: &'static [u32],
    pub(crate) block_n: &'static [u32],
    pub(crate) warps: &'static [u32],
    pub(crate) stages: &'static [u32],
    pub(crate) head_dims: &'static [usize],
}

impl Family {
    pub(crate) const ALL: [Self; 8] = [
        Self::ForwardSimt,
        Self::ForwardSm80,
        Self::ForwardSm90,
        Self::Decode,
        Self::DecodeSm90,
        Self::BackwardSm80,
        Self::BackwardSm90,
        Self::GemmSm90,
    ];

    /// The kernels, each of whose tiles are ranked by themselves.
    pub(crate) const fn kernels(self) -> &'static [Kernel] {
        match self {
            Self::ForwardSimt => &[Kernel::Attention(Algorithm::ForwardSimt)],
            Self::ForwardSm80 => &[Kernel::Attention(Algorithm::ForwardSm80)],
            Self::ForwardSm90 => &[Kernel::Attention(Algorithm::ForwardSm90)],
            Self::Decode => &[Kernel::Attention(Algorithm::Decode)],
            Self::DecodeSm90 => &[Kernel::Attention(Algorithm::DecodeSm90)],
            Self::BackwardSm80 => &[
                Kernel::Attention(Algorithm::BackwardKeysSm80),
                Kernel::Attention(Algorithm::BackwardQueriesSm80),
            ],
            Self::BackwardSm90 => &[
                Kernel::Attention(Algorithm::BackwardKeysSm90),
                Kernel::Attention(Algorithm::BackwardQueriesSm90),
            ],
            Self::GemmSm90 => &[Kernel::Gemm(GemmAlgorithm::GemmSm90)],
        }
    }

    /// The name that the command line uses.
    pub(crate) const fn name(self) -> &'static str {
        self.kernels()[0].family()
    }

    /// What of a tile can be chosen: the same of each kernel of a family.
    pub(crate) fn axes(self) -> Axes {
        // The kernels above are those that have axes: a test goes through them.
        Axes::of(self.kernels()[0]).expect("a family's tiles can be chosen")
    }

    /// What is tried where nothing is asked for.
    pub(crate) const fn tried(self) -> Tried {
        let forward = Tried {
            block_m: &[64, 128],
            block_n: &[32, 64, 128],
            warps: &[],
            stages: &[],
            head_dims: &[64, 128, 129],
        };
        match self {
            Self::ForwardSimt => forward,
            Self::ForwardSm80 => Tried { warps: &[4, 8], ..forward },
            Self::ForwardSm90 => Tried { block_m: &[128, 192], block_n: &[64, 80, 128], ..forward },
            Self::Decode => Tried {
                block_m: &[16, 32, 64],
                block_n: &[],
                warps: &[2, 4, 8],
                stages: &[2, 3, 4, 5],
                head_dims: &[64, 128],
            },
            Self::DecodeSm90 => Tried {
                block_m: &[16, 32, 64],
                block_n: &[64, 128],
                warps: &[],
                stages: &[4, 5, 6, 8, 10, 12],
                head_dims: &[64, 128],
            },
            Self::BackwardSm80 => Tried {
                block_m: &[32, 64, 128],
                block_n: &[32, 64, 128],
                warps: &[4, 8],
                head_dims: &[64, 128],
                ..forward
            },
            Self::BackwardSm90 => Tried {
                block_m: &[32, 64, 96, 128],
                block_n: &[32, 64, 96, 128],
                head_dims: &[64, 128],
                ..forward
            },
            Self::GemmSm90 => Tried {
                block_m: &[128],
                block_n: &[128, 256],
                warps: &[],
                stages: &[3, 4, 5, 6],
                head_dims: &[],
            },
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl From<Family> for String {
    fn from(family: Family) -> Self {
        family.name().to_owned()
    }
}

impl TryFrom<String> for Family {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|family| family.name() == name);
        found.ok_or_else(|| format!("no kernel {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fa_kernels::entries::variants;

    #[test]
    fn every_kernel_whose_tile_can_be_chosen_is_of_one_family() {
        for variant in variants() {
            let families = Family::ALL.iter().filter(|family| family.kernels().contains(&variant.kernel));
            assert_eq!(families.count() == 1, Axes::of(variant.kernel).is_some(), "{}", variant.name());
        }
        for family in Family::ALL {
            assert!(family.kernels().iter().all(|&kernel| Axes::of(kernel) == Some(family.axes())));
            assert!(family.kernels().iter().all(|kernel| kernel.family() == family.name()));
        }
    }

    #[test]
    fn sizes_are_tried_on_the_axes_that_there_are() {
        for family in Family::ALL {
            let (Axes { columns, block_n, warps, stages, .. }, tried) = (family.axes(), family.tried());
            assert!(!tried.block_m.is_empty());
            let has = [tried.block_n, tried.warps, tried.stages].map(|sizes| !sizes.is_empty());
            assert_eq!(has, [block_n, warps, stages], "{family}");
            assert_eq!(!tried.head_dims.is_empty(), columns > 0, "{family}");
        }
    }
}
