//! Every built kernel of matrix multiplication, over shapes that fill no tile, both orders of each matrix,
//! and rows that start on 16-byte boundaries or on none.

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, gemm_entries};
use flash_attention::gemm::{GemmKernel, GemmPlan, GemmProblem, GemmRequest, Matrices, Order};
use flash_attention::{Backend, BackendKind, DType, Device, Element};

use super::args::{Args, Sizes};
use super::entry::{Effort, EntryRecord, Outcome, Subject, outcomes, record};
use super::repeat::repeated;
use super::targets::refusal;
use crate::check::Verdict;
use crate::product::{Product, describe};
use crate::session::Session;

/// Rows of C that are compared with the reference.
const CHECKED_ROWS: usize = 144;

/// M, N and K of few tiles, yet more than one in either direction, and steps that are parts.
const SMALL_SHAPES: [[usize; 3]; 5] =
    [[1, 17, 64], [17, 129, 1], [129, 64, 200], [200, 1, 129], [64, 200, 17]];

/// What full sizes have beside these.
const LARGER_SHAPES: [[usize; 3]; 3] = [[1000, 1024, 2048], [4104, 1032, 200], [333, 4099, 1031]];

/// The shapes of a size.
pub(super) fn shapes(sizes: Sizes) -> impl Iterator<Item = [usize; 3]> {
    let larger = if sizes == Sizes::Small { &[][..] } else { &LARGER_SHAPES };
    SMALL_SHAPES.iter().chain(larger).copied()
}

/// An entry, or the CPU's kernel for a storage type, with the request that makes the planner choose it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) dtype: DType,
    request: GemmRequest,
    entry: Option<&'static GemmEntry>,
}

/// Everything that a backend runs, or what of it belongs to `kernel`.
pub(super) fn targets(backend: BackendKind, kernel: Option<GemmKernel>) -> Vec<Target> {
    let targets = match backend {
        BackendKind::Cuda | BackendKind::Sim => gemm_entries().filter_map(of_entry).collect(),
        BackendKind::Cpu => DType::RESULTS.map(of_cpu).to_vec(),
    };
    targets
        .into_iter()
        .filter(|target: &Target| kernel.is_none_or(|kernel| target.request.kernel == Some(kernel)))
        .collect()
}

/// The first target of each kernel, storage size, and kind of operands.
pub(super) fn of_each_family(targets: Vec<Target>) -> Vec<Target> {
    let family = |target: &Target| {
        let entry = target.entry.map(|entry| (entry.algorithm, entry.tile.along_k, entry.tile.aligned));
        (entry, target.dtype.bytes())
    };
    let mut chosen: Vec<Target> = Vec::new();
    for target in targets {
        if chosen.iter().all(|other| family(other) != family(&target)) {
            chosen.push(target);
        }
    }
    chosen
}

fn of_entry(entry: &'static GemmEntry) -> Option<Target> {
    let kernel = match entry.algorithm {
        GemmAlgorithm::GemmSimt => GemmKernel::GemmSimt,
        GemmAlgorithm::GemmSm80 => GemmKernel::GemmSm80,
        GemmAlgorithm::GemmSm90 => GemmKernel::GemmSm90,
        // It multiplies nothing that is anybody's.
        GemmAlgorithm::MmaPeak | GemmAlgorithm::ReadPeak => return None,
    };
    let request = GemmRequest {
        kernel: Some(kernel),
        block_m: Some(entry.tile.block_m as usize),
        block_n: Some(entry.tile.block_n as usize),
        realign: !entry.tile.aligned,
    };
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == entry.dtype)?;
    Some(Target { name: entry.name.to_owned(), dtype, request, entry: Some(entry) })
}

fn of_cpu(dtype: DType) -> Target {
    let kernel = GemmKernel::GemmCpu;
    let request = GemmRequest { kernel: Some(kernel), ..GemmRequest::default() };
    Target { name: format!("{kernel}_{dtype}"), dtype, request, entry: None }
}

impl Target {
    /// Why `device` cannot run it, if it cannot.
    pub(super) fn refused_by(&self, device: &Device) -> Option<String> {
        self.entry.and_then(|entry| refusal(entry, device))
    }

