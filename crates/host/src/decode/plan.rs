//! Decode problem → entry and number of splits: a pure function, with its reasons beside each choice.

use fa_kernels::entries::{Algorithm, Entry};
use fa_kernels::params::MAX_SPLITS;

use super::DecodeProblem;
use crate::operation::{Choice, Launch};
use crate::plan::cost::h200::{BUSY, GOOD_ENOUGH, LEAST_SPLIT_BLOCKS, SPLIT_KEYS};
use crate::plan::{
    Key, TUNED, Tuned, built_for, check_entry, check_fits, check_target, checked_grid, fastest_first,
    tile_too_large, unsupported_dtype,
};
use crate::{BackendKind, Device, Error, Plan, Problem, Result};

/// The one kernel that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeKernel;

impl DecodeKernel {
    /// The name that messages and documents use.
    pub const fn name(self) -> &'static str {
        KERNEL
    }
}

const KERNEL: &str = "decode";

/// Bytes of shared memory that the system takes of each block (CUDA C++ Programming Guide, compute capability
/// 8.0 and later).
const RESERVED_SHARED: usize = 1024;

/// What the caller leaves open, the planner chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodeRequest {
    /// Parts that each sequence's keys are split into, 1 to 128.
    pub num_splits: Option<usize>,
    /// Whether a sequence gets the same bits whatever else is in its batch: its keys are split at multiples
    /// of a fixed length. A number of splits that the caller chooses gives that too.
    pub batch_invariant: bool,
    /// The entry, by its name.
    pub entry: Option<String>,
}

/// How a decode problem will be computed.
pub type DecodePlan = Plan<DecodeProblem>;

/// What the parameters of a launch need beside its entry.
#[derive(Clone, Copy, Debug)]
pub struct DecodeLaunchDetails {
    pub(crate) num_splits: usize,
    /// Keys of each split; 0 for even parts.
    pub(crate) split_keys: usize,
}

impl Default for DecodeLaunchDetails {
    fn default() -> Self {
        Self { num_splits: 1, split_keys: 0 }
    }
}

impl DecodePlan {
    /// The most parts that a sequence's keys are split into.
    pub fn num_splits(&self) -> usize {
        self.launches().first().map_or(1, |launch| launch.details.num_splits)
    }
}

/// Chooses entry and number of splits for `problem` on `device`.
///
/// # Errors
/// When there is no entry for the storage type, the device is too old or its shared memory too small,
/// the splits asked for are none or too many, or the grid would be too large.
pub(super) fn plan(
    problem: &DecodeProblem,
    device: &Device,
    request: &DecodeRequest,
) -> Result<Choice<DecodeProblem>> {
    let limit = if device.backend == BackendKind::Cpu { 1 } else { MAX_SPLITS as usize };
    if let Some(value) = request.num_splits.filter(|value| !(1..=limit).contains(value)) {
        return Err(Error::NumSplits { value, limit });
    }
    if device.backend == BackendKind::Cpu {
        let reason = "forward_cpu on each sequence: its tasks fill the cores without splits";
        return Ok(Choice::on_cpu(DecodeKernel, vec![reason.to_owned()]));
    }
    FewQueries::choose(problem.dense(), device, request).map(FewQueries::into_choice)
}

/// Plans one given entry, which need not be in the list.
///
/// # Errors
/// When it does not decode, is for another storage type or smaller head_dims, or does not run on the device.
pub(super) fn plan_entry(
    problem: &DecodeProblem,
    device: &Device,
    entry: &'static Entry,
) -> Result<Choice<DecodeProblem>> {
    if entry.algorithm != Algorithm::Decode {
        let reason = "it is no kernel for decoding".to_owned();
        return Err(Error::UnfitEntry { entry: entry.name, reason });
    }
    check_entry(entry, problem.dense())?;
    check_target(entry, device, KERNEL)?;
    check_fits(entry, problem.dense(), device)?;
    let request = DecodeRequest::default();
    let few = FewQueries::of_entry(problem.dense(), device, (entry, ASKED_FOR.to_owned()), &request)?;
    Ok(few.into_choice())
}

/// Why an entry, where the caller named it.
const ASKED_FOR: &str = "asked for,";

