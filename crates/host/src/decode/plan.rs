//! Decode problem → entry and number of splits: a pure function, with its reasons beside each choice.

mod cache;
mod few_queries;
mod in_any_batch;
mod splits;

use fa_kernels::entries::{Algorithm, Entry};
use fa_kernels::params::MAX_SPLITS;

use super::DecodeProblem;
use super::widened::Widened;
use crate::forward::score_roundoff;
use crate::operation::Choice;
use crate::plan::{TileOrder, check_entry, check_fits, check_target, for_scores};
use crate::{BackendKind, Device, Error, Plan, Problem, Result};
pub(crate) use cache::Cache;
use cache::Stored;
pub(crate) use few_queries::{FewQueries, box_rows, splits_forward};
use splits::that_adds_up;
pub(crate) use splits::{pack_rows, pack_tiles};

/// The kernels of GPUs; on the CPU, whose only one is none of these, a plan names [`Self::Decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeKernel {
    /// On tensor cores since sm_80, over rows that start anywhere.
    Decode,
    /// On Hopper alone, over rows that tensor maps describe.
    DecodeSm90,
    /// That of the forward pass, for more rows than a tile of [`Self::DecodeSm90`] has.
    ForwardSm90,
    /// Of latents, on Hopper alone.
    MlaSm90,
}

impl DecodeKernel {
    /// Every one, the fastest first.
    pub const ALL: [Self; 4] = [Self::DecodeSm90, Self::ForwardSm90, Self::MlaSm90, Self::Decode];

    /// The name that messages and documents use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::DecodeSm90 => "decode_sm90",
            Self::ForwardSm90 => "forward_sm90",
            Self::MlaSm90 => "mla_sm90",
        }
    }

    /// Its entries that take the problem's scores and such a cache, if it takes it.
    fn algorithm(self, problem: &Problem, stored: Stored) -> Option<Algorithm> {
        match (self, stored) {
            (Self::Decode, Stored::Same) => Some(Algorithm::Decode),
            (Self::DecodeSm90, Stored::Same) => Some(Algorithm::DecodeSm90),
            (Self::DecodeSm90, Stored::E4m3 | Stored::E4m3ByHead) => Some(Algorithm::DecodeSm90E4m3),
            (Self::ForwardSm90, Stored::Same | Stored::E4m3) => {
                Some(for_scores(problem, Algorithm::ForwardSm90Cached))
            }
            // Those that change scores have a factor for each tile.
            (Self::ForwardSm90, Stored::E4m3ByHead) => Some(Algorithm::ForwardSm90CachedScoreMod),
            (Self::MlaSm90, Stored::Latents) => Some(Algorithm::MlaSm90),
            _ => None,
        }
    }
}

/// What the caller leaves open, the planner chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodeRequest {
    /// Parts that each sequence's keys are split into, 1 to 128.
    pub num_splits: Option<usize>,
    /// Whether a sequence gets the same bits whatever else is in its batch: its keys are split as if it were
    /// alone, whoever adds the splits up. By default that is so where an entry's blocks can have several
    /// splits: of [`DecodeKernel::DecodeSm90`] with up to 32 packed rows, 16 above head_dim 128, and of e4m3
    /// up to head_dim 64. A number of splits that the caller chooses gives that too.
    pub batch_invariant: Option<bool>,
    /// Whether the splits of a tile are merged by the blocks of a cluster, where they are 2 to 8 and these
    /// run at once; they are unless this is `Some(false)`.
    pub clusters: Option<bool>,
    /// The kernel.
    pub kernel: Option<DecodeKernel>,
    /// The entry, by its name.
    pub entry: Option<String>,
}

/// How a decode problem will be computed.
pub type DecodePlan = Plan<DecodeProblem>;

/// Where the results of a rank's splits lie among those of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedSplits {
    /// Splits of the ranks before.
    pub(crate) before: usize,
    /// Splits of all ranks.
    pub(crate) all: usize,
}

