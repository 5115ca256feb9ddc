//! An entry as the host sees it: a row of the list.

use core::fmt;

use crate::params::{
    AppendParams, AttentionMaps, AttentionParams, BackwardParams, DecodeParams, GemmParams, Mapped,
    MergeParams, PackParams, PersistentParams, ScheduleParams, WidenParams,
};
use crate::ptx::tma::TensorMap;

/// A PTX target: what an entry's instructions need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Turing and everything later.
    Sm75,
    /// Ampere and everything later.
    Sm80,
    /// Hopper alone: no later device has its instructions.
    Sm90a,
}

impl Target {
    /// The name, as in `sm_75`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm75 => "sm_75",
            Self::Sm80 => "sm_80",
            Self::Sm90a => "sm_90a",
        }
    }

    /// Least compute capability of a device that it runs on, as major·10 + minor.
    pub const fn compute_capability(self) -> u32 {
        match self {
            Self::Sm75 => 75,
            Self::Sm80 => 80,
            Self::Sm90a => 90,
        }
    }

    /// Whether a device of this compute capability, as major·10 + minor, runs it.
    pub const fn runs_on(self, compute_capability: u32) -> bool {
        match self {
            Self::Sm75 | Self::Sm80 => self.compute_capability() <= compute_capability,
            Self::Sm90a => compute_capability == 90,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What an entry computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `attention::standard::scores`.
    StandardScores,
    /// `attention::standard::softmax`.
    StandardSoftmax,
    /// `attention::standard::values`.
    StandardValues,
    /// `attention::forward_simt`.
    ForwardSimt,
    /// `attention::forward_simt` with dropout.
    ForwardSimtDropout,
    /// `attention::forward_sm80`.
    ForwardSm80,
    /// `attention::forward_sm80` with a `score::CapAndBias`.
    ForwardSm80ScoreMod,
    /// `attention::forward_sm80` with functions of a program's own; none is in the lists.
    ForwardSm80Modified,
    /// [`Self::ForwardSm80ScoreMod`] with dropout; it takes scores that nothing changes too.
    ForwardSm80Dropout,
    /// `attention::forward_sm90`.
    ForwardSm90,
    /// `attention::forward_sm90` with a `score::CapAndBias`.
    ForwardSm90ScoreMod,
    /// `attention::forward_sm90` with functions of a program's own; none is in the lists.
    ForwardSm90Modified,
    /// [`Self::ForwardSm90ScoreMod`] with dropout; it takes scores that nothing changes too.
    ForwardSm90Dropout,
    /// `attention::forward_sm90` over rows that lie no multiple of 16 bytes apart.
    ForwardSm90Residues,
    /// `attention::forward_sm90` over a K/V cache.
    ForwardSm90Cached,
    /// [`Self::ForwardSm90Cached`] with a `score::CapAndBias`.
    ForwardSm90CachedScoreMod,
    /// `attention::decode`.
    Decode,
    /// `attention::decode_sm90`.
    DecodeSm90,
    /// [`Self::DecodeSm90`] whose blocks can have several splits of a tile.
    DecodeSm90AddsUp,
    /// `attention::decode_sm90` over K and V in e4m3, with Q and O in the entry's type.
    DecodeSm90E4m3,
    /// [`Self::DecodeSm90E4m3`] whose blocks can have several splits of a tile.
    DecodeSm90E4m3AddsUp,
    /// `attention::mla_sm90`.
    MlaSm90,
    /// `attention::combine`, which merges the splits of [`Self::Decode`].
    DecodeCombine,
    /// `attention::combine` of Hopper's kernels, in a launch that begins before they have ended.
    DecodeCombineSm90,
    /// `attention::append`, which writes the cache of [`Self::Decode`] and [`Self::DecodeSm90`].
    Append,
    /// `attention::merge`, which merges results of calls over disjoint keys.
    Merge,
    /// `attention::pack`, which copies rows for [`Self::ForwardSm90`].
    Pack,
    /// `attention::transpose`, which copies V of 8-bit elements for [`Self::ForwardSm90`].
    Transpose,
    /// `attention::widen`, which copies K and V in e4m3 to the entry's type for [`Self::ForwardSm90Cached`].
    Widen,
    /// `attention::tile_schedule`, which puts the tiles of a packed batch into an order for
    /// [`Self::ForwardSm90`].
    TileSchedule,
    /// `attention::backward_delta`, the first launch of a backward pass.
    BackwardDelta,
    /// `attention::backward_sinks`, the launch behind it where there are sinks.
    BackwardSinks,
    /// `attention::backward_simt::backward_keys`; its block owns keys, and goes over queries.
    BackwardKeys,
    /// `attention::backward_simt::backward_queries`.
    BackwardQueries,
    /// [`Self::BackwardKeys`] with dropout.
    BackwardKeysDropout,
    /// [`Self::BackwardQueries`] with dropout.
    BackwardQueriesDropout,
    /// `attention::backward_sm80::backward_keys`.
    BackwardKeysSm80,
    /// `attention::backward_sm80::backward_queries`.
    BackwardQueriesSm80,
    /// `attention::backward_sm80::backward_keys_ds`: as [`Self::BackwardKeysSm80`], and stores dS.
    BackwardKeysDsSm80,
    /// `attention::backward_sm80::backward_dq`: dQ of dS that [`Self::BackwardKeysDsSm80`] stored.
    BackwardDqSm80,
    /// [`Self::BackwardKeysSm80`] with a `score::CapAndBias` or dropout, or both.
    BackwardKeysSm80ScoreMod,
    /// [`Self::BackwardQueriesSm80`] with the same.
    BackwardQueriesSm80ScoreMod,
    /// `attention::backward_sm90` owning keys.
    BackwardKeysSm90,
    /// `attention::backward_sm90` storing dS: all gradients.
    BackwardKeysDsSm90,
    /// [`Self::BackwardKeysDsSm90`] with a `score::CapAndBias` or dropout, or both.
    BackwardKeysDsSm90ScoreMod,
    /// `attention::backward_sm90` summing dQ: all gradients.
    BackwardKeysDqSm90,
    /// [`Self::BackwardKeysDqSm90`] with a `score::CapAndBias` or dropout, or both.
    BackwardKeysDqSm90ScoreMod,
    /// `attention::backward_sm90` owning queries.
    BackwardQueriesSm90,
}

impl Algorithm {
    /// Whether its blocks each go through several tiles, and take [`PersistentParams`].
    pub const fn is_persistent(self) -> bool {
        matches!(
            self,
            Self::ForwardSm90
                | Self::ForwardSm90ScoreMod
                | Self::ForwardSm90Modified
                | Self::ForwardSm90Dropout
                | Self::ForwardSm90Residues
        ) || self.is_cached_forward()
    }

    /// Whether it is the forward pass's, over a K/V cache.
    pub const fn is_cached_forward(self) -> bool {
        matches!(self, Self::ForwardSm90Cached | Self::ForwardSm90CachedScoreMod)
    }

    /// Whether it is `attention::decode_sm90`.
    pub const fn is_decode_sm90(self) -> bool {
        matches!(self, Self::DecodeSm90 | Self::DecodeSm90E4m3) || self.adds_up()
    }

    /// Whether it is that of blocks that can have several splits of a tile.
    pub const fn adds_up(self) -> bool {
        matches!(self, Self::DecodeSm90AddsUp | Self::DecodeSm90E4m3AddsUp)
    }

    /// Whether it takes K and V in e4m3 beside Q in another type, without another launch.
    pub const fn reads_e4m3(self) -> bool {
        matches!(self, Self::DecodeSm90E4m3 | Self::DecodeSm90E4m3AddsUp)
    }

    /// Whether it merges the splits of those that attend to a cache.
    pub const fn merges_splits(self) -> bool {
        matches!(self, Self::DecodeCombine | Self::DecodeCombineSm90)
    }

    /// Whether it is one of those that attend to a cache.
    pub const fn decodes(self) -> bool {
        matches!(self, Self::Decode | Self::MlaSm90)
            || self.is_decode_sm90()
            || self.is_cached_forward()
            || self.merges_splits()
    }

    /// Whether it stores dS, and computes all gradients in one launch.
    pub const fn stores_ds(self) -> bool {
        matches!(self, Self::BackwardKeysDsSm90 | Self::BackwardKeysDsSm90ScoreMod)
    }

    /// Whether it sums dQ where dS is made, and computes all gradients in one launch.
    pub const fn sums_dq(self) -> bool {
        matches!(self, Self::BackwardKeysDqSm90 | Self::BackwardKeysDqSm90ScoreMod)
    }

    /// The kernel family, which is also the name of the archive that its PTX ships in.
    pub const fn family(self) -> &'static str {
        match self {
            Self::StandardScores | Self::StandardSoftmax | Self::StandardValues => "standard",
            Self::ForwardSimt | Self::ForwardSimtDropout => "forward_simt",
            Self::ForwardSm80
            | Self::ForwardSm80ScoreMod
            | Self::ForwardSm80Modified
            | Self::ForwardSm80Dropout => "forward_sm80",
            Self::ForwardSm90
            | Self::ForwardSm90ScoreMod
            | Self::ForwardSm90Modified
            | Self::ForwardSm90Dropout
            | Self::ForwardSm90Residues => "forward_sm90",
            Self::ForwardSm90Cached | Self::ForwardSm90CachedScoreMod => "forward_sm90_cached",
            Self::Decode | Self::DecodeCombine | Self::Merge => "decode",
            Self::DecodeSm90
            | Self::DecodeSm90AddsUp
            | Self::DecodeSm90E4m3
            | Self::DecodeSm90E4m3AddsUp
            | Self::DecodeCombineSm90 => "decode_sm90",
            Self::MlaSm90 => "mla_sm90",
            Self::Append => "append",
            Self::Pack | Self::Transpose | Self::Widen | Self::TileSchedule => "pack",
            Self::BackwardDelta
            | Self::BackwardSinks
            | Self::BackwardKeys
            | Self::BackwardQueries
            | Self::BackwardKeysDropout
            | Self::BackwardQueriesDropout => "backward_simt",
            Self::BackwardKeysSm80
            | Self::BackwardQueriesSm80
            | Self::BackwardKeysDsSm80
            | Self::BackwardDqSm80
            | Self::BackwardKeysSm80ScoreMod
            | Self::BackwardQueriesSm80ScoreMod => "backward_sm80",
            Self::BackwardKeysSm90
            | Self::BackwardKeysDsSm90
            | Self::BackwardKeysDqSm90
            | Self::BackwardKeysDqSm90ScoreMod
            | Self::BackwardKeysDsSm90ScoreMod
            | Self::BackwardQueriesSm90 => "backward_sm90",
        }
    }
}