/// How keys are split, and why so.
fn splits(shape: &Shape, problem: &Problem, request: &DecodeRequest) -> (DecodeLaunchDetails, String) {
    let even = |num_splits| DecodeLaunchDetails { num_splits, split_keys: 0 };
    if let Some(num_splits) = request.num_splits {
        return (even(num_splits), format!("{num_splits} splits: asked for"));
    }
    if request.batch_invariant {
        let num_splits = problem.seqlen_k().div_ceil(SPLIT_KEYS).min(MAX_SPLITS as usize);
        let why = format!(
            "up to {num_splits} splits of {SPLIT_KEYS} keys: a sequence's do not depend on others in the batch"
        );
        return (DecodeLaunchDetails { num_splits, split_keys: SPLIT_KEYS }, why);
    }
    let (num_splits, why) = shape.choose_splits();
    (even(num_splits), why)
}

/// How few queries are computed, of a problem with contiguous keys or as if they were.
pub(crate) struct FewQueries {
    /// Entries and their blocks.
    pub(crate) launches: Vec<(&'static Entry, u32)>,
    pub(crate) details: DecodeLaunchDetails,
    pub(crate) tile: (usize, usize),
    pub(crate) workspace_bytes: u64,
    pub(crate) reasons: Vec<String>,
}

impl FewQueries {
    /// Chooses entry and splits.
    ///
    /// # Errors
    /// As [`plan`], but for the number of splits.
    pub(crate) fn choose(problem: &Problem, device: &Device, request: &DecodeRequest) -> Result<Self> {
        let chosen = choose_entry(problem, device, request.entry.as_deref(), TUNED)?;
        Self::of_entry(problem, device, chosen, request)
    }

    /// The launches of an entry, which comes with why it is that one.
    fn of_entry(
        problem: &Problem,
        device: &Device,
        (entry, order): (&'static Entry, String),
        request: &DecodeRequest,
    ) -> Result<Self> {
        let shape = Shape::new(problem, device, entry);
        let (details, why) = splits(&shape, problem, request);
        let num_splits = details.num_splits as u128;
        let mut launches = vec![(entry, checked_grid(shape.tiles as u128 * num_splits)?)];
        let mut workspace_bytes = 0;
        if num_splits > 1 {
            let rows = problem.lse_len() as u128;
            let combine = built_for(Algorithm::DecodeCombine, problem.dtype())
                .next()
                .ok_or_else(|| unsupported_dtype(KERNEL, Algorithm::DecodeCombine, problem.dtype()))?;
            launches.push((combine, checked_grid(rows)?));
            // The grid bounds the rows, so this fits.
            workspace_bytes = (4 * rows * num_splits * (problem.head_dim_v() as u128 + 1)) as u64;
        }
        let (block_m, block_n) = (entry.tile.block_m as usize, entry.tile.block_n as usize);
        let rows = problem.packed_rows();
        let reasons = vec![
            format!(
                "decode on tensor cores: the {} query heads of a key/value head times Sq {} are the rows of one tile, \
                 so that K and V are read once",
                problem.group(),
                problem.seqlen_q()
            ),
            format!("HEAD_DIM {}: holds head_dim {}", entry.tile.head_dim, problem.widest_head_dim()),
            format!(
                "BLOCK_M {block_m}: {} for {rows} packed rows; BLOCK_N {block_n}: 16 keys for each of {} warps; {order} with \
                 {} bytes of shared memory, {} blocks per multiprocessor",
                match &*order {
                    ASKED_FOR => ASKED_FOR,
                    _ if block_m >= rows => "the smallest",
                    _ => "the largest",
                },
                entry.threads / 32,
                entry.shared_bytes,
                shape.blocks_per_multiprocessor
            ),
            why,
        ];
        Ok(Self { launches, details, tile: (block_m, block_n), workspace_bytes, reasons })
    }

    fn into_choice(self) -> Choice<DecodeProblem> {
        let Self { launches, details, tile, workspace_bytes, reasons } = self;
        let launch = |(entry, grid)| Launch { details, ..Launch::new(entry, grid) };
        Choice {
            kernel: DecodeKernel,
            tile: Some(tile),
            launches: launches.into_iter().map(launch).collect(),
            unaligned: Vec::new(),
            workspace_bytes,
            reasons,
        }
    }
}

/// The entry asked for, or of the smallest HEAD_DIM that fits and the BLOCK_M that wastes the fewest rows the
/// first by `table`, and why.
fn choose_entry(
    problem: &Problem,
    device: &Device,
    asked: Option<&str>,
    table: &[Tuned],
) -> Result<(&'static Entry, String)> {
    let (dtype, head_dim) = (problem.dtype(), problem.widest_head_dim());
    let built = || {
        built_for(Algorithm::Decode, dtype)
            .filter(|entry| entry.tile.head_dim as usize >= head_dim)
            .filter(|entry| asked.is_none_or(|name| name == entry.name))
    };
    let columns = built().map(|entry| entry.tile.head_dim).min().ok_or_else(|| match asked {
        Some(name) => Error::NoSuchEntry { name: name.to_owned(), dtype, head_dim },
        None => unsupported_dtype(KERNEL, Algorithm::Decode, dtype),
    })?;
    let candidates: Vec<_> = built().filter(|entry| entry.tile.head_dim == columns).collect();
    candidates.iter().try_for_each(|entry| check_target(entry, device, KERNEL))?;
    let fits = |entry: &&'static Entry| check_fits(entry, problem, device).is_ok();
    let mut fitting: Vec<_> = candidates.iter().copied().filter(fits).collect();
    let rows = problem.packed_rows();
    let sufficient = fitting.iter().map(|entry| entry.tile.block_m).filter(|&m| m as usize >= rows).min();
    let block_m = sufficient.or_else(|| fitting.iter().map(|entry| entry.tile.block_m).max());
    fitting.retain(|entry| Some(entry.tile.block_m) == block_m);
    let Some(&first) = fitting.first() else {
        let smallest = candidates.iter().min_by_key(|entry| entry.shared_bytes).unwrap_or(&candidates[0]);
        return Err(tile_too_large(problem, device, &smallest.tile, smallest.shared_bytes.into()));
    };
    let order = match asked {
        Some(_) => ASKED_FOR.to_owned(),
        None => fastest_first(&mut fitting, &Key::of(first, false, &device.name), table),
    };
    Ok((fitting[0], order))
}

/// What the number of splits depends on.
struct Shape {
    /// Blocks of an unsplit launch.
    tiles: usize,
    /// Steps over the keys of a sequence.
    key_blocks: usize,
    blocks_per_multiprocessor: usize,
    multiprocessors: usize,
    /// Blocks that run at a time.
    slots: usize,
}

impl Shape {
    fn new(problem: &Problem, device: &Device, entry: &Entry) -> Self {
        let row_tiles = problem.packed_rows().div_ceil(entry.tile.block_m as usize);
        let of_shared = device.shared_per_multiprocessor / (entry.shared_bytes as usize + RESERVED_SHARED);
        let blocks_per_multiprocessor = of_shared.clamp(1, entry.min_blocks as usize);
        Self {
            tiles: problem.batch() * problem.kv_heads() * row_tiles,
            key_blocks: problem.seqlen_k().div_ceil(entry.tile.block_n as usize),
            blocks_per_multiprocessor,
            multiprocessors: (device.multiprocessors as usize).max(1),
            slots: blocks_per_multiprocessor * (device.multiprocessors as usize).max(1),
        }
    }

