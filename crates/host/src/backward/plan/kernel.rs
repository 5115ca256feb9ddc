//! Which kernel takes a problem, and why the others do not.

use fa_kernels::entries::{Algorithm, Target, entries};

use crate::backward::packed::{self, Copies};
use crate::backward::stored::{self, Tiles};
use crate::backward::{BackwardKernel, BackwardProblem, BackwardRequest};
use crate::plan::{built_for, that_hold};
use crate::{Device, Error, Problem, Result};

/// A kernel, why it was chosen, and the copies that it reads.
pub(super) struct Chosen {
    pub(super) kernel: BackwardKernel,
    pub(super) why: String,
    pub(super) copies: Copies,
}

impl Chosen {
    /// Of a kernel that reads tensors where they are.
    pub(super) fn plain(kernel: BackwardKernel, why: String) -> Self {
        Self { kernel, why, copies: Copies::default() }
    }
}

/// The kernel asked for, or the fastest that takes the problem.
pub(super) fn choose_kernel(
    problem: &BackwardProblem,
    device: &Device,
    request: &BackwardRequest,
) -> Result<Chosen> {
    let chosen = |kernel, why| match kernel {
        BackwardKernel::BackwardSm90 => Chosen { kernel, why, copies: packed::of(problem) },
        _ => Chosen::plain(kernel, why),
    };
    if let Some(kernel) = request.kernel {
        return match refusal(problem, device, kernel, request.workspace_limit()) {
            Some(reason) => Err(Error::UnfitKernel { kernel: kernel.name(), reason }),
            None => Ok(chosen(kernel, format!("{kernel} was asked for"))),
        };
    }
    let mut others = String::new();
    for &kernel in BackwardKernel::of_backend(device.backend) {
        let Some(reason) = refusal(problem, device, kernel, request.workspace_limit()) else {
            return Ok(chosen(kernel, format!("{kernel}: {}{others}", kernel.units())));
        };
        others.push_str(&format!("; not {kernel}: {reason}"));
    }
    let reason = others.trim_start_matches("; ").to_owned();
    Err(Error::UnfitKernel { kernel: BackwardKernel::BackwardSimt.name(), reason })
}

/// The kernel whose launch the entry asked for is, if it takes the problem; none of those that all have.
pub(super) fn kernel_of_entry(
    problem: &BackwardProblem,
    device: &Device,
    request: &BackwardRequest,
) -> Option<BackwardKernel> {
    let asked = entries().find(|entry| Some(entry.name) == request.entry.as_deref())?;
    if is_first(asked.algorithm) {
        return None;
    }
    let mut kernels = BackwardKernel::of_backend(device.backend).iter().copied();
    let kernel = kernels.find(|kernel| kernel.name() == asked.algorithm.family())?;
    refusal(problem, device, kernel, request.workspace_limit()).is_none().then_some(kernel)
}

/// Whether all kernels have a launch, before their own.
pub(in crate::backward) const fn is_first(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::BackwardDelta | Algorithm::BackwardSinks)
}

/// Why a kernel does not take the problem, if it does not.
pub(super) fn refusal(
    problem: &BackwardProblem,
    device: &Device,
    kernel: BackwardKernel,
    limit: u64,
) -> Option<String> {
    let (algorithm, target) = match kernel {
        BackwardKernel::BackwardSm90 => (Algorithm::BackwardKeysDsSm90, Target::Sm90a),
        BackwardKernel::BackwardSm80 => (Algorithm::BackwardKeysSm80, Target::Sm80),
        BackwardKernel::BackwardSimt | BackwardKernel::BackwardCpu => return None,
    };
    let forward = problem.forward();
    let built = built_for(algorithm, forward.dtype());
    let Some(widest) = built.map(|entry| entry.tile.head_dim).max() else {
        return Some("tensor cores take 16-bit types only".to_owned());
    };
    if !target.runs_on(device.compute_capability) {
        let (given, needed) = (device.compute_capability, target.compute_capability());
        return Some(format!("{} is sm_{given}, and it needs sm_{needed}", device.name));
    }
    let head_dim = forward.widest_head_dim();
    if head_dim > widest as usize {
        return Some(format!("its registers hold head_dim {widest} at most, and this is {head_dim}"));
    }
    if kernel != BackwardKernel::BackwardSm90 {
        return None;
    }
    packed::refusal(problem, device).or_else(|| {
        if computes_scores_twice(forward) {
            return None;
        }
        let reason = too_large(forward, &Tiles::of_problem(forward, stores_ds(forward))?, limit)?;
        Some(format!("its scores are not computed twice, and {reason}"))
    })
}

/// Whether tensor cores need the entries for what is done to scores and weights. Something other than a
/// positive factor lies between products and scores, or weights are dropped.
pub(in crate::backward) fn needs_score_mod(forward: &Problem) -> bool {
    forward.changes_scores() || forward.softmax_scale() <= 0.0 || forward.dropout().is_some()
}

/// Whether there are tiles that compute scores twice.
pub(super) fn computes_scores_twice(forward: &Problem) -> bool {
    let built = that_hold(Algorithm::BackwardQueriesSm90, forward.dtype(), forward.widest_head_dim());
    !needs_score_mod(forward) && !built.is_empty()
}

/// What stores dS of the problem.
pub(super) fn stores_ds(forward: &Problem) -> Algorithm {
    if needs_score_mod(forward) {
        Algorithm::BackwardKeysDsSm90ScoreMod
    } else {
        Algorithm::BackwardKeysDsSm90
    }
}

/// What sums dQ of the problem.
pub(super) fn sums_dq(forward: &Problem) -> Algorithm {
    if needs_score_mod(forward) {
        Algorithm::BackwardKeysDqSm90ScoreMod
    } else {
        Algorithm::BackwardKeysDqSm90
    }
}

/// Why dS of tiles does not fit a workspace of so many bytes, if so.
pub(super) fn too_large(forward: &Problem, tiles: &Tiles, limit: u64) -> Option<String> {
    let bytes = stored::least_bytes(forward, tiles);
    (bytes > limit).then(|| {
        format!("dS of some queries of one head, with its dK and dV, takes {bytes} bytes, and workspace_limit is {limit}")
    })
}
