//! Backward problem → launches: a pure function, with its reasons written beside each choice.

use std::fmt;

use fa_kernels::config::BackwardSm90Config;
use fa_kernels::entries::{Algorithm, Entry, Target};

use super::BackwardProblem;
use super::stored::{self, DEFAULT_WORKSPACE_LIMIT, Stored};
use crate::operation::{self, Launch};
use crate::plan::{
    Key, TUNED, Tuned, built_for, check_entry, check_fits, check_heads, check_kernel, check_target,
    checked_grid, fastest_first, that_hold, tile_too_large, unmapped, unsupported_dtype,
};
use crate::{BackendKind, DType, Device, Error, Plan, Problem, Result, Tensors};

/// A kernel that computes gradients; what a person can ask for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackwardKernel {
    /// FlashAttention v2's backward pass on Hopper's tensor cores (`wgmma`), fed by tensor maps: 16-bit
    /// types, and the simulator.
    BackwardSm90,
    /// FlashAttention v2's backward pass on tensor cores (`mma.sync`): NVIDIA GPUs since sm_80 in 16-bit
    /// types up to head_dim 128, and the simulator.
    BackwardSm80,
    /// FlashAttention v2's backward pass on fp32 FMA: any NVIDIA GPU, and the simulator.
    BackwardSimt,
    /// The same on all cores with SIMD.
    BackwardCpu,
}

impl BackwardKernel {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::BackwardSm90, Self::BackwardSm80, Self::BackwardSimt, Self::BackwardCpu];

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BackwardSm90 => "backward_sm90",
            Self::BackwardSm80 => "backward_sm80",
            Self::BackwardSimt => "backward_simt",
            Self::BackwardCpu => "backward_cpu",
        }
    }

    /// What it multiplies with.
    const fn units(self) -> &'static str {
        match self {
            Self::BackwardSm90 => "on Hopper's tensor cores, fed by tensor maps",
            Self::BackwardSm80 => "on tensor cores",
            Self::BackwardSimt => "on fp32 FMA",
            Self::BackwardCpu => "on all cores",
        }
    }

    /// The kernels of a backend, the fastest first.
    pub const fn of_backend(backend: BackendKind) -> &'static [Self] {
        match backend {
            BackendKind::Cuda | BackendKind::Sim => {
                &[Self::BackwardSm90, Self::BackwardSm80, Self::BackwardSimt]
            }
            BackendKind::Cpu => &[Self::BackwardCpu],
        }
    }
}

impl fmt::Display for BackwardKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the caller leaves open, the planner chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackwardRequest {
    /// The kernel.
    pub kernel: Option<BackwardKernel>,
    /// The entry of the launch that it is for, by its name.
    pub entry: Option<String>,
    /// Bytes of dS that may be stored, beside delta, which is 4 bytes a row, and counters; `None` for
    /// [`DEFAULT_WORKSPACE_LIMIT`]. dS is stored of some heads at a time, and computed twice where that of
    /// one key/value head does not fit.
    pub workspace_limit: Option<u64>,
}

impl BackwardRequest {
    fn workspace_limit(&self) -> u64 {
        self.workspace_limit.unwrap_or(DEFAULT_WORKSPACE_LIMIT)
    }
}

/// How a backward problem will be computed; its workspace is delta, fp32 for each row, and behind it dS of
/// some heads, where that is stored.
pub type BackwardPlan = Plan<BackwardProblem>;

type Choice = operation::Choice<BackwardProblem>;

