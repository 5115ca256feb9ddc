//! Ranks on GPUs: of one process, or of one each.

mod decode;
mod joined;
mod process;
mod rank;
mod sharded;

use std::marker::PhantomData;

use crate::backward::BackwardProblem;
use crate::cuda::Cuda;
use crate::cuda::buffer::Buffer;
use crate::cuda::driver::{Context, Event, Stream};
use crate::distributed::{Gather, Gathered, Partition, Shard};
use crate::{Error, Problem, Result};
pub use decode::{LocalDecode, RankDecode};
pub use joined::Transport;
pub use process::{Distributed, RankPlan};
use rank::Rank;
use sharded::Planned;
pub use sharded::Sharded;

/// Addresses of a rank's tensors on its GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardAddresses {
    /// The rank's queries, as [`Shard::tensors`] has them.
    pub q: u64,
    /// Its keys.
    pub k: u64,
    /// Its values.
    pub v: u64,
    /// Its output.
    pub o: u64,
    /// Its log-sum-exp, [`Shard::lse_len`] of fp32; `None` where it is not wanted. A backward pass reads it.
    pub lse: Option<u64>,
    /// Of a backward pass, gradient of the output, which lies as it.
    pub dout: u64,
    /// Of a backward pass, gradient of the queries, which lies as these; written.
    pub dq: u64,
    /// The same of the keys.
    pub dk: u64,
    /// The same of the values.
    pub dv: u64,
}

/// A forward or backward pass by several GPUs of this process, one rank each, all of whose work one thread
/// enqueues.
///
/// Pieces go from the memory of one GPU to that of another by copy engines, beside attention. Several ranks
/// may be on one GPU, where they take turns.
pub struct LocalRanks<O: Sharded = Problem> {
    ranks: Vec<Rank>,
    gathered: Vec<[Option<Buffer>; Gathered::COUNT]>,
    ends: Vec<Event>,
    reasons: Vec<String>,
    pass: PhantomData<O>,
}

