//! Exact detection of data races in shared memory, by happens-before.
//!
//! Two accesses to a byte by different threads, at least one a write, race unless a chain of
//! barriers orders them. As in FastTrack (Flanagan and Freund, PLDI 2009), each thread counts
//! epochs, one for each synchronisation it takes part in; a vector clock says up to which epoch of each
//! other thread it has been ordered; and each cell of memory keeps its last write and the
//! reads since then that may still race with a later write.
//!
//! An asynchronous copy is a write by a thread of its own, which begins at the issue and which
//! only the issuing thread's wait joins: in flight it has an epoch that nobody's clock reaches.
//!
//! Three things about GPU blocks make this cheap:
//! * Threads that leave a barrier together share one clock, so a barrier of n threads costs O(n).
//! * Lanes of a warp mostly read a cell in the same epoch, so its readers are a lane mask per warp.
//! * Accesses are mostly whole words. A cell is a word, and is split into its four bytes at the
//!   first narrower access, so that neighbours written by different threads are no race.

mod agent_reads;
mod asynchronous;
mod chunks;
mod clock;
mod conflict;
mod detector;
mod history;
mod objects;

pub(crate) use asynchronous::Group;
pub(crate) use conflict::Conflict;
pub(crate) use detector::Races;
pub(crate) use objects::{Released, Snapshot};

#[cfg(test)]
mod tests;