/// Chooses the launches for `problem` on `device`.
///
/// # Errors
/// When the kernel or the entry asked for is not there, the device's shared memory is too small, or a grid
/// would be too large.
pub(super) fn plan(problem: &BackwardProblem, device: &Device, request: &BackwardRequest) -> Result<Choice> {
    let available = BackwardKernel::of_backend(device.backend);
    check_kernel(request.kernel, available, device.backend, BackwardKernel::name)?;
    if device.backend == BackendKind::Cpu {
        if let Some(name) = &request.entry {
            return Err(no_such_entry(problem, name));
        }
        let reasons = vec!["backward_cpu: P and dS by recomputation, on all cores".to_owned()];
        return Ok(Choice::on_cpu(BackwardKernel::BackwardCpu, reasons));
    }
    check_heads(problem.forward())?;
    let (kernel, why) = choose_kernel(problem, device, request)?;
    let is_asked_for = |entry: &&'static Entry| {
        request.entry.as_deref() == Some(entry.name)
            && entry.tile.head_dim as usize >= problem.forward().widest_head_dim()
    };
    let of_launches =
        first_launches(problem).into_iter().chain(ways(problem, kernel).iter().copied().flatten().copied());
    let mut built = of_launches.flat_map(|it| built_for(it, dtype_of(it, problem)));
    let asked = match &request.entry {
        Some(name) => Some(built.find(is_asked_for).ok_or_else(|| no_such_entry(problem, name))?),
        None => None,
    };
    of_kernel(problem, device, (kernel, why), (asked, request.workspace_limit()), TUNED)
}

/// Plans one given entry, which need not be in the list, and for the other launches the planner's choice.
///
/// # Errors
/// When it is no launch of a kernel that takes the problem, is for another storage type or smaller head_dims,
/// or does not run on the device.
pub(super) fn plan_entry(
    problem: &BackwardProblem,
    device: &Device,
    entry: &'static Entry,
) -> Result<Choice> {
    let unfit = |reason: &str| Error::UnfitEntry { entry: entry.name, reason: reason.to_owned() };
    let kernel = BackwardKernel::ALL.into_iter().find(|kernel| kernel.name() == entry.algorithm.family());
    let kernel = kernel.ok_or_else(|| unfit("it is no launch of a backward pass"))?;
    let request = BackwardRequest { kernel: Some(kernel), ..BackwardRequest::default() };
    check_heads(problem.forward())?;
    check_entry(entry, problem.forward())?;
    check_target(entry, device, kernel.name())?;
    let chosen = choose_kernel(problem, device, &request)?;
    if !ways(problem, kernel).iter().any(|way| way.contains(&entry.algorithm)) {
        return Err(unfit("it does not do with weights what the problem does"));
    }
    of_kernel(problem, device, chosen, (Some(entry), request.workspace_limit()), TUNED)
}

/// The kernel asked for, or the fastest that takes the problem, and why.
fn choose_kernel(
    problem: &BackwardProblem,
    device: &Device,
    request: &BackwardRequest,
) -> Result<(BackwardKernel, String)> {
    if let Some(kernel) = request.kernel {
        return match refusal(problem, device, kernel, request.workspace_limit()) {
            Some(reason) => Err(Error::UnfitKernel { kernel: kernel.name(), reason }),
            None => Ok((kernel, format!("{kernel} was asked for"))),
        };
    }
    let mut others = String::new();
    for &kernel in BackwardKernel::of_backend(device.backend) {
        let Some(reason) = refusal(problem, device, kernel, request.workspace_limit()) else {
            return Ok((kernel, format!("{kernel}: {}{others}", kernel.units())));
        };
        others.push_str(&format!("; not {kernel}: {reason}"));
    }
    let reason = others.trim_start_matches("; ").to_owned();
    Err(Error::UnfitKernel { kernel: BackwardKernel::BackwardSimt.name(), reason })
}

/// Why a kernel does not take the problem, if it does not.
fn refusal(problem: &BackwardProblem, device: &Device, kernel: BackwardKernel, limit: u64) -> Option<String> {
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
        return if changes_scores(forward) {
            Some("nothing but a positive factor may lie between products and scores".to_owned())
        } else {
            forward.dropout().map(|_| "it drops no weights".to_owned())
        };
    }
    let must_store = !computes_scores_twice(forward) && stored::unit_bytes(forward) > limit;
    refusal_of_maps(problem).or_else(|| {
        must_store.then(|| format!("its scores are not computed twice, and {}", too_large(forward, limit)))
    })
}

