//! Threads that wait for words of global memory, which other blocks add to.

use std::panic::Location;
use std::thread;
use std::time::{Duration, Instant};

use super::Block;
use crate::state::global::GlobalWait;

/// How long a block waits for others before that is a deadlock.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it sleeps before it looks again.
const PAUSE: Duration = Duration::from_micros(20);

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

    /// No other thread can run: those that wait for a word look again, unless they have for too long. Says
    /// whether there are any.
    pub(super) fn look_again(&mut self) -> bool {
        if self.global_waits.waiting.is_empty() {
            return false;
        }
        let since = *self.global_waits.since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(PAUSE);
        self.wake_global_waiters();
        self.global_waits.since = Some(since);
        true
    }
}