impl<O: Sharded> LocalRanks<O> {
    /// Plans `problem` for a rank on each of these GPUs, in the tiles of one GPU, and takes the memory that
    /// ranks need beside their tensors.
    ///
    /// # Errors
    /// As [`Shard::new`] and [`Plan::new`](crate::Plan::new), for a backward pass as
    /// [`Schedule::backward`](crate::distributed::Schedule::backward), and when a GPU has not enough memory.
    pub fn new(gpus: &[Cuda], problem: &O, partition: Partition, request: &O::Request) -> Result<Self> {
        let mut reasons = links(gpus)?;
        let (mut ranks, mut gathered, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (index, cuda) in gpus.iter().enumerate() {
            let planned = problem.planned(cuda.device(), (index, gpus.len(), partition), request)?;
            if index == 0 {
                reasons.push(describe(&planned));
            }
            let memory = tensors(&planned, |len| cuda.buffer("gathered tensors", len))?;
            let addresses = memory.each_ref().map(|memory| memory.as_ref().map_or(0, Buffer::address));
            ranks.push(Rank::new(cuda, planned, addresses)?);
            gathered.push(memory);
            ends.push(Event::untimed(&cuda.context)?);
        }
        Ok(Self { ranks, gathered, ends, reasons, pass: PhantomData })
    }

    /// A rank's part, if there is such a rank.
    pub fn shard(&self, rank: usize) -> Option<&Shard> {
        self.ranks.get(rank).map(Rank::shard)
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }

    /// How ranks reach one another, and what they do together.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// Bytes of device memory that a rank takes beside its tensors.
    pub fn memory_bytes(&self, rank: usize) -> usize {
        let gathered = self.gathered.get(rank).into_iter().flatten().flatten();
        let gathered = gathered.map(Buffer::bytes).sum::<usize>();
        gathered + self.ranks.get(rank).map_or(0, Rank::bytes)
    }

    /// Enqueues all ranks' work ([`LocalRanks::forward`], [`LocalRanks::backward`]).
    ///
    /// # Safety
    /// As there.
    unsafe fn run(&self, addresses: &[ShardAddresses], streams: &[Stream]) -> Result<()> {
        check_each(self.world(), addresses.len(), streams.len())?;
        for (index, (addresses, &stream)) in addresses.iter().zip(streams).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.place(index, addresses, stream) }?;
        }
        for (index, ((rank, addresses), &stream)) in self.ranks.iter().zip(addresses).zip(streams).enumerate()
        {
            let mut gather = |stage, gathers: &[Gather], copies: Stream| {
                self.others(index).try_for_each(|other| other.hold_back_until_placed(stage, copies))?;
                gathers.iter().try_for_each(|gather| self.take(index, gather, copies))
            };
            // SAFETY: the caller's promise.
            unsafe { rank.attend(addresses, stream, &mut gather) }?;
            self.ends[index].record(stream)?;
        }
        Ok(())
    }

    /// Enqueues the work of one rank alone, with the other ranks' rows as the last call for all ranks
    /// gathered them, and returns: what a rank does where links take no time.
    ///
    /// # Errors
    /// When there is no such rank, and when a driver refuses a launch.
    ///
    /// # Safety
    /// As [`LocalRanks::forward`], of this rank.
    pub unsafe fn run_gathered(&self, rank: usize, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        if rank >= self.world() {
            let reason = format!("there is no rank {rank} among {} ranks", self.world());
            return Err(Error::Context { reason });
        }
        // SAFETY: the caller's promise; keys that are gathered stay until another call gathers them again.
        unsafe {
            self.place(rank, addresses, stream)?;
            self.ranks[rank].attend(addresses, stream, &mut |_, _, _| Ok(()))?;
        }
        self.ends[rank].record(stream)
    }

    /// Enqueues a rank's rows to where they belong, behind the other ranks' gathers of those before.
    ///
    /// # Safety
    /// As [`LocalRanks::forward`], of this rank.
    unsafe fn place(&self, index: usize, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        let rank = &self.ranks[index];
        for other in self.others(index) {
            rank.placing().try_for_each(|stream| other.hold_back_until_gathered(stream))?;
        }
        // SAFETY: the caller's promise; other ranks have taken what was placed before.
        unsafe { rank.place(addresses, stream) }
    }

    /// Waits for the last call's work.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn wait(&self) -> Result<()> {
        self.ends.iter().try_for_each(Event::synchronize)
    }

    fn others(&self, rank: usize) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(move |other| other.shard().rank() != rank)
    }

    /// Copies the other ranks' pieces of a gather.
    fn take(&self, rank: usize, gather: &Gather, copies: Stream) -> Result<()> {
        let dtype = self.ranks[rank].shard().problem().dtype();
        let (element, tensor) = (gather.tensor.dtype(dtype).bytes(), gather.tensor.index());
        let to = &self.ranks[rank].cuda().context;
        to.make_current()?;
        for other in self.others(rank) {
            let index = other.shard().rank();
            let piece = gather.piece_of(index, self.world());
            let (at, bytes) = ((piece.start * element) as u64, piece.len() * element);
            let [target, source] = [rank, index]
                .map(|rank| self.gathered[rank][tensor].as_ref().map_or(0, Buffer::address) + at);
            // SAFETY: both gathered tensors are as long as the schedule says, and live; nobody else writes
            // this rank's place of the piece, and events keep the other's from being written again before.
            unsafe { copy(to, target, &other.cuda().context, source, bytes, copies) }?;
        }
        Ok(())
    }
}

impl LocalRanks {
    /// Enqueues all ranks' work, each rank's behind what is on its stream, and returns; outputs are there
    /// once the rank's stream gets so far.
    ///
    /// # Errors
    /// When there are not as many addresses or streams as ranks, and when a driver refuses a launch or a
    /// copy.
    ///
    /// # Safety
    /// Each rank's addresses are memory of its GPU that its shard's views stay inside of, aligned to their
    /// element type; lse is as long as [`Shard::lse_len`]. They and the streams, which are of the ranks'
    /// GPUs, stay alive until the work is over. Nothing else writes the tensors meanwhile, and outputs
    /// overlap nothing. Calls follow one another: each stream is that of the call before, or waits for it.
    pub unsafe fn forward(&self, addresses: &[ShardAddresses], streams: &[Stream]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(addresses, streams) }
    }
}

