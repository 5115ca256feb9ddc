//! Decoding over keys that several GPUs share out: of one process, or of one each.

use std::sync::Arc;
use std::time::Duration;

use super::joined::{InUse, UntilDone};
use super::process::{Distributed, described};
use super::{check_each, copy, links};
use crate::cuda::Cuda;
use crate::cuda::buffer::Buffer;
use crate::cuda::driver::{Event, OwnedStream, Stream};
use crate::cuda::nccl::{Communicator, Memory, Nccl};
use crate::decode::{DecodeAddresses, DecodePlan, DecodeProblem, DecodeRequest};
use crate::distributed::{DecodeShard, SharedPlan, merging, of_splits};
use crate::{Error, Result};

/// A rank's part on its GPU.
struct DecodeRank {
    cuda: Cuda,
    shard: DecodeShard,
    shared: SharedPlan,
    /// The last call's work is over.
    end: Event,
}

impl DecodeRank {
    /// Plans a rank's part, and loads its kernels.
    fn new(cuda: &Cuda, shard: DecodeShard, request: &DecodeRequest) -> Result<Self> {
        let shared = SharedPlan::new(&shard, cuda.device(), request)?;
        cuda.load(&shared.plan)?;
        Ok(Self { end: Event::untimed(&cuda.context)?, cuda: cuda.clone(), shard, shared })
    }

    const fn plan(&self) -> &DecodePlan {
        &self.shared.plan
    }

    /// Bytes of the memory that results of splits are gathered in.
    fn gathered_bytes(&self) -> usize {
        // A device has fewer bytes than a usize counts.
        self.plan().workspace_bytes() as usize
    }

    /// Enqueues the launches that give the rank's piece, in memory that begins at `gathered`.
    ///
    /// # Safety
    /// As [`RankDecode::decode`]; the memory is [`Self::gathered_bytes`] long.
    unsafe fn split(&self, addresses: &DecodeAddresses, gathered: u64, stream: Stream) -> Result<()> {
        let addresses = DecodeAddresses { workspace: gathered, ..*addresses };
        let launches = of_splits(self.plan().launches_at(&addresses));
        // SAFETY: the caller's promise; the plan was made for this GPU.
        unsafe { self.cuda.enqueue_launches(self.plan(), launches, &addresses, stream) }
    }

    /// Enqueues the launch that merges all ranks' pieces, and marks the end.
    ///
    /// # Safety
    /// As [`Self::split`]; all pieces are there when the stream gets so far.
    unsafe fn merge(&self, addresses: &DecodeAddresses, gathered: u64, stream: Stream) -> Result<()> {
        let addresses = DecodeAddresses { workspace: gathered, ..*addresses };
        let launches = merging(self.plan().launches_at(&addresses));
        // SAFETY: the caller's promise; the plan was made for this GPU.
        unsafe { self.cuda.enqueue_launches(self.plan(), launches, &addresses, stream) }?;
        self.end.record(stream)
    }
}

/// Decoding by several GPUs of this process, one rank each, all of whose work one thread enqueues.
///
/// Each has a part of the keys, and all have the whole result, with the same bits. Several ranks may be on
/// one GPU, where they take turns.
pub struct LocalDecode {
    ranks: Vec<DecodeRank>,
    gathered: Vec<Buffer>,
    /// A rank's piece is there.
    given: Vec<Event>,
    /// A rank has the pieces of all others.
    taken: Vec<Event>,
    /// A stream for all pieces but each rank's first, with the end of what is on it: copies that wait for one
    /// another take longer than their bytes.
    beside: Vec<(OwnedStream, Event)>,
    reasons: Vec<String>,
}

impl LocalDecode {
    /// Plans `problem` for a rank on each of these GPUs, and takes the memory that ranks need beside their
    /// tensors. K and V of the problem are one rank's cache: all have the same shape.
    ///
    /// # Errors
    /// As [`DecodeShard::new`] and [`Plan::new`](crate::Plan::new), when GPUs would split their keys
    /// differently, and when one has not enough memory.
    pub fn new(gpus: &[Cuda], problem: &DecodeProblem, request: &DecodeRequest) -> Result<Self> {
        let mut reasons = links(gpus)?;
        let (mut ranks, mut gathered) = (Vec::<DecodeRank>::new(), Vec::new());
        let (mut given, mut taken, mut beside) = (Vec::new(), Vec::new(), Vec::new());
        for (index, cuda) in gpus.iter().enumerate() {
            let shard = DecodeShard::new(problem, index, gpus.len())?;
            let rank = DecodeRank::new(cuda, shard, request)?;
            let splits = rank.plan().num_splits();
            if let Some(first) = ranks.first().filter(|first| first.plan().num_splits() != splits) {
                let of_first = first.plan().num_splits();
                let reason = format!("rank {index} has {splits} splits, and rank 0 has {of_first}");
                return Err(Error::Context { reason });
            }
            gathered.push(cuda.buffer("results of splits", rank.gathered_bytes())?);
            given.push(Event::untimed(&cuda.context)?);
            taken.push(Event::untimed(&cuda.context)?);
            beside.push((OwnedStream::new(&cuda.context)?, Event::untimed(&cuda.context)?));
            ranks.push(rank);
        }
        reasons.extend(ranks.first().into_iter().flat_map(|rank| rank.plan().reasons().iter().cloned()));
        Ok(Self { ranks, gathered, given, taken, beside, reasons })
    }

