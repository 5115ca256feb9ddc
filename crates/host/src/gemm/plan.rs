//! Matrix multiplication → kernel and tile: a pure function, with its reasons written beside each choice.

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, GemmTile, Target, gemm_entries};
use fa_kernels::tile::mma_block::MAX_LEADING;

use super::{GemmAddresses, GemmProblem, Matrices, Order};
use crate::plan::{checked_grid, join};
use crate::{BackendKind, DType, Device, Error, Result};

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

/// One launch: a one-dimensional grid of an entry's blocks.
#[derive(Clone, Copy, Debug)]
pub struct GemmStep {
    /// The entry, with its threads and shared memory.
    pub entry: &'static GemmEntry,
    /// Number of blocks.
    pub grid: u32,
}

/// How a matrix multiplication will be computed.
#[derive(Clone, Debug)]
pub struct GemmPlan {
    /// The kernel chosen.
    pub kernel: GemmKernel,
    /// The launch; none on the CPU.
    pub step: Option<GemmStep>,
    /// The launch in its place where A or B turns out to start at no multiple of 16 bytes, if that one needs
    /// it.
    pub unaligned: Option<GemmStep>,
    /// Why, one sentence per choice.
    pub reasons: Vec<String>,
}

impl GemmPlan {
    /// (BLOCK_M, BLOCK_N, BLOCK_K) of the launch.
    pub fn tile(&self) -> Option<(u32, u32, u32)> {
        self.step.map(|GemmStep { entry, .. }| (entry.tile.block_m, entry.tile.block_n, entry.tile.block_k))
    }

    /// The launch for matrices at these addresses; none on the CPU.
    pub fn step_at(&self, addresses: &GemmAddresses) -> Option<GemmStep> {
        let aligned = (addresses.a | addresses.b).is_multiple_of(16);
        if aligned { self.step } else { self.unaligned.or(self.step) }
    }
}

/// Chooses kernel and tile for `problem` on `device`.
///
/// # Errors
/// When the request names a kernel, storage type or tile that is not there or does not fit, or the
/// grid would be too large.
pub fn gemm_plan(problem: &GemmProblem, device: &Device, request: &GemmRequest) -> Result<GemmPlan> {
    let available = GemmKernel::of_backend(device.backend);
    if let Some(kernel) = request.kernel
        && !available.contains(&kernel)
    {
        return Err(Error::KernelNotOnBackend {
            kernel: kernel.name(),
            backend: device.backend.name(),
            available: join(available.iter().map(|kernel| kernel.name())),
        });
    }
    let (kernel, why) = match request.kernel {
        Some(kernel) => (kernel, format!("{kernel} was asked for")),
        None => default_kernel(problem, device, request),
    };
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
    let candidates = Candidates { problem, device, kernel, request };
    let (step, why) = candidates.choose(alignment.is_ok(), true)?;
    reasons.push(why);
    let unaligned = match alignment {
        // Tensor maps do not reach what starts elsewhere; gemm_sm80 does.
        Ok(()) if kernel == GemmKernel::GemmSm90 => {
            let candidates = Candidates { kernel: GemmKernel::GemmSm80, ..candidates };
            Some(candidates.choose(false, false)?.0)
        }
        Ok(()) => Some(candidates.choose(false, false)?.0),
        Err(_) => None,
    };
    Ok(GemmPlan { kernel, step: Some(step), unaligned, reasons })
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

/// What a tile is chosen for.
#[derive(Clone, Copy)]
struct Candidates<'a> {
    problem: &'a GemmProblem,
    device: &'a Device,
    kernel: GemmKernel,
    request: &'a GemmRequest,
}

