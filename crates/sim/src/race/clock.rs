//! What threads know of time.

use std::rc::Rc;

use crate::site::SiteId;
use crate::threads::LANES;

/// What one thread knows of time.
pub(super) struct Clock {
    /// Its own epoch, from 1.
    pub(super) own: u32,
    pub(super) known: Rc<Known>,
}

/// The past of a thread. Threads that leave a barrier together share one.
pub(super) struct Known {
    /// By thread: its last epoch that is ordered before what the owner does now.
    pub(super) epochs: Vec<u32>,
    /// By warp: the least of its lanes' `epochs`.
    pub(super) floors: Vec<u32>,
}

impl Known {
    pub(super) fn new(epochs: Vec<u32>) -> Self {
        let least = |lanes: &[u32]| lanes.iter().copied().min().unwrap_or(0);
        // Agents, which come after the threads, fill floors that nobody asks for.
        let floors = epochs.chunks_exact(LANES).map(least).collect();
        Self { epochs, floors }
    }

    #[inline]
    pub(super) fn follows(&self, thread: usize, epoch: u32) -> bool {
        epoch <= self.epoch(thread)
    }

    /// The last epoch of `thread` that is ordered before; 0 for an agent that came later.
    #[inline]
    pub(super) fn epoch(&self, thread: usize) -> u32 {
        self.epochs.get(thread).copied().unwrap_or(0)
    }
}

/// The thread that makes an access, at its present.
#[derive(Clone, Copy)]
pub(super) struct Actor<'a> {
    /// The thread whose earlier accesses are ordered by program order.
    pub(super) thread: usize,
    /// Whose access it is: the thread's, or that of an agent of its.
    pub(super) author: usize,
    pub(super) epoch: u32,
    pub(super) known: &'a Known,
    pub(super) site: SiteId,
}

/// `thread` at its present, for an access of its own.
#[inline]
pub(super) fn actor(clocks: &[Clock], thread: usize, site: SiteId) -> Actor<'_> {
    let clock = &clocks[thread];
    Actor { thread, author: thread, epoch: clock.own, known: &clock.known, site }
}
