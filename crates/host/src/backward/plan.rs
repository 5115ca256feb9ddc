//! Backward problem → launches: a pure function, with its reasons written beside each choice.

pub(super) mod kernel;

use fa_kernels::entries::{Algorithm, Entry};

use self::kernel::{
    Chosen, choose_kernel, computes_scores_twice, is_first, kernel_of_entry, needs_score_mod, refusal,
    stores_ds, sums_dq, too_large,
};
use super::launch::LaunchDetails;
use super::packed;
use super::pairs;
use super::stored::{self, Storage, Stored, Tiles};
use super::summed::Summed;
use super::way::DqWay;
use super::{BackwardKernel, BackwardPart, BackwardProblem, BackwardRequest};
use crate::operation::{self, Launch};
use crate::plan::{
    Key, TUNED, Tuned, built_for, check_entry, check_fits, check_heads, check_kernel, check_target,
    checked_grid, fastest_first, that_hold, tile_too_large, unsupported_dtype,
};
use crate::{BackendKind, DType, Device, Error, Plan, Result};

/// How a backward problem will be computed; its workspace is delta, fp32 for each row, behind it copies of
/// what no tensor map describes, and behind these dS of some heads, where that is stored.
pub type BackwardPlan = Plan<BackwardProblem>;

type Choice = operation::Choice<BackwardProblem>;

/// Chooses the launches for `problem` on `device`.
///
/// # Errors
/// When the kernel or the entry asked for is not there, the device's shared memory is too small, or a grid
/// would be too large.
pub(super) fn plan(problem: &BackwardProblem, device: &Device, request: &BackwardRequest) -> Result<Choice> {
    let available = BackwardKernel::of_backend(device.backend);
    let request = &of_part(problem, request);
    check_kernel(request.kernel, available, device.backend, BackwardKernel::name)?;
    if device.backend == BackendKind::Cpu {
        if let Some(name) = &request.entry {
            return Err(no_such_entry(problem, name));
        }
        if problem.computes() != BackwardPart::All {
            let reason = "it computes all gradients at once".to_owned();
            return Err(Error::UnfitKernel { kernel: BackwardKernel::BackwardCpu.name(), reason });
        }
        let reasons = vec!["backward_cpu: P and dS by recomputation, on all cores".to_owned()];
        return Ok(Choice::on_cpu(BackwardKernel::BackwardCpu, reasons));
    }
    check_heads(problem.forward())?;
    let device = &request.without_margin(device);
    let kernel = request.kernel.or_else(|| kernel_of_entry(problem, device, request));
    let chosen = choose_kernel(problem, device, &BackwardRequest { kernel, ..request.clone() })?;
    let kernel = chosen.kernel;
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
    of_kernel(problem, device, chosen, (asked, request.storage()), TUNED)
}

/// What a part is asked for: it has no dS to store, and none to read.
fn of_part(problem: &BackwardProblem, request: &BackwardRequest) -> BackwardRequest {
    match problem.computes() {
        BackwardPart::All => request.clone(),
        _ => BackwardRequest { workspace_limit: Some(0), unit_rows: None, ..request.clone() },
    }
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
    let request = of_part(problem, &BackwardRequest { kernel: Some(kernel), ..BackwardRequest::default() });
    check_heads(problem.forward())?;
    check_entry(entry, problem.forward())?;
    check_target(entry, device, kernel.name())?;
    let chosen = choose_kernel(problem, device, &request)?;
    if !ways(problem, kernel).iter().copied().flatten().any(|&algorithm| algorithm == entry.algorithm) {
        return Err(unfit("it does not do with weights what the problem does"));
    }
    of_kernel(problem, device, chosen, (Some(entry), request.storage()), TUNED)
}

impl BackwardPart {
    /// Whether the launch is one of the part's, where scores are computed twice.
    pub(crate) const fn has_launch(self, algorithm: Algorithm) -> bool {
        match self {
            Self::All => true,
            Self::Delta => matches!(algorithm, Algorithm::BackwardDelta),
            Self::Queries => !is_first(algorithm) && !owns_keys(algorithm),
            Self::Keys => owns_keys(algorithm),
        }
    }
}

