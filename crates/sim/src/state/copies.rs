//! The asynchronous copies of a block that are in flight.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::Location;

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
pub(crate) struct Copy {
    /// Offset of its first byte in shared memory.
    pub(crate) offset: usize,
    /// Bytes that it writes.
    pub(crate) size: usize,
    pub(crate) source: u64,
    /// Bytes that it reads; the others it writes are 0.
    pub(crate) bytes: usize,
    pub(crate) landed: bool,
    /// The block's epoch when it was issued.
    pub(crate) epoch: u32,
    pub(crate) location: &'static Location<'static>,
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

    /// A copy of `thread` is in flight, and lands at pick `due` if not when it is waited for.
    pub(crate) fn issue(&mut self, thread: usize, copy: Copy, due: Option<u64>) {
        let queue = &mut self.queues[thread];
        let number = queue.first + queue.copies.len() as u64;
        queue.copies.push_back(copy);
        queue.uncommitted += 1;
        if let Some(due) = due {
            self.landings.push(Reverse((due, thread, number)));
        }
    }

    /// The next copy that is due and has not been waited for: it lands now.
    pub(crate) fn land_due(&mut self, pick: u64) -> Option<Copy> {
        while self.is_due(pick)
            && let Some(Reverse((_, thread, number))) = self.landings.pop()
        {
            let queue = &mut self.queues[thread];
            // One that has been waited for is no longer in the queue.
            let index = number.checked_sub(queue.first).map(|index| index as usize);
            if let Some(copy) = index.and_then(|index| queue.copies.get_mut(index)) {
                copy.landed = true;
                return Some(*copy);
            }
        }
        None
    }

    /// Closes a group over the copies of `thread` that are in none.
    pub(crate) fn commit(&mut self, thread: usize) {
        let queue = &mut self.queues[thread];
        queue.groups.push_back(std::mem::take(&mut queue.uncommitted));
    }

    /// Groups of `thread` that have not been waited for.
    pub(crate) fn groups(&self, thread: usize) -> usize {
        self.queues[thread].groups.len()
    }

    /// Takes the oldest group of `thread`: how many copies it has.
    pub(crate) fn take_group(&mut self, thread: usize) -> usize {
        self.queues[thread].groups.pop_front().unwrap_or(0)
    }

    /// Takes the oldest copy of `thread`.
    pub(crate) fn take_copy(&mut self, thread: usize) -> Option<Copy> {
        let queue = &mut self.queues[thread];
        let copy = queue.copies.pop_front()?;
        queue.first += 1;
        Some(copy)
    }

    /// Where the oldest copy of `thread` was issued, and whether a group of its copies has been closed.
    pub(crate) fn oldest(&self, thread: usize) -> Option<(&'static Location<'static>, bool)> {
        let queue = &self.queues[thread];
        let copy = queue.copies.front()?;
        Some((copy.location, !queue.groups.iter().all(|&count| count == 0)))
    }

    /// Whether a group has been closed over a copy of `thread` to `offset` of shared memory.
    pub(crate) fn is_committed(&self, thread: usize, offset: usize) -> bool {
        let queue = &self.queues[thread];
        let covers = |copy: &Copy| (copy.offset..copy.offset + copy.size).contains(&offset);
        let committed = queue.copies.len() - queue.uncommitted;
        queue.copies.iter().take(committed).any(covers)
    }
}
