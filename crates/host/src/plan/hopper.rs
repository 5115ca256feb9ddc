//! The ways in which `forward_sm90` reads rows (where they are, as copies, or class by class), each with its
//! tiles and about how long they take.

use fa_kernels::attention::alignment::residues::Residues;
use fa_kernels::entries::{Algorithm, Entry};

use super::beside::Beside;
use super::candidates::{for_scores, that_fit, widest};
use super::cost::h200::{MOVE_CYCLES, SLOWER_BY_CLASSES, SM80_OVER_ALIGNED};
use super::cost::step_cycles;
use super::geometry::{Columns, class_columns, class_refusal, residues, unfit_in_e4m3, unmapped};
use super::pack::{Cause, Packed};
use super::schedule::{Schedule, schedule};
use super::{Launch, Request};
use crate::{Device, Problem, Result, Tensors};

/// One of the ways.
pub(super) struct Way {
    pub(super) algorithm: Algorithm,
    /// Columns that a tile must hold.
    pub(super) needed: Columns,
    /// The tiles of the smallest HEAD_DIM that holds them, and those with a HEAD_DIM_V.
    pub(super) tiles: Vec<(&'static Entry, Schedule)>,
    pub(super) packed: Packed,
    /// The launch that makes the copies, where there are some, and why.
    pub(super) copy: Option<(Result<Launch>, Cause)>,
    why: Why,
}

/// What there is to say of how Q, K, V and O are read and written.
enum Why {
    /// O's stride that no tensor map takes, if there is one.
    Mapped(Option<String>),
    /// Classes, elements between rows, and cycles with rows copied before.
    Classes { count: u32, stride: usize, copied: f64 },
}

/// All ways that a problem can be taken.
pub(super) struct Ways {
    /// With copies of what no tensor map describes.
    mapped: Way,
    by_residues: Option<Way>,
    /// About how long the copies take, as they are made, and where nothing runs beside them.
    copy_cycles: f64,
    copy_cycles_alone: f64,
    /// Why copies do not fit the device's memory, if so.
    too_large: Option<String>,
}

/// All ways that a problem can be taken, estimated on `device`; or why there is none.
pub(super) fn ways(problem: &Problem, device: &Device) -> Result<Ways, String> {
    unfit_in_e4m3(problem).map_or_else(|| Ok(Ways::of(problem, device)), Err)
}

impl Ways {
    fn of(problem: &Problem, device: &Device) -> Self {
        let refusal = class_refusal(problem, widest(Algorithm::ForwardSm90Residues, problem.dtype()));
        let (needed_by_classes, classes) = (class_columns(problem), residues(problem));
        let o = unmapped("o", &problem.tensors().o);
        let packed = Packed::of(problem);
        let needed = packed.columns(problem);
        let too_large = too_large(problem, device, &packed);
        let algorithm = for_scores(problem, Algorithm::ForwardSm90);
        let timed = |algorithm, needed| -> Vec<(&'static Entry, Schedule)> {
            let tiles = that_fit(algorithm, problem.dtype(), needed).into_iter();
            tiles.map(|entry| (entry, schedule(problem, &entry.tile, places(entry, device)))).collect()
        };
        let tiles = timed(algorithm, needed);
        let quickest = tiles.iter().min_by(|(_, a), (_, b)| a.cycles.total_cmp(&b.cycles));
        let beside = quickest.and_then(|(entry, schedule)| {
            let beside = Beside::of(problem, (&entry.tile, schedule), &packed, device)?;
            Some(beside.cycles(&packed, schedule.cycles, device))
        });
        let copy_cycles_alone = packed.cycles(problem, device);
        let copy_cycles = beside.unwrap_or(copy_cycles_alone);
        let copy = (!packed.is_empty())
            .then(|| (packed.launch(problem, device), packed.cause(problem, copy_cycles)));
        let mapped = Way { algorithm, needed, tiles, packed, copy, why: Why::Mapped(o) };
        let is_taken = algorithm == Algorithm::ForwardSm90 && refusal.is_none();
        let by_residues = is_taken.then(|| {
            let algorithm = Algorithm::ForwardSm90Residues;
            let mut tiles = timed(algorithm, needed_by_classes);
            for (entry, schedule) in &mut tiles {
                *schedule = slowed_by_classes(*schedule, entry, problem.seqlen_k(), classes);
            }
            let copied = copy_cycles + least(&mapped.tiles, |_| true).unwrap_or(0.0);
            let stride = problem.tensors().k.stride_seq;
            let why = Why::Classes { count: classes.count(), stride, copied };
            Way { algorithm, needed: needed_by_classes, tiles, packed: Packed::default(), copy: None, why }
        });
        Self { mapped, by_residues, copy_cycles, copy_cycles_alone, too_large }
    }

