//! The named barriers of a block: who has arrived.

use std::panic::Location;

use crate::race::Released;
use crate::site::Site;
use crate::threads::WARP;

/// Barriers of a block.
pub(crate) const BARRIERS: u32 = 16;

/// The sixteen barriers of a block.
#[derive(Default)]
pub(crate) struct Barriers {
    slots: [Option<Waiting>; BARRIERS as usize],
    /// What those that do not wait have done, by barrier.
    released: [Released; BARRIERS as usize],
    /// Barrier phases completed.
    pub(crate) completed: u64,
}

/// Warps that have arrived at one barrier.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) threads: u32,
    /// Threads that have arrived, those that wait included.
    arrived: u32,
    /// One bit for each warp that waits.
    warps: u32,
    pub(crate) first_thread: u32,
    pub(crate) first: Site,
}

impl Barriers {
    /// Threads that wait at `barrier` in whole warps.
    pub(crate) fn arrived(&self, barrier: u32) -> u32 {
        let slot = self.slots.get(barrier as usize).copied().flatten();
        slot.map_or(0, |waiting| waiting.arrived)
    }

    /// What those that do not wait at `barrier` have done.
    pub(crate) fn released(&mut self, barrier: u32) -> &mut Released {
        &mut self.released[barrier as usize]
    }

    /// A warp arrives; where all `threads` threads are there, the warps that wait, one bit for each.
    ///
    /// # Errors
    /// Those who have arrived for another number of threads.
    pub(crate) fn arrive(
        &mut self,
        barrier: u32,
        threads: u32,
        warp: usize,
        waits: bool,
        location: &'static Location<'static>,
    ) -> Result<Option<u32>, Waiting> {
        let slot = &mut self.slots[barrier as usize];
        let waiting = slot.get_or_insert_with(|| Waiting {
            threads,
            arrived: 0,
            warps: 0,
            first_thread: warp as u32 * WARP,
            first: location.into(),
        });
        if waiting.threads != threads {
            return Err(*waiting);
        }
        waiting.arrived += WARP;
        if waits {
            waiting.warps |= 1 << warp;
        }
        let Waiting { arrived, warps, .. } = *waiting;
        if arrived < threads {
            return Ok(None);
        }
        *slot = None;
        self.completed += 1;
        Ok(Some(warps))
    }
}