/// What the parameters of a launch need beside its entry.
#[derive(Clone, Copy, Debug)]
pub struct DecodeLaunchDetails {
    pub(crate) num_splits: usize,
    /// Keys of each split; 0 for even parts.
    pub(crate) split_keys: usize,
    /// log2 of the splits that a sequence has at most which has no more than so many times these.
    pub(crate) short_split_bits: u32,
    /// Sum of a batch's lengths, in longest ones, from which on a block adds up its tile's splits; 0 where
    /// none does.
    pub(crate) enough_sequences: f32,
    /// Blocks of a cluster that have the splits of a tile, and merge them; 1 where there is none.
    pub(crate) cluster: u32,
    /// The most splits that each of them has.
    pub(crate) splits_of_a_block: u32,
    /// log2 of the heads that are rows of one tile of [`DecodeKernel::ForwardSm90`].
    pub(crate) head_bits: u32,
    /// In which order it takes tiles.
    pub(crate) order: TileOrder,
    /// Where a cache in e4m3 is widened to.
    pub(crate) widened: Option<Widened>,
    /// Where the results of splits lie, if ranks share out the keys.
    pub(crate) shared: Option<SharedSplits>,
}

impl Default for DecodeLaunchDetails {
    fn default() -> Self {
        Self {
            num_splits: 1,
            split_keys: 0,
            short_split_bits: 0,
            enough_sequences: 0.0,
            cluster: 1,
            splits_of_a_block: 1,
            head_bits: 0,
            order: TileOrder::default(),
            widened: None,
            shared: None,
        }
    }
}

impl DecodePlan {
    /// The most parts that a sequence's keys are split into.
    pub fn num_splits(&self) -> usize {
        self.launches().first().map_or(1, |launch| launch.details.num_splits)
    }

    /// The relative error of scores between Q·Kᵀ and the softmax, as
    /// [`Plan::score_roundoff`](crate::Plan::score_roundoff) of the forward pass.
    pub fn score_roundoff(&self) -> f64 {
        score_roundoff(self.launches(), self.problem().dense())
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
    if let Some(value) = request.num_splits.filter(|&value| value > 1 && problem.dense().is_packed()) {
        return Err(Error::NumSplits { value, limit: 1 });
    }
    if device.backend == BackendKind::Cpu {
        let reason = "forward_cpu on each sequence: its tasks fill the cores without splits";
        return Ok(Choice::on_cpu(DecodeKernel::Decode, vec![reason.to_owned()]));
    }
    FewQueries::choose(&Cache::of(problem), device, request).map(into_choice)
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
    let cache = Cache::of(problem);
    let of = |stored| {
        let is_its = |kernel: &DecodeKernel| {
            let algorithm = kernel.algorithm(problem.dense(), stored);
            [algorithm, algorithm.and_then(that_adds_up)].contains(&Some(entry.algorithm))
        };
        DecodeKernel::ALL.into_iter().find(is_its)
    };
    let Some(kernel) = of(cache.stored) else {
        let reason = match Stored::ALL.into_iter().find_map(of) {
            Some(_) => {
                format!("it is for another cache than one {}", cache.stored.name(problem.dense().dtype()))
            }
            None if entry.algorithm.is_cached_forward() => {
                "it is for other scores than the problem's".to_owned()
            }
            None => "it is no kernel for decoding".to_owned(),
        };
        return Err(unfit(entry, reason));
    };
    check_entry(entry, problem.dense())?;
    check_target(entry, device, kernel.name())?;
    check_fits(entry, problem.dense(), device)?;
    let chosen = (entry, ASKED_FOR.to_owned());
    FewQueries::of_entry(&cache, device, kernel, chosen, &DecodeRequest::default()).map(into_choice)
}

fn unfit(entry: &Entry, reason: String) -> Error {
    Error::UnfitEntry { entry: entry.name, reason }
}

fn into_choice(few: FewQueries) -> Choice<DecodeProblem> {
    let kernel = few.launches.kernel;
    few.into_choice(kernel, |details| details)
}

/// Why an entry, where the caller named it.
const ASKED_FOR: &str = "asked for,";

#[cfg(test)]
mod tests;