/// Whether anything but a positive factor lies between products and scores.
fn changes_scores(forward: &Problem) -> bool {
    forward.changes_scores() || forward.softmax_scale() <= 0.0
}

/// Whether `backward_sm90` needs the entries for what is done to scores and weights.
fn needs_score_mod(forward: &Problem) -> bool {
    changes_scores(forward) || forward.dropout().is_some()
}

/// Whether there are tiles that compute scores twice.
fn computes_scores_twice(forward: &Problem) -> bool {
    let built = that_hold(Algorithm::BackwardQueriesSm90, forward.dtype(), forward.widest_head_dim());
    !needs_score_mod(forward) && !built.is_empty()
}

/// That no dS fits the workspace.
fn too_large(forward: &Problem, limit: u64) -> String {
    let bytes = stored::unit_bytes(forward);
    format!("dS of one key/value head takes {bytes} bytes, and workspace_limit is {limit}")
}

/// Why tensor maps do not describe what is read of the problem, if they do not; addresses are known only at
/// the launch.
fn refusal_of_maps(problem: &BackwardProblem) -> Option<String> {
    let forward = problem.forward();
    let Tensors { q, k, v, .. } = forward.tensors();
    let read = [("q", q), ("k", k), ("v", v), ("dout", &problem.layouts().dout)];
    read.into_iter().find_map(|(name, layout)| unmapped(name, layout))
}

/// Whether a launch's blocks own keys, and not queries.
pub(super) const fn owns_keys(algorithm: Algorithm) -> bool {
    use Algorithm::{BackwardKeys, BackwardKeysDropout, BackwardKeysSm80, BackwardKeysSm90};
    algorithm.stores_ds()
        || matches!(algorithm, BackwardKeys | BackwardKeysDropout | BackwardKeysSm80 | BackwardKeysSm90)
}

/// Storage type of the entries that are built for a launch.
const fn dtype_of(algorithm: Algorithm, problem: &BackwardProblem) -> DType {
    // What it reads is fp32 in every problem.
    if matches!(algorithm, Algorithm::BackwardSinks) { DType::F32 } else { problem.forward().dtype() }
}

/// What the launches compute that each GPU kernel begins with.
fn first_launches(problem: &BackwardProblem) -> Vec<Algorithm> {
    let mut launches = vec![Algorithm::BackwardDelta];
    if problem.sinks().is_ok() {
        launches.push(Algorithm::BackwardSinks);
    }
    launches
}

/// What the launches behind these compute, in their order: in each of the ways in which a GPU kernel does.
fn ways(problem: &BackwardProblem, kernel: BackwardKernel) -> &'static [&'static [Algorithm]] {
    use Algorithm::{
        BackwardKeys, BackwardKeysDropout, BackwardKeysDsSm90, BackwardKeysDsSm90ScoreMod, BackwardKeysSm80,
        BackwardKeysSm90, BackwardQueries, BackwardQueriesDropout, BackwardQueriesSm80, BackwardQueriesSm90,
    };
    match kernel {
        BackwardKernel::BackwardSm90 if needs_score_mod(problem.forward()) => &[&[BackwardKeysDsSm90ScoreMod]],
        BackwardKernel::BackwardSm90 => &[&[BackwardKeysDsSm90], &[BackwardKeysSm90, BackwardQueriesSm90]],
        BackwardKernel::BackwardSm80 => &[&[BackwardKeysSm80, BackwardQueriesSm80]],
        _ if problem.forward().dropout().is_some() => &[&[BackwardKeysDropout, BackwardQueriesDropout]],
        _ => &[&[BackwardKeys, BackwardQueries]],
    }
}

