//! Problem → kernel and tile: a pure function, with its reasons written beside each choice.

mod beside;
mod candidates;
pub(crate) mod cost;
mod few;
mod geometry;
mod hopper;
mod invariant;
mod modified;
mod order;
mod pack;
mod schedule;
mod standard;
mod tile;
mod tuned;

use fa_kernels::entries::{Algorithm, Tile};

use candidates::Candidates;

use crate::decode::DecodeLaunchDetails;
use crate::{BackendKind, DType, Device, Error, Problem, Result, operation};

pub(crate) use candidates::{
    built_for, check_heads, check_kernel, checked_grid, for_scores, join, that_hold, unsupported_dtype,
};
pub(crate) use cost::{cached_heads, cached_kv_heads, tiles, whole_tiles};
pub(crate) use geometry::{class_layout, is_shifted, margin, residues, unmapped, unmapped_in_e4m3};
pub(crate) use order::{Key, Tuned, as_measured, fastest_first};
pub(crate) use pack::{CopyStage, Packed, PackedCopy, chunks, chunks_in_e4m3, head_units, pack_entry};
pub(crate) use schedule::TileOrder;
pub(crate) use tile::{check_entry, check_fits, check_target, plan_entry, tile_too_large};
pub(crate) use tuned::TUNED;

/// A kernel that computes attention; what a person can ask for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// FlashAttention v3 on tensor cores (`wgmma`), fed by tensor maps: Hopper in types of 16 and 8 bits, and
    /// the simulator.
    ForwardSm90,
    /// FlashAttention v2 on tensor cores (`mma.sync`): NVIDIA GPUs since sm_80 in 16-bit types, and the
    /// simulator.
    ForwardSm80,
    /// FlashAttention v1 on fp32 FMA: any NVIDIA GPU, and the simulator.
    ForwardSimt,
    /// Flash-Decoding on tensor cores, for few queries: NVIDIA GPUs since sm_80 in 16-bit types, and the
    /// simulator.
    Decode,
    /// Tiled online softmax with SIMD on all cores.
    ForwardCpu,
    /// Unfused attention, the baseline: scores, softmax and values, with the scores in memory.
    Standard,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Decode,
        Self::ForwardSm90,
        Self::ForwardSm80,
        Self::ForwardSimt,
        Self::ForwardCpu,
        Self::Standard,
    ];

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForwardSm90 => "forward_sm90",
            Self::ForwardSm80 => "forward_sm80",
            Self::ForwardSimt => "forward_simt",
            Self::Decode => "decode",
            Self::ForwardCpu => "forward_cpu",
            Self::Standard => "standard",
        }
    }

    /// Whether it drops weights ([`Options::dropout`](crate::Options::dropout)), of types of 16 bits and
    /// more.
    pub const fn drops_weights(self) -> bool {
        !matches!(self, Self::Standard | Self::Decode)
    }

    /// What its one launch runs, where that has tiles to choose from.
    pub const fn tiled(self) -> Option<Algorithm> {
        match self {
            Self::ForwardSm90 => Some(Algorithm::ForwardSm90),
            Self::ForwardSm80 => Some(Algorithm::ForwardSm80),
            Self::ForwardSimt => Some(Algorithm::ForwardSimt),
            Self::Decode | Self::ForwardCpu | Self::Standard => None,
        }
    }

    /// Whether it has entries for a storage type, of kernels that come in tiles.
    fn takes(self, dtype: DType) -> bool {
        self.tiled().is_some_and(|algorithm| built_for(algorithm, dtype).next().is_some())
    }

    /// Whether this kernel reads copies of some of Q, K and V, which a launch before it makes
    /// ([`Plan::workspace_bytes`](crate::Plan::workspace_bytes)), unless it takes row classes.
    pub fn needs_copies(self, problem: &Problem) -> bool {
        self == Self::ForwardSm90 && !Packed::of(problem).is_empty()
    }

    /// Whether this kernel can read the rows of Q, K and V where they are, class by class, though they lie no
    /// multiple of 16 bytes apart. It does so in place of copying them where that is estimated to be quicker.
    pub fn takes_residues(self, problem: &Problem) -> bool {
        let widest = candidates::widest(Algorithm::ForwardSm90Residues, problem.dtype());
        self == Self::ForwardSm90
            && !problem.changes_scores()
            && problem.dropout().is_none()
            && geometry::class_refusal(problem, widest).is_none()
    }

    /// The kernels of a backend, the fastest first. Not each one takes every problem or device.
    pub const fn of_backend(backend: BackendKind) -> &'static [Self] {
        match backend {
            BackendKind::Cuda | BackendKind::Sim => {
                &[Self::Decode, Self::ForwardSm90, Self::ForwardSm80, Self::ForwardSimt, Self::Standard]
            }
            BackendKind::Cpu => &[Self::ForwardCpu, Self::Standard],
        }
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What the caller leaves open, the planner chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The kernel.
    pub kernel: Option<Kernel>,
    /// Query rows of a tile.
    pub block_m: Option<usize>,
    /// Key rows of a step.
    pub block_n: Option<usize>,
    /// Whether a sequence gets the same bits whatever else is in its batch: packed or by itself, with others
    /// of any lengths. Its tensors' rows and heads must start at multiples of 16 bytes, in both batches;
    /// masks, scores and heads are the same. Not so with dropout, whose draws count sequences.
    pub batch_invariant: bool,
}

