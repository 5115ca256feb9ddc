//! Exact detection of data races in shared memory, by happens-before.
//!
//! Two accesses to a byte by different threads, at least one a write, race unless a chain of
//! barriers orders them. As in FastTrack (Flanagan and Freund, PLDI 2009), each thread counts
//! epochs, one for each synchronisation it takes part in; a vector clock says up to which epoch of each
//! other thread it has been ordered; and each cell of memory keeps its last write and the
//! reads since then that may still race with a later write.
//!
//! An asynchronous copy is a write by a thread of its own, which begins at the issue and which
//! only the issuing thread's wait joins: in flight it has an epoch that nobody's clock reaches.
//!
//! Three things about GPU blocks make this cheap:
//! * Threads that leave a barrier together share one clock, so a barrier of n threads costs O(n).
//! * Lanes of a warp mostly read a cell in the same epoch, so its readers are a lane mask per warp.
//! * Accesses are mostly whole words. A cell is a word, and is split into its four bytes at the
//!   first narrower access, so that neighbours written by different threads are no race.

mod asynchronous;
mod chunks;
mod history;
mod objects;

use std::rc::Rc;

use crate::WARP;
use crate::error::AccessKind;
use crate::race::asynchronous::Agent;
use crate::race::history::{History, IN_FLIGHT};
use crate::site::SiteId;

pub(crate) use asynchronous::Group;
pub(crate) use objects::{Released, Snapshot};

const LANES: usize = WARP as usize;

/// An earlier access that races with the one being recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Offset of the first byte concerned.
    pub(crate) offset: usize,
    /// The thread, or the agent (`asynchronous.rs`) from the number of threads on.
    pub(crate) thread: usize,
    pub(crate) kind: AccessKind,
    pub(crate) site: SiteId,
    /// Whether it is a copy that its thread has not waited for.
    pub(crate) in_flight: bool,
    /// Whether it is an ordinary write that is ordered, but with no proxy fence on the way.
    pub(crate) unfenced: bool,
}

/// What one thread knows of time.
struct Clock {
    /// Its own epoch, from 1.
    own: u32,
    known: Rc<Known>,
}

/// The past of a thread. Threads that leave a barrier together share one.
struct Known {
    /// By thread: its last epoch that is ordered before what the owner does now.
    epochs: Vec<u32>,
    /// By warp: the least of its lanes' `epochs`.
    floors: Vec<u32>,
}

impl Known {
    fn new(epochs: Vec<u32>) -> Self {
        let least = |lanes: &[u32]| lanes.iter().copied().min().unwrap_or(0);
        // Agents, which come after the threads, fill floors that nobody asks for.
        let floors = epochs.chunks_exact(LANES).map(least).collect();
        Self { epochs, floors }
    }

    #[inline]
    fn follows(&self, thread: usize, epoch: u32) -> bool {
        epoch <= self.epoch(thread)
    }

    /// The last epoch of `thread` that is ordered before; 0 for an agent that came later.
    #[inline]
    fn epoch(&self, thread: usize) -> u32 {
        self.epochs.get(thread).copied().unwrap_or(0)
    }
}

/// The thread that makes an access, at its present.
#[derive(Clone, Copy)]
struct Actor<'a> {
    /// The thread whose earlier accesses are ordered by program order.
    thread: usize,
    /// Whose access it is: the thread's, or that of an agent of its.
    author: usize,
    epoch: u32,
    known: &'a Known,
    site: SiteId,
}

/// Clocks of a block's threads and the access history of its shared memory.
pub(crate) struct Races {
    clocks: Vec<Clock>,
    history: History,
    agents: Vec<Agent>,
    /// How many of `agents` this block has.
    agents_in_use: usize,
    /// By thread: the epochs that ended with a proxy fence, ascending; those before the last one that began
    /// with the block are forgotten.
    fences: Vec<Vec<u32>>,
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

#[inline]
fn actor(clocks: &[Clock], thread: usize, site: SiteId) -> Actor<'_> {
    let clock = &clocks[thread];
    Actor { thread, author: thread, epoch: clock.own, known: &clock.known, site }
}

#[cfg(test)]
mod tests;
