//! What could run a problem: the kernel to try first, the entries that are built of it, and their grids.

use fa_kernels::entries::{Algorithm, Entry, Target, Tile, entries};

use super::few::is_sooner;
use super::geometry::Columns;
use super::{Kernel, Request};
use crate::{BackendKind, DType, Device, Error, Problem, Result};

/// The most blocks of a one-dimensional grid (CUDA C++ Programming Guide, technical specifications).
pub(super) const MAX_GRID: u32 = i32::MAX as u32;

/// The first architecture with `mma.sync.m16n8k16` and `cp.async`.
const SM80: u32 = 80;

/// How `forward_sm80` is called where it is chosen.
const ON_SM80: &str = "forward_sm80: fused, on tensor cores";

/// A kernel to be tried, and why.
pub(super) struct Candidate {
    pub(super) kernel: Kernel,
    /// Its entries that take the problem's scores; none of a kernel that has no tiles to choose from.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) why: String,
}

/// The kernels of a backend as they would take a problem.
pub(super) struct Candidates {
    /// The fastest first.
    kernels: Vec<(Kernel, Option<Algorithm>)>,
    first: (Kernel, String),
    /// What entries do that take scores or weights as others do not.
    special: &'static str,
}

impl Candidates {
    /// The first is the kernel asked for, or the fastest that takes the problem on the device, where nothing
    /// but its time speaks against it.
    ///
    /// # Errors
    /// When the backend lacks the kernel, the kernel cannot drop the problem's weights, or no grid could hold
    /// the problem.
    pub(super) fn of(problem: &Problem, device: &Device, request: &Request) -> Result<Self> {
        let available = Kernel::of_backend(device.backend);
        check_kernel(request.kernel, available, device.backend, Kernel::name)?;
        if device.backend != BackendKind::Cpu {
            check_tiles(problem)?;
        }
        let first = match request.kernel {
            Some(kernel) => (kernel, format!("{kernel} was asked for")),
            None => fastest(problem, device, request),
        };
        let drops = problem.dropout().is_some();
        if drops && !first.0.drops_weights() {
            let able = available.iter().filter(|kernel| kernel.drops_weights()).map(|kernel| kernel.name());
            let reason = format!("it drops no weights; of this backend's kernels do: {}", join(able));
            return Err(Error::UnfitKernel { kernel: first.0.name(), reason });
        }
        let takes = |kernel: &Kernel| (*kernel, kernel.tiled().map(|tiled| for_scores(problem, tiled)));
        let kernels = available.iter().map(takes).collect();
        Ok(Self { kernels, first, special: if drops { "drop weights" } else { "change scores" } })
    }

    pub(super) fn first(&self) -> Candidate {
        let (kernel, why) = &self.first;
        self.candidate(*kernel, why.clone())
    }

    /// `forward_sm80` in place of `forward_sm90`, for a reason.
    pub(super) fn instead_of_sm90(&self, reason: &str) -> Candidate {
        self.candidate(Kernel::ForwardSm80, format!("{ON_SM80}; not forward_sm90: {reason}"))
    }

    /// The kernels that come in tiles and are slower than `first`, which lacks the tile asked for.
    pub(super) fn slower(&self, first: Kernel) -> impl Iterator<Item = Candidate> {
        let slower = self.kernels.iter().skip_while(move |(kernel, _)| *kernel != first).skip(1);
        slower.filter(|(_, algorithm)| algorithm.is_some()).map(move |&(kernel, algorithm)| {
            let why = format!("{kernel}: {first}, which would be faster, has no such tile for this problem");
            Candidate { kernel, algorithm, why }
        })
    }

    fn candidate(&self, kernel: Kernel, mut why: String) -> Candidate {
        let algorithm = self.kernels.iter().find(|(other, _)| *other == kernel).and_then(|(_, it)| *it);
        if algorithm != kernel.tiled() {
            why += &format!(", with the entries that {}", self.special);
        }
        Candidate { kernel, algorithm, why }
    }
}

/// The fastest kernel that takes the problem on the device.
fn fastest(problem: &Problem, device: &Device, request: &Request) -> (Kernel, String) {
    let candidate = |kernel, why: &str| (kernel, why.to_owned());
    if device.backend == BackendKind::Cpu {
        return candidate(Kernel::ForwardCpu, "forward_cpu: fused, on all cores");
    }
    let simt = |why: &str| {
        candidate(Kernel::ForwardSimt, &format!("forward_simt: fused, on fp32 FMA, because {why}"))
    };
    // On other devices than Hopper it says so.
    if problem.dtype() == DType::E4m3 {
        return candidate(Kernel::ForwardSm90, "forward_sm90: fused, on Hopper's tensor cores in 8 bits");
    }
    if problem.dtype() == DType::F32 {
        return simt("tensor cores take 16-bit types only");
    }
    if device.compute_capability < SM80 {
        let (name, found) = (&device.name, device.compute_capability);
        return simt(&format!("{name} is sm_{found}, and mma.sync needs sm_{SM80}"));
    }
    let any_tile = request.block_m.or(request.block_n).is_none();
    if let Some(why) = is_sooner(problem, device).filter(|_| any_tile && !problem.has_lse_strides()) {
        return (Kernel::Decode, why);
    }
    if !Target::Sm90a.runs_on(device.compute_capability) {
        return candidate(Kernel::ForwardSm80, ON_SM80);
    }
    candidate(Kernel::ForwardSm90, "forward_sm90: fused, on Hopper's tensor cores, fed by tensor maps")
}

