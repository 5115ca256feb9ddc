//! A rank in a process of its own, with NCCL.

use std::hash::{Hash as _, Hasher as _};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::joined::{InUse, Joined, Transport, UntilDone};
use super::rank::Rank;
use super::sharded::{Planned, Sharded};
use super::{ShardAddresses, check_lse, describe, tensors};
use crate::backward::BackwardProblem;
use crate::cuda::Cuda;
use crate::cuda::driver::{Event, Stream};
use crate::cuda::nccl::Memory;
use crate::distributed::{Gather, Gathered, Partition, Shard, World};
use crate::{Problem, Result};

/// A rank among others that have met, each in a process with a GPU of its own.
///
/// Pieces go from GPU to GPU by NCCL ([`Transport`]), beside attention. A rank that dies, hangs or disagrees
/// is an error on all others: no call waits for ever. After [`Error::Peer`](crate::Error::Peer) streams of
/// this GPU may wait for copies for ever, and with them who waits for these streams, or frees device memory:
/// the process should end.
pub struct Distributed {
    pub(super) joined: Arc<Joined>,
}

/// How long ranks wait for one another, where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(30);

impl Distributed {
    /// As torchrun, Slurm or Open MPI started this process ([`World::from_env`]), on the GPU of its local
    /// rank.
    ///
    /// # Errors
    /// As [`Self::new`] and [`World::from_env`].
    pub fn from_env() -> Result<Self> {
        let world = World::from_env()?;
        let cuda = Cuda::new(world.local_rank)?;
        Self::new(world, &cuda, PATIENCE)
    }

    /// Meets the other ranks. One that says nothing for as long as `patience` is gone. Pieces go by copy
    /// engines where NCCL has such gathers, else by its kernels.
    ///
    /// # Errors
    /// When NCCL is missing or too old, when the port is in use, when a rank does not come in time or has
    /// another version, and when NCCL fails.
    pub fn new(world: World, cuda: &Cuda, patience: Duration) -> Result<Self> {
        Ok(Self { joined: Arc::new(Joined::new(world, cuda, patience, None)?) })
    }

    /// As [`Self::new`], with the transport that all ranks name.
    ///
    /// # Errors
    /// As there, and when ranks name different ones.
    pub fn with_transport(
        world: World,
        cuda: &Cuda,
        patience: Duration,
        transport: Transport,
    ) -> Result<Self> {
        Ok(Self { joined: Arc::new(Joined::new(world, cuda, patience, Some(transport))?) })
    }

    /// Index of this rank.
    pub fn rank(&self) -> usize {
        self.joined.group.world().rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.joined.group.world().size
    }

    /// This rank's GPU.
    pub fn cuda(&self) -> &Cuda {
        &self.joined.cuda
    }

    /// How pieces go to the other ranks.
    pub fn transport(&self) -> Transport {
        self.joined.transport
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// When a rank is gone, or does not come within `patience`.
    pub fn barrier(&self, patience: Duration) -> Result<()> {
        self.joined.group.agree(&[], patience)
    }

    /// Whether all ranks are there, as far as this one has heard; waits for nothing.
    ///
    /// # Errors
    /// [`Error::Peer`](crate::Error::Peer) when a rank is gone.
    pub fn check(&self) -> Result<()> {
        self.joined.check()
    }

    /// Tells all ranks that this one gives up, and why: they have [`Error::Peer`](crate::Error::Peer) in the
    /// place of results, and so has it.
    pub fn give_up(&self, reason: &str) {
        self.joined.group.give_up(reason);
    }

    /// Plans this rank's part of a forward or backward pass, in the tiles of one GPU, and takes the memory
    /// that it needs beside its tensors. All ranks call it together.
    ///
    /// # Errors
    /// As [`LocalRanks::new`](super::LocalRanks::new), when ranks name different problems, and when a rank is
    /// gone.
    pub fn plan<O: Sharded>(
        &self,
        problem: &O,
        partition: Partition,
        request: &O::Request,
    ) -> Result<RankPlan<O>> {
        let (joined, cuda) = (&self.joined, self.cuda());
        let planned = problem.planned(cuda.device(), (self.rank(), self.world(), partition), request);
        joined.agree(&agreed((O::PASS, problem.whole()), partition, &planned))?;
        let planned = planned?;
        let reasons = vec![joined.reason()?, describe(&planned)];
        let gathered = tensors(&planned, |bytes| joined.memory(bytes))?;
        let addresses = gathered.each_ref().map(|memory| memory.as_ref().map_or(0, Memory::address));
        let rank = Rank::new(cuda, planned, addresses)?;
        let end = Event::untimed(&cuda.context)?;
        let held = UntilDone::new(joined, Held { rank, gathered, end });
        Ok(RankPlan { held, reasons, pass: PhantomData })
    }
}

/// What ranks must agree in before they compute a problem.
fn agreed(
    (pass, problem): (&str, &Problem),
    partition: Partition,
    planned: &Result<Planned>,
) -> Vec<(&'static str, String)> {
    let tile = match planned {
        Ok(planned) => planned.requests.to_string(),
        Err(error) => format!("none, for {error}"),
    };
    let mut agreed = described(problem);
    let lengths = problem.cu_seqlens().map(|(q, k)| hash(&[q, k].concat()));
    let lengths = lengths.map_or("none".to_owned(), |hash| format!("{hash:016x}"));
    agreed.extend([
        ("pass", pass.to_owned()),
        ("partition", format!("{partition:?}")),
        ("hash of cu_seqlens", lengths),
        ("tile", tile),
    ]);
    agreed
}

/// A number in the place of many, the same in all ranks of one build.
fn hash(numbers: &[u32]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    numbers.hash(&mut hasher);
    hasher.finish()
}

/// A problem, by names and values.
pub(super) fn described(problem: &Problem) -> Vec<(&'static str, String)> {
    let (window, lists) = (problem.window(), problem.per_head());
    vec![
        ("batch", problem.batch().to_string()),
        ("seqlen_q", problem.seqlen_q().to_string()),
        ("seqlen_k", problem.seqlen_k().to_string()),
        ("heads", problem.heads().to_string()),
        ("kv_heads", problem.kv_heads().to_string()),
        ("head_dim", problem.head_dim().to_string()),
        ("head_dim_v", problem.head_dim_v().to_string()),
        ("dtype", problem.dtype().to_string()),
        ("window", format!("{window:?}")),
        ("softmax_scale", problem.softmax_scale().to_string()),
        ("softcap", problem.softcap().to_string()),
        ("alibi_slopes and sinks", format!("{lists:?}")),
    ]
}

/// A rank with what it gathers.
struct Held {
    rank: Rank,
    gathered: [Option<Memory>; Gathered::COUNT],
    end: Event,
}

impl InUse for Held {
    fn end(&self) -> &Event {
        &self.end
    }
}

/// What a rank is ready to compute with the others.
pub struct RankPlan<O: Sharded = Problem> {
    held: UntilDone<Held>,
    reasons: Vec<String>,
    pass: PhantomData<O>,
}

impl<O: Sharded> RankPlan<O> {
    /// The rank's part.
    pub fn shard(&self) -> &Shard {
        self.held.rank.shard()
    }

