//! What agents have read, by chunks of 16 bytes.

use bytemuck::Zeroable;

use super::clock::Actor;
use super::conflict::Conflict;
use crate::error::AccessKind;
use crate::site::SiteId;

/// Bytes of a chunk.
pub(super) const CHUNK: usize = 16;

/// By agent, then by chunk: the agent's last read. Earlier ones are complete before it is.
pub(super) struct AgentReads {
    /// Index of the first agent.
    first: usize,
    chunks: usize,
    by_agent: Vec<Vec<AgentRead>>,
}

#[derive(Clone, Copy)]
struct AgentRead {
    /// 0 for none.
    epoch: u32,
    site: SiteId,
}

// SAFETY: all fields are integers.
unsafe impl Zeroable for AgentRead {}

impl AgentReads {
    pub(super) fn new(first: usize, chunks: usize) -> Self {
        Self { first, chunks, by_agent: Vec::new() }
    }

    pub(super) fn record(&mut self, agent: usize, chunk: usize, epoch: u32, site: SiteId) {
        let slot = agent - self.first;
        if self.by_agent.len() <= slot {
            self.by_agent.resize_with(slot + 1, Vec::new);
        }
        let reads = &mut self.by_agent[slot];
        if reads.is_empty() {
            *reads = bytemuck::zeroed_vec(self.chunks);
        }
        reads[chunk] = AgentRead { epoch, site };
    }

    /// An agent whose read of the chunk is not complete before what the actor does now.
    fn unordered(&self, actor: Actor<'_>, chunk: usize) -> Option<(usize, SiteId)> {
        let agents = (self.first..).zip(&self.by_agent);
        let mut reads = agents.filter_map(|(agent, reads)| Some((agent, reads.get(chunk)?)));
        let (agent, read) = reads.find(|(agent, read)| !actor.known.follows(*agent, read.epoch))?;
        Some((agent, read.site))
    }

    /// All reads of the chunk that `offset` is in are complete before what the actor does now.
    pub(super) fn check(&self, actor: Actor<'_>, offset: usize) -> Result<(), Conflict> {
        let Some((thread, site)) = self.unordered(actor, offset / CHUNK) else { return Ok(()) };
        Err(Conflict { offset, thread, kind: AccessKind::Read, site, in_flight: false, unfenced: false })
    }
}