/// The tile of an attention entry; 0 where an algorithm has no such dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Query rows of a block.
    pub block_m: u32,
    /// Key rows of a step.
    pub block_n: u32,
    /// The largest head_dim that the entry takes; `u32::MAX` where any will do.
    pub head_dim: u32,
    /// The largest head_dim of V and O, which is another where the entry has a width for them.
    pub head_dim_v: u32,
}

/// One PTX entry; of attention, unless it says otherwise.
#[derive(Debug)]
pub struct Entry<A = Algorithm, T = Tile> {
    /// Its name in the PTX.
    pub name: &'static str,
    /// What it computes.
    pub algorithm: A,
    /// Storage type of its inputs: `f32`, `f16`, `bf16` or `e4m3`; `b16` or `b8` where it looks at no value.
    pub dtype: &'static str,
    /// Its tile.
    pub tile: T,
    /// Its PTX target.
    pub target: Target,
    /// Threads of a block; the PTX declares it as `.maxntid`.
    pub threads: u32,
    /// Blocks that the register budget must leave room for on a multiprocessor (`.minnctapersm`).
    pub min_blocks: u32,
    /// Bytes of dynamic shared memory that a launch needs.
    pub shared_bytes: u32,
    /// Barriers in its source: the built PTX must have exactly these.
    pub barriers: u32,
    /// Whether its launch may begin before the one in front of it has ended, for which it waits by itself.
    pub begins_early: bool,
    /// The kernel itself, for the simulator; `None` for a variant that a sweep built, which is PTX alone, and
    /// without the feature `sim`.
    pub run: Option<Run>,
    /// What it is loaded from, where it is not among what ships.
    pub image: Option<Image>,
}

