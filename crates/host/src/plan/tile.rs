//! The tile of a kernel that is one launch over tiles of queries: the choice among candidates, and its
//! reasons.

use fa_kernels::config::check_shared;
use fa_kernels::entries::{Algorithm, Entry, Tile, entries};
use fa_kernels::params::ScheduleParams;
use fa_kernels::variant::{self, Config, Layout, Sizes, Storage};

use super::beside::Beside;
use super::candidates::{
    Candidate, Candidates, for_scores, grid, has_two_widths, join, that_hold, unsupported_dtype, widest,
};
use super::geometry::{Columns, class_refusal};
use super::hopper::{Way, ways};
use super::modified::entry_anywhere;
use super::order::{Key, fastest_first};
use super::schedule::Schedule;
use super::tuned::TUNED;
use super::{Choice, Kernel, Launch, LaunchDetails, Request, ScheduleSpace, TileOrder, tiles};
use crate::{DType, Device, Error, Plan, Problem, Result};

/// Plans `candidate`, or, where it lacks the tile and was not asked for, the next slower kernel that has it.
/// `forward_sm90` comes with the way in which it reads rows.
pub(super) fn choose(
    problem: &Problem,
    device: &Device,
    request: &Request,
    candidates: &Candidates,
    (candidate, algorithm): (Candidate, Algorithm),
    way: Option<Way>,
) -> Result<Choice> {
    let mut slower = candidates.slower(candidate.kernel);
    match of_kernel(problem, device, request, (candidate, algorithm), way) {
        Err(error @ (Error::NoSuchTile { .. } | Error::TileTooLarge { .. })) if request.kernel.is_none() => {
            let next = slower.find_map(|tried| {
                let algorithm = tried.algorithm?;
                of_kernel(problem, device, request, (tried, algorithm), None).ok()
            });
            next.ok_or(error)
        }
        planned => planned,
    }
}

/// Plans a kernel with the fastest of its built tiles that is as asked and fits the device.
fn of_kernel(
    problem: &Problem,
    device: &Device,
    request: &Request,
    (Candidate { kernel, why, .. }, algorithm): (Candidate, Algorithm),
    way: Option<Way>,
) -> Result<Choice> {
    let needed = way.as_ref().map_or_else(|| Columns::of(problem), |way| way.needed);
    let algorithm = way.as_ref().map_or(algorithm, |way| way.algorithm);
    let built: Vec<(&'static Entry, Option<Schedule>)> = match &way {
        Some(way) => way.tiles.iter().map(|&(entry, schedule)| (entry, Some(schedule))).collect(),
        None => {
            let built = that_hold(algorithm, problem.dtype(), needed.widest()).into_iter();
            built.map(|entry| (entry, None)).collect()
        }
    };
    if built.is_empty() {
        return Err(unsupported_dtype(kernel.name(), algorithm, problem.dtype()));
    }
    built.iter().try_for_each(|(entry, _)| check_target(entry, device, kernel.name()))?;
    let asked_for: Vec<_> = built.iter().copied().filter(|(entry, _)| request.takes(&entry.tile)).collect();
    // Where nothing was built as asked, there is no smallest tile either.
    let Some((smallest, _)) = asked_for.iter().copied().min_by_key(|(entry, _)| entry.shared_bytes) else {
        let built: Vec<_> = built.iter().map(|&(entry, _)| entry).collect();
        return Err(no_such_tile(problem, device, request, kernel, &built));
    };
    let (ordered, order) = in_order(problem, device, asked_for);
    let fitting = ordered.into_iter().find(|(entry, _)| check_fits(entry, problem, device).is_ok());
    let Some((entry, schedule)) = fitting else {
        return Err(tile_too_large(problem, device, &smallest.tile, smallest.shared_bytes.into()));
    };
    let asked = request.block_m.is_some() || request.block_n.is_some();
    let reasons = vec![
        why,
        holds(problem, entry, needed),
        format!(
            "BLOCK_M {} x BLOCK_N {}: {} whose {} bytes of shared memory fit the {} of a block",
            entry.tile.block_m,
            entry.tile.block_n,
            if asked { "asked for," } else { &order },
            entry.shared_bytes,
            device.shared_per_block
        ),
    ];
    match way.zip(schedule) {
        Some(way) => of_way(problem, device, entry, way, reasons),
        None => of_entry(problem, kernel, entry, reasons),
    }
}

