//! Plans of ranks that have a part of the keys each: all have as many splits, and the launch that merges
//! takes those of all ranks, in the order of ranks.

use std::ops::Range;

use fa_kernels::params::MAX_SPLITS;

use super::{DecodeShard, refuse};
use crate::decode::{
    DecodeKernel, DecodeLaunchDetails, DecodePlan, DecodeProblem, DecodeRequest, SharedSplits, partial_bytes,
};
use crate::operation::{Launch, Operation as _};
use crate::{BackendKind, DType, Device, Plan, Result};

/// The fewest splits of a rank: the result of a single one is rounded to the storage type.
const FEWEST_SPLITS: usize = 2;

/// A rank's plan. Its launches but the last write their results to the rank's piece of [`Partials`] in the
/// workspace; the last one merges those of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct SharedPlan {
    pub(crate) plan: DecodePlan,
    /// O and log-sum-exps.
    pub(crate) partials: [Partials; 2],
}

/// Where in the workspace the results of all ranks' splits lie: one piece after the other, as of a gather in
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partials {
    /// Bytes in front of the first rank's.
    pub(crate) first: usize,
    /// Bytes of each rank's.
    pub(crate) piece: usize,
}

impl Partials {
    /// Bytes of a rank's piece.
    pub(crate) const fn piece_of(&self, rank: usize) -> Range<usize> {
        let first = self.first + rank * self.piece;
        first..first + self.piece
    }
}

impl SharedPlan {
    /// Plans a rank's part.
    ///
    /// # Errors
    /// As [`Plan::new`], and when the device is a CPU, or the number of splits or kernel asked for is none of
    /// ranks.
    pub(crate) fn new(shard: &DecodeShard, device: &Device, request: &DecodeRequest) -> Result<Self> {
        let (problem, rank, world) = (shard.problem(), shard.rank(), shard.world());
        let num_splits = num_splits(problem, device, request, world)?;
        let request = DecodeRequest { num_splits: Some(num_splits), ..of_rank(problem, request) };
        let mut choice = problem.choose(device, &request)?;
        if choice.launches.iter().any(|launch| launch.details.widened.is_some()) {
            let kernel = DecodeKernel::ForwardSm90.name();
            return refuse(format!("{kernel} takes no cache in e4m3 that ranks share; decode_sm90 does"));
        }
        let all = world * num_splits;
        let place = |launches: &mut Vec<Launch<DecodeProblem>>| {
            let Some((merging, of_splits)) = launches.split_last_mut() else { return };
            for launch in of_splits {
                launch.details.shared = Some(SharedSplits { before: rank * num_splits, all });
            }
            merging.details = DecodeLaunchDetails { num_splits: all, ..merging.details };
        };
        place(&mut choice.launches);
        place(&mut choice.unaligned);
        let bytes = |splits| partial_bytes(problem.dense(), splits).map(|bytes| bytes as u64);
        let ([piece_o, piece_lse], [all_o, all_lse]) = (bytes(num_splits), bytes(all));
        choice.workspace_bytes = all_o + all_lse;
        choice.reasons.push(format!(
            "{world} ranks have as many splits each, and merge all {all}, of which a rank gives {} bytes",
            piece_o + piece_lse
        ));
        let partials = |first, piece| Partials { first: first as usize, piece: piece as usize };
        Ok(Self {
            plan: Plan::of(problem, device, choice),
            partials: [partials(0, piece_o), partials(all_o, piece_lse)],
        })
    }
}

/// The launches in front of the gather.
pub(crate) fn of_splits(launches: &[Launch<DecodeProblem>]) -> &[Launch<DecodeProblem>] {
    &launches[..launches.len().saturating_sub(1)]
}

/// The launch behind it.
pub(crate) fn merging(launches: &[Launch<DecodeProblem>]) -> &[Launch<DecodeProblem>] {
    &launches[launches.len().saturating_sub(1)..]
}

/// Splits of each rank: as asked, or as one device would have them for its own keys.
fn num_splits(
    problem: &DecodeProblem,
    device: &Device,
    request: &DecodeRequest,
    world: usize,
) -> Result<usize> {
    if device.backend == BackendKind::Cpu {
        return refuse("the CPU has no splits that ranks could merge".to_owned());
    }
    let most = MAX_SPLITS as usize / world;
    if most < FEWEST_SPLITS {
        let limit = MAX_SPLITS as usize / FEWEST_SPLITS;
        return refuse(format!("{world} ranks are more than the {limit} that decode together"));
    }
    match request.num_splits {
        Some(value) if (FEWEST_SPLITS..=most).contains(&value) => Ok(value),
        Some(value) => {
            refuse(format!("num_splits is {value}; {FEWEST_SPLITS} to {most} are possible for {world} ranks"))
        }
        None if request.batch_invariant == Some(true) => {
            refuse("batch_invariant needs num_splits, which the batch decides otherwise".to_owned())
        }
        None => {
            // The last rank's mask decides nothing here, where all ranks need one number.
            let alone = Plan::new(&problem.without_window(), device, &of_rank(problem, request))?;
            Ok(alone.num_splits().clamp(FEWEST_SPLITS, most))
        }
    }
}

