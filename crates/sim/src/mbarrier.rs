//! Barriers in shared memory that count arrivals and bytes (PTX ISA, "Parallel Synchronization and Communication
//! Instructions: mbarrier").
//!
//! An mbarrier is an object of 8 bytes at a multiple of 8. A phase is complete when as many threads have
//! arrived as [`init`] says and as many bytes have landed as [`arrive_expect_tx`] has announced; then the
//! next phase begins with the same count. Phases are numbered from 0, and the parity of a phase is that of
//! its number. [`wait`] returns once the phase of its parity is complete; it tells apart only the phase that
//! is under way and the one before it, so that a wait for the other parity of a new barrier returns at once.
//!
//! An arrival releases what its thread did before (`.release.cta`), and the wait for its phase acquires it
//! (`.acquire.cta`): one-to-one, threads that neither arrive nor wait are not ordered. A thread other than
//! the one that initialised a barrier has to be ordered after that by something else, a block barrier for
//! example, and TMA has to be by a [`fence_init`] or a [`fence::proxy_async`](crate::fence::proxy_async) too.
//!
//! Everything else that the bytes of a live barrier are used for is [`Error::Mbarrier`], and so is a phase
//! that passes a waiting thread by: try_wait in a loop, as on the device, may miss it.

use std::fmt;
use std::panic::Location;

use crate::block::{Block, Role};
use crate::context;
use crate::error::{AccessKind, Error};
use crate::race::{Released, Snapshot};
use crate::shared::BASE;
use crate::site::Site;

/// Bytes of a barrier.
const BYTES: usize = 8;

/// Most arrivals of a phase and most bytes pending (PTX ISA, "Contents of the mbarrier object").
const LIMIT: u32 = (1 << 20) - 1;

/// The barriers of a block.
#[derive(Default)]
pub(crate) struct Mbarriers {
    list: Vec<Mbarrier>,
}

struct Mbarrier {
    address: u32,
    initialised: Initialised,
    /// Arrivals of a phase.
    count: u32,
    /// Arrivals that the phase under way lacks.
    missing: u32,
    /// Bytes that it lacks; negative where bytes have landed that nobody has announced.
    bytes: i64,
    /// Number of the phase under way.
    phase: u64,
    /// Bytes of loads under way.
    in_flight: u64,
    waiting: Vec<Waiting>,
    /// The author of the loads that it counts.
    pub(crate) agent: usize,
    released: Released,
    completed: Snapshot,
}

struct Initialised {
    thread: usize,
    epoch: u32,
    site: Site,
    /// Epoch of the initialising thread that ended with a fence for the async proxy.
    fenced: Option<u32>,
}

/// A thread that waits for the phase under way.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) thread: usize,
    pub(crate) parity: u32,
    pub(crate) site: Site,
}

/// What a phase under way lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Phase {
    /// Number of the phase, from 0.
    pub number: u64,
    /// Arrivals of a phase.
    pub count: u32,
    /// Arrivals that are missing.
    pub arrivals: u32,
    /// Bytes that are missing; negative where more have landed than were announced.
    pub bytes: i64,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, count, arrivals, bytes } = self;
        write!(f, "phase {number} is under way, {arrivals} of {count} arrivals ")?;
        match bytes {
            0.. => write!(f, "and {bytes} bytes are missing"),
            _ => write!(f, "are missing, {} bytes have landed that nobody expects", -bytes),
        }
    }
}

/// Makes the 8 bytes at `barrier` a barrier whose phases take `arrivals` arrivals, 1 to 2^20 − 1
/// (`mbarrier.init.shared::cta.b64`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn init(barrier: u32, arrivals: u32) {
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| block.init_mbarrier(barrier, arrivals, location)));
}

/// Makes the barriers that this thread has initialised visible to the async proxy
/// (`fence.mbarrier_init.release.cluster`), to operations that are ordered after it.
///
/// # Panics
/// Outside a kernel.
pub fn fence_init() {
    context::with(|block| {
        // It orders nothing but barriers, hence an epoch of its own rather than a proxy fence's.
        let epoch = block.races.as_ref().map_or(0, |races| races.epoch_of(block.current));
        block.fence_mbarriers(epoch);
    });
}

/// Arrives at `barrier` (`mbarrier.arrive.release.cta.shared::cta.b64`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn arrive(barrier: u32) {
    arrive_with(barrier, 0, Location::caller());
}

/// Announces `bytes` bytes of loads to the phase under way, and arrives
/// (`mbarrier.arrive.expect_tx.release.cta.shared::cta.b64`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn arrive_expect_tx(barrier: u32, bytes: u32) {
    arrive_with(barrier, bytes, Location::caller());
}

fn arrive_with(barrier: u32, bytes: u32, location: &'static Location<'static>) {
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| block.arrive_at_mbarrier(barrier, bytes, location)));
}