/// The tiles as they are tried, and what the first one is: by their estimates where they have some, else as
/// they were measured or listed.
fn in_order(
    problem: &Problem,
    device: &Device,
    mut tiles: Vec<(&'static Entry, Option<Schedule>)>,
) -> (Vec<(&'static Entry, Option<Schedule>)>, String) {
    if tiles.iter().all(|(_, schedule)| schedule.is_some()) {
        // A stable sort, by whole cycles: of tiles that are as quick the first one listed.
        tiles.sort_by_key(|(_, schedule)| schedule.map(|schedule| schedule.cycles as u64));
        return (tiles, "the tile estimated to be done first,".to_owned());
    }
    let mut entries: Vec<_> = tiles.into_iter().map(|(entry, _)| entry).collect();
    let key = Key::of(entries[0], problem.causal(), &device.name);
    let what = fastest_first(&mut entries, &key, TUNED);
    (entries.into_iter().map(|entry| (entry, None)).collect(), what)
}

/// Why a tile has so many columns.
fn holds(problem: &Problem, entry: &Entry, needed: Columns) -> String {
    let Tile { head_dim, head_dim_v, .. } = entry.tile;
    let (widest, needed) = (problem.widest_head_dim(), needed.widest());
    let what = if entry.algorithm == Algorithm::ForwardSm90Residues { "rows" } else { "heads" };
    let shifted = if needed > widest {
        format!(" where {what} start up to {} elements behind a multiple of 16 bytes", needed - widest)
    } else {
        String::new()
    };
    if has_two_widths(&entry.tile) {
        let (of_q, of_v) = (problem.head_dim(), problem.head_dim_v());
        return format!(
            "HEAD_DIM {head_dim}, and HEAD_DIM_V {head_dim_v} in place of it for V and O: they hold head_dim {of_q} and \
             head_dim_v {of_v}{shifted}"
        );
    }
    format!("HEAD_DIM {head_dim}: the smallest built that holds head_dim {widest}{shifted}")
}

/// What a tile has for columns.
fn has(tile: &Tile) -> String {
    let Tile { head_dim, head_dim_v, .. } = tile;
    let of_v = if has_two_widths(tile) { format!(" and HEAD_DIM_V {head_dim_v}") } else { String::new() };
    format!("its HEAD_DIM is {head_dim}{of_v}")
}

/// Refuses an entry of another storage type or of smaller head_dims.
pub(crate) fn check_entry(entry: &Entry, problem: &Problem) -> Result<()> {
    let unfit = |reason: String| Err(Error::UnfitEntry { entry: entry.name, reason });
    if entry.dtype != problem.dtype().name() {
        return unfit(format!("it is for {}, the problem is {}", entry.dtype, problem.dtype()));
    }
    if !Columns::of(problem).fit(&entry.tile) {
        let wanted = if has_two_widths(&entry.tile) {
            format!("{} and head_dim_v {}", problem.head_dim(), problem.head_dim_v())
        } else {
            problem.widest_head_dim().to_string()
        };
        return unfit(format!("{}, the problem's head_dim {wanted}", has(&entry.tile)));
    }
    Ok(())
}

/// Plans one given entry, which need not be in the list: how a sweep runs the variants that it built.
///
/// # Errors
/// When the entry is not a kernel by itself, is for another storage type or smaller head_dims, or does not
/// run on the device.
pub(crate) fn plan_entry(problem: &Problem, device: &Device, entry: &'static Entry) -> Result<Choice> {
    of_given(problem, device, entry, |schedule| schedule)
}

/// [`plan_entry`] in which all tiles have as many rows as the entry's.
///
/// # Errors
/// As [`plan_entry`].
pub(super) fn plan_whole_tiles(problem: &Problem, device: &Device, entry: &'static Entry) -> Result<Choice> {
    of_given(problem, device, entry, |schedule| schedule.of_whole_tiles(problem, &entry.tile))
}

fn of_given(
    problem: &Problem,
    device: &Device,
    entry: &'static Entry,
    amended: impl FnOnce(Schedule) -> Schedule,
) -> Result<Choice> {
    let unfit = |reason: String| Error::UnfitEntry { entry: entry.name, reason };
    let family = |kernel: &Kernel| kernel.tiled().map(Algorithm::family);
    let kernel = Kernel::ALL.into_iter().find(|kernel| family(kernel) == Some(entry.algorithm.family()));
    let kernel = kernel.ok_or_else(|| unfit("it is one of several launches".to_owned()))?;
    check_entry(entry, problem)?;
    let by_residues = entry.algorithm == Algorithm::ForwardSm90Residues;
    let takes_scores = !by_residues || !problem.changes_scores();
    let functions = [Algorithm::ForwardSm80Modified, Algorithm::ForwardSm90Modified];
    let built = problem.functions().map(|functions| functions.built.entries);
    if functions.contains(&entry.algorithm)
        && !built.unwrap_or(&[]).iter().any(|built| std::ptr::eq(built, entry))
    {
        return Err(unfit("it is built with functions that are not the problem's".to_owned()));
    }
    if !takes_scores || entry.algorithm != for_scores(problem, entry.algorithm) {
        return Err(unfit("it leaves scores and weights as they are, the problem does not".to_owned()));
    }
    if by_residues && let Some(reason) = class_refusal(problem, widest(entry.algorithm, problem.dtype())) {
        return Err(unfit(format!("it takes keys by where their rows start: {reason}")));
    }
    let ways = entry.algorithm.is_persistent().then(|| ways(problem, device)).transpose().map_err(unfit)?;
    let way = ways.map(|ways| ways.of_algorithm(entry.algorithm));
    if let Some(needed) = way.as_ref().map(|way| way.needed).filter(|needed| !needed.fit(&entry.tile)) {
        let reach = if has_two_widths(&entry.tile) {
            format!("{} and those of v to {}", needed.qk, needed.v)
        } else {
            needed.widest().to_string()
        };
        return Err(unfit(format!("{}, the problem's rows reach to column {reach}", has(&entry.tile))));
    }
    check_target(entry, device, kernel.name())?;
    check_fits(entry, problem, device)?;
    let reasons = vec![format!("{} was asked for", entry.name)];
    match way {
        Some(way) => {
            let schedule = amended(way.schedule(problem, device, entry));
            of_way(problem, device, entry, (way, schedule), reasons)
        }
        None => of_entry(problem, kernel, entry, reasons),
    }
}

/// The plan that is one launch of `entry`, whose blocks each have their share by their index.
fn of_entry(
    problem: &Problem,
    kernel: Kernel,
    entry: &'static Entry,
    reasons: Vec<String>,
) -> Result<Choice> {
    let tiles = grid(problem, &[problem.seqlen_q().div_ceil(entry.tile.block_m as usize)])?;
    Ok(Choice {
        kernel,
        tile: Some((entry.tile.block_m as usize, entry.tile.block_n as usize)),
        launches: vec![Launch::new(entry, tiles)],
        unaligned: Vec::new(),
        workspace_bytes: 0,
        reasons,
    })
}

/// The plan that is one launch of an entry of `forward_sm90`, and where it needs copies of tensors, one
/// before it.
fn of_way(
    problem: &Problem,
    device: &Device,
    entry: &'static Entry,
    (way, schedule): (Way, Schedule),
    mut reasons: Vec<String>,
) -> Result<Choice> {
    reasons.extend(way.reasons(&schedule));
    let mut choice = of_entry(problem, Kernel::ForwardSm90, entry, reasons)?;
    let space = schedule.order.is_found_before.then(|| ScheduleSpace {
        offset: way.packed.bytes,
        rows: schedule.tiles / problem.heads() as u32,
        block_m: entry.tile.block_m,
    });
    let details = LaunchDetails {
        order: schedule.order,
        packed: way.packed,
        schedule: space,
        ..LaunchDetails::default()
    };
    let blocks = schedule.blocks + schedule.order.tail_tiles;
    choice.launches = vec![Launch { details, ..Launch::new(entry, blocks) }];
    choice.workspace_bytes = way.packed.bytes;
    if let Some(space) = space {
        choice.workspace_bytes += ScheduleParams::bytes(space.rows.into());
        let details = LaunchDetails { schedule: Some(space), ..LaunchDetails::default() };
        choice.launches.insert(0, Launch { details, ..Launch::new(schedule_entry()?, 1) });
    }
    if let Some((launch, _)) = way.copy {
        match Beside::of(problem, (&entry.tile, &schedule), &way.packed, device) {
            None => choice.launches.insert(0, launch?),
            Some(beside) => {
                choice.reasons.push(beside.reason(&way.packed));
                beside.put_before(&mut choice, &schedule, way.packed, device)?;
            }
        }
    }
    if Kernel::ForwardSm80.takes(problem.dtype()) {
        let algorithm = for_scores(problem, Algorithm::ForwardSm80);
        let kernel = Kernel::ForwardSm80;
        let unaligned = match problem.functions() {
            Some(functions) => of_entry(problem, kernel, entry_anywhere(problem, functions)?, Vec::new())?,
            None => {
                let anywhere = Candidate { kernel, algorithm: Some(algorithm), why: String::new() };
                of_kernel(problem, device, &Request::default(), (anywhere, algorithm), None)?
            }
        };
        choice.unaligned = unaligned.launches;
    }
    Ok(choice)
}

impl Plan {
    /// The same plan for a launch that shares multiprocessors with others: after the first tile of each
    /// block, a block for each, so that whichever multiprocessor is done first takes the next, whatever it
    /// had before.
    pub(crate) fn beside_others(self) -> Self {
        let [launch] = self.launches() else { return self };
        let TileOrder { tail_tiles, short_tiles, .. } = launch.details.order;
        let problem = self.problem();
        if launch.entry.algorithm != Algorithm::ForwardSm90 || problem.is_packed() {
            return self;
        }
        let blocks = launch.grid - tail_tiles;
        let tail_tiles = (tiles(problem, &launch.entry.tile, short_tiles) as u32).saturating_sub(blocks);
        let order = TileOrder { tail_tiles, snake_order: false, ..launch.details.order };
        let details = LaunchDetails { order, ..launch.details };
        let launches = vec![Launch { details, grid: blocks + tail_tiles, ..*launch }];
        self.with_launches(launches)
    }
}

/// The entry that puts tiles into an order.
fn schedule_entry() -> Result<&'static Entry> {
    let missing = || unsupported_dtype(Kernel::ForwardSm90.name(), Algorithm::TileSchedule, DType::F16);
    entries().find(|entry| entry.algorithm == Algorithm::TileSchedule).ok_or_else(missing)
}

pub(crate) fn check_target<A, T>(entry: &Entry<A, T>, device: &Device, kernel: &'static str) -> Result<()> {
    if entry.target.runs_on(device.compute_capability) {
        return Ok(());
    }
    Err(Error::KernelNeedsDevice {
        kernel,
        needed: entry.target,
        device: device.name.clone(),
        found: device.compute_capability,
    })
}

pub(crate) fn check_fits(entry: &Entry, problem: &Problem, device: &Device) -> Result<()> {
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
        && let tile = (Tile { block_m, block_n, ..entry.tile })
        && let Some(dtype) = Storage::named(entry.dtype)
        && let (warps, layout) = (entry.threads / 32, Layout::ALL[0])
        && let Tile { head_dim, head_dim_v, .. } = tile
        && let sizes = (Sizes { block_m, block_n, head_dim, head_dim_v, warps, stages: 0, layout })
        && let Some(config) = Config::new(variant::Kernel::Attention(entry.algorithm), dtype, sizes)
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