/// Whether a launch's blocks own keys, and not queries.
pub(super) const fn owns_keys(algorithm: Algorithm) -> bool {
    use Algorithm::{
        BackwardKeys, BackwardKeysDropout, BackwardKeysDsSm80, BackwardKeysSm80, BackwardKeysSm80ScoreMod,
        BackwardKeysSm90,
    };
    let of_two_launches = matches!(
        algorithm,
        BackwardKeys
            | BackwardKeysDropout
            | BackwardKeysSm80
            | BackwardKeysSm80ScoreMod
            | BackwardKeysDsSm80
            | BackwardKeysSm90
    );
    of_two_launches || algorithm.stores_ds() || algorithm.sums_dq()
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
        BackwardDqSm80, BackwardKeys, BackwardKeysDqSm90, BackwardKeysDqSm90ScoreMod, BackwardKeysDropout,
        BackwardKeysDsSm80, BackwardKeysDsSm90, BackwardKeysDsSm90ScoreMod, BackwardKeysSm80,
        BackwardKeysSm80ScoreMod, BackwardKeysSm90, BackwardQueries, BackwardQueriesDropout,
        BackwardQueriesSm80, BackwardQueriesSm80ScoreMod, BackwardQueriesSm90,
    };
    match kernel {
        BackwardKernel::BackwardSm90 if needs_score_mod(problem.forward()) => {
            &[&[BackwardKeysDqSm90ScoreMod], &[BackwardKeysDsSm90ScoreMod]]
        }
        BackwardKernel::BackwardSm90 => {
            &[&[BackwardKeysSm90, BackwardQueriesSm90], &[BackwardKeysDqSm90], &[BackwardKeysDsSm90]]
        }
        BackwardKernel::BackwardSm80 if needs_score_mod(problem.forward()) => {
            &[&[BackwardKeysSm80ScoreMod, BackwardQueriesSm80ScoreMod]]
        }
        BackwardKernel::BackwardSm80 => {
            &[&[BackwardKeysSm80, BackwardQueriesSm80], &[BackwardKeysDsSm80, BackwardDqSm80]]
        }
        _ if problem.forward().dropout().is_some() => &[&[BackwardKeysDropout, BackwardQueriesDropout]],
        _ => &[&[BackwardKeys, BackwardQueries]],
    }
}