    /// Share of the slots' time that is work: the waves of blocks each last as long as the longest split.
    fn efficiency(&self, num_splits: usize) -> f64 {
        let waves = (self.tiles * num_splits).div_ceil(self.slots);
        let longest = self.key_blocks.div_ceil(num_splits);
        (self.tiles * self.key_blocks) as f64 / (self.slots * waves * longest) as f64
    }

    /// One split where that keeps the multiprocessors busy, else the smallest number of splits that is nearly
    /// as efficient as the best, and why.
    fn choose_splits(&self) -> (usize, String) {
        if self.tiles as f64 >= BUSY * self.multiprocessors as f64 {
            let why = format!(
                "1 split: {} blocks keep {} multiprocessors reading, and leave nothing to merge",
                self.tiles, self.multiprocessors
            );
            return (1, why);
        }
        let most = (self.key_blocks / LEAST_SPLIT_BLOCKS).clamp(1, MAX_SPLITS as usize);
        let best = (1..=most).map(|splits| self.efficiency(splits)).fold(0.0, f64::max);
        let chosen = (1..=most).find(|&splits| self.efficiency(splits) >= GOOD_ENOUGH * best).unwrap_or(1);
        let why = format!(
            "{chosen} split{}: {} blocks in {} wave{} of {} keep the multiprocessors busy {:.0} % of the time, and no \
             number up to {most} (at least {LEAST_SPLIT_BLOCKS} key blocks each) more than {:.0} %",
            if chosen == 1 { "" } else { "s" },
            self.tiles * chosen,
            (self.tiles * chosen).div_ceil(self.slots),
            if self.tiles * chosen <= self.slots { "" } else { "s" },
            self.slots,
            100.0 * self.efficiency(chosen),
            100.0 * best
        );
        (chosen, why)
    }
}

#[cfg(test)]
mod tests;