    /// How ranks reach one another, and what they do together.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// Bytes of device memory that the rank takes beside its tensors.
    pub fn memory_bytes(&self) -> usize {
        self.held.gathered.iter().flatten().map(Memory::bytes).sum::<usize>() + self.held.rank.bytes()
    }

    /// Enqueues the rank's work ([`RankPlan::forward`], [`RankPlan::backward`]).
    ///
    /// # Safety
    /// As there.
    unsafe fn run(&self, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        let Held { rank, gathered, end } = &*self.held;
        let joined = self.held.joined();
        joined.check()?;
        // SAFETY: the caller's promise.
        unsafe { rank.place(addresses, stream) }?;
        let dtype = self.shard().problem().dtype();
        let piece = |gather: &Gather| {
            let memory = gathered[gather.tensor.index()].as_ref().map_or(0, Memory::address);
            let element = gather.tensor.dtype(dtype).bytes();
            (memory + (gather.first * element) as u64, gather.piece * element)
        };
        // SAFETY: all ranks go through the same schedule; the memory is as long as that says, and is freed
        // when streams are done with it.
        let mut gather =
            |_, gathers: &[Gather], copies: Stream| unsafe { joined.gather(gathers, piece, copies) };
        // SAFETY: the caller's promise.
        unsafe { rank.attend(addresses, stream, &mut gather) }?;
        end.record(stream)
    }

    /// Waits for the last call's work, for as long as `deadline`.
    ///
    /// # Errors
    /// [`Error::Peer`](crate::Error::Peer) when a rank is gone or the deadline is over, after which no rank
    /// computes any more, and when a kernel faulted or NCCL failed.
    pub fn wait(&self, deadline: Duration) -> Result<()> {
        self.held.wait(deadline)
    }
}

impl RankPlan {
    /// Enqueues the rank's work behind what is on `stream`, and returns; outputs are there once the stream
    /// gets so far. All ranks call it together.
    ///
    /// # Errors
    /// When a rank is gone, and when the driver or NCCL refuses something.
    ///
    /// # Safety
    /// The addresses are memory of this rank's GPU that its shard's views stay inside of, aligned to their
    /// element type; lse is as long as [`Shard::lse_len`]. They and the stream stay alive until the work is
    /// over. Nothing else writes the tensors meanwhile, and outputs overlap nothing. The stream is that of
    /// the call before, or waits for it.
    pub unsafe fn forward(&self, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(addresses, stream) }
    }
}

impl RankPlan<BackwardProblem> {
    /// Enqueues the rank's gradients, as [`RankPlan::forward`] its outputs, from O and lse of the forward
    /// pass.
    ///
    /// # Errors
    /// As there, and when lse was left out.
    ///
    /// # Safety
    /// As there, of all that [`ShardAddresses`] has.
    pub unsafe fn backward(&self, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        check_lse(std::slice::from_ref(addresses))?;
        // SAFETY: the caller's promise.
        unsafe { self.run(addresses, stream) }
    }
}