/// An entry that a program brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its PTX, a module of its own.
    pub ptx: &'static str,
    /// What ptxas made of it, where it runs on one architecture alone.
    pub cubin: Option<&'static [u8]>,
}

/// A kernel, by the parameters that it takes.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// [`AttentionParams`].
    Attention(unsafe fn(&AttentionParams)),
    /// [`PersistentParams`] behind [`AttentionMaps`], by their address.
    Persistent(unsafe fn(&PersistentParams, u64)),
    /// [`BackwardParams`].
    Backward(unsafe fn(&BackwardParams)),
    /// [`BackwardParams`] behind the tensor maps of Q, K, V, dO and dS, by the address of the first.
    MappedBackward(unsafe fn(&BackwardParams, u64)),
    /// [`DecodeParams`].
    Decode(unsafe fn(&DecodeParams)),
    /// [`DecodeParams`] behind the tensor maps of K and V, by the address of the first.
    MappedDecode(unsafe fn(&DecodeParams, u64)),
    /// [`AppendParams`].
    Append(unsafe fn(&AppendParams)),
    /// [`MergeParams`].
    Merge(unsafe fn(&MergeParams)),
    /// [`PackParams`].
    Pack(unsafe fn(&PackParams)),
    /// [`WidenParams`].
    Widen(unsafe fn(&WidenParams)),
    /// [`ScheduleParams`].
    Schedule(unsafe fn(&ScheduleParams)),
    /// [`GemmParams`].
    Gemm(unsafe fn(&GemmParams)),
    /// [`GemmParams`] behind the tensor maps of A, B and C, by the address of the first.
    MappedGemm(unsafe fn(&GemmParams, u64)),
}