/// Waits until the phase of `parity` (0 or 1) is complete (`mbarrier.try_wait.parity.acquire.cta` in a loop).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn wait(barrier: u32, parity: u32) {
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    let awaited = current.with(|block| block.begin_wait(barrier, parity, location));
    let (index, awaited) = context::unwrap_or_fail(awaited);
    if awaited.is_some() {
        current.suspend();
    }
    context::unwrap_or_fail(current.with(|block| block.end_wait(index, awaited, location)));
}

impl Mbarriers {
    pub(crate) fn begin_block(&mut self) {
        self.list.clear();
    }

    fn position(&self, address: u32) -> Option<usize> {
        self.list.iter().position(|barrier| barrier.address == address)
    }

    /// The threads that wait, with the address of their barrier and what its phase lacks.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Waiting, u32, Phase)> + '_ {
        self.list.iter().flat_map(|barrier| {
            let phase = Phase {
                number: barrier.phase,
                count: barrier.count,
                arrivals: barrier.missing,
                bytes: barrier.bytes,
            };
            barrier.waiting.iter().map(move |&waiting| (waiting, barrier.address, phase))
        })
    }

    /// Address of barrier `index`.
    pub(crate) fn address(&self, index: usize) -> u32 {
        self.list[index].address
    }

    /// The barrier with a byte at `offset` of shared memory: its address, and where it was initialised.
    pub(crate) fn covering(&self, offset: usize) -> Option<(u32, Site)> {
        let covers = |barrier: &&Mbarrier| {
            let start = (barrier.address - BASE) as usize;
            (start..start + BYTES).contains(&offset)
        };
        let found = self.list.iter().find(covers)?;
        Some((found.address, found.initialised.site))
    }
}

impl Block {
    fn init_mbarrier(
        &mut self,
        address: u32,
        arrivals: u32,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        if !(1..=LIMIT).contains(&arrivals) {
            let reason = format!("arrivals is {arrivals}, not 1 to {LIMIT}");
            return Err(self.mbarrier_error(address, location, reason));
        }
        if let Some(index) = self.mbarriers.position(address) {
            let reason =
                format!("it is initialised already, at {}", self.mbarriers.list[index].initialised.site);
            return Err(self.mbarrier_error(address, location, reason));
        }
        let offset = self.shared_write::<u64>(address, location)?;
        self.shared.forget(offset, BYTES);
        let mut agent = 0;
        let mut epoch = 0;
        if let Some(races) = &mut self.races {
            races.reserve(offset);
            agent = races.new_agent();
            epoch = races.epoch_of(self.current);
            self.roles.push(Role::Loads { mbarrier: self.mbarriers.list.len(), issuer: self.current });
        }
        self.mbarriers.list.push(Mbarrier {
            address,
            initialised: Initialised { thread: self.current, epoch, site: location.into(), fenced: None },
            count: arrivals,
            missing: arrivals,
            bytes: 0,
            phase: 0,
            in_flight: 0,
            waiting: Vec::new(),
            agent,
            released: Released::default(),
            completed: Snapshot::default(),
        });
        Ok(())
    }

    /// The barriers of the running thread are fenced in its epoch `epoch`.
    pub(crate) fn fence_mbarriers(&mut self, epoch: u32) {
        let own = self.mbarriers.list.iter_mut().filter(|barrier| barrier.initialised.thread == self.current);
        own.for_each(|barrier| {
            barrier.initialised.fenced.get_or_insert(epoch);
        });
    }

    /// The barrier at `address`, which the running thread may use.
    fn mbarrier_at(&self, address: u32, location: &'static Location<'static>) -> Result<usize, Box<Error>> {
        let Some(index) = self.mbarriers.position(address) else {
            let reason = String::from("no mbarrier::init of this block has been there before");
            return Err(self.mbarrier_error(address, location, reason));
        };
        let initialised = &self.mbarriers.list[index].initialised;
        let knows =
            |races: &crate::race::Races| races.follows(self.current, initialised.thread, initialised.epoch);
        if self.races.as_ref().is_none_or(knows) {
            return Ok(index);
        }
        let reason = format!(
            "thread {} initialises it at {}, with no barrier between",
            initialised.thread, initialised.site
        );
        Err(self.mbarrier_error(address, location, reason))
    }

    fn arrive_at_mbarrier(
        &mut self,
        address: u32,
        bytes: u32,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let index = self.mbarrier_at(address, location)?;
        let barrier = &mut self.mbarriers.list[index];
        let (total, phase, count) = (barrier.bytes + i64::from(bytes), barrier.phase, barrier.count);
        if total > LIMIT.into() {
            let reason = format!("phase {phase} would expect {total} bytes, the limit is {LIMIT}");
            return Err(self.mbarrier_error(address, location, reason));
        }
        if barrier.missing == 0 {
            let reason = format!(
                "more arrivals than its count of {count}: all are there, and phase {phase} waits for {} bytes",
                barrier.bytes
            );
            return Err(self.mbarrier_error(address, location, reason));
        }
        barrier.bytes = total;
        barrier.missing -= 1;
        if let Some(races) = &mut self.races {
            races.release(self.current, &mut barrier.released);
        }
        self.complete_phase(index, location)
    }

