//! Arrivals at named barriers.

use std::panic::Location;

use super::Block;
use crate::error::Error;
use crate::state::barriers::{BARRIERS, Waiting};
use crate::threads::{LANES, WARP, lanes};

impl Block {
    /// The arguments of a barrier are some that the device takes.
    pub(crate) fn check_barrier(
        &self,
        barrier: u32,
        threads: u32,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let block = self.threads.len() as u32;
        let reason = if barrier >= BARRIERS {
            format!("barrier is {barrier}, the last is {}", BARRIERS - 1)
        } else if threads == 0 || !threads.is_multiple_of(WARP) {
            format!("threads is {threads}, not a positive multiple of {WARP}")
        } else if threads > block {
            format!("threads is {threads}, the block has {block}")
        } else {
            return Ok(());
        };
        Err(Box::new(Error::InvalidBarrier {
            kernel: self.kernel.clone(),
            block: self.index,
            thread: self.current as u32,
            site: location.into(),
            reason,
        }))
    }

    /// The running thread's warp arrives whole; the last one of the barrier completes it.
    pub(super) fn arrive_at_barrier(
        &mut self,
        barrier: u32,
        threads: u32,
        waits: bool,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let id = self.sites.intern(location);
        self.barrier_sites.insert(id);
        let warp = self.current / LANES;
        let complete = match self.barriers.arrive(barrier, threads, warp, waits, location) {
            Ok(complete) => complete,
            Err(other) => return Err(self.barrier_mismatch(barrier, other, threads, location)),
        };
        if let Some(races) = self.races.as_mut().filter(|_| !waits) {
            let released = self.barriers.released(barrier);
            lanes(warp).for_each(|lane| races.release(lane, released));
        }
        if let Some(warps) = complete {
            self.complete_barrier(barrier, warps);
        }
        Ok(())
    }

    fn complete_barrier(&mut self, barrier: u32, warps: u32) {
        let waiting = (0..LANES).filter(move |warp| warps & (1 << warp) != 0);
        if let Some(races) = &mut self.races {
            let threads = waiting.clone().flat_map(lanes);
            races.synchronize(threads.clone());
            let released = std::mem::take(self.barriers.released(barrier));
            if let Some(mut past) = released.into_snapshot() {
                threads.for_each(|thread| races.acquire(thread, &mut past));
            }
        }
        waiting.for_each(|warp| self.release(warp));
    }

    #[cold]
    fn barrier_mismatch(
        &self,
        barrier: u32,
        first: Waiting,
        second_threads: u32,
        location: &'static Location<'static>,
    ) -> Box<Error> {
        Box::new(Error::BarrierMismatch {
            kernel: self.kernel.clone(),
            block: self.index,
            barrier,
            first_thread: first.first_thread,
            first_threads: first.threads,
            first: first.first,
            second_thread: self.current as u32,
            second_threads,
            second: location.into(),
        })
    }
}