    /// The way that is estimated to be done first with a tile that is as asked, and why even that would be no
    /// faster than `forward_sm80`, or would not fit, if so.
    pub(super) fn quickest(self, request: &Request) -> (Way, Option<String>) {
        let Self { mapped, by_residues, copy_cycles, copy_cycles_alone, too_large } = self;
        let attention = least(&mapped.tiles, |_| true).unwrap_or(0.0);
        let is_quicker = |way: &Way| {
            let asked = least(&way.tiles, |entry| request.takes(&entry.tile));
            asked.is_some_and(|cycles| cycles < copy_cycles + attention)
        };
        if let Some(way) = by_residues.filter(is_quicker) {
            // As copies, by the time over aligned rows.
            let times = least(&way.tiles, |_| true).unwrap_or(0.0) / attention.max(1.0);
            let dissuasion = (times > SM80_OVER_ALIGNED).then(|| {
                format!("taking keys by where their rows start would take about {times:.1} times as long as aligned rows")
            });
            return (way, dissuasion);
        }
        if mapped.packed.is_empty() {
            return (mapped, None);
        }
        // Attention after copies that take no longer than it is done in twice its time over aligned rows: the
        // copies pay where there are enough queries for each key, and keys for each query. No copies hide
        // behind attention that is shorter.
        let is_slower = copy_cycles_alone > (SM80_OVER_ALIGNED - 1.0) * attention;
        let dissuasion = too_large.or_else(|| {
            is_slower.then(|| {
                format!(
                    "copying rows for tensor maps would take about {:.1} times as long as its attention",
                    copy_cycles_alone / attention.max(1.0)
                )
            })
        });
        (mapped, dissuasion)
    }

    /// The way of a given entry.
    pub(super) fn of_algorithm(self, algorithm: Algorithm) -> Way {
        match self.by_residues {
            Some(way) if algorithm == Algorithm::ForwardSm90Residues => way,
            _ => self.mapped,
        }
    }
}

/// Blocks of an entry that a device runs at once.
fn places(entry: &Entry, device: &Device) -> u32 {
    device.multiprocessors.saturating_mul(entry.min_blocks)
}

impl Way {
    /// How the tiles of an entry are taken that need not be in the list.
    pub(super) fn schedule(&self, problem: &Problem, device: &Device, entry: &Entry) -> Schedule {
        let plain = schedule(problem, &entry.tile, places(entry, device));
        match &self.why {
            Why::Mapped(_) => plain,
            Why::Classes { .. } => slowed_by_classes(plain, entry, problem.seqlen_k(), residues(problem)),
        }
    }

    /// What there is to say of a tile's schedule and what it reads.
    pub(super) fn reasons(&self, schedule: &Schedule) -> Vec<String> {
        let cycles = schedule.cycles;
        let mut reasons = vec![schedule.reason()];
        reasons.extend(self.copy.as_ref().map(|(_, cause)| cause.reason(cycles)));
        reasons.extend(match &self.why {
            Why::Mapped(o) => o.as_ref().map(|stride| format!("O is stored row by row: {stride}")),
            Why::Classes { count, stride, copied } => Some(format!(
                "keys are taken in {count} classes by where their rows start, {stride} elements apart and so no multiple \
                 of 16 bytes: estimated at {:.2} of the time with rows copied before",
                cycles / copied.max(1.0)
            )),
        });
        reasons
    }
}

/// The least cycles of the tiles that pass.
fn least(tiles: &[(&'static Entry, Schedule)], passes: impl Fn(&Entry) -> bool) -> Option<f64> {
    let tiles = tiles.iter().filter(|(entry, _)| passes(entry));
    tiles.map(|(_, schedule)| schedule.cycles).min_by(f64::total_cmp)
}

/// How a tile's schedule runs where so many keys are taken class by class.
fn slowed_by_classes(plain: Schedule, entry: &Entry, keys: usize, classes: Residues) -> Schedule {
    let (tile, block_n, count) = (&entry.tile, entry.tile.block_n as usize, classes.count() as usize);
    let steps = count * (keys / count).div_ceil(block_n);
    let more = steps as f64 * (1.0 + SLOWER_BY_CLASSES) - keys.div_ceil(block_n) as f64;
    let moves = f64::from((classes.last_shift() + 1) * tile.head_dim);
    let more = more * step_cycles(tile) + moves * MOVE_CYCLES;
    let rounds = plain.tiles.div_ceil(plain.blocks.max(1));
    Schedule { cycles: plain.cycles + f64::from(rounds) * more, ..plain }
}

/// Why copies do not fit beside the tensors, if so.
fn too_large(problem: &Problem, device: &Device, packed: &Packed) -> Option<String> {
    let Tensors { q, k, v, o } = problem.tensors();
    let spans = [q, k, v, o].into_iter().map(|tensor| 2 * tensor.span() as u128);
    let tensors: u128 = spans.sum();
    (tensors + u128::from(packed.bytes) > device.memory.into()).then(|| {
        let bytes = packed.bytes;
        format!("{bytes} bytes of copies for tensor maps do not fit beside the tensors' {tensors}")
    })
}
