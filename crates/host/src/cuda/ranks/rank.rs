//! A rank's part of a forward or backward pass on its GPU.

use std::convert::Infallible;
use std::mem::size_of;

use super::ShardAddresses;
use super::sharded::Planned;
use crate::append::{AppendAddresses, AppendPlan};
use crate::backward::{BackwardAddresses, BackwardPart, BackwardPlan};
use crate::cuda::Cuda;
use crate::cuda::buffer::Buffer;
use crate::cuda::driver::{Event, OwnedStream, Stream};
use crate::distributed::{self, Attend, Differentiate, Gather, Gathered, Place, Shard, Work};
use crate::forward::{Addresses, PerHead};
use crate::launch::place_cu_seqlens;
use crate::operation::{Data, Tensor};
use crate::{Plan, Result};

/// What runs a rank's schedule: its plans, streams and events, and memory for what they read and write beside
/// the rank's tensors and the gathered ones.
pub(super) struct Rank {
    cuda: Cuda,
    shard: Shard,
    steps: Vec<(distributed::Stream, Vec<usize>, Step)>,
    copies: OwnedStream,
    lanes: [OwnedStream; LANES],
    gathered: [u64; Gathered::COUNT],
    /// fp32 for each of the rank's rows, as lse; none in a forward pass.
    delta: Option<Buffer>,
    /// Where each half's rows are appended, and the values of heads.
    lists: Buffer,
    /// Of the lanes; none where nothing is copied.
    workspaces: [Option<Buffer>; LANES],
    /// The end of each step.
    ends: Vec<Event>,
    /// What was on the caller's stream before.
    begun: Event,
    /// All that runs on the other streams, one after another.
    joined: Event,
    /// The last piece of another rank has come.
    came: Event,
}

/// Enqueues a stage's gathers on a stream.
type GatherWith<'a> = &'a mut dyn FnMut(usize, &[Gather], Stream) -> Result<()>;

/// A step that is ready to run.
enum Step {
    /// Rows that are appended, where a list of so many bytes before it says.
    Place(Box<(AppendPlan, Place, u64)>),
    Gather(usize, Vec<Gather>),
    /// With what each head has, as bytes of the lists.
    Attend(Box<(Plan, Attend, PerHead<u64>)>),
    Differentiate(Box<(BackwardPlan, Differentiate)>),
    Own(Box<Own>),
}

impl Step {
    /// Whether other ranks wait for it, and it waits for none.
    fn is_first(&self) -> bool {
        match self {
            Self::Place(_) => true,
            Self::Gather(..) | Self::Attend(_) | Self::Own(_) => false,
            Self::Differentiate(planned) => planned.1.stage.is_none(),
        }
    }
}

/// Packed sequences of the rank alone, with bytes of the lists.
struct Own {
    plan: Plan,
    per_head: PerHead<u64>,
    /// Where sequences begin, of queries and of keys.
    cu_seqlens: Option<(u64, u64)>,
}

/// Values of lists, of four bytes each, on their way to the GPU.
#[derive(Default)]
struct Lists(Vec<[u8; 4]>);

impl Lists {
    /// Bytes in front of what comes next.
    fn end(&self) -> u64 {
        size_of_val(self.0.as_slice()) as u64
    }

    /// Takes a list in, and says how many bytes are in front of it.
    fn take(&mut self, tensor: Tensor<'_>) -> u64 {
        let at = self.end();
        if let Data::Input(values) = tensor.data {
            self.0.extend(values.as_chunks::<4>().0);
        }
        at
    }
}

/// Streams of attention.
const LANES: usize = distributed::Stream::LANES;

