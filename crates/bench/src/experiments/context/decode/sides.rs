//! One GPU with all keys, and ranks with some each.

use std::ops::Range;

use anyhow::Result;
use flash_attention::Element;
use flash_attention::cuda::{Cuda, DeviceMemory};
use flash_attention::decode::{DecodeAddresses, DecodePlan, DecodeProblem};
use flash_attention::distributed::{LocalDecode, RankDecode};

use super::super::team::{PATIENCE, Work};
use super::super::tensors::{Places, write};
use super::judge::Results;
use crate::bytes;

/// A problem's tensors on a GPU, of which K and V have some of the keys.
pub(super) struct Cache {
    memory: DeviceMemory,
    places: Places,
    /// int32 `[B]`, where there is room for more keys than there are.
    lengths: Option<DeviceMemory>,
    /// Elements of O, and of lse.
    lens: [usize; 2],
}

impl Cache {
    /// The keys of a range, of so many in all, in a cache of the problem's shape.
    pub(super) fn new<T: Element>(
        cuda: &Cuda,
        problem: &DecodeProblem,
        (keys, all): (Range<usize>, usize),
        pattern: &[Vec<T>; 3],
    ) -> Result<Self> {
        let dense = problem.dense();
        let (tensors, lens) = (dense.tensors(), [dense.tensors().o.span(), dense.lse_len()]);
        let places = Places::new(tensors, dense.lse_len(), T::DTYPE.bytes(), false);
        let mut memory = cuda.device_memory(places.end)?;
        write(&mut memory, places.q, &pattern[0], 0, tensors.q.span())?;
        for (layout, at, pattern) in [(tensors.k, places.k, &pattern[1]), (tensors.v, places.v, &pattern[2])]
        {
            // What no sequence uses is NaN.
            memory.fill(at, layout.span() * T::DTYPE.bytes(), 0xff)?;
            for batch in 0..layout.batch {
                let from = (batch * all + keys.start) * layout.stride_seq;
                let to = at + layout.row(batch, 0, 0) * T::DTYPE.bytes();
                write(&mut memory, to, pattern, from, keys.len() * layout.stride_seq)?;
            }
        }
        // The copies are over before a launch on another stream.
        memory.read(0, &mut [0])?;
        let lengths = if keys.len() == dense.seqlen_k() {
            None
        } else {
            let mut lengths = cuda.device_memory(4 * dense.batch())?;
            lengths.write(0, &(keys.len() as i32).to_ne_bytes().repeat(dense.batch()))?;
            lengths.read(0, &mut [0])?;
            Some(lengths)
        };
        Ok(Self { memory, places, lengths, lens })
    }

    fn addresses(&self) -> DecodeAddresses {
        let at = |offset: usize| self.memory.address() + offset as u64;
        DecodeAddresses {
            q: at(self.places.q),
            k: at(self.places.k),
            v: at(self.places.v),
            o: at(self.places.o),
            lse: Some(at(self.places.lse)),
            seqused_k: self.lengths.as_ref().map(DeviceMemory::address),
            ..DecodeAddresses::default()
        }
    }

    pub(super) fn poison(&mut self) -> Result<()> {
        self.places.poison(&mut self.memory)
    }

    pub(super) fn results<T: Element>(&self) -> Result<Results<T>> {
        let (mut o, mut lse) = (vec![T::default(); self.lens[0]], vec![0.0_f32; self.lens[1]]);
        self.memory.read(self.places.o, bytes::of_mut(&mut o))?;
        self.memory.read(self.places.lse, bytes::of_mut(&mut lse))?;
        Ok(Results { o, lse })
    }
}

/// One GPU with all keys.
pub(super) struct Whole {
    cuda: Cuda,
    pub(super) plan: DecodePlan,
    pub(super) cache: Cache,
    workspace: Option<DeviceMemory>,
}

impl Whole {
    pub(super) fn new(cuda: &Cuda, plan: DecodePlan, cache: Cache) -> Result<Self> {
        cuda.load(&plan)?;
        let bytes = plan.workspace_bytes() as usize;
        let workspace = (bytes > 0).then(|| cuda.device_memory(bytes)).transpose()?;
        Ok(Self { cuda: cuda.clone(), plan, cache, workspace })
    }
}

impl Work for Whole {
    fn enqueue(&self) -> Result<()> {
        let workspace = self.workspace.as_ref().map_or(0, DeviceMemory::address);
        let addresses = DecodeAddresses { workspace, ..self.cache.addresses() };
        // SAFETY: the tensors are as long as the problem says, and live until the stream's work is over.
        unsafe { self.cuda.enqueue(&self.plan, &addresses, self.cache.memory.stream()) }?;
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        Ok(self.cache.memory.read(0, &mut [0])?)
    }
}

/// The ranks of this process, with their keys.
pub(super) struct Team {
    pub(super) plan: TeamPlan,
    pub(super) parts: Vec<Cache>,
}

pub(super) enum TeamPlan {
    /// All of them.
    Local(Box<LocalDecode>),
    /// One, beside others in processes of their own.
    Rank(Box<RankDecode>),
}

impl TeamPlan {
    pub(super) fn reasons(&self) -> &[String] {
        match self {
            Self::Local(ranks) => ranks.reasons(),
            Self::Rank(rank) => rank.reasons(),
        }
    }

    /// The rank of a part of this process.
    pub(super) fn rank(&self, index: usize) -> usize {
        match self {
            Self::Local(_) => index,
            Self::Rank(rank) => rank.shard().rank(),
        }
    }

    pub(super) fn extra_bytes(&self) -> usize {
        match self {
            Self::Local(ranks) => {
                (0..ranks.world()).map(|rank| ranks.memory_bytes(rank)).max().unwrap_or_default()
            }
            Self::Rank(rank) => rank.memory_bytes(),
        }
    }
}

impl Work for Team {
    fn enqueue(&self) -> Result<()> {
        let addresses: Vec<_> = self.parts.iter().map(Cache::addresses).collect();
        let streams: Vec<_> = self.parts.iter().map(|part| part.memory.stream()).collect();
        match &self.plan {
            TeamPlan::Local(ranks) => {
                // SAFETY: the tensors are as long as the problem says, and live until the streams' work is
                // over; each stream is that of the call before.
                unsafe { ranks.decode(&addresses, &streams) }?;
            }
            TeamPlan::Rank(rank) => {
                for (addresses, &stream) in addresses.iter().zip(&streams) {
                    // SAFETY: as above.
                    unsafe { rank.decode(addresses, stream) }?;
                }
            }
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        match &self.plan {
            TeamPlan::Local(ranks) => Ok(ranks.wait()?),
            TeamPlan::Rank(rank) => Ok(rank.wait(PATIENCE)?),
        }
    }
}
