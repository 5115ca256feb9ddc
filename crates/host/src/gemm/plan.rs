//! Matrix multiplication → kernel and tile: a pure function, with its reasons written beside each choice.

mod tile;

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, GemmTile, Target, gemm_entries};
use fa_kernels::tile::mma_block::MAX_LEADING;

use tile::Candidates;

use super::{GemmProblem, Matrices, Order};
use crate::plan::{TUNED, check_kernel, check_target};
use crate::{BackendKind, DType, Device, Error, Plan, Result, operation};

/// A kernel that multiplies matrices; what a person can ask for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmKernel {
    /// Tensor cores through `wgmma`, fed by tensor maps: Hopper in 16-bit types, and the simulator.
    GemmSm90,
    /// Tensor cores through `mma.sync`: NVIDIA GPUs since sm_80 in 16-bit types, and the simulator.
    GemmSm80,
    /// fp32 FMA: any NVIDIA GPU, and the simulator.
    GemmSimt,
    /// SIMD on all cores.
    GemmCpu,
}

impl GemmKernel {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::GemmSm90, Self::GemmSm80, Self::GemmSimt, Self::GemmCpu];

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GemmSm90 => "gemm_sm90",
            Self::GemmSm80 => "gemm_sm80",
            Self::GemmSimt => "gemm_simt",
            Self::GemmCpu => "gemm_cpu",
        }
    }

    /// The kernels of a backend, the fastest first. Not each one takes every storage type or device.
    pub const fn of_backend(backend: BackendKind) -> &'static [Self] {
        match backend {
            BackendKind::Cuda | BackendKind::Sim => &[Self::GemmSm90, Self::GemmSm80, Self::GemmSimt],
            BackendKind::Cpu => &[Self::GemmCpu],
        }
    }

    /// Its entries for `dtype`; none for the CPU's.
    fn entries(self, dtype: DType) -> impl Iterator<Item = &'static GemmEntry> {
        let algorithm = match self {
            Self::GemmSm90 => Some(GemmAlgorithm::GemmSm90),
            Self::GemmSm80 => Some(GemmAlgorithm::GemmSm80),
            Self::GemmSimt => Some(GemmAlgorithm::GemmSimt),
            Self::GemmCpu => None,
        };
        gemm_entries().filter(move |entry| Some(entry.algorithm) == algorithm && entry.dtype == dtype.name())
    }
}

impl std::fmt::Display for GemmKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What the caller leaves open, the planner chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GemmRequest {
    /// The kernel.
    pub kernel: Option<GemmKernel>,
    /// Rows of C of a block.
    pub block_m: Option<usize>,
    /// Columns of C of a block.
    pub block_n: Option<usize>,
    /// Realign operands even where their rows start at multiples of 16 bytes.
    pub realign: bool,
}

impl GemmRequest {
    /// Whether a tile is one that was asked for.
    fn allows(&self, tile: &GemmTile) -> bool {
        let matches = |asked: Option<usize>, block: u32| asked.is_none_or(|asked| asked == block as usize);
        matches(self.block_m, tile.block_m) && matches(self.block_n, tile.block_n)
    }

    /// The tile asked for, in words.
    pub(super) fn tile(&self) -> String {
        let name = |block: Option<usize>| block.map_or("any".to_owned(), |block| block.to_string());
        format!("BLOCK_M = {}, BLOCK_N = {}", name(self.block_m), name(self.block_n))
    }
}

/// How a matrix multiplication will be computed, in one launch or on the CPU.
pub type GemmPlan = Plan<GemmProblem>;

type Launch = operation::Launch<GemmProblem>;
type Choice = operation::Choice<GemmProblem>;

/// Chooses kernel and tile for `problem` on `device`.
///
/// # Errors
/// When the request names a kernel, storage type or tile that is not there or does not fit, or the
/// grid would be too large.
pub(super) fn plan(problem: &GemmProblem, device: &Device, request: &GemmRequest) -> Result<Choice> {
    let available = GemmKernel::of_backend(device.backend);
    check_kernel(request.kernel, available, device.backend, GemmKernel::name)?;
    let (kernel, why) = match request.kernel {
        Some(kernel) => (kernel, format!("{kernel} was asked for")),
        None => default_kernel(problem, device, request),
    };
    #[cfg(feature = "cpu")]
    if kernel == GemmKernel::GemmCpu {
        return super::cpu::plan(problem, why, request);
    }
    let alignment = match kernel {
        GemmKernel::GemmSm80 if request.realign => Err("realigned, as asked for".to_owned()),
        GemmKernel::GemmSm80 => alignment(problem),
        GemmKernel::GemmSm90 => {
            let unfit = |reason| Error::UnfitKernel { kernel: kernel.name(), reason };
            Ok(mappable(problem, request).map_err(unfit)?)
        }
        GemmKernel::GemmSimt | GemmKernel::GemmCpu => Err(String::new()),
    };
    let mut reasons = vec![why];
    if let Err(why) = &alignment
        && !why.is_empty()
    {
        reasons.push(format!("through registers: {why}"));
    }
    let candidates = Candidates { problem, device, kernel, request, table: TUNED };
    let (launch, why) = candidates.choose(alignment.is_ok(), true)?;
    reasons.push(why);
    of_launch(&candidates, launch, alignment.is_ok(), reasons)
}