/// How dS is stored, if it is, and why.
fn stored_ds(
    problem: &BackwardProblem,
    device: &Device,
    (asked, storage): (Option<&'static Entry>, Storage),
    table: &[Tuned],
) -> Result<(Option<Stored>, String)> {
    let (forward, Storage { limit, unit_rows }) = (problem.forward(), storage);
    let (entry, twice) = match asked {
        Some(Entry { algorithm: Algorithm::BackwardKeysSm90 | Algorithm::BackwardQueriesSm90, .. }) => {
            return Ok((None, "scores are computed twice: so the entry asked for does".to_owned()));
        }
        Some(entry) if entry.algorithm.stores_ds() => (entry, false),
        _ => {
            let of_launch = (BackwardKernel::BackwardSm90, stores_ds(forward));
            let twice = computes_scores_twice(forward) && unit_rows.is_none();
            (choose_entry(problem, device, of_launch, table)?.0, twice)
        }
    };
    let tiles = Tiles::of(entry);
    let stored = stored::fastest(problem, device, tiles, (storage, twice));
    let why = match (stored, too_large(forward, &tiles, limit)) {
        (Some(stored), _) => {
            format!("{} of at most {limit}, so that no score is computed twice", stored.what(forward))
        }
        (None, Some(reason)) => match asked.filter(|entry| entry.algorithm.stores_ds()) {
            Some(entry) => return Err(Error::UnfitEntry { entry: entry.name, reason }),
            None if !computes_scores_twice(forward) => {
                return Err(Error::UnfitKernel { kernel: BackwardKernel::BackwardSm90.name(), reason });
            }
            None => format!("scores are computed twice: {reason}"),
        },
        (None, None) => {
            "scores are computed twice: that was estimated to be faster than to store dS".to_owned()
        }
    };
    Ok((stored, why))
}

/// The launches of the kernel chosen, one of them with the entry asked for, with dS in what may be stored,
/// and those for tensors that start at no multiples of 16 bytes.
fn of_kernel(
    problem: &BackwardProblem,
    device: &Device,
    chosen: Chosen,
    (asked, storage): (Option<&'static Entry>, Storage),
    table: &[Tuned],
) -> Result<Choice> {
    let (kernel, copies) = (chosen.kernel, chosen.copies);
    if let Some(entry) = asked.filter(|entry| !problem.computes().has_launch(entry.algorithm)) {
        let reason = "it is no launch of the part that is computed".to_owned();
        return Err(Error::UnfitEntry { entry: entry.name, reason });
    }
    let mut plan = launches(problem, device, chosen, (asked, storage), table)?;
    if kernel == BackwardKernel::BackwardSm90 && copies != packed::of_all(problem) {
        let (anywhere, limit) = anywhere(problem, device, plan.workspace_bytes, storage.limit);
        let storage = Storage { limit, ..storage };
        plan.unaligned = launches(problem, device, anywhere, (None, storage), table)?.launches;
    }
    Ok(plan)
}

/// What reads tensors at any addresses in a workspace of so many bytes, and how many of these are for dS:
/// Hopper's kernel with copies of all, where they fit, and else the fastest kernel that needs none.
fn anywhere(problem: &BackwardProblem, device: &Device, workspace_bytes: u64, limit: u64) -> (Chosen, u64) {
    let (forward, copies, why) = (problem.forward(), packed::of_all(problem), String::new());
    let needed = packed::workspace_bytes(forward, &copies, 0)
        .saturating_add(stored::most_bytes_before_carried(forward));
    let left = workspace_bytes.checked_sub(needed);
    let tiles = Tiles::of_problem(forward, stores_ds(forward));
    let suffices = |left: &u64| {
        computes_scores_twice(forward)
            || tiles.is_some_and(|tiles| too_large(forward, &tiles, *left).is_none())
    };
    if let Some(left) = left.filter(suffices) {
        return (Chosen { kernel: BackwardKernel::BackwardSm90, why, copies }, left);
    }
    let takes = |kernel: &BackwardKernel| refusal(problem, device, *kernel, limit).is_none();
    let others = [BackwardKernel::BackwardSm80, BackwardKernel::BackwardSimt];
    let kernel = others.into_iter().find(takes).unwrap_or(BackwardKernel::BackwardSimt);
    // Its dS has the same workspace.
    (Chosen::plain(kernel, why), limit.min(workspace_bytes.saturating_sub(stored::behind_delta(forward))))
}

/// The launches of the kernel chosen, one of them with the entry asked for, with dS in what may be stored.
fn launches(
    problem: &BackwardProblem,
    device: &Device,
    Chosen { kernel, why, copies }: Chosen,
    (asked, storage): (Option<&'static Entry>, Storage),
    table: &[Tuned],
) -> Result<Choice> {
    let forward = problem.forward();
    let mut plan = Choice {
        kernel,
        tile: None,
        launches: Vec::new(),
        unaligned: Vec::new(),
        workspace_bytes: stored::delta_bytes(forward),
        reasons: vec![why, "nothing is added up by atomics, so that each run gives the same bits".to_owned()],
    };
    let (mut dq_way, mut way) = (DqWay::Recomputed, ways(problem, kernel)[0]);
    if kernel == BackwardKernel::BackwardSm90 {
        let why;
        (dq_way, why) = choose_dq_way(problem, device, (asked, storage), table)?;
        plan.reasons.push(why);
        if !copies.is_empty() && problem.computes() != BackwardPart::Delta {
            let cycles = dq_way.cycles(forward, device);
            plan.reasons.push(packed::reason(problem, device, &copies, cycles));
            plan.launches.push(packed::launch(copies, device)?);
        }
        way = ways(problem, kernel).iter().find(|way| dq_way.is_by(way[0])).unwrap_or(&way);
    }
    let mut of_pairs = Vec::new();
    if kernel == BackwardKernel::BackwardSm80 {
        let why;
        (of_pairs, why) = pairs::chosen(forward, device, (asked, storage.limit))?;
        plan.reasons.extend(why);
        if !of_pairs.is_empty() {
            way = ways(problem, kernel)[1];
            plan.workspace_bytes = pairs::workspace_bytes(forward, &of_pairs);
        }
    }
    plan.reasons.extend(way_reason(way).map(str::to_owned));
    let mut entries = Vec::new();
    let of_part = |algorithm: &Algorithm| problem.computes().has_launch(*algorithm);
    for algorithm in first_launches(problem).into_iter().chain(way.iter().copied()).filter(of_part) {
        let (entry, order) = match asked.filter(|entry| entry.algorithm == algorithm) {
            Some(entry) => {
                check_fits(entry, forward, device)?;
                (entry, "asked for,".to_owned())
            }
            None => choose_entry(problem, device, (kernel, algorithm), table)?,
        };
        plan.reasons.push(reason(problem, device, entry, &order));
        entries.push(entry);
    }
    if let DqWay::Stored(stored) = dq_way {
        checked_grid(stored.tiles(forward))?;
        plan.reasons.push(stored.reason(forward, device));
    }
    if kernel == BackwardKernel::BackwardSm90 {
        plan.workspace_bytes = packed::workspace_bytes(forward, &copies, dq_way.bytes(forward));
    }
    let details = LaunchDetails { copies, dq_way, ..LaunchDetails::default() };
    let (paired, single): (Vec<_>, Vec<_>) = entries.iter().partition(|it| pairs::is_of_pair(it.algorithm));
    for entry in single {
        plan.launches.push(launch_of(problem, device, entry, details)?);
    }
    for (pair, entry) in of_pairs.iter().flat_map(|pair| paired.iter().map(move |entry| (*pair, entry))) {
        let grid = checked_grid(pairs::blocks(forward, entry, pair))?;
        let details = LaunchDetails { pair: Some(pair), ..details };
        plan.launches.push(Launch { details, ..Launch::new(entry, grid) });
    }
    Ok(plan)
}

/// Why entries of their own are taken, where they are.
fn way_reason(way: &[Algorithm]) -> Option<&'static str> {
    way.iter().find_map(|algorithm| match algorithm {
        Algorithm::BackwardKeysDsSm90ScoreMod => {
            Some("by the entries that change scores and drop weights; they store dS alone")
        }
        Algorithm::BackwardKeysDqSm90ScoreMod | Algorithm::BackwardKeysSm80ScoreMod => {
            Some("by the entries that change scores and drop weights")
        }
        Algorithm::BackwardKeysDropout => {
            Some("dropout: by the entries that draw again which weights were kept")
        }
        _ => None,
    })
}

/// How dQ comes about in Hopper's kernel, and why.
fn choose_dq_way(
    problem: &BackwardProblem,
    device: &Device,
    asked: (Option<&'static Entry>, Storage),
    table: &[Tuned],
) -> Result<(DqWay, String)> {
    if let Some(summed) = summed_dq(problem, device, asked, table)? {
        return Ok((DqWay::Summed(summed), summed.reason(problem.forward(), device)));
    }
    let (stored, why) = stored_ds(problem, device, asked, table)?;
    Ok((stored.map_or(DqWay::Recomputed, DqWay::Stored), why))
}

/// How dQ is summed where dS is made, if it is: where that was asked for, or nothing else was and it is
/// faster.
fn summed_dq(
    problem: &BackwardProblem,
    device: &Device,
    (asked, storage): (Option<&'static Entry>, Storage),
    table: &[Tuned],
) -> Result<Option<Summed>> {
    let (forward, Storage { limit, unit_rows }) = (problem.forward(), storage);
    if let Some(entry) = asked.filter(|entry| !is_first(entry.algorithm)) {
        if !entry.algorithm.sums_dq() {
            return Ok(None);
        }
        let summed = Summed::new(forward, device, entry);
        return match summed.refusal(forward, limit) {
            Some(reason) => Err(Error::UnfitEntry { entry: entry.name, reason }),
            None => Ok(Some(summed)),
        };
    }
    let of_launch = (BackwardKernel::BackwardSm90, sums_dq(forward));
    let Ok((entry, _)) = choose_entry(problem, device, of_launch, table) else { return Ok(None) };
    let summed = Summed::new(forward, device, entry);
    let suits = unit_rows.is_none() && summed.refusal(forward, limit).is_none();
    Ok((suits && summed.is_fastest(forward, device)).then_some(summed))
}

/// The launch of an entry.
fn launch_of(
    problem: &BackwardProblem,
    device: &Device,
    entry: &'static Entry,
    details: LaunchDetails,
) -> Result<Launch<BackwardProblem>> {
    let forward = problem.forward();
    let is_by = details.dq_way.is_by(entry.algorithm);
    let Some(blocks) = is_by.then(|| details.dq_way.blocks(forward, device)).flatten() else {
        return Ok(Launch { details, ..Launch::new(entry, grid(problem, entry)?) });
    };
    Ok(Launch { details: LaunchDetails { blocks, ..details }, ..Launch::new(entry, blocks.all) })
}

/// Blocks of a launch whose blocks have one tile each.
fn grid(problem: &BackwardProblem, entry: &Entry) -> Result<u32> {
    let forward = problem.forward();
    let heads = forward.batch() as u128
        * if owns_keys(entry.algorithm) { forward.kv_heads() } else { forward.heads() } as u128;
    let blocks = if entry.algorithm == Algorithm::BackwardSinks {
        problem.sinks()? as u128
    } else if owns_keys(entry.algorithm) {
        forward.seqlen_k().div_ceil(entry.tile.block_n as usize) as u128 * heads
    } else {
        forward.seqlen_q().div_ceil(entry.tile.block_m as usize) as u128 * heads
    };
    checked_grid(blocks)
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
            "all gradients",
            format!("BLOCK_N {n} keys, or {} queries, of a tile x BLOCK_M {m}", Tiles::of(entry).queries),
        ),
        algorithm if algorithm.sums_dq() => {
            ("all gradients", format!("BLOCK_N {n} keys of a tile x BLOCK_M {m}"))
        }
        Algorithm::BackwardKeysDsSm80 => {
            ("dK, dV and dS", format!("BLOCK_N {n} keys of a block x BLOCK_M {m}"))
        }
        Algorithm::BackwardDqSm80 => ("dQ = dS * K", format!("BLOCK_M {m} queries of a block x BLOCK_N {n}")),
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
