//! Clocks and history together, and the accesses that threads make themselves.

use std::rc::Rc;

use super::clock::{Actor, Clock, Known, actor};
use super::conflict::Conflict;
use super::history::{History, IN_FLIGHT};
use crate::site::SiteId;
use crate::threads::LANES;

/// An author of asynchronous accesses.
pub(super) struct Agent {
    pub(super) epoch: u32,
}

/// Clocks of a block's threads and the access history of its shared memory.
pub(crate) struct Races {
    pub(super) clocks: Vec<Clock>,
    pub(super) history: History,
    pub(super) agents: Vec<Agent>,
    /// How many of `agents` this block has.
    pub(super) agents_in_use: usize,
    /// By thread: the epochs that ended with a proxy fence, ascending; those before the last one that began
    /// with the block are forgotten.
    pub(super) fences: Vec<Vec<u32>>,
}

impl Races {
    pub(crate) fn new(threads: usize, bytes: usize) -> Self {
        let known = Rc::new(Known::new(vec![0; threads]));
        let clock = || Clock { own: 1, known: Rc::clone(&known) };
        Self {
            clocks: std::iter::repeat_with(clock).take(threads).collect(),
            history: History::new(threads / LANES, bytes.div_ceil(4)),
            agents: Vec::new(),
            agents_in_use: 0,
            fences: vec![Vec::new(); threads],
        }
    }

    /// Orders all that came before, in other blocks, before all that follows: cheaper than
    /// forgetting it cell by cell.
    pub(crate) fn begin_block(&mut self) {
        // Half the range is out of reach of any one block.
        let epochs = self.clocks.iter().map(|clock| clock.own);
        if epochs.chain(self.agents.iter().map(|agent| agent.epoch)).any(|epoch| epoch > u32::MAX / 2) {
            *self = Self::new(self.clocks.len(), 4 * self.history.words());
        }
        self.synchronize(0..self.clocks.len());
        self.begin_block_of_agents();
    }

    /// All that agents did in other blocks is over, and fenced.
    fn begin_block_of_agents(&mut self) {
        self.history.release_reserved();
        self.agents_in_use = 0;
        let threads = self.clocks.len();
        if !self.agents.is_empty()
            && let Some(first) = self.clocks.first()
        {
            let mut epochs = first.known.epochs.clone();
            for (epoch, agent) in epochs[threads..].iter_mut().zip(&mut self.agents) {
                *epoch = agent.epoch;
                agent.epoch += 1;
            }
            let known = Rc::new(Known::new(epochs));
            self.clocks.iter_mut().for_each(|clock| clock.known = Rc::clone(&known));
        }
        for (thread, fences) in self.fences.iter_mut().enumerate() {
            fences.clear();
            fences.push(self.clocks[thread].own - 1);
        }
    }

    /// Orders what `threads` did so far before what any of them does from now on.
    pub(crate) fn synchronize(&mut self, threads: impl Iterator<Item = usize> + Clone) {
        let mut epochs: Vec<u32> = vec![0; self.clocks.len() + self.agents.len()];
        let mut merged: Option<&Rc<Known>> = None;
        for thread in threads.clone() {
            let known = &self.clocks[thread].known;
            if !merged.is_some_and(|last| Rc::ptr_eq(last, known)) {
                let pairs = epochs.iter_mut().zip(&known.epochs);
                pairs.for_each(|(a, &b)| *a = (*a).max(b));
                merged = Some(known);
            }
        }
        for thread in threads.clone() {
            epochs[thread] = self.clocks[thread].own;
        }
        let known = Rc::new(Known::new(epochs));
        for thread in threads {
            let clock = &mut self.clocks[thread];
            clock.own += 1;
            clock.known = Rc::clone(&known);
        }
    }

    /// Records a read of `bytes` (1, 2, 4, 8 or 16, aligned) at `offset` by `thread`.
    #[inline]
    pub(crate) fn read(
        &mut self,
        thread: usize,
        offset: usize,
        bytes: usize,
        site: SiteId,
    ) -> Result<(), Conflict> {
        self.history.read(actor(&self.clocks, thread, site), offset, bytes)
    }

    /// Records a write, as [`Races::read`] does a read.
    #[inline]
    pub(crate) fn write(
        &mut self,
        thread: usize,
        offset: usize,
        bytes: usize,
        site: SiteId,
    ) -> Result<(), Conflict> {
        self.history.write(actor(&self.clocks, thread, site), offset, bytes)
    }

    /// Records the write of an asynchronous copy at its issue. From then until
    /// [`Races::complete_copy`] no thread is ordered after it, its own no more than the others.
    pub(crate) fn copy(
        &mut self,
        thread: usize,
        offset: usize,
        bytes: usize,
        site: SiteId,
    ) -> Result<(), Conflict> {
        let actor = Actor { epoch: IN_FLIGHT, ..actor(&self.clocks, thread, site) };
        self.history.write(actor, offset, bytes)
    }

    /// The thread has waited for its copy to `offset`: the write is now as one that it made itself.
    pub(crate) fn complete_copy(&mut self, thread: usize, offset: usize, bytes: usize) {
        self.history.complete_copy(self.clocks[thread].own, offset, bytes);
    }
}