    /// Ends the phase under way if it lacks nothing.
    fn complete_phase(
        &mut self,
        index: usize,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let barrier = &mut self.mbarriers.list[index];
        if barrier.missing > 0 || barrier.bytes != 0 {
            return Ok(());
        }
        if barrier.in_flight > 0 {
            let reason = format!(
                "phase {} is complete while loads of {} bytes are under way: too few bytes were expected",
                barrier.phase, barrier.in_flight
            );
            let address = barrier.address;
            return Err(self.mbarrier_error(address, location, reason));
        }
        if let Some(races) = &mut self.races {
            let epoch = races.end_epoch(barrier.agent);
            barrier.released.raise(barrier.agent, epoch);
            barrier.completed = barrier.released.snapshot();
        }
        barrier.phase += 1;
        barrier.missing = barrier.count;
        barrier.waiting.drain(..).for_each(|waiting| self.runnable.insert(waiting.thread));
        Ok(())
    }

    /// The barrier, and the phase that the running thread has to be suspended for.
    fn begin_wait(
        &mut self,
        address: u32,
        parity: u32,
        location: &'static Location<'static>,
    ) -> Result<(usize, Option<u64>), Box<Error>> {
        let index = self.mbarrier_at(address, location)?;
        if parity > 1 {
            let reason = format!("parity is {parity}, not 0 or 1");
            return Err(self.mbarrier_error(address, location, reason));
        }
        let barrier = &mut self.mbarriers.list[index];
        if barrier.phase % 2 != u64::from(parity) {
            return Ok((index, None));
        }
        barrier.waiting.push(Waiting { thread: self.current, parity, site: location.into() });
        Ok((index, Some(barrier.phase)))
    }

    fn end_wait(
        &mut self,
        index: usize,
        awaited: Option<u64>,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let barrier = &mut self.mbarriers.list[index];
        if let Some(races) = &mut self.races {
            races.acquire(self.current, &mut barrier.completed);
        }
        match awaited {
            Some(awaited) if barrier.phase != awaited + 1 => {
                let reason = format!(
                    "the thread waits for phase {awaited}, and phase {} is complete before it has seen that: \
                     nothing makes the barrier wait for this thread",
                    barrier.phase - 1
                );
                let address = barrier.address;
                Err(self.mbarrier_error(address, location, reason))
            }
            _ => Ok(()),
        }
    }

    /// The barrier that a load of `bytes` bytes is to complete on, and the author of the load's writes.
    pub(crate) fn begin_load(
        &mut self,
        address: u32,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Result<(usize, usize), Box<Error>> {
        let index = self.mbarrier_at(address, location)?;
        let Initialised { thread, site, fenced, .. } = self.mbarriers.list[index].initialised;
        let follows =
            |epoch| self.races.as_ref().is_none_or(|races| races.follows(self.current, thread, epoch));
        if !fenced.is_some_and(follows) {
            let reason = format!(
                "a TMA load completes on it, and thread {thread} has no mbarrier::fence_init or fence::proxy_async \
                 between its mbarrier::init at {site} and the synchronisation"
            );
            return Err(self.mbarrier_error(address, location, reason));
        }
        let barrier = &mut self.mbarriers.list[index];
        barrier.in_flight += bytes;
        if let Some(races) = &self.races {
            // The phase ends after the load, which begins after what its thread knows.
            races.release_past(self.current, &mut barrier.released);
        }
        Ok((index, barrier.agent))
    }

    /// `bytes` bytes of a load of `thread` have landed.
    pub(crate) fn complete_bytes(
        &mut self,
        index: usize,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let barrier = &mut self.mbarriers.list[index];
        barrier.in_flight -= bytes;
        barrier.bytes -= bytes as i64;
        if barrier.bytes < -i64::from(LIMIT) {
            let reason =
                format!("{} bytes have landed that nobody expects, the limit is {LIMIT}", -barrier.bytes);
            let address = barrier.address;
            return Err(self.mbarrier_error(address, location, reason));
        }
        self.complete_phase(index, location)
    }

    /// An access to the bytes of a barrier that is no operation of this file.
    #[cold]
    pub(crate) fn mbarrier_accessed(
        &self,
        offset: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Option<Box<Error>> {
        let (address, site) = self.mbarriers.covering(offset)?;
        let access = self.access(kind, location.into());
        let reason = format!("{access} bytes of it as memory, and it is initialised at {site}");
        Some(self.mbarrier_error(address, location, reason))
    }

    #[cold]
    fn mbarrier_error(
        &self,
        address: u32,
        location: &'static Location<'static>,
        reason: String,
    ) -> Box<Error> {
        Box::new(Error::Mbarrier {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            offset: address.wrapping_sub(BASE),
            thread: self.current as u32,
            site: location.into(),
            reason,
        })
    }
}