/// The parameters of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a launch allocates nothing")]
pub enum Params {
    /// For [`Run::Attention`].
    Attention(AttentionParams),
    /// For [`Run::Persistent`].
    Persistent(Mapped<AttentionMaps, PersistentParams>),
    /// For [`Run::Backward`].
    Backward(BackwardParams),
    /// For [`Run::MappedBackward`].
    MappedBackward(Mapped<[TensorMap; 5], BackwardParams>),
    /// For [`Run::Decode`].
    Decode(DecodeParams),
    /// For [`Run::MappedDecode`].
    MappedDecode(Mapped<[TensorMap; 2], DecodeParams>),
    /// For [`Run::Append`].
    Append(AppendParams),
    /// For [`Run::Merge`].
    Merge(MergeParams),
    /// For [`Run::Pack`].
    Pack(PackParams),
    /// For [`Run::Widen`].
    Widen(WidenParams),
    /// For [`Run::Schedule`].
    Schedule(ScheduleParams),
    /// For [`Run::Gemm`].
    Gemm(GemmParams),
    /// For [`Run::MappedGemm`].
    MappedGemm(Mapped<[TensorMap; 3], GemmParams>),
}

impl Run {
    /// Runs the kernel for one thread.
    ///
    /// # Safety
    /// Inside a launch of `fa-sim` with the entry's threads and shared memory; `params` are what the kernel
    /// asks for.
    ///
    /// # Panics
    /// When `params` are another kernel's.
    pub unsafe fn call(self, params: &Params) {
        match (self, params) {
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Attention(run), Params::Attention(params)) => unsafe { run(params) },
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Backward(run), Params::Backward(params)) => unsafe { run(params) },
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Decode(run), Params::Decode(params)) => unsafe { run(params) },
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Append(run), Params::Append(params)) => unsafe { run(params) },
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Merge(run), Params::Merge(params)) => unsafe { run(params) },
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Pack(run), Params::Pack(params)) => unsafe { run(params) },
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Widen(run), Params::Widen(params)) => unsafe { run(params) },
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Schedule(run), Params::Schedule(params)) => unsafe { run(params) },
            // SAFETY: the launch is the entry's, and the parameters are what this kernel asks for.
            (Self::Gemm(run), Params::Gemm(params)) => unsafe { run(params) },
            (Self::Persistent(run), Params::Persistent(mapped)) => {
                let Mapped { maps, params } = mapped;
                // SAFETY: the launch is the entry's, and parameters and maps are what this kernel asks for.
                unsafe { run(params, (&raw const *maps).addr() as u64) }
            }
            (Self::MappedDecode(run), Params::MappedDecode(mapped)) => {
                let Mapped { maps, params } = mapped;
                // SAFETY: the launch is the entry's, and parameters and maps are what this kernel asks for.
                unsafe { run(params, maps.as_ptr().addr() as u64) }
            }
            (Self::MappedGemm(run), Params::MappedGemm(mapped)) => {
                let Mapped { maps, params } = mapped;
                // SAFETY: the launch is the entry's, and parameters and maps are what this kernel asks for.
                unsafe { run(params, maps.as_ptr().addr() as u64) }
            }
            (Self::MappedBackward(run), Params::MappedBackward(mapped)) => {
                let Mapped { maps, params } = mapped;
                // SAFETY: the launch is the entry's, and parameters and maps are what this kernel asks for.
                unsafe { run(params, maps.as_ptr().addr() as u64) }
            }
            _ => panic!("the parameters are another kernel's"),
        }
    }
}