impl Candidates<'_> {
    /// The tile with the least modelled time, and why; with `exact`, only tiles that were asked for.
    fn choose(&self, aligned: bool, exact: bool) -> Result<(GemmStep, String)> {
        let (matrices, _) = self.problem.row_major();
        let orders = (matrices.a.order == Order::RowMajor, matrices.b.order == Order::ColumnMajor);
        let built: Vec<_> = self
            .kernel
            .entries(self.problem.dtype())
            .filter(|entry| entry.tile.along_k.is_none_or(|along_k| along_k == orders))
            .filter(|entry| entry.tile.aligned == aligned)
            .collect();
        let Some(first) = built.first() else {
            let has = |dtype: &DType| self.kernel.entries(*dtype).next().is_some();
            return Err(Error::UnsupportedDType {
                kernel: self.kernel.name(),
                dtype: self.problem.dtype(),
                available: join(DType::ALL.into_iter().filter(has).map(DType::name)),
            });
        };
        if !first.target.runs_on(self.device.compute_capability) {
            return Err(Error::KernelNeedsDevice {
                kernel: self.kernel.name(),
                needed: first.target,
                device: self.device.name.clone(),
                found: self.device.compute_capability,
            });
        }
        let GemmRequest { block_m, block_n, .. } = *self.request;
        let fitting = built.iter().copied().filter(|entry| {
            (self.request.allows(&entry.tile) || !exact)
                && entry.shared_bytes as usize <= self.device.shared_per_block
        });
        let rounds =
            |entry: &GemmEntry| self.tiles(entry).div_ceil(self.device.multiprocessors.max(1).into());
        let best = fitting.min_by(|a, b| time(a, rounds(a)).total_cmp(&time(b, rounds(b))));
        let Some(entry) = best else {
            return Err(Error::NoSuchGemmTile {
                kernel: self.kernel.name(),
                tile: self.request.tile(),
                available: join(
                    built.iter().map(|entry| format!("{}x{}", entry.tile.block_m, entry.tile.block_n)),
                ),
                device: self.device.name.clone(),
                shared: self.device.shared_per_block,
            });
        };
        let tiles = self.tiles(entry);
        let because = match (block_m.is_some() || block_n.is_some(), built.len()) {
            (true, _) => ", as asked for",
            (false, 1) => "",
            (false, _) => ", the least time with their loads of the tiles built",
        };
        let why = format!(
            "BLOCK_M {} x BLOCK_N {} x BLOCK_K {}: {tiles} tiles give each of {} multiprocessors at most {}{because}",
            entry.tile.block_m,
            entry.tile.block_n,
            entry.tile.block_k,
            self.device.multiprocessors,
            rounds(entry),
        );
        Ok((GemmStep { entry, grid: self.grid(entry, checked_grid(tiles)?) }, why))
    }

    /// Blocks for `tiles` tiles: on tensor cores no more than run at a time, because a block that goes on to
    /// its next tile has begun to load it while it stores the last one.
    fn grid(&self, entry: &GemmEntry, tiles: u32) -> u32 {
        match self.kernel {
            GemmKernel::GemmSm90 | GemmKernel::GemmSm80 => {
                // A multiprocessor keeps 1 KiB of its shared memory for each block.
                let fitting = self.device.shared_per_multiprocessor as u32 / (entry.shared_bytes + 1024);
                tiles.min(entry.min_blocks.min(fitting).max(1) * self.device.multiprocessors.max(1))
            }
            GemmKernel::GemmSimt | GemmKernel::GemmCpu => tiles,
        }
    }

    /// Tiles of C.
    fn tiles(&self, entry: &GemmEntry) -> u128 {
        let (matrices, _) = self.problem.row_major();
        matrices.c.rows.div_ceil(entry.tile.block_m as usize) as u128
            * matrices.c.columns.div_ceil(entry.tile.block_n as usize) as u128
    }
}

/// Elements of a row of A or a column of B whose way to the tensor cores takes as long as the products of one
/// element of C with each of them: what a tile saves by being larger.
const LOAD_COST: f64 = 32.0;