/// The request with even splits, which a launch of its own merges.
fn of_rank(problem: &DecodeProblem, request: &DecodeRequest) -> DecodeRequest {
    let reads_e4m3 = problem.cache_dtype() == DType::E4m3 && request.entry.is_none();
    DecodeRequest {
        batch_invariant: Some(false),
        clusters: Some(false),
        kernel: request.kernel.or(reads_e4m3.then_some(DecodeKernel::DecodeSm90)),
        ..request.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{DecodeAddresses, DecodeOptions, E4m3Cache};
    use crate::forward::Factor;
    use crate::sim::Sim;
    use crate::{TensorLayout, Tensors};

    fn problem(rows: usize, e4m3: bool) -> DecodeProblem {
        let (q, k) = (TensorLayout::bshd(2, rows, 8, 128), TensorLayout::bshd(2, 8192, 2, 128));
        let e4m3_cache = e4m3.then(|| E4m3Cache { k_descale: Factor::Tensor(0.5), ..E4m3Cache::default() });
        let options = DecodeOptions { e4m3_cache, ..DecodeOptions::default() };
        DecodeProblem::new(Tensors { q, k, v: k, o: q }, DType::Bf16, options).unwrap()
    }

    fn plan(
        problem: &DecodeProblem,
        request: &DecodeRequest,
        rank: usize,
        world: usize,
    ) -> Result<SharedPlan> {
        let shard = DecodeShard::new(problem, rank, world)?;
        SharedPlan::new(&shard, Sim::new(0).device(), request)
    }

    #[test]
    fn pieces_lie_behind_one_another_and_fill_the_workspace() {
        let problem = problem(1, false);
        for rank in 0..3 {
            let SharedPlan { plan, partials } = plan(&problem, &DecodeRequest::default(), rank, 3).unwrap();
            let splits = plan.num_splits();
            assert!((2..=42).contains(&splits), "{splits}");
            let [o, lse] = partials;
            assert_eq!([o.piece, lse.piece], [splits * 16 * 128 * 4, splits * 16 * 4]);
            assert_eq!((o.first, o.piece_of(2).end), (0, lse.first));
            assert_eq!(lse.piece_of(2).end as u64, plan.workspace_bytes());
            // Wherever K begins, all ranks have the same splits.
            for k in [256, 2] {
                let addresses = DecodeAddresses { k, ..DecodeAddresses::default() };
                let launches = plan.launches_at(&addresses);
                let [of_splits, merging] = [of_splits(launches)[0], merging(launches)[0]];
                let of_rank = SharedSplits { before: rank * splits, all: 3 * splits };
                assert_eq!(of_splits.details.shared, Some(of_rank));
                assert_eq!((of_splits.details.num_splits, merging.details.num_splits), (splits, 3 * splits));
            }
        }
    }

    #[test]
    fn what_ranks_cannot_be_asked_for_is_refused_by_name() {
        let refused = |problem: &DecodeProblem, request: DecodeRequest, world| {
            let message = plan(problem, &request, 0, world).unwrap_err().to_string();
            message.trim_start_matches("context parallelism: ").to_owned()
        };
        let any = DecodeRequest::default;
        let (same, e4m3) = (problem(1, false), problem(64, true));
        let splits = |value| DecodeRequest { num_splits: Some(value), ..any() };
        assert_eq!(refused(&same, splits(1), 2), "num_splits is 1; 2 to 64 are possible for 2 ranks");
        assert_eq!(refused(&same, splits(15), 9), "num_splits is 15; 2 to 14 are possible for 9 ranks");
        assert_eq!(refused(&same, any(), 65), "65 ranks are more than the 64 that decode together");
        let invariant = DecodeRequest { batch_invariant: Some(true), ..any() };
        let needed = "batch_invariant needs num_splits, which the batch decides otherwise";
        assert_eq!(refused(&same, invariant, 2), needed);
        let widens = DecodeRequest { kernel: Some(DecodeKernel::ForwardSm90), ..any() };
        let reason = "forward_sm90 takes no cache in e4m3 that ranks share; decode_sm90 does";
        assert_eq!(refused(&e4m3, widens, 2), reason);
        assert_eq!(plan(&e4m3, &any(), 0, 2).unwrap().plan.kernel(), DecodeKernel::DecodeSm90);
        let shard = DecodeShard::new(&same, 0, 2).unwrap();
        let cpu = SharedPlan::new(&shard, &crate::cpu::backend::device(), &any()).unwrap_err().to_string();
        assert_eq!(cpu, "context parallelism: the CPU has no splits that ranks could merge");
    }
}