impl Request {
    /// Whether a tile is as asked.
    fn takes(&self, tile: &Tile) -> bool {
        let matches = |asked: Option<usize>, block: u32| asked.is_none_or(|asked| asked == block as usize);
        matches(self.block_m, tile.block_m) && matches(self.block_n, tile.block_n)
    }
}

/// A launch of a forward pass.
pub(crate) type Launch = operation::Launch<Problem>;

/// What the planner chose for a forward pass.
pub(crate) type Choice = operation::Choice<Problem>;

/// What the parameters of a forward pass's launch need beside its entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchDetails {
    /// In which order blocks that go through several tiles take them.
    pub(crate) order: TileOrder,
    /// Which tensors the launch copies, or reads copies of.
    pub(crate) packed: Packed,
    /// Which of those copies it makes, or waits for.
    pub(crate) stage: CopyStage,
    /// Where the launch writes a schedule of tiles, or reads one.
    pub(crate) schedule: Option<ScheduleSpace>,
    /// How it splits keys, of few queries.
    pub(crate) splits: DecodeLaunchDetails,
}

/// Memory of what `attention::tile_schedule` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduleSpace {
    /// Where it begins in the workspace, in bytes.
    pub(crate) offset: u64,
    /// The most tiles that a head can have in all sequences together.
    pub(crate) rows: u32,
    /// Queries of a tile.
    pub(crate) block_m: u32,
}

/// Chooses kernel and tile for `problem` on `device`: candidates, refusals, estimates, choice, reasons.
///
/// # Errors
/// When the request names a kernel, storage type or tile that is not there or does not fit, or the
/// grid would be too large.
pub(crate) fn plan(problem: &Problem, device: &Device, request: &Request) -> Result<Choice> {
    if let Some(functions) = problem.functions()
        && device.backend != BackendKind::Cpu
    {
        return modified::plan_modified(problem, device, request, functions);
    }
    // Decode does not depend on the batch by its splits.
    if request.batch_invariant && request.kernel != Some(Kernel::Decode) {
        return invariant::plan_alike(problem, device, request);
    }
    let candidates = Candidates::of(problem, device, request)?;
    let (mut candidate, mut way) = (candidates.first(), None);
    #[cfg(feature = "cpu")]
    if device.backend == BackendKind::Cpu {
        return crate::cpu::backend::plan_on_cpu(problem, candidate.kernel, request);
    }
    if candidate.kernel == Kernel::Decode {
        if problem.has_lse_strides() {
            return Err(Error::LseStrides { operation: candidate.kernel.name() });
        }
        return few::plan_few(problem, device, request, candidate.why);
    }
    if candidate.kernel == Kernel::ForwardSm90 {
        let unfit = |reason| Error::UnfitKernel { kernel: candidate.kernel.name(), reason };
        let ways = hopper::ways(problem, device).map_err(unfit)?;
        let (quickest, dissuasion) = ways.quickest(request);
        // In 8 bits there is no other kernel.
        let is_open = request.kernel.is_none() && problem.dtype() != DType::E4m3;
        match dissuasion.filter(|_| is_open) {
            Some(reason) => candidate = candidates.instead_of_sm90(&reason),
            None => way = Some(quickest),
        }
    }
    match candidate.algorithm {
        None => standard::plan_unfused(problem, request),
        Some(algorithm) => tile::choose(problem, device, request, &candidates, (candidate, algorithm), way),
    }
}

#[cfg(test)]
mod tests;