/// The entries of a kernel that take the problem's scores: changing them, or dropping weights, has some of
/// its own where it would cost the others.
pub(crate) fn for_scores(problem: &Problem, algorithm: Algorithm) -> Algorithm {
    use Algorithm::{
        ForwardSm80, ForwardSm80Modified, ForwardSm80ScoreMod, ForwardSm90, ForwardSm90Cached,
        ForwardSm90CachedScoreMod, ForwardSm90Modified, ForwardSm90Residues, ForwardSm90ScoreMod,
    };
    if problem.functions().is_some() {
        return match algorithm {
            ForwardSm80 | ForwardSm80Modified => ForwardSm80Modified,
            _ => ForwardSm90Modified,
        };
    }
    let drops = problem.dropout().is_some();
    // The softmax of Hopper's takes no other scale than a positive one.
    let changes_scores = problem.changes_scores() || problem.softmax_scale() <= 0.0;
    match algorithm {
        Algorithm::ForwardSimt if drops => Algorithm::ForwardSimtDropout,
        ForwardSm80 | ForwardSm80ScoreMod if drops => Algorithm::ForwardSm80Dropout,
        ForwardSm90 | ForwardSm90ScoreMod | ForwardSm90Residues if drops => Algorithm::ForwardSm90Dropout,
        ForwardSm80 if problem.changes_scores() => ForwardSm80ScoreMod,
        ForwardSm90 if changes_scores => ForwardSm90ScoreMod,
        ForwardSm90Cached if changes_scores => ForwardSm90CachedScoreMod,
        _ => algorithm,
    }
}

/// Columns of the widest tile of `algorithm`; 0 where there is none.
pub(super) fn widest(algorithm: Algorithm, dtype: DType) -> usize {
    built_for(algorithm, dtype).map(|entry| entry.tile.head_dim as usize).max().unwrap_or(0)
}

/// The entries of `algorithm` for the problem's type with the smallest HEAD_DIM that holds so many columns,
/// of all tensors alike.
pub(crate) fn that_hold(algorithm: Algorithm, dtype: DType, needed: usize) -> Vec<&'static Entry> {
    let wide_enough = |entry: &&Entry| !has_two_widths(&entry.tile) && entry.tile.head_dim as usize >= needed;
    let built = || built_for(algorithm, dtype).filter(wide_enough);
    let columns = built().map(|entry| entry.tile.head_dim).min();
    built().filter(|entry| Some(entry.tile.head_dim) == columns).collect()
}

/// Those, and entries that have a HEAD_DIM_V and multiply no more columns.
pub(super) fn that_fit(algorithm: Algorithm, dtype: DType, needed: Columns) -> Vec<&'static Entry> {
    let mut built = that_hold(algorithm, dtype, needed.widest());
    let most = built.first().map_or(u32::MAX, |entry| 2 * entry.tile.head_dim);
    let is_narrower = |tile: &Tile| has_two_widths(tile) && tile.head_dim + tile.head_dim_v <= most;
    let fits = |entry: &&Entry| is_narrower(&entry.tile) && needed.fit(&entry.tile);
    built.extend(built_for(algorithm, dtype).filter(fits));
    built
}

/// Whether V and O have another width than Q and K.
pub(super) const fn has_two_widths(tile: &Tile) -> bool {
    tile.head_dim_v != tile.head_dim
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
pub(super) fn grid(problem: &Problem, tiles: &[usize]) -> Result<u32> {
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

/// Refuses a kernel that was asked for and is none of the `available` ones of the backend.
pub(crate) fn check_kernel<K: Copy + PartialEq>(
    asked: Option<K>,
    available: &[K],
    backend: BackendKind,
    name: fn(K) -> &'static str,
) -> Result<()> {
    match asked.filter(|kernel| !available.contains(kernel)) {
        None => Ok(()),
        Some(kernel) => Err(Error::KernelNotOnBackend {
            kernel: name(kernel),
            backend: backend.name(),
            available: join(available.iter().map(|&kernel| name(kernel))),
        }),
    }
}

pub(crate) fn join(items: impl Iterator<Item = impl Into<String>>) -> String {
    items.map(Into::into).collect::<Vec<_>>().join(", ")
}