impl Rank {
    /// Plans a rank's schedule for a GPU like the one that its requests were made for. Gathered tensors begin
    /// at these addresses.
    ///
    /// # Errors
    /// As [`Plan::new`], [`Cuda::load`] and [`Cuda::device_memory`].
    pub(super) fn new(cuda: &Cuda, planned: Planned, gathered: [u64; Gathered::COUNT]) -> Result<Self> {
        let Planned { shard, schedule, requests, .. } = planned;
        let (mut lists, mut bytes) = (Lists::default(), [0; LANES]);
        let mut steps = Vec::new();
        let is_backward = schedule.gathered[Gathered::Delta.index()] > 0;
        for step in schedule.steps {
            let mut workspace = 0;
            let planned = match step.work {
                Work::Place(place) => {
                    let plan = Plan::new(&place.problem, cuda.device(), &())?;
                    cuda.load(&plan)?;
                    let at = lists.end();
                    lists.0.push((place.before as i32).to_ne_bytes());
                    Step::Place(Box::new((plan, *place, at)))
                }
                Work::Gather { stage, gathers } => Step::Gather(stage, gathers),
                Work::Attend(attend) => {
                    let plan = Plan::new(&attend.problem, cuda.device(), requests.attend())?.beside_others();
                    cuda.load(&plan)?;
                    let per_head = attend.problem.scores().place(&mut |list| Ok(lists.take(list)))?;
                    workspace = plan.workspace_bytes();
                    Step::Attend(Box::new((plan, *attend, per_head)))
                }
                Work::Differentiate(part) => {
                    let request = requests.differentiate(&part.problem);
                    let plan = Plan::new(&part.problem, cuda.device(), &request)?;
                    cuda.load(&plan)?;
                    workspace = plan.workspace_bytes();
                    Step::Differentiate(Box::new((plan, *part)))
                }
                Work::Own(problem) => {
                    let plan = Plan::new(&*problem, cuda.device(), requests.attend())?;
                    cuda.load(&plan)?;
                    let mut place = |list: Tensor<'_>| Ok(lists.take(list));
                    let per_head = problem.scores().place(&mut place)?;
                    let cu_seqlens = place_cu_seqlens(&problem, &mut place)?;
                    workspace = plan.workspace_bytes();
                    Step::Own(Box::new(Own { plan, per_head, cu_seqlens }))
                }
            };
            if let distributed::Stream::Attention(lane) = step.stream {
                bytes[lane] = bytes[lane].max(workspace);
            }
            steps.push((step.stream, step.after, planned));
        }
        let lists_memory = cuda.buffer("lists of a rank", lists.end() as usize)?;
        lists_memory.write(&lists.0, cuda.stream())?;
        cuda.stream.synchronize()?;
        let delta = is_backward.then(|| cuda.buffer("delta of a rank", 4 * shard.lse_len())).transpose()?;
        let workspace =
            |bytes: u64| (bytes > 0).then(|| cuda.buffer("a rank's workspace", bytes as usize)).transpose();
        let [a, b, c, d] = bytes;
        // Blocks of short tiles fill the multiprocessors that those of long ones leave at their end; kernels
        // that gather come before both.
        let [short, long, gathers] =
            [0, 1, 2].map(|steps| move || OwnedStream::before_others(&cuda.context, steps));
        let event = || Event::untimed(&cuda.context);
        Ok(Self {
            copies: gathers()?,
            lanes: [long()?, short()?, long()?, short()?],
            gathered,
            delta,
            lists: lists_memory,
            workspaces: [workspace(a)?, workspace(b)?, workspace(c)?, workspace(d)?],
            ends: (0..steps.len()).map(|_| event()).collect::<Result<_>>()?,
            begun: event()?,
            joined: event()?,
            came: event()?,
            cuda: cuda.clone(),
            shard,
            steps,
        })
    }

    pub(super) const fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    pub(super) const fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Bytes of device memory beside the gathered tensors.
    pub(super) fn bytes(&self) -> usize {
        let buffers = self.workspaces.iter().chain([&self.delta]).flatten().map(Buffer::bytes);
        self.lists.bytes() + buffers.sum::<usize>()
    }