/// How dS is stored by the launches of `backward_sm90`, if it is, and why.
fn stored(
    problem: &BackwardProblem,
    device: &Device,
    asked: Option<&'static Entry>,
    limit: u64,
) -> Result<(Option<Stored>, String)> {
    let forward = problem.forward();
    if let Some(Entry { algorithm: Algorithm::BackwardKeysSm90 | Algorithm::BackwardQueriesSm90, .. }) = asked {
        return Ok((None, "scores are computed twice: so the entry asked for does".to_owned()));
    }
    // Tiles of a HEAD_DIM own equally many keys.
    let of_dtype = that_hold(Algorithm::BackwardKeysDsSm90, forward.dtype(), forward.widest_head_dim());
    let asked = asked.filter(|entry| entry.algorithm.stores_ds());
    let entry = asked.or(of_dtype.first().copied());
    let Some(found) = entry.and_then(|entry| Stored::within(forward, device, entry, limit)) else {
        let reason = too_large(forward, limit);
        return match asked {
            Some(entry) => Err(Error::UnfitEntry { entry: entry.name, reason }),
            None => Ok((None, format!("scores are computed twice: {reason}"))),
        };
    };
    let (all, bytes) =
        (forward.kv_heads() * forward.batch(), stored::workspace_bytes(forward, Some(found)));
    let why = format!(
        "dS of {} of {all} key/value heads at a time is stored, {bytes} bytes with delta and counters, at most {limit} of dS, \
         so that no score is computed twice",
        found.ring
    );
    Ok((Some(found), why))
}

