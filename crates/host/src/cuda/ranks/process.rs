//! A rank in a process of its own, with NCCL.

use std::hash::{Hash as _, Hasher as _};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::rank::Rank;
use super::sharded::{Planned, Sharded};
use super::{ShardAddresses, check_lse, describe, tensors};
use crate::backward::BackwardProblem;
use crate::cuda::Cuda;
use crate::cuda::driver::{Event, Stream};
use crate::cuda::nccl::{Communicator, KeepOn, Memory, Nccl, UniqueId, version_name};
use crate::distributed::{Fingerprint, Gather, Gathered, Group, Partition, Shard, World};
use crate::{Error, Problem, Result};

/// A rank among others that have met, each in a process with a GPU of its own.
///
/// Pieces go from GPU to GPU by NCCL on copy engines, beside attention. A rank that dies, hangs or disagrees
/// is an error on all others: no call waits for ever. After [`Error::Peer`] streams of this GPU may wait for
/// copies for ever, and with them who waits for these streams, or frees device memory: the process should
/// end.
pub struct Distributed {
    cuda: Cuda,
    /// Before the group, which tells the others that this rank is done.
    forth: Arc<Communicator>,
    back: Arc<Communicator>,
    /// For what is small, and nothing runs beside: made when it is first needed.
    small: OnceLock<Arc<Communicator>>,
    is_aborted: AtomicBool,
    group: Group,
    patience: Duration,
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

    /// Meets the other ranks. One that says nothing for as long as `patience` is gone.
    ///
    /// # Errors
    /// When NCCL is missing or too old, when the port is in use, when a rank does not come in time or has
    /// another version, and when NCCL fails.
    pub fn new(world: World, cuda: &Cuda, patience: Duration) -> Result<Self> {
        let nccl = Nccl::get()?;
        nccl.check_copy_engines()?;
        let id = if world.rank == 0 { Communicator::unique_id()?.0 } else { [0; 128] };
        let fingerprint = [
            ("flash-attention", env!("CARGO_PKG_VERSION").to_owned()),
            ("NCCL", version_name(nccl.version())),
        ];
        let (rank, size) = (world.rank, world.size);
        let (group, brought) = Group::meet(world, &fingerprint, &id, patience)?;
        let Ok(id) = brought.try_into() else {
            return Err(Error::Context { reason: "rank 0 brought no id of NCCL".to_owned() });
        };
        let until = Instant::now() + patience;
        let keep_on = || keep_on(&group, until);
        let forth = Communicator::new(&cuda.context, UniqueId(id), (rank, size), &keep_on)?;
        let back = forth.reversed(size, &keep_on)?;
        let (forth, back, small) = (Arc::new(forth), Arc::new(back), OnceLock::new());
        let is_aborted = AtomicBool::new(false);
        Ok(Self { cuda: cuda.clone(), forth, back, small, is_aborted, group, patience })
    }

    /// Index of this rank.
    pub const fn rank(&self) -> usize {
        self.group.world().rank
    }

    /// Number of ranks.
    pub const fn world(&self) -> usize {
        self.group.world().size
    }

