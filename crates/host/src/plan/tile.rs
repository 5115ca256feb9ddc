//! The tile of a kernel that is one launch over tiles of queries.

use fa_kernels::config::check_shared;
use fa_kernels::entries::{Algorithm, Entry, Tile};
use fa_kernels::variant::Config;

use super::order::fastest_first;
use super::tuned::TUNED;
use super::{
    Choice, Kernel, Launch, LaunchDetails, Packed, Request, built_for, for_scores, grid, hopper, join,
    row_classes, transpose, unsupported_dtype,
};
use crate::{Device, Error, Problem, Result};

/// Plans `kernel` with the fastest of its built tiles that is as asked and fits the device.
pub(super) fn plan(
    problem: &Problem,
    device: &Device,
    request: &Request,
    kernel: Kernel,
    algorithm: Algorithm,
    why: String,
) -> Result<Choice> {
    let needed = columns_needed(problem, algorithm);
    let built = built_for_head_dim(problem, algorithm);
    let columns = built
        .first()
        .map(|entry| entry.tile.head_dim)
        .ok_or_else(|| unsupported_dtype(kernel.name(), algorithm, problem.dtype()))?;
    built.iter().try_for_each(|entry| check_target(entry, device, kernel))?;
    let asked_for: Vec<_> = built.iter().copied().filter(|entry| request.takes(&entry.tile)).collect();
    // Where nothing was built as asked, there is no smallest tile either.
    let Some(smallest) = asked_for.iter().copied().min_by_key(|entry| entry.shared_bytes) else {
        return Err(no_such_tile(problem, device, request, kernel, &built));
    };
    let (ordered, order) = if algorithm.is_persistent() {
        (asked_for, "the tile estimated to be done first,".to_owned())
    } else {
        fastest_first(asked_for, problem.causal(), &device.name, TUNED)
    };
    let mut ordered: Vec<_> =
        ordered.into_iter().map(|entry| (entry, schedule(problem, device, entry))).collect();
    // A stable sort: without an estimate the order stays.
    ordered.sort_by_key(|(_, schedule)| schedule.map(|schedule| schedule.cycles as u64));
    let fitting = ordered.into_iter().find(|(entry, _)| check_fits(entry, problem, device).is_ok());
    let Some((entry, schedule)) = fitting else {
        return Err(tile_too_large(problem, device, &smallest.tile, smallest.shared_bytes.into()));
    };
    let asked = request.block_m.is_some() || request.block_n.is_some();
    let reasons = vec![
        why,
        holds(problem, algorithm, columns, needed),
        format!(
            "BLOCK_M {} x BLOCK_N {}: {} whose {} bytes of shared memory fit the {} of a block",
            entry.tile.block_m,
            entry.tile.block_n,
            if asked { "asked for," } else { &order },
            entry.shared_bytes,
            device.shared_per_block
        ),
    ];
    of_entry(problem, device, kernel, (entry, schedule), reasons)
}

/// How the tiles of an entry whose blocks go through several are taken.
fn schedule(problem: &Problem, device: &Device, entry: &Entry) -> Option<hopper::Schedule> {
    let schedule = match entry.algorithm {
        Algorithm::ForwardSm90RowClasses => row_classes::schedule,
        algorithm if algorithm.is_persistent() => hopper::schedule,
        _ => return None,
    };
    Some(schedule(problem, &entry.tile, device.multiprocessors))
}

/// The entries of `algorithm` for the problem's type with the smallest HEAD_DIM that holds its rows.
pub(super) fn built_for_head_dim(problem: &Problem, algorithm: Algorithm) -> Vec<&'static Entry> {
    let needed = columns_needed(problem, algorithm);
    let wide_enough = |entry: &&Entry| entry.tile.head_dim as usize >= needed;
    let built = || built_for(algorithm, problem.dtype()).filter(wide_enough);
    let columns = built().map(|entry| entry.tile.head_dim).min();
    built().filter(|entry| Some(entry.tile.head_dim) == columns).collect()
}

/// Columns that a tile must hold.
fn columns_needed(problem: &Problem, algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::ForwardSm90RowClasses => row_classes::columns(problem),
        algorithm if algorithm.is_persistent() => Packed::of(problem).columns(problem),
        _ => problem.widest_head_dim(),
    }
}

/// Why a tile has so many columns.
fn holds(problem: &Problem, algorithm: Algorithm, columns: u32, needed: usize) -> String {
    let widest = problem.widest_head_dim();
    let what = if algorithm == Algorithm::ForwardSm90RowClasses { "rows" } else { "heads" };
    let shifted = if needed > widest {
        format!(" where {what} start up to {} elements behind a multiple of 16 bytes", needed - widest)
    } else {
        String::new()
    };
    format!("HEAD_DIM {columns}: the smallest built that holds head_dim {widest}{shifted}")
}

