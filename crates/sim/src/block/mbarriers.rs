//! What threads and loads do to mbarriers.

use std::panic::Location;

use super::{Block, Role};
use crate::error::Error;
use crate::race::Races;
use crate::state::mbarriers::{BYTES, Initialised, LIMIT, Mbarrier, Waiting};

impl Block {
    /// The running thread makes a barrier of the bytes at `address`.
    pub(crate) fn init_mbarrier(
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
            let site = self.mbarriers.get(index).initialised.site;
            let reason = format!("it is initialised already, at {site}");
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
            self.roles.push(Role::Loads { mbarrier: self.mbarriers.count(), issuer: self.current });
        }
        let initialised = Initialised { thread: self.current, epoch, site: location.into(), fenced: None };
        self.mbarriers.push(Mbarrier::new(address, arrivals, initialised, agent));
        Ok(())
    }

    /// The barrier at `address`, which the running thread may use.
    fn mbarrier_at(&self, address: u32, location: &'static Location<'static>) -> Result<usize, Box<Error>> {
        let Some(index) = self.mbarriers.position(address) else {
            let reason = String::from("no mbarrier::init of this block has been there before");
            return Err(self.mbarrier_error(address, location, reason));
        };
        let Initialised { thread, epoch, site, .. } = self.mbarriers.get(index).initialised;
        let knows = |races: &Races| races.follows(self.current, thread, epoch);
        if self.races.as_ref().is_none_or(knows) {
            return Ok(index);
        }
        let reason = format!("thread {thread} initialises it at {site}, with no barrier between");
        Err(self.mbarrier_error(address, location, reason))
    }

    /// The running thread arrives, and announces `bytes` bytes of loads.
    pub(crate) fn arrive_at_mbarrier(
        &mut self,
        address: u32,
        bytes: u32,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let index = self.mbarrier_at(address, location)?;
        let barrier = self.mbarriers.get_mut(index);
        if let Err(reason) = barrier.arrive(bytes) {
            return Err(self.mbarrier_error(address, location, reason));
        }
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
        let barrier = self.mbarriers.get_mut(index);
        match barrier.is_complete() {
            Ok(true) => {
                let waiting = barrier.next_phase(self.races.as_mut());
                waiting.for_each(|waiting| self.runnable.insert(waiting.thread));
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(reason) => {
                let address = barrier.address;
                Err(self.mbarrier_error(address, location, reason))
            }
        }
    }

    /// The barrier, and the phase that the running thread has to be suspended for.
    pub(crate) fn begin_wait(
        &mut self,
        address: u32,
        parity: u32,
        location: &'static Location<'static>,
    ) -> Result<(usize, Option<u64>), Box<Error>> {
        let index = self.mbarrier_at(address, location)?;
        let waiting = Waiting { thread: self.current, parity, site: location.into() };
        match self.mbarriers.get_mut(index).begin_wait(waiting) {
            Ok(awaited) => Ok((index, awaited)),
            Err(reason) => Err(self.mbarrier_error(address, location, reason)),
        }
    }

    /// The running thread goes on, after the phase `awaited` if it was suspended for one.
    pub(crate) fn end_wait(
        &mut self,
        index: usize,
        awaited: Option<u64>,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let barrier = self.mbarriers.get_mut(index);
        if let Some(races) = &mut self.races {
            races.acquire(self.current, &mut barrier.completed);
        }
        let ended = awaited.map_or(Ok(()), |awaited| barrier.end_wait(awaited));
        let address = barrier.address;
        ended.map_err(|reason| self.mbarrier_error(address, location, reason))
    }

    /// The barrier that a load of `bytes` bytes is to complete on, and the author of the load's writes.
    pub(super) fn begin_load(
        &mut self,
        address: u32,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Result<(usize, usize), Box<Error>> {
        let index = self.mbarrier_at(address, location)?;
        let Initialised { thread, site, fenced, .. } = self.mbarriers.get(index).initialised;
        let follows =
            |epoch| self.races.as_ref().is_none_or(|races| races.follows(self.current, thread, epoch));
        if !fenced.is_some_and(follows) {
            let reason = format!(
                "a TMA load completes on it, and thread {thread} has no mbarrier::fence_init or fence::proxy_async \
                 between its mbarrier::init at {site} and the synchronisation"
            );
            return Err(self.mbarrier_error(address, location, reason));
        }
        let barrier = self.mbarriers.get_mut(index);
        barrier.begin_load(bytes);
        if let Some(races) = &self.races {
            // The phase ends after the load, which begins after what its thread knows.
            races.release_past(self.current, &mut barrier.released);
        }
        Ok((index, barrier.agent))
    }

    /// `bytes` bytes of a load of `thread` have landed.
    pub(super) fn complete_bytes(
        &mut self,
        index: usize,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let barrier = self.mbarriers.get_mut(index);
        if let Err(reason) = barrier.land(bytes) {
            let address = barrier.address;
            return Err(self.mbarrier_error(address, location, reason));
        }
        self.complete_phase(index, location)
    }
}
