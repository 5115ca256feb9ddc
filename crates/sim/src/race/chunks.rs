//! The history of chunks of 16 bytes, which is what the async proxy moves.

use bytemuck::Zeroable;

use super::agent_reads::CHUNK;
use super::clock::Actor;
use super::conflict::Conflict;
use super::history::{AGENTS, Cell, History, IN_FLIGHT, RESERVED, RESERVED_EPOCH};

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
