//! Threads that wait for words of global memory, which other blocks add to.

use std::panic::Location;
use std::time::{Duration, Instant};

use super::Block;
use crate::state::global::{GlobalWait, GlobalWaits};

/// How long a block waits for others before that is a deadlock.
const PATIENCE: Duration = Duration::from_secs(60);

impl Block {
    /// The running thread is about to be suspended until a word may have risen to `value`.
    pub(crate) fn wait_for_global(&mut self, value: u32, location: &'static Location<'static>) {
        let wait = GlobalWait { thread: self.current, value, site: location.into() };
        self.global_waits.waiting.push(wait);
    }

    /// Lets all that wait for a word look again.
    pub(crate) fn wake_global_waiters(&mut self) {
        for wait in self.global_waits.waiting.drain(..) {
            self.runnable.insert(wait.thread);
        }
        self.global_waits.since = None;
    }

    /// Lets all that wait for a word look again, after other blocks may have run.
    pub(crate) fn look_again(&mut self) {
        self.leave_cluster_barrier();
        let GlobalWaits { waiting, since, .. } = &self.global_waits;
        let (woken, since) = (waiting.len() as u64, *since);
        self.wake_global_waiters();
        self.global_waits.since = since;
        self.global_waits.picks = self.picker.picks + woken;
    }

    /// No thread can run: whether some wait for a word, and not for too long.
    pub(crate) fn waits_for_blocks(&mut self) -> bool {
        if self.waits_for_cluster() {
            return true;
        }
        if self.failure.is_some() || self.global_waits.waiting.is_empty() {
            return false;
        }
        // Threads did more than look again.
        let went_on = self.picker.picks > self.global_waits.picks;
        let since = self.global_waits.since.filter(|_| !went_on).unwrap_or_else(Instant::now);
        self.global_waits.since = Some(since);
        since.elapsed() <= PATIENCE
    }
}
