//! The mbarriers of a block: initialisation, arrivals, bytes, phases, and who waits.

use crate::error::Phase;
use crate::race::{Races, Released, Snapshot};
use crate::site::Site;
use crate::state::shared::BASE;

/// Bytes of a barrier.
pub(crate) const BYTES: usize = 8;

/// Most arrivals of a phase and most bytes pending (PTX ISA, "Contents of the mbarrier object").
pub(crate) const LIMIT: u32 = (1 << 20) - 1;

/// The barriers of a block.
#[derive(Default)]
pub(crate) struct Mbarriers {
    list: Vec<Mbarrier>,
}

/// One barrier.
pub(crate) struct Mbarrier {
    pub(crate) address: u32,
    pub(crate) initialised: Initialised,
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
    pub(crate) released: Released,
    pub(crate) completed: Snapshot,
}

/// Who has made a barrier, and where.
#[derive(Clone, Copy)]
pub(crate) struct Initialised {
    pub(crate) thread: usize,
    pub(crate) epoch: u32,
    pub(crate) site: Site,
    /// Epoch of the initialising thread that ended with a fence for the async proxy.
    pub(crate) fenced: Option<u32>,
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

    /// How many there are: the index of the next.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn push(&mut self, barrier: Mbarrier) {
        self.list.push(barrier);
    }

    /// The index of the barrier at `address`.
    pub(crate) fn position(&self, address: u32) -> Option<usize> {
        self.list.iter().position(|barrier| barrier.address == address)
    }

    pub(crate) fn get(&self, index: usize) -> &Mbarrier {
        &self.list[index]
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Mbarrier {
        &mut self.list[index]
    }

    /// The barriers that `thread` has initialised are fenced in its epoch `epoch`.
    pub(crate) fn fence(&mut self, thread: usize, epoch: u32) {
        let own = self.list.iter_mut().filter(|barrier| barrier.initialised.thread == thread);
        own.for_each(|barrier| {
            barrier.initialised.fenced.get_or_insert(epoch);
        });
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

impl Mbarrier {
    /// A barrier at `address` whose phases take `arrivals` arrivals, and whose loads `agent` writes.
    pub(crate) fn new(address: u32, arrivals: u32, initialised: Initialised, agent: usize) -> Self {
        Self {
            address,
            initialised,
            count: arrivals,
            missing: arrivals,
            bytes: 0,
            phase: 0,
            in_flight: 0,
            waiting: Vec::new(),
            agent,
            released: Released::default(),
            completed: Snapshot::default(),
        }
    }

    /// A thread arrives, and announces `bytes` bytes of loads.
    ///
    /// # Errors
    /// The phase under way takes no such arrival.
    pub(crate) fn arrive(&mut self, bytes: u32) -> Result<(), String> {
        let (total, phase, count) = (self.bytes + i64::from(bytes), self.phase, self.count);
        if total > LIMIT.into() {
            return Err(format!("phase {phase} would expect {total} bytes, the limit is {LIMIT}"));
        }
        if self.missing == 0 {
            return Err(format!(
                "more arrivals than its count of {count}: all are there, and phase {phase} waits for {} bytes",
                self.bytes
            ));
        }
        self.bytes = total;
        self.missing -= 1;
        Ok(())
    }

    /// A load of `bytes` bytes is under way.
    pub(crate) fn begin_load(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// `bytes` bytes of a load have landed.
    ///
    /// # Errors
    /// Too many have that no arrival has announced.
    pub(crate) fn land(&mut self, bytes: u64) -> Result<(), String> {
        self.in_flight -= bytes;
        self.bytes -= bytes as i64;
        if self.bytes < -i64::from(LIMIT) {
            return Err(format!(
                "{} bytes have landed that nobody expects, the limit is {LIMIT}",
                -self.bytes
            ));
        }
        Ok(())
    }

    /// Whether the phase under way lacks nothing.
    ///
    /// # Errors
    /// It lacks nothing, and loads are under way.
    pub(crate) fn is_complete(&self) -> Result<bool, String> {
        if self.missing > 0 || self.bytes != 0 {
            return Ok(false);
        }
        if self.in_flight > 0 {
            return Err(format!(
                "phase {} is complete while loads of {} bytes are under way: too few bytes were expected",
                self.phase, self.in_flight
            ));
        }
        Ok(true)
    }

    /// Begins the next phase; returns who has waited for the one before.
    pub(crate) fn next_phase(&mut self, races: Option<&mut Races>) -> impl Iterator<Item = Waiting> + '_ {
        if let Some(races) = races {
            let epoch = races.end_epoch(self.agent);
            self.released.raise(self.agent, epoch);
            self.completed = self.released.snapshot();
        }
        self.phase += 1;
        self.missing = self.count;
        self.waiting.drain(..)
    }

    /// A thread waits for the phase of a parity; the number of the phase if that is under way.
    ///
    /// # Errors
    /// The parity is none.
    pub(crate) fn begin_wait(&mut self, waiting: Waiting) -> Result<Option<u64>, String> {
        let Waiting { parity, .. } = waiting;
        if parity > 1 {
            return Err(format!("parity is {parity}, not 0 or 1"));
        }
        if self.phase % 2 != u64::from(parity) {
            return Ok(None);
        }
        self.waiting.push(waiting);
        Ok(Some(self.phase))
    }

    /// A thread has waited for the phase `awaited`.
    ///
    /// # Errors
    /// A later one is complete before it goes on.
    pub(crate) fn end_wait(&self, awaited: u64) -> Result<(), String> {
        if self.phase == awaited + 1 {
            return Ok(());
        }
        Err(format!(
            "the thread waits for phase {awaited}, and phase {} is complete before it has seen that: \
             nothing makes the barrier wait for this thread",
            self.phase - 1
        ))
    }
}
