//! Asynchronous copies from global to shared memory (PTX ISA, `cp.async`, `cp.async.commit_group`,
//! `cp.async.wait_group`).
//!
//! A copy is in flight from its issue until its own thread's [`wait_group`] covers it. Meanwhile
//! its bytes land at a time that the schedule draws, and any access to them, by any thread, is
//! [`Error::CopyInFlight`]. The wait makes the bytes visible to the thread that waits; others need a
//! barrier after it, as after an ordinary write. A thread that returns with copies in flight is
//! [`Error::CopyNotAwaited`], which is stricter than the hardware: a copy that nobody waits for is a mistake.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::Location;

use crate::block::Block;
use crate::context;
use crate::error::{Access, AccessKind, Error};
use crate::global;

/// Most bytes that one copy writes.
const MAX_BYTES: usize = 16;

/// The copies in flight of a block.
#[derive(Default)]
pub(crate) struct Copies {
    /// By thread.
    queues: Vec<Queue>,
    /// The next landings: the pick at which each is due, its thread, and its number there.
    landings: BinaryHeap<Reverse<(u64, usize, u64)>>,
}

/// One thread's copies in flight, the oldest first.
#[derive(Default)]
struct Queue {
    copies: VecDeque<Copy>,
    /// Number of `copies[0]` among all that the thread has issued.
    first: u64,
    /// How many of `copies` each committed group holds, the oldest first; the rest is in none yet.
    groups: VecDeque<usize>,
    uncommitted: usize,
}

/// One copy in flight.
#[derive(Clone, Copy)]
struct Copy {
    /// Offset of its first byte in shared memory.
    offset: usize,
    /// Bytes that it writes.
    size: usize,
    source: u64,
    /// Bytes that it reads; the others it writes are 0.
    bytes: usize,
    landed: bool,
    location: &'static Location<'static>,
}

impl Copies {
    /// None, for a block of `threads` threads.
    pub(crate) fn begin_block(&mut self, threads: usize) {
        self.queues.clear();
        self.queues.resize_with(threads, Queue::default);
        self.landings.clear();
    }

    /// Whether a copy lands before the `pick`-th pick.
    #[inline]
    pub(crate) fn is_due(&self, pick: u64) -> bool {
        self.landings.peek().is_some_and(|Reverse((due, ..))| *due <= pick)
    }
}

/// Copies `bytes` bytes (0 to `SIZE`) from global to shared memory and fills the rest of the `SIZE`
/// bytes there with 0 (`cp.async.ca.shared.global`, for 16 bytes `.cg`). `SIZE` is 4, 8 or 16, and
/// both addresses are multiples of it. Nothing behind `bytes` is read.
///
/// # Safety
/// The launch's buffers are valid host memory until it ends, and nothing outside it writes them meanwhile.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub unsafe fn copy<const SIZE: usize>(shared: u32, global: u64, bytes: u32) {
    const { assert!(matches!(SIZE, 4 | 8 | 16), "a copy writes 4, 8 or 16 bytes") };
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| block.issue_copy(shared, global, SIZE, bytes, location)));
}

/// Closes a group of all copies that the thread has issued since the last one, be it empty
/// (`cp.async.commit_group`).
///
/// # Panics
/// Outside a kernel.
pub fn commit_group() {
    context::with(|block| {
        let queue = &mut block.copies.queues[block.current];
        queue.groups.push_back(std::mem::take(&mut queue.uncommitted));
    });
}

/// Waits until at most the `pending` youngest groups of the thread are in flight
/// (`cp.async.wait_group`). Copies that no [`commit_group`] has closed a group over are not waited for.
///
/// # Panics
/// Outside a kernel.
pub fn wait_group(pending: usize) {
    let current = context::current();
    current.with(|block| {
        while block.copies.queues[block.current].groups.len() > pending {
            block.complete_group();
        }
    });
    current.maybe_preempt();
}