    /// A rank's part, if there is such a rank.
    pub fn shard(&self, rank: usize) -> Option<&DecodeShard> {
        self.ranks.get(rank).map(|rank| &rank.shard)
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }

    /// How ranks reach one another, and what each of them computes.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// Bytes of device memory that a rank takes beside its tensors.
    pub fn memory_bytes(&self, rank: usize) -> usize {
        self.gathered.get(rank).map_or(0, Buffer::bytes)
    }

    /// Enqueues all ranks' work, each rank's on its stream behind what is there, and returns; outputs are
    /// there once the rank's stream gets so far. Workspaces among the addresses are not looked at.
    ///
    /// # Errors
    /// When there are not as many addresses or streams as ranks, when an address that the problem needs was
    /// left out, and when a driver refuses a launch or a copy.
    ///
    /// # Safety
    /// Each rank's addresses are as of [`Cuda::enqueue`], of its GPU; lengths and page tables are those of
    /// its cache, and all ranks have the same Q. They and the streams, which are of the ranks' GPUs, stay
    /// alive until the work is over. Calls follow one another: each stream is that of the call before, or
    /// waits for it.
    pub unsafe fn decode(&self, addresses: &[DecodeAddresses], streams: &[Stream]) -> Result<()> {
        check_each(self.world(), addresses.len(), streams.len())?;
        for (index, (addresses, &stream)) in addresses.iter().zip(streams).enumerate() {
            // What the call before has given is overwritten.
            self.others(index).try_for_each(|other| self.taken[other].hold_back(stream))?;
            // SAFETY: the caller's promise; the buffer is as long as the plan says.
            unsafe { self.ranks[index].split(addresses, self.gathered[index].address(), stream) }?;
            self.given[index].record(stream)?;
        }
        for (index, (addresses, &stream)) in addresses.iter().zip(streams).enumerate() {
            let (beside, end) = &self.beside[index];
            // The merge of the call before has read what comes there now.
            self.given[index].hold_back(beside.handle())?;
            for other in self.others(index) {
                self.given[other].hold_back(stream)?;
                self.given[other].hold_back(beside.handle())?;
                self.take(index, other, [stream, beside.handle()])?;
            }
            end.record(beside.handle())?;
            end.hold_back(stream)?;
            self.taken[index].record(stream)?;
            // SAFETY: the caller's promise; the stream waits for all pieces.
            unsafe { self.ranks[index].merge(addresses, self.gathered[index].address(), stream) }?;
        }
        Ok(())
    }

    /// Waits for the last call's work.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn wait(&self) -> Result<()> {
        self.ranks.iter().try_for_each(|rank| rank.end.synchronize())
    }

    fn others(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.world()).filter(move |&other| other != rank)
    }

    /// Copies another rank's O and log-sum-exps, each on a stream.
    fn take(&self, rank: usize, other: usize, streams: [Stream; 2]) -> Result<()> {
        let [to, from] = [rank, other].map(|rank| &*self.ranks[rank].cuda.context);
        to.make_current()?;
        for (partials, stream) in self.ranks[rank].shared.partials.iter().zip(streams) {
            let piece = partials.piece_of(other);
            let [target, source] =
                [rank, other].map(|rank| self.gathered[rank].address() + piece.start as u64);
            // SAFETY: both buffers are as long as all pieces, and live; nobody else writes this rank's place
            // of the piece, and events keep the other's from being written again before.
            unsafe { copy(to, target, from, source, piece.len(), stream) }?;
        }
        Ok(())
    }
}

impl Drop for LocalDecode {
    fn drop(&mut self) {
        // Memory is freed next; whoever waited for a run has heard of its fault.
        let _ = self.wait();
    }
}

