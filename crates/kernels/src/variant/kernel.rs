//! What a kernel computes, and in which storage type.

use crate::entries::{Algorithm, GemmAlgorithm, Target};

/// A storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// fp32.
    F32,
    /// fp16.
    F16,
    /// bf16.
    Bf16,
    /// e4m3.
    E4m3,
    /// 16 bits that no kernel looks into.
    B16,
    /// 8 bits that no kernel looks into.
    B8,
}

impl Storage {
    /// Every one.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Bf16, Self::E4m3, Self::B16, Self::B8];

    /// The name, as in `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::E4m3 => "e4m3",
            Self::B16 => "b16",
            Self::B8 => "b8",
        }
    }

    /// That of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|storage| storage.name() == name)
    }
}

/// What a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Attention, or a part of it.
    Attention(Algorithm),
    /// A product of matrices.
    Gemm(GemmAlgorithm),
}

impl Kernel {
    /// The family, which is also the name of the archive that its PTX ships in.
    pub const fn family(self) -> &'static str {
        match self {
            Self::Attention(algorithm) => algorithm.family(),
            Self::Gemm(algorithm) => algorithm.family(),
        }
    }

    /// What the names of its entries begin with. Of kernels whose tile can be chosen no two share it.
    pub const fn stem(self) -> &'static str {
        match self {
            Self::Attention(Algorithm::StandardScores) => "standard_scores",
            Self::Attention(Algorithm::StandardSoftmax) => "standard_softmax",
            Self::Attention(Algorithm::StandardValues) => "standard_values",
            Self::Attention(Algorithm::DecodeCombine) => "decode_combine",
            Self::Attention(Algorithm::DecodeCombineSm90) => "decode_combine_sm90",
            Self::Attention(Algorithm::Merge) => "merge",
            Self::Attention(Algorithm::TileSchedule) => "tile_schedule",
            Self::Attention(Algorithm::Widen) => "widen",
            Self::Attention(Algorithm::BackwardDelta) => "backward_delta",
            Self::Attention(Algorithm::BackwardSinks) => "backward_sinks",
            Self::Attention(Algorithm::BackwardKeys | Algorithm::BackwardKeysDropout) => "backward_keys",
            Self::Attention(Algorithm::BackwardQueries | Algorithm::BackwardQueriesDropout) => {
                "backward_queries"
            }
            Self::Attention(Algorithm::BackwardKeysSm80 | Algorithm::BackwardKeysSm80ScoreMod) => {
                "backward_keys_sm80"
            }
            Self::Attention(Algorithm::BackwardQueriesSm80 | Algorithm::BackwardQueriesSm80ScoreMod) => {
                "backward_queries_sm80"
            }
            Self::Attention(Algorithm::BackwardKeysDsSm80) => "backward_keys_ds_sm80",
            Self::Attention(Algorithm::BackwardDqSm80) => "backward_dq_sm80",
            Self::Attention(Algorithm::BackwardKeysSm90) => "backward_keys_sm90",
            Self::Attention(algorithm) if algorithm.stores_ds() => "backward_keys_ds_sm90",
            Self::Attention(algorithm) if algorithm.sums_dq() => "backward_keys_dq_sm90",
            Self::Attention(Algorithm::BackwardQueriesSm90) => "backward_queries_sm90",
            _ => self.family(),
        }
    }

    /// What they end with.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::Attention(
                Algorithm::ForwardSm80ScoreMod
                | Algorithm::ForwardSm90ScoreMod
                | Algorithm::ForwardSm90CachedScoreMod
                | Algorithm::BackwardKeysSm80ScoreMod
                | Algorithm::BackwardQueriesSm80ScoreMod
                | Algorithm::BackwardKeysDsSm90ScoreMod
                | Algorithm::BackwardKeysDqSm90ScoreMod,
            ) => "_score_mod",
            Self::Attention(Algorithm::ForwardSm90Residues) => "_residues",
            Self::Attention(Algorithm::DecodeSm90E4m3) => "_e4m3",
            Self::Attention(Algorithm::DecodeSm90AddsUp) => "_adds_up",
            Self::Attention(Algorithm::DecodeSm90E4m3AddsUp) => "_e4m3_adds_up",
            Self::Attention(
                Algorithm::ForwardSimtDropout
                | Algorithm::ForwardSm80Dropout
                | Algorithm::ForwardSm90Dropout
                | Algorithm::BackwardKeysDropout
                | Algorithm::BackwardQueriesDropout,
            ) => "_dropout",
            _ => "",
        }
    }

    /// Whether it may be launched before the launch in front of it has ended, for which it waits by itself.
    pub const fn begins_early(self) -> bool {
        match self {
            Self::Attention(algorithm) => {
                algorithm.is_persistent() || matches!(algorithm, Algorithm::DecodeCombineSm90)
            }
            Self::Gemm(_) => false,
        }
    }

    /// The PTX target.
    pub const fn target(self) -> Target {
        match self {
            Self::Attention(
                Algorithm::ForwardSm80
                | Algorithm::ForwardSm80ScoreMod
                | Algorithm::ForwardSm80Modified
                | Algorithm::ForwardSm80Dropout
                | Algorithm::Decode
                | Algorithm::DecodeCombine
                | Algorithm::Merge
                | Algorithm::BackwardKeysSm80
                | Algorithm::BackwardQueriesSm80
                | Algorithm::BackwardKeysDsSm80
                | Algorithm::BackwardDqSm80
                | Algorithm::BackwardKeysSm80ScoreMod
                | Algorithm::BackwardQueriesSm80ScoreMod,
            )
            | Self::Gemm(GemmAlgorithm::GemmSm80 | GemmAlgorithm::MmaPeak | GemmAlgorithm::ReadPeak) => {
                Target::Sm80
            }
            Self::Attention(
                Algorithm::ForwardSm90
                | Algorithm::ForwardSm90ScoreMod
                | Algorithm::ForwardSm90Modified
                | Algorithm::ForwardSm90Dropout
                | Algorithm::ForwardSm90Residues
                | Algorithm::ForwardSm90Cached
                | Algorithm::ForwardSm90CachedScoreMod
                | Algorithm::BackwardKeysSm90
                | Algorithm::BackwardKeysDsSm90
                | Algorithm::BackwardKeysDqSm90
                | Algorithm::BackwardKeysDqSm90ScoreMod
                | Algorithm::BackwardKeysDsSm90ScoreMod
                | Algorithm::BackwardQueriesSm90
                | Algorithm::DecodeSm90
                | Algorithm::DecodeCombineSm90
                | Algorithm::DecodeSm90E4m3
                | Algorithm::DecodeSm90AddsUp
                | Algorithm::DecodeSm90E4m3AddsUp
                | Algorithm::MlaSm90
                | Algorithm::Pack
                | Algorithm::Transpose
                | Algorithm::Widen
                | Algorithm::TileSchedule,
            )
            | Self::Gemm(GemmAlgorithm::GemmSm90) => Target::Sm90a,
            Self::Attention(_) | Self::Gemm(GemmAlgorithm::GemmSimt) => Target::Sm75,
        }
    }

    /// The storage types that it can be built for, and their names.
    pub(super) const fn storage(self) -> (&'static [Storage], &'static str) {
        match self {
            Self::Attention(Algorithm::Pack | Algorithm::TileSchedule) => (&[Storage::B16], "b16"),
            Self::Attention(Algorithm::Transpose) => (&[Storage::B8], "b8"),
            Self::Attention(Algorithm::ForwardSm90 | Algorithm::ForwardSm90ScoreMod) => {
                (&[Storage::F16, Storage::Bf16, Storage::E4m3], "f16, bf16, e4m3")
            }
            Self::Attention(Algorithm::BackwardSinks) => (&[Storage::F32], "f32"),
            Self::Gemm(GemmAlgorithm::ReadPeak) => (&[Storage::B16], "b16"),
            _ if matches!(self.target(), Target::Sm75)
                || matches!(self, Self::Attention(Algorithm::Merge)) =>
            {
                (&[Storage::F32, Storage::F16, Storage::Bf16], "f32, f16, bf16")
            }
            _ => (&[Storage::F16, Storage::Bf16], "f16, bf16"),
        }
    }
}