impl Block {
    /// Checks a copy, records it as in flight, and draws when it lands.
    fn issue_copy(
        &mut self,
        shared: u32,
        source: u64,
        size: usize,
        bytes: u32,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        if bytes as usize > size {
            return Err(self.invalid_copy(bytes, size, location));
        }
        let bytes = bytes as usize;
        self.check_global(source, bytes, size, AccessKind::Read, location)?;
        let offset = self.locate(shared, size, AccessKind::Copy, location)?;
        if let Some(races) = &mut self.races {
            let site = self.sites.intern_as(location, AccessKind::Copy);
            if let Err(conflict) = races.copy(self.current, offset, size, site) {
                return Err(self.race(conflict, AccessKind::Copy, location));
            }
        }
        self.shared.bytes_written += size as u64;
        let queue = &mut self.copies.queues[self.current];
        queue.copies.push_back(Copy { offset, size, source, bytes, landed: false, location });
        queue.uncommitted += 1;
        let number = queue.first + queue.copies.len() as u64 - 1;
        if let Some(due) = self.picker.draw_landing() {
            self.copies.landings.push(Reverse((due, self.current, number)));
            self.land_due_copies();
        }
        Ok(())
    }

    /// Writes the bytes of all copies that are due.
    pub(crate) fn land_due_copies(&mut self) {
        while self.copies.is_due(self.picker.picks)
            && let Some(Reverse((_, thread, number))) = self.copies.landings.pop()
        {
            let queue = &mut self.copies.queues[thread];
            // One that has been waited for is no longer in the queue.
            let index = number.checked_sub(queue.first).map(|index| index as usize);
            if let Some(copy) = index.and_then(|index| queue.copies.get_mut(index)) {
                copy.landed = true;
                let copy = *copy;
                self.land(&copy);
            }
        }
    }

    fn land(&mut self, copy: &Copy) {
        let mut data = [0; MAX_BYTES];
        // SAFETY: the bytes were checked at the issue to be aligned and in a buffer, and whoever
        // issued the copy vouched for the buffers until the end of the launch.
        unsafe { global::read_bytes(copy.source, &mut data[..copy.bytes]) };
        self.shared.set(copy.offset, &data[..copy.size]);
    }

    /// The running thread has waited for its oldest group.
    fn complete_group(&mut self) {
        let thread = self.current;
        let count = self.copies.queues[thread].groups.pop_front().unwrap_or(0);
        for _ in 0..count {
            let queue = &mut self.copies.queues[thread];
            let Some(copy) = queue.copies.pop_front() else { return };
            queue.first += 1;
            if !copy.landed {
                self.land(&copy);
            }
            if let Some(races) = &mut self.races {
                races.complete_copy(thread, copy.offset, copy.size);
            }
        }
    }

    /// Fails the launch if the running thread returns with copies in flight.
    pub(crate) fn check_copies_awaited(&mut self) {
        let queue = &self.copies.queues[self.current];
        let Some(copy) = queue.copies.front() else { return };
        let error = Error::CopyNotAwaited {
            kernel: self.kernel.clone(),
            block: self.index,
            copy: self.access(AccessKind::Copy, copy.location.into()),
            committed: !queue.groups.iter().all(|&count| count == 0),
        };
        self.fail(error);
    }

    /// An access to `offset` of shared memory, which `copy` is still writing.
    #[cold]
    pub(crate) fn copy_in_flight(
        &self,
        address: u32,
        offset: usize,
        access: Access,
        copy: Access,
    ) -> Box<Error> {
        let queue = &self.copies.queues[copy.thread as usize];
        let covers = |copy: &Copy| (copy.offset..copy.offset + copy.size).contains(&offset);
        let committed = queue.copies.len() - queue.uncommitted;
        Box::new(Error::CopyInFlight {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            offset: offset as u32,
            access,
            copy,
            committed: queue.copies.iter().take(committed).any(covers),
        })
    }

    #[cold]
    fn invalid_copy(&self, bytes: u32, size: usize, location: &'static Location<'static>) -> Box<Error> {
        Box::new(Error::InvalidCopy {
            kernel: self.kernel.clone(),
            block: self.index,
            bytes,
            limit: size as u32,
            access: self.access(AccessKind::Copy, location.into()),
        })
    }
}
