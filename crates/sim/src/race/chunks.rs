//! What agents have read, by chunks of 16 bytes, which is what the async proxy moves.

use bytemuck::Zeroable;

use super::history::{AGENTS, Cell, History, IN_FLIGHT, RESERVED, RESERVED_EPOCH};
use super::{Actor, Conflict};
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
}

impl History {
    /// Calls `visit` for each cell of the chunk at `offset`.
    pub(super) fn each_chunk_cell(
        &mut self,
        offset: usize,
        mut visit: impl FnMut(&mut Self, usize) -> Result<(), Conflict>,
    ) -> Result<(), Conflict> {
        if self.has_whole_words(CHUNK) {
            return (offset / 4..(offset + CHUNK) / 4).try_for_each(|cell| visit(self, cell));
        }
        self.each_cell(offset, CHUNK, visit)
    }

    /// An agent reads a cell, which has been written before, and fenced if through the generic proxy.
    pub(super) fn read_by_agent(
        &mut self,
        actor: Actor<'_>,
        index: usize,
        fences: &[Vec<u32>],
    ) -> Result<(), Conflict> {
        if !self.cells[index].written_before(actor) {
            return Err(self.write_conflict(index));
        }
        self.check_fenced(actor, index, fences)?;
        self.cells[index].elsewhere |= AGENTS;
        Ok(())
    }

    /// A write through the generic proxy that is ordered before the access of an agent has a fence behind it.
    pub(super) fn check_fenced(
        &self,
        actor: Actor<'_>,
        index: usize,
        fences: &[Vec<u32>],
    ) -> Result<(), Conflict> {
        let cell = &self.cells[index];
        let (writer, epoch) = (usize::from(cell.write_thread), cell.write_epoch);
        let Some(fences) = fences.get(writer) else { return Ok(()) };
        if epoch == 0 || epoch == IN_FLIGHT || !cell.written_before(actor) {
            return Ok(());
        }
        let known = if writer == actor.thread { u32::MAX } else { actor.known.epoch(writer) };
        let ordered = &fences[..fences.partition_point(|&fence| fence <= known)];
        if ordered.last().is_some_and(|&fence| fence >= epoch) {
            return Ok(());
        }
        Err(Conflict { unfenced: true, ..self.write_conflict(index) })
    }

    /// All reads of a cell's chunk by agents are complete before what the actor does now.
    pub(super) fn check_agents(&self, actor: Actor<'_>, index: usize) -> Result<(), Conflict> {
        let offset = self.offset_of(index);
        let Some((thread, site)) = self.agents.unordered(actor, offset / CHUNK) else { return Ok(()) };
        Err(Conflict { offset, thread, kind: AccessKind::Read, site, in_flight: false, unfenced: false })
    }

    /// Takes the 8 bytes at `offset` out of use.
    pub(super) fn reserve(&mut self, offset: usize) {
        let taken = Cell { write_epoch: RESERVED_EPOCH, write_thread: RESERVED, ..Cell::zeroed() };
        let reserve = |history: &mut Self, cell: usize| {
            history.cells[cell] = taken;
            history.reserved.push(cell);
            Ok(())
        };
        let reserved = if self.has_whole_words(8) {
            (offset / 4..offset / 4 + 2).try_for_each(|cell| reserve(self, cell))
        } else {
            self.each_cell(offset, 8, reserve)
        };
        debug_assert_eq!(reserved, Ok(()));
    }

    /// Gives all bytes back that [`History::reserve`] took.
    pub(super) fn release_reserved(&mut self) {
        for cell in self.reserved.drain(..) {
            self.cells[cell] = Cell::zeroed();
        }
        if !self.split.is_empty() {
            // Words may have been split since.
            let is_taken = |cell: &Cell| cell.write_thread == RESERVED;
            self.cells.iter_mut().filter(|cell| is_taken(cell)).for_each(|cell| *cell = Cell::zeroed());
        }
    }
}
