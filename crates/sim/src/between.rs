//! Detection of data races between the blocks of a launch, in global memory, by happens-before.
//!
//! A block is one agent: what its threads do comes in the order in which the schedule runs them. It counts
//! epochs, which end with its releases, and knows up to which epoch of each other block it has been ordered.
//! A release leaves that in the word that it adds to, and an acquire takes it from there. Each byte that may
//! be written keeps its last write, and what has read it since.
//!
//! An access is recorded before it takes place, and two that nothing orders conflict whichever is recorded
//! first. So what is found does not depend on the order in which blocks happen to run.
//!
//! Launches may run beside each other. The simulator runs one after the other, and counts their blocks on: so
//! it finds accesses of one that nothing orders behind those of another, as within a launch.
//!
//! A launch is watched from the first call of a function that blocks learn of each other by. Before it, a
//! worker records a few accesses only, and a conflict among them is reported at that call. So launches that
//! have no such call are not slower.

mod counters;
mod past;
mod shadow;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

pub(crate) use past::Past;
pub(crate) use shadow::{Conflict, Touch};

use counters::Counters;
use shadow::Shadow;

use crate::error::Error;

/// Accesses that a worker's executor records before the launch is watched. They are enough for the start of a
/// kernel, and too few to be felt in launches that are never watched.
pub(crate) const EARLY: u32 = 4096;

/// What the blocks of a launch know of each other's accesses.
#[derive(Default)]
pub(crate) struct Between {
    /// Whether a block has called a function that blocks learn of each other by.
    watched: AtomicBool,
    /// What was wrong before that.
    early: Mutex<Option<Box<Error>>>,
    /// Blocks of launches that are over, and beside this one.
    before: AtomicU32,
    pub(crate) counters: Counters,
    pub(crate) shadow: Shadow,
}

impl Between {
    /// Whether all accesses are to be recorded.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Relaxed)
    }

    /// So many blocks, of a launch that the next one is beside, have run: those of the next are counted on.
    pub(crate) fn pass(&self, blocks: u32) {
        self.before.fetch_add(blocks, Relaxed);
    }

    /// Blocks of launches that are over, and beside the one at hand.
    pub(crate) fn before(&self) -> u32 {
        self.before.load(Relaxed)
    }

    /// From now on all accesses are to be recorded.
    ///
    /// # Errors
    /// What was wrong before.
    pub(crate) fn watch(&self) -> Result<(), Box<Error>> {
        if self.is_watched() {
            return Ok(());
        }
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        self.watched.store(true, Relaxed);
        early.take().map_or(Ok(()), Err)
    }

    /// Fails if the launch is watched; if it is not, then when it will be.
    pub(crate) fn fail(&self, error: Box<Error>) -> Result<(), Box<Error>> {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_watched() {
            return Err(error);
        }
        early.get_or_insert(error);
        Ok(())
    }
}
