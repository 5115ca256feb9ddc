//! Accesses by the async proxy: TMA and `wgmma` (PTX ISA, "Async proxy").
//!
//! An operation that goes on while its threads do other things is not a part of any thread's program order.
//! It is an access by an *agent*, which has a clock entry behind those of the threads, and whose epochs end
//! in the order in which its operations are known to be complete: the loads of one mbarrier phase by phase,
//! the stores of one thread and the products of one warpgroup group by group. Only who has waited knows the
//! epoch, be the operation still under way or not.
//!
//! Bytes written through the generic proxy reach the async proxy only behind a proxy fence. The fence ends an
//! epoch of its thread; a write is covered if its epoch is no later than that of a fence which is itself
//! ordered before the access.

use std::rc::Rc;

use super::agent_reads::CHUNK;
use super::clock::{Actor, Known, actor};
use super::conflict::Conflict;
use super::detector::{Agent, Races};
use super::history::RESERVED;
use crate::site::SiteId;

/// The past of no thread in particular: no program order applies.
const NOBODY: usize = usize::MAX;

/// The pasts of threads that issue an operation together.
#[derive(Clone, Default)]
pub(crate) struct Group {
    known: Vec<Rc<Known>>,
}

impl Group {
    /// What all of the threads know.
    fn common(&self) -> Option<Rc<Known>> {
        let (first, rest) = self.known.split_first()?;
        if rest.is_empty() {
            return Some(Rc::clone(first));
        }
        let least = |thread| self.known.iter().map(|known| known.epoch(thread)).min().unwrap_or(0);
        Some(Rc::new(Known::new((0..first.epochs.len()).map(least).collect())))
    }
}

impl Races {
    /// The index of a new agent, for as long as the block runs.
    pub(crate) fn new_agent(&mut self) -> usize {
        if self.agents_in_use == self.agents.len() {
            self.agents.push(Agent { epoch: 1 });
        }
        self.agents_in_use += 1;
        self.clocks.len() + self.agents_in_use - 1
    }

    /// The epoch that an agent is in.
    pub(crate) fn agent_epoch(&self, agent: usize) -> u32 {
        self.agents[agent - self.clocks.len()].epoch
    }

    /// The epoch of an agent, which ends here: its accesses from now on are not complete with those before.
    pub(crate) fn end_epoch(&mut self, agent: usize) -> u32 {
        let agent = &mut self.agents[agent - self.clocks.len()];
        agent.epoch += 1;
        agent.epoch - 1
    }

    /// A proxy fence of `thread`; returns the epoch that it ends.
    pub(crate) fn fence(&mut self, thread: usize) -> u32 {
        let clock = &mut self.clocks[thread];
        self.fences[thread].push(clock.own);
        clock.own += 1;
        clock.own - 1
    }

    /// Adds the present of `thread` to `group`.
    pub(crate) fn join_group(&self, thread: usize, group: &mut Group) {
        let known = &self.clocks[thread].known;
        if !group.known.iter().any(|other| Rc::ptr_eq(other, known)) {
            group.known.push(Rc::clone(known));
        }
    }

    /// Records the write to the 16 bytes at `offset` of an operation of `agent` that `thread` issues.
    pub(crate) fn write_by_agent(
        &mut self,
        thread: usize,
        agent: usize,
        offset: usize,
        site: SiteId,
    ) -> Result<(), Conflict> {
        let epoch = self.agent_epoch(agent);
        let actor = Actor { author: agent, epoch, ..actor(&self.clocks, thread, site) };
        let fences = &self.fences;
        self.history.each_chunk_cell(offset, |history, cell| {
            history.check_fenced(actor, cell, fences)?;
            history.write_cell(actor, cell)
        })
    }

    /// Records the reads of the 16 bytes at each of `offsets` of an operation of `agent` that `thread`
    /// issues.
    pub(crate) fn read_by_agent(
        &mut self,
        thread: usize,
        agent: usize,
        offsets: impl Iterator<Item = usize>,
        site: SiteId,
    ) -> Result<(), Conflict> {
        let known = Rc::clone(&self.clocks[thread].known);
        self.read_knowing(thread, &known, agent, offsets, site)
    }

    /// As [`Races::read_by_agent`], of threads that issue the operation together: each of them has to be
    /// ordered after what is read.
    pub(crate) fn read_by_group(
        &mut self,
        group: &Group,
        agent: usize,
        offsets: impl Iterator<Item = usize>,
        site: SiteId,
    ) -> Result<(), Conflict> {
        match group.common() {
            Some(known) => self.read_knowing(NOBODY, &known, agent, offsets, site),
            None => Ok(()),
        }
    }

    fn read_knowing(
        &mut self,
        thread: usize,
        known: &Known,
        agent: usize,
        mut offsets: impl Iterator<Item = usize>,
        site: SiteId,
    ) -> Result<(), Conflict> {
        let actor = Actor { thread, author: agent, epoch: self.agent_epoch(agent), known, site };
        let fences = &self.fences;
        offsets.try_for_each(|offset| {
            self.history
                .each_chunk_cell(offset, |history, cell| history.read_by_agent(actor, cell, fences))?;
            self.history.agents.record(agent, offset / CHUNK, actor.epoch, site);
            Ok(())
        })
    }

    /// Makes the 8 bytes at `offset` those of an mbarrier: any access conflicts until the block ends.
    pub(crate) fn reserve(&mut self, offset: usize) {
        self.history.reserve(offset);
    }

    /// Whether a conflict is with an mbarrier.
    pub(crate) fn is_reserved(conflict: &Conflict) -> bool {
        conflict.thread == usize::from(RESERVED)
    }
}