    /// Enqueues what other ranks wait for: the rank's rows go to where they belong, behind what is on
    /// `stream`.
    ///
    /// # Safety
    /// As [`LocalRanks::forward`](super::LocalRanks::forward), of this rank.
    pub(super) unsafe fn place(&self, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        self.begun.record(stream)?;
        for stream in self.lanes.iter().chain([&self.copies]) {
            self.begun.hold_back(stream.handle())?;
        }
        for index in 0..self.steps.len() {
            if self.steps[index].2.is_first() {
                // SAFETY: the caller's promise.
                unsafe { self.enqueue(index, addresses, &mut |_, _, _| Ok(())) }?;
            }
        }
        Ok(())
    }

    /// Holds back a stream until the rank's rows of a stage are where they belong.
    ///
    /// # Errors
    /// When the driver fails.
    pub(super) fn hold_back_until_placed(&self, stage: usize, stream: Stream) -> Result<()> {
        let is_place = |planned: &Step| matches!(planned, Step::Place(of) if of.1.stage == stage);
        let mut places = self.steps.iter().zip(&self.ends).filter(|((.., planned), _)| is_place(planned));
        places.next_back().map_or(Ok(()), |(_, end)| end.hold_back(stream))
    }

    /// Holds back a stream until all pieces that the run before gathered are here.
    ///
    /// # Errors
    /// When the driver fails.
    pub(super) fn hold_back_until_gathered(&self, stream: Stream) -> Result<()> {
        self.came.hold_back(stream)
    }

    /// The streams that place rows.
    pub(super) fn placing(&self) -> impl Iterator<Item = Stream> {
        self.lanes.iter().map(OwnedStream::handle)
    }

    /// Enqueues gathers and attention, and lets `stream` wait for them.
    ///
    /// # Safety
    /// As [`LocalRanks::forward`](super::LocalRanks::forward), of this rank.
    pub(super) unsafe fn attend(
        &self,
        addresses: &ShardAddresses,
        stream: Stream,
        gather: GatherWith<'_>,
    ) -> Result<()> {
        for index in 0..self.steps.len() {
            if !self.steps[index].2.is_first() {
                // SAFETY: the caller's promise.
                unsafe { self.enqueue(index, addresses, gather) }?;
            }
        }
        self.came.record(self.copies.handle())?;
        self.came.hold_back(stream)?;
        for other in self.lanes.iter() {
            self.joined.record(other.handle())?;
            self.joined.hold_back(stream)?;
        }
        Ok(())
    }