    /// The `index`-th problem of this target, in orders and with leading dimensions that lead to it.
    fn problem(&self, index: usize, shape: [usize; 3]) -> flash_attention::Result<GemmProblem> {
        let c_order = Order::ALL[index % 2];
        let any = ((index / 2).is_multiple_of(2), (index / 4).is_multiple_of(2));
        let tile = self.entry.map(|entry| entry.tile);
        let along_k = tile.and_then(|tile| tile.along_k).unwrap_or(any);
        // For a column-major C the planner computes Cᵀ = Bᵀ·Aᵀ.
        let (a_along_k, b_along_k) =
            if c_order == Order::RowMajor { along_k } else { (along_k.1, along_k.0) };
        let aligned = tile.is_some_and(|tile| tile.aligned);
        let round = |extent: usize, needed: bool| if needed { extent.next_multiple_of(8) } else { extent };
        let [m, n, k] = shape;
        let (m, n) = (round(m, aligned && !a_along_k), round(n, aligned && !b_along_k));
        let order = |row_major: bool| if row_major { Order::RowMajor } else { Order::ColumnMajor };
        // Any C will do; a part of its rows start at multiples of 16 bytes.
        let c_aligned = aligned && index % 3 != 1;
        let layout = |order: Order, rows, columns, aligned: bool| {
            let layout = order.matrix(rows, columns);
            let gap = if aligned { 8 * (index / 2 % 2) } else { [0, 1, 3][index % 3] };
            layout.with_leading_dimension(round(layout.leading_dimension, aligned) + gap)
        };
        let matrices = Matrices {
            a: layout(order(a_along_k), m, k, aligned),
            b: layout(order(!b_along_k), k, n, aligned),
            c: layout(c_order, m, n, c_aligned),
        };
        GemmProblem::new(matrices, self.dtype)
    }
}

/// Verifies one target.
///
/// # Errors
/// What speaks against the machine.
pub(super) fn verify<T: Element>(
    session: &Session,
    args: &Args,
    target: &Target,
) -> anyhow::Result<EntryRecord> {
    let seed = args.report.seed;
    let shapes = shapes(args.sizes(session.kind())).enumerate();
    // From another order of C for each target, so that all of them meet all shapes in both.
    let first = target.name.len() % 2;
    let trials: Vec<_> = shapes
        .map(|(index, shape)| {
            let problem = target.problem(first + index, shape)?;
            Ok(Trial {
                product: Product::<T>::new(&problem, seed.wrapping_add(index as u64), CHECKED_ROWS),
                target,
            })
        })
        .collect::<flash_attention::Result<_>>()?;
    let outcomes: Vec<Outcome> = outcomes(session, args, &trials)?;
    Ok(record(&target.name, target.dtype, None, Effort::new(session, args), outcomes.iter()))
}

/// A problem for a target.
struct Trial<'a, T> {
    product: Product<T>,
    target: &'a Target,
}

impl<T: Element> Subject for Trial<'_, T> {
    fn name(&self) -> String {
        describe(&self.product.problem)
    }

    fn target(&self) -> String {
        self.target.name.clone()
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let plan = backend.plan(&self.product.problem, &self.target.request)?;
        if let Some(entry) = self.target.entry.filter(|entry| !launches(&plan, entry)) {
            return Ok(Err(format!("the planner does not launch {}", entry.name)));
        }
        repeated(self.product.judge(backend, &plan)?, repeats)
    }
}

fn launches(plan: &GemmPlan, entry: &GemmEntry) -> bool {
    plan.launches().iter().any(|launch| std::ptr::eq(launch.entry, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash_attention::Plan;

    #[test]
    fn every_problem_leads_to_its_target() {
        let backend = Backend::simulator(0);
        let targets = targets(BackendKind::Sim, None);
        let is_peak = |entry: &&'static GemmEntry| of_entry(entry).is_none();
        let peaks = gemm_entries().filter(is_peak).count();
        assert_eq!(targets.len() + peaks, gemm_entries().count());
        for target in targets {
            for (index, shape) in shapes(Sizes::Full).enumerate() {
                let problem = target.problem(index, shape).unwrap();
                let plan = Plan::new(&problem, backend.device(), &target.request).unwrap();
                assert!(launches(&plan, target.entry.unwrap()), "{} at {}", target.name, describe(&problem));
            }
        }
    }
}
