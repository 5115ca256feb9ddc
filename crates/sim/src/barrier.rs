//! Named barriers of a block (PTX ISA, `barrier.cta.sync.aligned`, `barrier.cta.arrive.aligned`).

use std::panic::Location;

use crate::block::Block;
use crate::context;
use crate::error::Error;
use crate::operation::Operation;
use crate::race::Released;
use crate::site::Site;
use crate::threads::{WARP, lanes};
use crate::warp;

/// Barriers of a block.
const BARRIERS: u32 = 16;

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
struct Waiting {
    threads: u32,
    /// Threads that have arrived, those that wait included.
    arrived: u32,
    /// One bit for each warp that waits.
    warps: u32,
    first_thread: u32,
    first: Site,
}

impl Barriers {
    /// Threads that wait at `barrier` in whole warps.
    pub(crate) fn arrived(&self, barrier: u32) -> u32 {
        let slot = self.slots.get(barrier as usize).copied().flatten();
        slot.map_or(0, |waiting| waiting.arrived)
    }
}

/// Waits at barrier `barrier` (0 to 15) until `threads` threads have arrived there, and orders their
/// shared-memory accesses before it against those after it. Threads that [`arrive`] count too. Threads that
/// do not take part are not ordered.
///
/// `threads` is a multiple of 32, at most the block's size, and the same for all who meet. The
/// 32 lanes of a warp arrive together, from one source location, as `.aligned` asks. A warp with
/// lanes that have left the kernel never arrives; this is stricter than hardware that counts
/// such a warp, because a kernel that leans on it breaks under `.aligned`.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn sync(barrier: u32, threads: u32) {
    let location = Location::caller();
    context::unwrap_or_fail(context::with(|block| block.check_barrier(barrier, threads, location)));
    warp::meet(Operation::Barrier { barrier, threads }, [], location);
}

/// Arrives at barrier `barrier` as [`sync`] does, and does not wait (`barrier.cta.arrive.aligned`): what
/// this warp did before is ordered before what those do that wait there, and nothing the other way round.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn arrive(barrier: u32, threads: u32) {
    let location = Location::caller();
    context::unwrap_or_fail(context::with(|block| block.check_barrier(barrier, threads, location)));
    warp::meet(Operation::BarrierArrive { barrier, threads }, [], location);
}

impl Block {
    fn check_barrier(
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
    pub(crate) fn arrive_at_barrier(
        &mut self,
        barrier: u32,
        threads: u32,
        waits: bool,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let id = self.sites.intern(location);
        self.barrier_sites.insert(id);
        let waiting = self.barriers.slots[barrier as usize].get_or_insert_with(|| Waiting {
            threads,
            arrived: 0,
            warps: 0,
            first_thread: self.current as u32 / WARP * WARP,
            first: location.into(),
        });
        if waiting.threads != threads {
            return Err(Box::new(Error::BarrierMismatch {
                kernel: self.kernel.clone(),
                block: self.index,
                barrier,
                first_thread: waiting.first_thread,
                first_threads: waiting.threads,
                first: waiting.first,
                second_thread: self.current as u32,
                second_threads: threads,
                second: location.into(),
            }));
        }
        let warp = self.current / WARP as usize;
        waiting.arrived += WARP;
        if waits {
            waiting.warps |= 1 << warp;
        }
        let Waiting { arrived, warps, .. } = *waiting;
        if let Some(races) = self.races.as_mut().filter(|_| !waits) {
            let released = &mut self.barriers.released[barrier as usize];
            lanes(warp).for_each(|lane| races.release(lane, released));
        }
        if arrived == threads {
            self.barriers.slots[barrier as usize] = None;
            self.complete_barrier(barrier, warps);
        }
        Ok(())
    }

    fn complete_barrier(&mut self, barrier: u32, warps: u32) {
        self.barriers.completed += 1;
        let waiting = (0..WARP as usize).filter(move |warp| warps & (1 << warp) != 0);
        if let Some(races) = &mut self.races {
            let lanes = waiting.clone().flat_map(lanes);
            races.synchronize(lanes.clone());
            let released = std::mem::take(&mut self.barriers.released[barrier as usize]);
            if let Some(mut past) = released.into_snapshot() {
                lanes.for_each(|lane| races.acquire(lane, &mut past));
            }
        }
        waiting.for_each(|warp| self.release(warp));
    }
}