    /// Enqueues a step behind those that it waits for.
    ///
    /// # Safety
    /// As [`Self::attend`].
    unsafe fn enqueue(&self, step: usize, addresses: &ShardAddresses, gather: GatherWith<'_>) -> Result<()> {
        let (on, after, planned) = &self.steps[step];
        let (stream, workspace) = match *on {
            distributed::Stream::Copies => (self.copies.handle(), None),
            distributed::Stream::Attention(lane) => {
                (self.lanes[lane].handle(), self.workspaces[lane].as_ref())
            }
        };
        after.iter().try_for_each(|&before| self.ends[before].hold_back(stream))?;
        let dtype = self.shard.problem().dtype();
        let at = |base: u64, elements: usize| base + (elements * dtype.bytes()) as u64;
        let of_row = |base: u64, elements: usize| base + (elements * size_of::<f32>()) as u64;
        let gathered = |tensor: Gathered| self.gathered[tensor.index()];
        match planned {
            Step::Place(planned) => {
                let (plan, place, list) = &**planned;
                let element = place.tensors[0].dtype(dtype).bytes();
                let offset = |base: u64, elements: usize| base + (elements * element) as u64;
                let own = |tensor: Gathered| match tensor {
                    Gathered::K => addresses.k,
                    Gathered::V => addresses.v,
                    Gathered::Q => addresses.q,
                    Gathered::Dout => addresses.dout,
                    Gathered::Lse => addresses.lse.unwrap_or_default(),
                    Gathered::Delta => self.delta.as_ref().map_or(0, Buffer::address),
                };
                let ([k, v], [from_k, from_v], [to_k, to_v]) = (place.tensors, place.from, place.to);
                let addresses = AppendAddresses {
                    k: offset(own(k), from_k),
                    v: offset(own(v), from_v),
                    k_cache: offset(gathered(k), to_k),
                    v_cache: offset(gathered(v), to_v),
                    seqused_k: self.lists.address() + list,
                    ..AppendAddresses::default()
                };
                // SAFETY: the views lie in the caller's tensors and in the gathered ones, which are as long
                // as the schedule says; the list has the first row of each sequence, which has room behind
                // it.
                unsafe { self.cuda.enqueue(plan, &addresses, stream) }?;
            }
            Step::Gather(stage, gathers) => gather(*stage, gathers, stream)?,
            Step::Attend(planned) => {
                let (plan, attend, per_head) = &**planned;
                let addresses = Addresses {
                    q: at(addresses.q, attend.q),
                    k: at(gathered(Gathered::K), attend.k),
                    v: at(gathered(Gathered::V), attend.v),
                    o: addresses.o + (attend.o * dtype.output().bytes()) as u64,
                    lse: addresses.lse.map(|lse| of_row(lse, attend.lse)),
                    workspace: workspace.map_or(0, Buffer::address),
                    per_head: self.lists_at(per_head),
                    ..Addresses::default()
                };
                // SAFETY: as above; keys that the problem may see have come, as the events say. Other halves
                // and stages write other rows and heads, and workspaces of their own.
                unsafe { self.cuda.enqueue(plan, &addresses, stream) }?;
            }
            Step::Differentiate(planned) => {
                let (plan, part) = &**planned;
                let workspace = workspace.map_or(0, Buffer::address);
                let own_delta = self.delta.as_ref().map_or(0, Buffer::address);
                let Differentiate { q, k, v, o, lse, .. } = *part;
                let addresses = match part.problem.computes() {
                    BackwardPart::Keys => BackwardAddresses {
                        forward: Addresses {
                            q: at(gathered(Gathered::Q), q),
                            k: at(addresses.k, k),
                            v: at(addresses.v, v),
                            lse: Some(of_row(gathered(Gathered::Lse), lse)),
                            workspace,
                            ..Addresses::default()
                        },
                        dout: at(gathered(Gathered::Dout), o),
                        dk: at(addresses.dk, k),
                        dv: at(addresses.dv, v),
                        delta: Some(of_row(gathered(Gathered::Delta), lse)),
                        ..BackwardAddresses::default()
                    },
                    _ => BackwardAddresses {
                        forward: Addresses {
                            q: at(addresses.q, q),
                            k: at(gathered(Gathered::K), k),
                            v: at(gathered(Gathered::V), v),
                            o: at(addresses.o, o),
                            lse: addresses.lse.map(|address| of_row(address, lse)),
                            workspace,
                            ..Addresses::default()
                        },
                        dout: at(addresses.dout, o),
                        dq: at(addresses.dq, q),
                        delta: Some(of_row(own_delta, lse)),
                        ..BackwardAddresses::default()
                    },
                };
                // SAFETY: as above; other halves and stages write other rows and heads.
                unsafe { self.cuda.enqueue(plan, &addresses, stream) }?;
            }
            Step::Own(planned) => {
                let Own { plan, per_head, cu_seqlens } = &**planned;
                let list = |at: u64| self.lists.address() + at;
                let &ShardAddresses { q, k, v, o, lse, .. } = addresses;
                let addresses = Addresses {
                    q,
                    k,
                    v,
                    o,
                    lse,
                    workspace: workspace.map_or(0, Buffer::address),
                    per_head: self.lists_at(per_head),
                    cu_seqlens: cu_seqlens.map(|(q, k)| (list(q), list(k))),
                    ..Addresses::default()
                };
                // SAFETY: the problem's tensors are the rank's; other steps write other rows.
                unsafe { self.cuda.enqueue(plan, &addresses, stream) }?;
            }
        }
        self.ends[step].record(stream)
    }

    /// The addresses of what each head has.
    fn lists_at(&self, bytes: &PerHead<u64>) -> PerHead<u64> {
        let Ok(addresses) = bytes.try_map(|_, at| Ok::<_, Infallible>(self.lists.address() + at));
        addresses
    }
}