/// Plans one given entry, which need not be in the list: how a sweep runs the variants that it built.
///
/// # Errors
/// When the entry is not a kernel by itself, is for another storage type or smaller head_dims, or does not
/// run on the device.
pub(crate) fn plan_entry(problem: &Problem, device: &Device, entry: &'static Entry) -> Result<Choice> {
    let unfit = |reason: String| Error::UnfitEntry { entry: entry.name, reason };
    let family = |kernel: &Kernel| kernel.tiled().map(Algorithm::family);
    let kernel = Kernel::ALL.into_iter().find(|kernel| family(kernel) == Some(entry.algorithm.family()));
    let kernel = kernel.ok_or_else(|| unfit("it is one of several launches".to_owned()))?;
    if entry.dtype != problem.dtype().name() {
        return Err(unfit(format!("it is for {}, the problem is {}", entry.dtype, problem.dtype())));
    }
    let (holds, wanted) = (entry.tile.head_dim, problem.widest_head_dim());
    if (holds as usize) < wanted {
        return Err(unfit(format!("its HEAD_DIM is {holds}, the problem's head_dim {wanted}")));
    }
    if entry.algorithm != for_scores(problem, entry.algorithm) {
        return Err(unfit("it leaves scores and weights as they are, the problem does not".to_owned()));
    }
    if entry.algorithm == Algorithm::ForwardSm90RowClasses
        && let Some(reason) = row_classes::refusal(problem)
    {
        return Err(unfit(format!("it takes keys by where their rows start: {reason}")));
    }
    let needed = columns_needed(problem, entry.algorithm);
    if (holds as usize) < needed {
        return Err(unfit(format!("its HEAD_DIM is {holds}, the problem's rows reach to column {needed}")));
    }
    if let Some(reason) = transpose::unfit(problem) {
        return Err(unfit(reason));
    }
    check_target(entry, device, kernel)?;
    check_fits(entry, problem, device)?;
    let planned = (entry, schedule(problem, device, entry));
    of_entry(problem, device, kernel, planned, vec![format!("{} was asked for", entry.name)])
}

/// The plan that is one launch of `entry`, and where it needs copies of tensors, one before it.
fn of_entry(
    problem: &Problem,
    device: &Device,
    kernel: Kernel,
    (entry, schedule): (&'static Entry, Option<hopper::Schedule>),
    mut reasons: Vec<String>,
) -> Result<Choice> {
    let tiles = grid(problem, &[problem.seqlen_q().div_ceil(entry.tile.block_m as usize)])?;
    let (mut launches, mut unaligned, mut workspace_bytes) = (vec![Launch::new(entry, tiles)], None, 0);
    if let Some(schedule @ hopper::Schedule { blocks, order, cycles, .. }) = schedule {
        let packed = Packed::for_entries(problem, entry.algorithm);
        let details = LaunchDetails { order, packed };
        launches = vec![Launch { entry, grid: blocks + order.single_tiles, details }];
        reasons.push(schedule.reason());
        if !packed.is_empty() {
            launches.insert(0, packed.launch(problem)?);
            workspace_bytes = packed.bytes;
            reasons.push(packed.reason(problem, device, cycles));
        }
        if entry.algorithm == Algorithm::ForwardSm90RowClasses {
            reasons.push(row_classes::reason(problem, device, cycles));
        } else if let Some(stride) = hopper::unmapped("o", &problem.tensors().o) {
            reasons.push(format!("O is stored row by row: {stride}"));
        }
        if Kernel::ForwardSm80.takes(problem.dtype()) {
            let anywhere = Request { kernel: Some(Kernel::ForwardSm80), ..Request::default() };
            unaligned = super::plan(problem, device, &anywhere)?.launches.pop();
        }
    }
    Ok(Choice {
        kernel,
        tile: Some((entry.tile.block_m as usize, entry.tile.block_n as usize)),
        launches,
        unaligned,
        workspace_bytes,
        reasons,
    })
}

fn check_target(entry: &Entry, device: &Device, kernel: Kernel) -> Result<()> {
    if entry.target.runs_on(device.compute_capability) {
        return Ok(());
    }
    Err(Error::KernelNeedsDevice {
        kernel: kernel.name(),
        needed: entry.target,
        device: device.name.clone(),
        found: device.compute_capability,
    })
}

fn check_fits(entry: &Entry, problem: &Problem, device: &Device) -> Result<()> {
    let needed = entry.shared_bytes.into();
    check_shared(needed, &device.limits()).map_err(|_| tile_too_large(problem, device, &entry.tile, needed))
}

/// A tile that was not built: if it could not fit either, the bytes are the better answer.
fn no_such_tile(
    problem: &Problem,
    device: &Device,
    request: &Request,
    kernel: Kernel,
    built: &[&Entry],
) -> Error {
    if let (Some(Ok(block_m)), Some(Ok(block_n))) =
        (request.block_m.map(u32::try_from), request.block_n.map(u32::try_from))
        && let Some(entry) = built.first()
        && let tile = (Tile { block_m, block_n, head_dim: entry.tile.head_dim })
        && let Some(config) =
            Config::new((entry.algorithm, entry.dtype), block_m, block_n, tile.head_dim, entry.threads / 32)
        && check_shared(config.shared_needed(), &device.limits()).is_err()
    {
        return tile_too_large(problem, device, &tile, config.shared_needed());
    }
    let name = |block: Option<usize>| block.map_or("any".to_owned(), |block| block.to_string());
    Error::NoSuchTile {
        kernel: kernel.name(),
        block_m: name(request.block_m),
        block_n: name(request.block_n),
        head_dim: problem.widest_head_dim(),
        available: join(built.iter().map(|entry| format!("{}x{}", entry.tile.block_m, entry.tile.block_n))),
    }
}

pub(crate) fn tile_too_large(problem: &Problem, device: &Device, tile: &Tile, needed: u64) -> Error {
    Error::TileTooLarge {
        block_m: tile.block_m as usize,
        block_n: tile.block_n as usize,
        head_dim: problem.widest_head_dim(),
        needed,
        available: device.shared_per_block,
        device: device.name.clone(),
    }
}