    /// This rank's GPU.
    pub const fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// When a rank is gone, or does not come within `patience`.
    pub fn barrier(&self, patience: Duration) -> Result<()> {
        self.group.agree(&[], patience)
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
    ) -> Result<RankPlan<'_, O>> {
        let ranks = (self.rank(), self.world(), partition);
        let planned = problem.planned(self.cuda.device(), ranks, request);
        self.agree(&agreed((O::PASS, problem.whole()), partition, &planned))?;
        let planned = planned?;
        let reasons = vec![transport("copy engines")?, describe(&planned)];
        let gathered = tensors(&planned, |bytes| self.memory(bytes))?;
        let addresses = gathered.each_ref().map(|memory| memory.as_ref().map_or(0, Memory::address));
        let rank = Rank::new(&self.cuda, planned, addresses)?;
        let end = Event::untimed(&self.cuda.context)?;
        let held = UntilDone::new(self, Held { rank, gathered, end });
        Ok(RankPlan { of: self, held, reasons, pass: PhantomData })
    }

    /// Gives all communicators up, and lets NCCL end what they have begun in a thread of its own, since that
    /// takes longer than a rank should wait for its error.
    fn abort(&self) {
        let given_up: Vec<_> = self.communicators().cloned().collect();
        given_up.iter().for_each(|communicator| communicator.give_up());
        if !self.is_aborted.swap(true, Ordering::Relaxed) {
            std::thread::spawn(move || given_up.iter().for_each(|communicator| communicator.abort()));
        }
    }

    fn communicators(&self) -> impl Iterator<Item = &Arc<Communicator>> {
        [&self.forth, &self.back].into_iter().chain(self.small.get())
    }

    /// Refuses to go on once a rank is gone.
    pub(super) fn check(&self) -> Result<()> {
        self.group.check()
    }

    /// Refuses to go on where ranks disagree in what they are about to compute.
    pub(super) fn agree(&self, fingerprint: &Fingerprint) -> Result<()> {
        self.group.agree(fingerprint, self.patience)
    }

    /// Memory that ranks gather in, as long on all of them.
    fn memory(&self, bytes: usize) -> Result<Memory> {
        let known_to = [&self.forth, &self.back];
        self.patiently(|keep_on| Memory::new(&self.cuda.context, bytes, &known_to, keep_on))
    }

    /// Memory that ranks gather small pieces in, and who gathers them. All ranks call it together.
    pub(super) fn small_memory(&self, bytes: usize) -> Result<(Memory, &Arc<Communicator>)> {
        self.patiently(|keep_on| {
            let small = match self.small.get() {
                Some(small) => small,
                None => {
                    let made = Arc::new(self.forth.with_kernels(keep_on)?);
                    self.small.get_or_init(|| made)
                }
            };
            Ok((Memory::new(&self.cuda.context, bytes, &[small], keep_on)?, small))
        })
    }

    /// Waits for NCCL no longer than for a rank.
    pub(super) fn patiently<R>(&self, call: impl FnOnce(KeepOn<'_>) -> Result<R>) -> Result<R> {
        let until = Instant::now() + self.patience;
        call(&|| keep_on(&self.group, until))
    }

    /// Waits for the end of a call's work, for as long as `deadline`.
    ///
    /// # Errors
    /// As [`RankPlan::wait`].
    pub(super) fn wait(&self, end: &Event, deadline: Duration) -> Result<()> {
        let until = Instant::now() + deadline;
        while !end.has_come()? {
            let failed = self.communicators().find_map(|one| one.check().err());
            if let Some(error) = failed {
                self.group.give_up(&error.to_string());
            } else if Instant::now() >= until {
                self.group.give_up(&format!("its work did not end within {deadline:.1?}"));
            }
            if let Err(error) = self.group.check() {
                self.abort();
                return Err(error);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// What streams use until a call's work is over, which it has the end of.
pub(super) trait InUse {
    /// The end of the last call's work.
    fn end(&self) -> &Event;
}

/// Given back once streams are done with it. Where a rank is gone it is kept for ever: a stream may wait for
/// its copies for ever, and so would who frees memory, for all streams.
pub(super) struct UntilDone<'a, T: InUse> {
    of: &'a Distributed,
    held: ManuallyDrop<T>,
}

impl<'a, T: InUse> UntilDone<'a, T> {
    pub(super) const fn new(of: &'a Distributed, held: T) -> Self {
        Self { of, held: ManuallyDrop::new(held) }
    }
}

impl<T: InUse> Deref for UntilDone<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T: InUse> Drop for UntilDone<'_, T> {
    fn drop(&mut self) {
        // Whoever waited has heard of what failed.
        let _ = self.of.wait(self.held.end(), self.of.patience);
        if self.of.check().is_ok() {
            // SAFETY: nobody has dropped it, and nobody uses it behind this.
            unsafe { ManuallyDrop::drop(&mut self.held) };
        }
    }
}

impl Drop for Distributed {
    fn drop(&mut self) {
        // To destroy a communicator would wait for a rank that is gone.
        if self.group.check().is_err() {
            self.abort();
        }
    }
}

/// How ranks in processes reach one another.
pub(super) fn transport(by: &str) -> Result<String> {
    let nccl = Nccl::get()?;
    Ok(format!("pieces by {by}, NCCL {} of {}", version_name(nccl.version()), nccl.file()))
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

/// Whether it is worth waiting on.
fn keep_on(group: &Group, until: Instant) -> Result<()> {
    group.check()?;
    if Instant::now() < until {
        return Ok(());
    }
    group.give_up("NCCL did not come to an end in time");
    group.check()
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
pub struct RankPlan<'a, O: Sharded = Problem> {
    of: &'a Distributed,
    held: UntilDone<'a, Held>,
    reasons: Vec<String>,
    pass: PhantomData<O>,
}

impl<O: Sharded> RankPlan<'_, O> {
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
        self.of.check()?;
        // SAFETY: the caller's promise.
        unsafe { self.held.rank.place(addresses, stream) }?;
        let mut gather = |_, gathers: &[Gather], copies: Stream| {
            gathers.iter().try_for_each(|gather| self.gather(gather, copies))
        };
        // SAFETY: the caller's promise.
        unsafe { self.held.rank.attend(addresses, stream, &mut gather) }?;
        self.held.end.record(stream)
    }

    fn gather(&self, gather: &Gather, copies: Stream) -> Result<()> {
        let memory = self.held.gathered[gather.tensor.index()].as_ref().map_or(0, Memory::address);
        let element = gather.tensor.dtype(self.shard().problem().dtype()).bytes();
        let first = memory + (gather.first * element) as u64;
        let communicator = if gather.reversed { &self.of.back } else { &self.of.forth };
        let bytes = gather.piece * element;
        // SAFETY: all ranks go through the same schedule; the memory is as long as that says, and is freed
        // when streams are done with it.
        self.of.patiently(|keep_on| unsafe { communicator.all_gather(first, bytes, copies, keep_on) })
    }

    /// Waits for the last call's work, for as long as `deadline`.
    ///
    /// # Errors
    /// [`Error::Peer`] when a rank is gone or the deadline is over, after which no rank computes any more,
    /// and when a kernel faulted or NCCL failed.
    pub fn wait(&self, deadline: Duration) -> Result<()> {
        self.of.wait(&self.held.end, deadline)
    }
}

impl RankPlan<'_> {
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

impl RankPlan<'_, BackwardProblem> {
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