/// Modelled time of the busiest multiprocessor, per element of K: the products of its `rounds` tiles, and
/// their loads, which grow with the sides alone.
fn time(entry: &GemmEntry, rounds: u128) -> f64 {
    let (m, n) = (f64::from(entry.tile.block_m), f64::from(entry.tile.block_n));
    rounds as f64 * (m * n + LOAD_COST * (m + n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sim;
    use crate::gemm::MatrixLayout;

    fn problem(m: usize, n: usize, k: usize, dtype: DType) -> GemmProblem {
        let row = MatrixLayout::row_major;
        GemmProblem::new(Matrices { a: row(m, k), b: row(k, n), c: row(m, n) }, dtype).unwrap()
    }

    fn device(shared_per_block: usize) -> Device {
        // Hopper alone has so much.
        let compute_capability = if shared_per_block == 227 << 10 { 90 } else { 80 };
        let hopper = Sim::new(0).device().clone();
        Device { backend: BackendKind::Cuda, shared_per_block, compute_capability, ..hopper }
    }

    fn plan(problem: &GemmProblem, request: GemmRequest) -> Result<GemmPlan> {
        gemm_plan(problem, &device(227 << 10), &request)
    }

    #[test]
    fn large_problems_get_large_tiles_and_small_ones_more_blocks() {
        let tile = |kernel, size| {
            let request = GemmRequest { kernel: Some(kernel), ..GemmRequest::default() };
            plan(&problem(size, size, size, DType::F16), request).unwrap().tile().unwrap()
        };
        assert_eq!([256, 4096].map(|size| tile(GemmKernel::GemmSm80, size)), [(64, 64, 64), (128, 256, 64)]);
        assert_eq!([256, 1024].map(|size| tile(GemmKernel::GemmSm90, size)), [(128, 128, 64); 2]);
        assert_eq!([2048, 4096].map(|size| tile(GemmKernel::GemmSm90, size)), [(128, 256, 64); 2]);
    }

    #[test]
    fn hopper_takes_what_tensor_maps_describe() {
        let chosen = |problem: &GemmProblem, compute_capability, request| {
            let device = Device { compute_capability, ..device(227 << 10) };
            let plan = gemm_plan(problem, &device, &request).unwrap();
            (plan.kernel, plan.reasons[0].clone())
        };
        let any = GemmRequest::default();
        let (even, odd) = (problem(100, 72, 96, DType::F16), problem(100, 64, 99, DType::F16));
        for (problem, capability, request, expected) in [
            (
                &even,
                90,
                GemmRequest { block_n: Some(64), ..any },
                "gemm_sm80: on tensor cores, not gemm_sm90 because it has no tile of BLOCK_M = any, BLOCK_N = 64",
            ),
            (
                &odd,
                90,
                any,
                "gemm_sm80: on tensor cores, not gemm_sm90 because the leading dimension of A is 99, no multiple of 8",
            ),
            (&odd, 80, any, "gemm_sm80: on tensor cores"),
            (&odd, 100, any, "gemm_sm80: on tensor cores"),
        ] {
            assert_eq!(chosen(problem, capability, request), (GemmKernel::GemmSm80, expected.to_owned()));
        }
        assert_eq!(chosen(&even, 90, any).0, GemmKernel::GemmSm90);
        let request = GemmRequest { kernel: Some(GemmKernel::GemmSm90), ..any };
        let message = plan(&odd, request).unwrap_err().to_string();
        assert_eq!(
            message,
            "kernel gemm_sm90 cannot be run: the leading dimension of A is 99, no multiple of 8"
        );
        let blackwell = Device { compute_capability: 100, ..device(227 << 10) };
        let message = gemm_plan(&even, &blackwell, &request).unwrap_err().to_string();
        assert_eq!(message, "kernel gemm_sm90 needs sm_90a; simulated GPU is sm_100");
    }

    #[test]
    fn a_tile_fits_every_device() {
        for shared in [64 << 10, 99 << 10, 163 << 10, 227 << 10] {
            for dtype in DType::ALL {
                for k in [4096, 4097] {
                    let problem = problem(4096, 4096, k, dtype);
                    let plan = gemm_plan(&problem, &device(shared), &GemmRequest::default()).unwrap();
                    let entries = [plan.step, plan.unaligned].into_iter().flatten();
                    assert!(entries.clone().count() > 0);
                    assert!(entries.into_iter().all(|step| step.entry.shared_bytes as usize <= shared));
                }
            }
        }
    }

    #[test]
    fn rows_that_no_copy_of_16_bytes_reaches_are_realigned() {
        let plan = plan(&problem(100, 64, 99, DType::Bf16), GemmRequest::default()).unwrap();
        assert!(!plan.step.unwrap().entry.tile.aligned);
        assert_eq!(plan.reasons[1], "through registers: the leading dimension of A is 99, no multiple of 8");
        let plan = self::plan(&problem(100, 64, 96, DType::Bf16), GemmRequest::default()).unwrap();
        let (at, odd) = (GemmAddresses { a: 32, b: 64, c: 2 }, GemmAddresses { a: 32, b: 66, c: 0 });
        assert!(plan.step_at(&at).unwrap().entry.tile.aligned);
        assert!(!plan.step_at(&odd).unwrap().entry.tile.aligned);
    }

    #[test]
    fn what_is_not_built_is_refused() {
        let problem = problem(64, 64, 64, DType::F32);
        let request = GemmRequest { kernel: Some(GemmKernel::GemmSm80), ..GemmRequest::default() };
        let message = plan(&problem, request).unwrap_err().to_string();
        assert_eq!(message, "kernel gemm_sm80 has no f32 entry; it has f16, bf16");
        let request = GemmRequest { block_m: Some(48), ..GemmRequest::default() };
        let message = plan(&problem, request).unwrap_err().to_string();
        assert!(message.starts_with("BLOCK_M = 48, BLOCK_N = any is not built for gemm_simt"), "{message}");
        let request = GemmRequest { kernel: Some(GemmKernel::GemmCpu), ..GemmRequest::default() };
        assert!(plan(&problem, request).is_err());
    }
}