/// The launches of a GPU kernel, one of them with the entry asked for, in a workspace of so many bytes.
fn of_kernel(
    problem: &BackwardProblem,
    device: &Device,
    (kernel, why): (BackwardKernel, String),
    (asked, limit): (Option<&'static Entry>, u64),
    table: &[Tuned],
) -> Result<Choice> {
    let forward = problem.forward();
    let mut plan = Choice {
        kernel,
        tile: None,
        launches: Vec::new(),
        unaligned: Vec::new(),
        workspace_bytes: stored::delta_bytes(forward),
        reasons: vec![
            why,
            "a tile owns keys or queries, so that nothing is added up by atomics and each run gives the same bits"
                .to_owned(),
        ],
    };
    let (mut found, mut way) = (None, ways(problem, kernel)[0]);
    if kernel == BackwardKernel::BackwardSm90 {
        let (stored, why) = stored(problem, device, asked, limit)?;
        plan.reasons.push(why);
        plan.workspace_bytes = stored::workspace_bytes(forward, stored);
        if stored.is_none() {
            way = ways(problem, kernel)[ways(problem, kernel).len() - 1];
        }
        found = stored;
    }
    if way.contains(&Algorithm::BackwardKeysDsSm90ScoreMod) {
        plan.reasons
            .push("by the entries that change scores and drop weights; they store dS alone".to_owned());
    }
    if way.contains(&Algorithm::BackwardKeysDropout) {
        plan.reasons.push("dropout: by the entries that draw again which weights were kept".to_owned());
    }
    for &algorithm in first_launches(problem).iter().chain(way) {
        let (entry, order) = match asked.filter(|entry| entry.algorithm == algorithm) {
            Some(entry) => {
                check_fits(entry, forward, device)?;
                (entry, "asked for,".to_owned())
            }
            None => choose_entry(problem, device, (kernel, algorithm), table)?,
        };
        plan.reasons.push(reason(problem, device, entry, &order));
        plan.launches.push(launch(problem, device, entry, found)?);
    }
    if kernel == BackwardKernel::BackwardSm90 {
        let anywhere = [BackwardKernel::BackwardSm80, BackwardKernel::BackwardSimt];
        let takes = |kernel: &BackwardKernel| refusal(problem, device, *kernel, limit).is_none();
        let anywhere = anywhere.into_iter().find(takes).unwrap_or(BackwardKernel::BackwardSimt);
        plan.unaligned =
            of_kernel(problem, device, (anywhere, String::new()), (None, limit), table)?.launches;
    }
    Ok(plan)
}

/// The launch of an entry, where dS is stored so.
fn launch(
    problem: &BackwardProblem,
    device: &Device,
    entry: &'static Entry,
    stored: Option<Stored>,
) -> Result<Launch<BackwardProblem>> {
    let forward = problem.forward();
    let heads = forward.heads() * forward.batch();
    let of_keys = |rows: u32| forward.seqlen_k().div_ceil(rows as usize) as u128 * (heads / forward.group()) as u128;
    let of_queries = |rows: u32| forward.seqlen_q().div_ceil(rows as usize) as u128 * heads as u128;
    let blocks = match entry.algorithm {
        Algorithm::BackwardSinks => problem.sinks()? as u128,
        algorithm if algorithm.stores_ds() => {
            checked_grid(stored::tiles(forward, entry))?;
            stored::blocks(forward, device, entry)
        }
        algorithm if owns_keys(algorithm) => of_keys(entry.tile.block_n),
        _ => of_queries(entry.tile.block_m),
    };
    Ok(Launch { details: stored, ..Launch::new(entry, checked_grid(blocks)?) })
}

/// Of the smallest HEAD_DIM that is enough the first entry by `table` that fits, and what it is.
fn choose_entry(
    problem: &BackwardProblem,
    device: &Device,
    (kernel, algorithm): (BackwardKernel, Algorithm),
    table: &[Tuned],
) -> Result<(&'static Entry, String)> {
    let forward = problem.forward();
    let mut built = that_hold(algorithm, dtype_of(algorithm, problem), forward.widest_head_dim());
    let Some(&first) = built.first() else {
        return Err(unsupported_dtype(kernel.name(), algorithm, forward.dtype()));
    };
    let order = fastest_first(&mut built, &Key::of(first, forward.causal(), &device.name), table);
    let fitting = built.iter().copied().find(|entry| check_fits(entry, forward, device).is_ok());
    let smallest = built.iter().min_by_key(|entry| entry.shared_bytes).unwrap_or(&first);
    let too_large = || tile_too_large(forward, device, &smallest.tile, smallest.shared_bytes.into());
    Ok((fitting.ok_or_else(too_large)?, order))
}

/// What a launch is for, and why with this tile.
fn reason(problem: &BackwardProblem, device: &Device, entry: &Entry, order: &str) -> String {
    let forward = problem.forward();
    let (m, n, columns) = (entry.tile.block_m, entry.tile.block_n, entry.tile.head_dim);
    let (what, tile) = match entry.algorithm {
        Algorithm::BackwardDelta => {
            let p = forward.lse_len() as u128 * forward.seqlen_k() as u128 * forward.dtype().bytes() as u128;
            return format!(
                "delta = rowsum(dO * O) first, in {} bytes of workspace; P, which is not stored, would take {p}",
                4 * forward.lse_len()
            );
        }
        Algorithm::BackwardSinks => {
            return "dsinks behind it: a block sums the rows of a sink, in the same order in each run"
                .to_owned();
        }
        algorithm if algorithm.stores_ds() => (
            "dK, dV and dQ",
            format!("blocks that stay take tiles of BLOCK_N {n} keys and of {} queries", 256),
        ),
        algorithm if owns_keys(algorithm) => {
            ("dK and dV", format!("BLOCK_N {n} keys of a block x BLOCK_M {m}"))
        }
        _ => ("dQ", format!("BLOCK_M {m} queries of a block x BLOCK_N {n}")),
    };
    format!(
        "{what}: {tile} at HEAD_DIM {columns}, {order} whose {} bytes of shared memory fit the {} of a block",
        entry.shared_bytes, device.shared_per_block
    )
}

fn no_such_entry(problem: &BackwardProblem, name: &str) -> Error {
    let forward = problem.forward();
    Error::NoSuchEntry { name: name.to_owned(), dtype: forward.dtype(), head_dim: forward.widest_head_dim() }
}

#[cfg(test)]
mod tests;
