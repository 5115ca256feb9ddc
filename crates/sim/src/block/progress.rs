//! How a block goes on, and what may not be left when its threads return.

use super::Block;
use crate::error::Error;

impl Block {
    /// Whether the schedule preempts the running thread here; if so it is runnable again.
    #[inline]
    pub(crate) fn preempt_current(&mut self) -> bool {
        let preempts = self.picker.preempts();
        if preempts {
            self.runnable.insert(self.current);
        }
        preempts
    }

    /// Chooses the thread that runs next and makes it the current one.
    #[inline]
    pub(crate) fn advance(&mut self) -> Option<usize> {
        self.current = match self.picker.pick(&mut self.runnable) {
            Some(thread) => thread,
            None => self.land_until_runnable()?,
        };
        if self.copies.is_due(self.picker.picks) {
            self.land_due_copies();
        }
        if self.transfers.is_due(self.picker.picks)
            && let Err(error) = self.land_due_pieces()
        {
            self.fail(*error);
        }
        Some(self.current)
    }

    /// Nobody can run: what is under way lands until that makes a thread runnable, which is returned.
    #[cold]
    fn land_until_runnable(&mut self) -> Option<usize> {
        if self.threads.iter().all(|thread| thread.finished) {
            return None;
        }
        loop {
            match self.land_next_piece() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.fail(*error);
                    return None;
                }
            }
            if let Some(thread) = self.picker.pick(&mut self.runnable) {
                return Some(thread);
            }
        }
    }

    /// Fails the launch if the running thread returns before what it has begun is complete.
    pub(crate) fn check_return(&mut self) {
        self.check_copies_awaited();
        self.check_stores_awaited();
        self.check_products_awaited();
    }

    /// What is not complete although all threads have returned.
    pub(crate) fn left_over(&self) -> Option<Error> {
        self.load_left().or_else(|| self.registers_left()).map(|error| *error)
    }
}