impl LocalRanks<BackwardProblem> {
    /// Enqueues all ranks' gradients, as [`LocalRanks::forward`] outputs, from O and lse of the forward pass.
    ///
    /// # Errors
    /// As there, and when a rank's lse was left out.
    ///
    /// # Safety
    /// As there, of all that [`ShardAddresses`] has.
    pub unsafe fn backward(&self, addresses: &[ShardAddresses], streams: &[Stream]) -> Result<()> {
        check_lse(addresses)?;
        // SAFETY: the caller's promise.
        unsafe { self.run(addresses, streams) }
    }
}

/// Refuses a backward pass without lse.
fn check_lse(addresses: &[ShardAddresses]) -> Result<()> {
    match addresses.iter().find(|addresses| addresses.lse.is_none()) {
        Some(_) => Err(Error::MissingAddress { tensor: "lse" }),
        None => Ok(()),
    }
}

impl<O: Sharded> Drop for LocalRanks<O> {
    fn drop(&mut self) {
        // Memory is freed next; whoever waited for a run has heard of its fault.
        let _ = self.wait();
    }
}

/// Refuses a call without addresses and a stream for each rank.
fn check_each(world: usize, addresses: usize, streams: usize) -> Result<()> {
    for (what, len) in [("addresses", addresses), ("streams", streams)] {
        if len != world {
            return Err(Error::Context { reason: format!("there are {len} {what} and {world} ranks") });
        }
    }
    Ok(())
}

/// Copies bytes from one GPU's memory to another's, or the same's.
///
/// # Safety
/// Both ranges live until the copy is over, and do not overlap.
unsafe fn copy(
    to: &Context,
    target: u64,
    from: &Context,
    source: u64,
    bytes: usize,
    stream: Stream,
) -> Result<()> {
    let driver = to.driver();
    // SAFETY: the caller's promise; the contexts are those of the ranges.
    unsafe {
        if to.ordinal() == from.ordinal() {
            driver.cuMemcpyDtoDAsync_v2(target, source, bytes, stream)?;
        } else {
            driver.cuMemcpyPeerAsync(target, to.handle(), source, from.handle(), bytes, stream)?;
        }
    }
    Ok(())
}

/// Lets GPUs reach one another's memory, where they can, and says how they do.
fn links(gpus: &[Cuda]) -> Result<Vec<String>> {
    let mut reasons = Vec::new();
    for (index, gpu) in gpus.iter().enumerate() {
        for other in &gpus[index + 1..] {
            let [first, second] = [&gpu.context, &other.context].map(|context| context.ordinal());
            if first == second {
                reasons.push(format!("two ranks are on GPU {first}, and take turns"));
                continue;
            }
            let reach = gpu.context.reach(&other.context)? && other.context.reach(&gpu.context)?;
            let how = if reach { "by copy engines from each other's memory" } else { "through host memory" };
            reasons.push(format!("GPUs {first} and {second} exchange pieces {how}"));
        }
    }
    reasons.dedup();
    Ok(reasons)
}

/// Memory of each gathered tensor that there is, of so many bytes.
fn tensors<M>(
    planned: &Planned,
    mut memory: impl FnMut(usize) -> Result<M>,
) -> Result<[Option<M>; Gathered::COUNT]> {
    let Planned { shard, schedule, .. } = planned;
    let all = [Gathered::K, Gathered::V, Gathered::Q, Gathered::Dout, Gathered::Lse, Gathered::Delta];
    let mut made = [const { None }; Gathered::COUNT];
    for tensor in all {
        let len = schedule.gathered[tensor.index()];
        if len > 0 {
            made[tensor.index()] = Some(memory(len * tensor.dtype(shard.problem().dtype()).bytes())?);
        }
    }
    Ok(made)
}

fn describe(Planned { shard, schedule, requests }: &Planned) -> String {
    let heads: Vec<_> = schedule.stages.iter().map(|stage| stage.kv_heads.len().to_string()).collect();
    let packed = match shard.problem().is_packed() {
        true => format!("{} of {} sequences are cut; ", shard.cut_sequences(), shard.problem().batch()),
        false => String::new(),
    };
    format!(
        "{packed}{} stages of {} key/value heads; {requests}, as one GPU has them",
        heads.len(),
        heads.join(", ")
    )
}
