//! The state of barriers: initialisation, arrivals, bytes, phases, and who waits.

use std::panic::Location;

use crate::block::{Block, Role};
use crate::error::Phase;
use crate::error::{AccessKind, Error};
use crate::race::{Races, Released, Snapshot};
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
    agent: usize,
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
    pub(super) fn init_mbarrier(
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
        let knows = |races: &Races| races.follows(self.current, initialised.thread, initialised.epoch);
        if self.races.as_ref().is_none_or(knows) {
            return Ok(index);
        }
        let reason = format!(
            "thread {} initialises it at {}, with no barrier between",
            initialised.thread, initialised.site
        );
        Err(self.mbarrier_error(address, location, reason))
    }

    pub(super) fn arrive_at_mbarrier(
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
    pub(super) fn begin_wait(
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

    pub(super) fn end_wait(
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
