//! Problem → kernel and tile: a pure function, with its reasons written beside each choice.

mod hopper;
mod order;
mod pack;
mod row_classes;
mod tile;
mod transpose;
mod tuned;

use fa_kernels::attention::standard;
use fa_kernels::entries::{Algorithm, Entry, Target, Tile, entries};

use crate::{BackendKind, DType, Device, Error, Problem, Result, operation};

pub(crate) use hopper::{TileOrder, is_shifted, margin, tiles, unmapped, whole_tiles};
pub(crate) use pack::{Packed, PackedCopy, chunks, head_blocks};
pub(crate) use row_classes::{class_layout, of as row_classes};
pub(crate) use tile::plan_entry;
pub(crate) use tile::tile_too_large;

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
    /// Tiled online softmax with SIMD on all cores.
    ForwardCpu,
    /// Unfused attention, the baseline: scores, softmax and values, with the scores in memory.
    Standard,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::ForwardSm90, Self::ForwardSm80, Self::ForwardSimt, Self::ForwardCpu, Self::Standard];

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForwardSm90 => "forward_sm90",
            Self::ForwardSm80 => "forward_sm80",
            Self::ForwardSimt => "forward_simt",
            Self::ForwardCpu => "forward_cpu",
            Self::Standard => "standard",
        }
    }

    /// Whether it drops weights ([`Options::dropout`](crate::Options::dropout)).
    pub const fn drops_weights(self) -> bool {
        matches!(self, Self::ForwardSimt | Self::ForwardCpu)
    }

    /// What its one launch runs, where that has tiles to choose from.
    pub const fn tiled(self) -> Option<Algorithm> {
        match self {
            Self::ForwardSm90 => Some(Algorithm::ForwardSm90),
            Self::ForwardSm80 => Some(Algorithm::ForwardSm80),
            Self::ForwardSimt => Some(Algorithm::ForwardSimt),
            Self::ForwardCpu | Self::Standard => None,
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
    pub fn takes_row_classes(self, problem: &Problem) -> bool {
        self == Self::ForwardSm90
            && !problem.changes_scores()
            && problem.dropout().is_none()
            && row_classes::refusal(problem).is_none()
    }

    /// The kernels of a backend, the fastest first. Not each one takes every problem or device.
    pub const fn of_backend(backend: BackendKind) -> &'static [Self] {
        match backend {
            BackendKind::Cuda | BackendKind::Sim => {
                &[Self::ForwardSm90, Self::ForwardSm80, Self::ForwardSimt, Self::Standard]
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
}

/// The most blocks of a one-dimensional grid (CUDA C++ Programming Guide, technical specifications).
const MAX_GRID: u32 = i32::MAX as u32;

/// Chooses kernel and tile for `problem` on `device`.
///
/// # Errors
/// When the request names a kernel, storage type or tile that is not there or does not fit, or the
/// grid would be too large.
pub(crate) fn plan(problem: &Problem, device: &Device, request: &Request) -> Result<Choice> {
    let available = Kernel::of_backend(device.backend);
    if let Some(kernel) = request.kernel
        && !available.contains(&kernel)
    {
        return Err(Error::KernelNotOnBackend {
            kernel: kernel.name(),
            backend: device.backend.name(),
            available: join(available.iter().map(|kernel| kernel.name())),
        });
    }
    if device.backend != BackendKind::Cpu {
        check_tiles(problem)?;
    }
    let (kernel, mut why) = match request.kernel {
        Some(kernel) => (kernel, format!("{kernel} was asked for")),
        None => default_kernel(problem, device, request),
    };
    if problem.dropout().is_some() && !kernel.drops_weights() {
        let able = available.iter().filter(|kernel| kernel.drops_weights()).map(|kernel| kernel.name());
        let reason = format!("it drops no weights; of this backend's kernels do: {}", join(able));
        return Err(Error::UnfitKernel { kernel: kernel.name(), reason });
    }
    if kernel == Kernel::ForwardSm90
        && let Some(reason) = transpose::unfit(problem)
    {
        return Err(Error::UnfitKernel { kernel: kernel.name(), reason });
    }
    let algorithm = kernel.tiled().map(|algorithm| for_scores(problem, algorithm));
    let is_plain = algorithm == kernel.tiled();
    let algorithm = algorithm.map(|algorithm| row_classes::instead_of(problem, device, request, algorithm));
    if !is_plain {
        let what = if problem.dropout().is_some() { "drop weights" } else { "change scores" };
        why += &format!(", with the entries that {what}");
    }
    match (algorithm, device.backend) {
        (None, BackendKind::Cpu) => crate::cpu::backend::plan(problem, kernel, request),
        (None, _) => standard(problem, request),
        (Some(algorithm), _) => {
            let planned = tile::plan(problem, device, request, kernel, algorithm, why);
            match planned {
                Err(Error::NoSuchTile { .. } | Error::TileTooLarge { .. }) if request.kernel.is_none() => {
                    next_with_tile(problem, device, request, kernel).map_or(planned, Ok)
                }
                planned => planned,
            }
        }
    }
}

/// The entries of a kernel that take the problem's scores: changing them, or dropping weights, has some of
/// its own where it would cost the others.
fn for_scores(problem: &Problem, algorithm: Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::ForwardSimt if problem.dropout().is_some() => Algorithm::ForwardSimtDropout,
        Algorithm::ForwardSm80 if problem.changes_scores() => Algorithm::ForwardSm80ScoreMod,
        // Its softmax takes no other scale than a positive one.
        Algorithm::ForwardSm90 if problem.changes_scores() || problem.softmax_scale() <= 0.0 => {
            Algorithm::ForwardSm90ScoreMod
        }
        _ => algorithm,
    }
}

/// The next kernel of the backend that has the tile asked for, where `first`, the fastest, has not.
fn next_with_tile(problem: &Problem, device: &Device, request: &Request, first: Kernel) -> Option<Choice> {
    let slower = Kernel::of_backend(device.backend).iter().skip_while(|&&kernel| kernel != first).skip(1);
    slower.copied().find_map(|kernel| {
        let why = format!("{kernel}: {first}, which would be faster, has no such tile for this problem");
        let algorithm = for_scores(problem, kernel.tiled()?);
        tile::plan(problem, device, request, kernel, algorithm, why).ok()
    })
}

/// The fastest kernel that takes the problem on the device, and why.
fn default_kernel(problem: &Problem, device: &Device, request: &Request) -> (Kernel, String) {
    if device.backend == BackendKind::Cpu {
        return (Kernel::ForwardCpu, "forward_cpu: fused, on all cores".to_owned());
    }
    let simt =
        |why: String| (Kernel::ForwardSimt, format!("forward_simt: fused, on fp32 FMA, because {why}"));
    // On other devices than Hopper it says so.
    if problem.dtype() == DType::E4m3 {
        return (Kernel::ForwardSm90, "forward_sm90: fused, on Hopper's tensor cores in 8 bits".to_owned());
    }
    if problem.dropout().is_some() {
        return simt("the kernels on tensor cores drop no weights".to_owned());
    }
    if problem.dtype() == DType::F32 {
        return simt("tensor cores take 16-bit types only".to_owned());
    }
    if device.compute_capability < SM80 {
        return simt(format!(
            "{} is sm_{}, and mma.sync needs sm_{SM80}",
            device.name, device.compute_capability
        ));
    }
    let sm80 = "forward_sm80: fused, on tensor cores";
    if !Target::Sm90a.runs_on(device.compute_capability) {
        return (Kernel::ForwardSm80, sm80.to_owned());
    }
    let algorithm = for_scores(problem, Algorithm::ForwardSm90);
    let algorithm = row_classes::instead_of(problem, device, request, algorithm);
    let dissuasion = if algorithm == Algorithm::ForwardSm90RowClasses {
        row_classes::dissuasion(problem, device)
    } else {
        pack::dissuasion(problem, device, algorithm)
    };
    match dissuasion {
        None => (
            Kernel::ForwardSm90,
            "forward_sm90: fused, on Hopper's tensor cores, fed by tensor maps".to_owned(),
        ),
        Some(reason) => (Kernel::ForwardSm80, format!("{sm80}; not forward_sm90: {reason}")),
    }
}

/// The first architecture with `mma.sync.m16n8k16` and `cp.async`.
const SM80: u32 = 80;

fn standard(problem: &Problem, request: &Request) -> Result<Choice> {
    if let Some(block) = request.block_m.or(request.block_n) {
        return Err(Error::NoSuchTile {
            kernel: Kernel::Standard.name(),
            block_m: request.block_m.map_or("any".to_owned(), |block| block.to_string()),
            block_n: request.block_n.map_or("any".to_owned(), |block| block.to_string()),
            head_dim: problem.widest_head_dim(),
            available: format!("its tiles are fixed, so leave out the block size ({block})"),
        });
    }
    let entry = |algorithm| {
        built_for(algorithm, problem.dtype())
            .next()
            .ok_or_else(|| unsupported_dtype(Kernel::Standard.name(), algorithm, problem.dtype()))
    };
    let tiles_m = problem.seqlen_q().div_ceil(standard::BLOCK_M as usize);
    let tiles_n = problem.seqlen_k().div_ceil(standard::BLOCK_N as usize);
    let tiles_d = problem.head_dim_v().div_ceil(standard::BLOCK_N as usize);
    let tiles_softmax = problem.seqlen_q().div_ceil(standard::SOFTMAX_ROWS as usize);
    let scores = problem.lse_len() as u128 * problem.seqlen_k() as u128 * problem.dtype().bytes() as u128;
    let workspace_bytes = u64::try_from(scores).map_err(|_| Error::OutOfMemory {
        what: "the score matrix",
        needed: scores,
        available: u64::MAX.into(),
        device: "a 64-bit address space".to_owned(),
    })?;
    Ok(Choice {
        kernel: Kernel::Standard,
        tile: None,
        launches: vec![
            Launch::new(entry(Algorithm::StandardScores)?, grid(problem, &[tiles_m, tiles_n])?),
            Launch::new(entry(Algorithm::StandardSoftmax)?, grid(problem, &[tiles_softmax])?),
            Launch::new(entry(Algorithm::StandardValues)?, grid(problem, &[tiles_m, tiles_d])?),
        ],
        unaligned: None,
        workspace_bytes,
        reasons: vec![
            "standard was asked for: the unfused baseline, with the scores in device memory".to_owned(),
        ],
    })
}

/// Entries of `algorithm` for `dtype`.
pub(crate) fn built_for(algorithm: Algorithm, dtype: DType) -> impl Iterator<Item = &'static Entry> {
    entries().filter(move |entry| entry.algorithm == algorithm && entry.dtype == dtype.name())
}

/// Refuses what no kernel's grid can hold, before the planner goes through heads or tiles: the largest tile
/// needs the fewest blocks.
fn check_tiles(problem: &Problem) -> Result<()> {
    let tiled = |entry: &&Entry| Kernel::ALL.iter().any(|kernel| kernel.tiled() == Some(entry.algorithm));
    let block_m = entries().filter(tiled).map(|entry| entry.tile.block_m as usize).max();
    grid(problem, &[problem.seqlen_q().div_ceil(block_m.unwrap_or(1))]).map(|_| ())
}

/// Refuses a problem that has more heads than a grid has blocks: each launch has at least one for each head.
pub(crate) fn check_heads(problem: &Problem) -> Result<()> {
    grid(problem, &[]).map(|_| ())
}

/// `tiles` (their product) for each head of each sequence.
fn grid(problem: &Problem, tiles: &[usize]) -> Result<u32> {
    let heads = problem.batch() as u128 * problem.heads() as u128;
    checked_grid(tiles.iter().fold(heads, |blocks, &tiles| blocks.saturating_mul(tiles as u128)))
}

pub(crate) fn checked_grid(blocks: u128) -> Result<u32> {
    u32::try_from(blocks)
        .ok()
        .filter(|&blocks| blocks <= MAX_GRID)
        .ok_or(Error::GridTooLarge { blocks, limit: MAX_GRID })
}

pub(crate) fn unsupported_dtype(kernel: &'static str, algorithm: Algorithm, dtype: DType) -> Error {
    let available = DType::ALL.into_iter().filter(|&dtype| built_for(algorithm, dtype).next().is_some());
    Error::UnsupportedDType { kernel, dtype, available: join(available.map(DType::name)) }
}

pub(crate) fn join(items: impl Iterator<Item = impl Into<String>>) -> String {
    items.map(Into::into).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
