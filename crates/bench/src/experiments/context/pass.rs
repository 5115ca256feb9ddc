//! Forward and backward passes, as the ranks here run them.

use flash_attention::backward::{BackwardAddresses, BackwardProblem, BackwardRequest};
use flash_attention::cuda::Stream;
use flash_attention::distributed::{LocalRanks, RankPlan, ShardAddresses, Sharded, request_of_one};
use flash_attention::forward::Addresses;
use flash_attention::{Problem, Request, Result};

use super::tensors::Places;

/// A pass that ranks compute together.
pub(super) trait Pass: Sharded {
    /// Whether gradients are computed, of the outputs of a forward pass.
    const IS_BACKWARD: bool;

    /// Of the problem of a forward pass.
    ///
    /// # Errors
    /// As `Self::new`.
    fn of(problem: &Problem) -> Result<Self>;

    /// What one GPU is asked for.
    fn request(&self) -> Self::Request;

    /// What one GPU is asked for whose bits ranks have.
    fn request_of_bits(&self) -> Self::Request;

    /// Where its tensors lie in memory that begins at an address.
    fn addresses(places: &Places, base: u64, workspace: u64) -> Self::Addresses;

    /// Enqueues the work of all ranks of this process.
    ///
    /// # Errors
    /// As [`LocalRanks::forward`].
    ///
    /// # Safety
    /// As there.
    unsafe fn run_all(
        ranks: &LocalRanks<Self>,
        addresses: &[ShardAddresses],
        streams: &[Stream],
    ) -> Result<()>;

    /// Enqueues the work of this process's rank.
    ///
    /// # Errors
    /// As [`RankPlan::forward`].
    ///
    /// # Safety
    /// As there.
    unsafe fn run_one(plan: &RankPlan<Self>, addresses: &ShardAddresses, stream: Stream) -> Result<()>;
}

impl Pass for Problem {
    const IS_BACKWARD: bool = false;

    fn of(problem: &Problem) -> Result<Self> {
        Ok(problem.clone())
    }

    fn request(&self) -> Request {
        request_of_one(self, &Request::default())
    }

    fn request_of_bits(&self) -> Request {
        self.request()
    }

    fn addresses(places: &Places, base: u64, workspace: u64) -> Addresses {
        let at = |offset: usize| base + offset as u64;
        Addresses {
            q: at(places.q),
            k: at(places.k),
            v: at(places.v),
            o: at(places.o),
            lse: Some(at(places.lse)),
            workspace,
            ..Addresses::default()
        }
    }

    unsafe fn run_all(ranks: &LocalRanks, addresses: &[ShardAddresses], streams: &[Stream]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { ranks.forward(addresses, streams) }
    }

    unsafe fn run_one(plan: &RankPlan, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { plan.forward(addresses, stream) }
    }
}

impl Pass for BackwardProblem {
    const IS_BACKWARD: bool = true;

    fn of(problem: &Problem) -> Result<Self> {
        Self::like(problem.clone())
    }

    fn request(&self) -> BackwardRequest {
        BackwardRequest::default()
    }

    fn request_of_bits(&self) -> BackwardRequest {
        BackwardRequest { workspace_limit: Some(0), ..BackwardRequest::default() }
    }

    fn addresses(places: &Places, base: u64, workspace: u64) -> BackwardAddresses {
        let at = |offset: usize| base + offset as u64;
        BackwardAddresses {
            forward: Problem::addresses(places, base, workspace),
            dout: at(places.dout),
            dq: at(places.dq),
            dk: at(places.dk),
            dv: at(places.dv),
            ..BackwardAddresses::default()
        }
    }

    unsafe fn run_all(
        ranks: &LocalRanks<Self>,
        addresses: &[ShardAddresses],
        streams: &[Stream],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { ranks.backward(addresses, streams) }
    }

    unsafe fn run_one(plan: &RankPlan<Self>, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { plan.backward(addresses, stream) }
    }
}