/// Plans one given entry, which need not be in the list.
///
/// # Errors
/// When it is no kernel by itself, is for another storage type or other operands, or does not run on the
/// device.
pub(super) fn plan_entry(
    problem: &GemmProblem,
    device: &Device,
    entry: &'static GemmEntry,
) -> Result<Choice> {
    let unfit = |reason: String| Error::UnfitEntry { entry: entry.name, reason };
    let kernel = GemmKernel::ALL.into_iter().find(|kernel| kernel.name() == entry.algorithm.family());
    let kernel = kernel.ok_or_else(|| unfit("it is no kernel that multiplies matrices".to_owned()))?;
    if entry.dtype != problem.dtype().name() {
        return Err(unfit(format!("it is for {}, the problem is {}", entry.dtype, problem.dtype())));
    }
    check_target(entry, device, kernel.name())?;
    let request = &GemmRequest::default();
    let candidates = Candidates { problem, device, kernel, request, table: TUNED };
    if !candidates.takes_orders(entry) {
        return Err(unfit("it is for operands in other orders".to_owned()));
    }
    match kernel {
        GemmKernel::GemmSm90 => mappable(problem, request).map_err(unfit)?,
        _ if entry.tile.aligned => alignment(problem).map_err(unfit)?,
        _ => {}
    }
    let (needed, available) = (entry.shared_bytes, device.shared_per_block);
    if needed as usize > available {
        return Err(unfit(format!(
            "its {needed} bytes of shared memory do not fit the {available} of a block"
        )));
    }
    let (launch, why) = candidates.launch(entry, ", as asked for")?;
    of_launch(&candidates, launch, entry.tile.aligned, vec![format!("{} was asked for", entry.name), why])
}

/// The plan that is one launch, and where it needs operands to be aligned, another for those that are not.
fn of_launch(
    candidates: &Candidates<'_>,
    launch: Launch,
    aligned: bool,
    reasons: Vec<String>,
) -> Result<Choice> {
    let kernel = candidates.kernel;
    // Tensor maps do not reach what starts elsewhere; gemm_sm80 does.
    let instead = if kernel == GemmKernel::GemmSm90 { GemmKernel::GemmSm80 } else { kernel };
    let elsewhere = || Candidates { kernel: instead, ..*candidates }.choose(false, false);
    let unaligned = if aligned { vec![elsewhere()?.0] } else { Vec::new() };
    let tile = Some((launch.entry.tile.block_m as usize, launch.entry.tile.block_n as usize));
    Ok(Choice { kernel, tile, launches: vec![launch], unaligned, workspace_bytes: 0, reasons })
}

/// The fastest kernel that takes the problem on the device, and why.
fn default_kernel(problem: &GemmProblem, device: &Device, request: &GemmRequest) -> (GemmKernel, String) {
    const SM80: u32 = 80;
    if device.backend == BackendKind::Cpu {
        return (GemmKernel::GemmCpu, "gemm_cpu: on all cores".to_owned());
    }
    let simt = |why: String| (GemmKernel::GemmSimt, format!("gemm_simt: on fp32 FMA, because {why}"));
    if problem.dtype() == DType::F32 {
        return simt("tensor cores take 16-bit types only".to_owned());
    }
    if device.compute_capability < SM80 {
        return simt(format!(
            "{} is sm_{}, and mma.sync needs sm_{SM80}",
            device.name, device.compute_capability
        ));
    }
    if !Target::Sm90a.runs_on(device.compute_capability) {
        return (GemmKernel::GemmSm80, "gemm_sm80: on tensor cores".to_owned());
    }
    let has_tile = || {
        let tiles = GemmKernel::GemmSm90.entries(problem.dtype()).any(|entry| request.allows(&entry.tile));
        if tiles { Ok(()) } else { Err(format!("it has no tile of {}", request.tile())) }
    };
    match mappable(problem, request).and_then(|()| has_tile()) {
        Ok(()) => {
            (GemmKernel::GemmSm90, "gemm_sm90: on Hopper's tensor cores, fed by tensor maps".to_owned())
        }
        Err(why) => {
            (GemmKernel::GemmSm80, format!("gemm_sm80: on tensor cores, not gemm_sm90 because {why}"))
        }
    }
}

/// Whether tensor maps describe the operands, or why not; their addresses are known only at the launch.
fn mappable(problem: &GemmProblem, request: &GemmRequest) -> Result<(), String> {
    if request.realign {
        return Err("realignment was asked for".to_owned());
    }
    let Matrices { a, b, .. } = problem.matrices();
    [("A", a), ("B", b)].into_iter().try_for_each(|(name, layout)| in_chunks(name, layout.leading_dimension))
}

/// Whether a matrix's rows, or columns, start at multiples of 16 bytes where its first one does.
fn in_chunks(name: &str, leading: usize) -> Result<(), String> {
    if leading.is_multiple_of(8) {
        return Ok(());
    }
    Err(format!("the leading dimension of {name} is {leading}, no multiple of 8"))
}

/// Whether asynchronous copies of 16 bytes reach the operands, or why not; their addresses are known only
/// at the launch.
fn alignment(problem: &GemmProblem) -> Result<(), String> {
    let Matrices { a, b, .. } = problem.matrices();
    for (name, layout, along_k) in
        [("A", a, a.order == Order::RowMajor), ("B", b, b.order == Order::ColumnMajor)]
    {
        let leading = layout.leading_dimension;
        in_chunks(name, leading)?;
        if leading > MAX_LEADING as usize {
            return Err(format!("the leading dimension of {name} is {leading}, more than {MAX_LEADING}"));
        }
        let run = if layout.order == Order::RowMajor { layout.columns } else { layout.rows };
        if !along_k && !run.is_multiple_of(8) {
            return Err(format!("the length of {name}'s runs is {run}, no multiple of 8"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