impl Distributed {
    /// Plans this rank's part of decoding, and takes the memory that it needs beside its tensors. K and V of
    /// the problem are this rank's cache: all have the same shape. All ranks call it together.
    ///
    /// # Errors
    /// As [`DecodeShard::new`] and [`Plan::new`](crate::Plan::new), when ranks name different problems, when
    /// a GPU has not enough memory, and when a rank is gone.
    pub fn plan_decode(&self, problem: &DecodeProblem, request: &DecodeRequest) -> Result<RankDecode> {
        let planned = DecodeShard::new(problem, self.rank(), self.world())
            .and_then(|shard| DecodeRank::new(self.cuda(), shard, request));
        self.joined.agree(&agreed(problem, &planned))?;
        let rank = planned?;
        let mut reasons = vec![format!("pieces by kernels, {}", Nccl::get()?.name())];
        reasons.extend_from_slice(rank.plan().reasons());
        let (gathered, communicator) = self.joined.small_memory(rank.gathered_bytes())?;
        let context = &self.cuda().context;
        let (gathers, given) = (OwnedStream::new(context)?, Event::untimed(context)?);
        let held = Held { rank, gathered, gathers, given, taken: Event::untimed(context)? };
        Ok(RankDecode { held: UntilDone::new(&self.joined, held), communicator, reasons })
    }
}

/// What ranks must agree in before they decode.
fn agreed(problem: &DecodeProblem, planned: &Result<DecodeRank>) -> Vec<(&'static str, String)> {
    let splits = match planned {
        Ok(rank) => format!("{} of each rank", rank.plan().num_splits()),
        Err(error) => format!("none, for {error}"),
    };
    let mut agreed = described(problem.dense());
    agreed.extend([("cache", problem.cache_dtype().to_string()), ("splits", splits)]);
    agreed
}

/// A rank with what it gathers.
struct Held {
    rank: DecodeRank,
    gathered: Memory,
    /// NCCL's kernels may begin before the kernel in front of them has ended: they have a stream of their
    /// own, which waits for all of it, and is waited for.
    gathers: OwnedStream,
    /// The rank's piece is there.
    given: Event,
    /// All pieces are.
    taken: Event,
}

impl InUse for Held {
    fn end(&self) -> &Event {
        &self.rank.end
    }
}

/// What a rank is ready to decode with the others.
pub struct RankDecode {
    held: UntilDone<Held>,
    communicator: Arc<Communicator>,
    reasons: Vec<String>,
}

impl RankDecode {
    /// The rank's part.
    pub fn shard(&self) -> &DecodeShard {
        &self.held.rank.shard
    }

    /// How ranks reach one another, and what each of them computes.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// Bytes of device memory that the rank takes beside its tensors.
    pub fn memory_bytes(&self) -> usize {
        self.held.gathered.bytes()
    }

    /// Enqueues the rank's work behind what is on `stream`, and returns; outputs are there once the stream
    /// gets so far. The workspace among the addresses is not looked at. All ranks call it together.
    ///
    /// # Errors
    /// When a rank is gone, when an address that the problem needs was left out, and when the driver or NCCL
    /// refuses something.
    ///
    /// # Safety
    /// The addresses are as of [`Cuda::enqueue`], of this rank's GPU; lengths and page table are those of its
    /// cache, and all ranks have the same Q. They and the stream stay alive until the work is over. The
    /// stream is that of the call before, or waits for it.
    pub unsafe fn decode(&self, addresses: &DecodeAddresses, stream: Stream) -> Result<()> {
        let joined = self.held.joined();
        joined.check()?;
        let Held { rank, gathered, gathers, given, taken } = &*self.held;
        let (first, gathers) = (gathered.address(), gathers.handle());
        // SAFETY: the caller's promise; the memory is as long as the plan says.
        unsafe { rank.split(addresses, first, stream) }?;
        given.record(stream)?;
        given.hold_back(gathers)?;
        let partials = rank.shared.partials.iter();
        let pieces: Vec<_> =
            partials.map(|partials| (first + partials.first as u64, partials.piece)).collect();
        // SAFETY: all ranks agree in their pieces; the memory is as long as all of them, and is freed when
        // the stream is done with it.
        joined.patiently(|keep_on| unsafe { self.communicator.all_gathers(&pieces, gathers, keep_on) })?;
        taken.record(gathers)?;
        taken.hold_back(stream)?;
        // SAFETY: the caller's promise; the stream waits for all pieces.
        unsafe { rank.merge(addresses, first, stream) }
    }

    /// Waits for the last call's work, for as long as `deadline`.
    ///
    /// # Errors
    /// [`Error::Peer`] when a rank is gone or the deadline is over, after which no rank computes any more,
    /// and when a kernel faulted or NCCL failed.
    pub fn wait(&self, deadline: Duration) -> Result<()> {
        self.held.wait(deadline)
    }
}
