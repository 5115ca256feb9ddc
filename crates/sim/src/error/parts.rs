//! The threads, places and waits that errors name.

use std::fmt;

use crate::operation::Operation;
use crate::site::Site;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// The write to shared memory of an asynchronous copy.
    Copy,
    /// The write to shared memory of a TMA load.
    TmaLoad,
    /// The read from shared memory of a TMA store.
    TmaStore,
    /// The read of its operands by a product of a warpgroup.
    Wgmma,
    /// An atomic addition to a word of global memory.
    Add,
    /// The load of a word of global memory that ends a wait for it.
    Await,
}

/// One access by one thread. Displays as `thread 5 writes at src/file.rs:10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Index of the thread in its block.
    pub thread: u32,
    /// What it does.
    pub kind: AccessKind,
    /// Where in the kernel's source.
    pub site: Site,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            AccessKind::Read => "reads",
            AccessKind::Write => "writes",
            AccessKind::Copy => "copies asynchronously",
            AccessKind::TmaLoad => "loads by TMA",
            AccessKind::TmaStore => "stores by TMA",
            AccessKind::Wgmma => "multiplies by wgmma",
            AccessKind::Add => "adds",
            AccessKind::Await => "waits for the word",
        };
        write!(f, "thread {} {verb} at {}", self.thread, self.site)
    }
}

/// What waits for an operation of the async proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// [`mbarrier::wait`](crate::mbarrier::wait), for TMA loads.
    Mbarrier {
        /// Shared address of the barrier.
        address: u32,
    },
    /// [`tma::wait_group_read`](crate::tma::wait_group_read), for TMA stores.
    Stores,
    /// [`wgmma::wait_group`](crate::wgmma::wait_group), for products.
    Products,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mbarrier { address } => {
                write!(f, "mbarrier::wait for its phase of the mbarrier at {address}")
            }
            Self::Stores => f.write_str("tma::wait_group_read of that thread"),
            Self::Products => f.write_str("wgmma::wait_group of that warpgroup"),
        }
    }
}

/// A set of threads of a block, ascending. Displays as `threads 0-31, 64`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Threads(pub Vec<u32>);

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "thread " } else { "threads " })?;
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        for (position, run) in runs.enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            match run {
                [only] => write!(f, "{separator}{only}")?,
                [first, .., last] => write!(f, "{separator}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// Threads that wait for the same thing at the same place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiters {
    /// The threads.
    pub threads: Threads,
    /// What they wait at.
    pub operation: Operation,
    /// Threads that have arrived there, of those that the operation needs.
    pub arrived: u32,
    /// Of an mbarrier: what its phase lacks.
    pub phase: Option<Phase>,
    /// Whether lanes of these threads' own warps are missing.
    pub warp_incomplete: bool,
    /// Where they wait.
    pub site: Site,
}

impl fmt::Display for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.threads.0.len() == 1 { "waits" } else { "wait" };
        write!(f, "{} {verb} at {}", self.threads, self.operation)?;
        if let Some(phase) = self.phase {
            return write!(f, " ({phase}), {}", self.site);
        }
        f.write_str(" (")?;
        if self.warp_incomplete {
            f.write_str("not all lanes of the warp are there, ")?;
        }
        write!(f, "{} arrived), {}", self.arrived, self.site)
    }
}

/// What a phase of an mbarrier that is under way lacks.
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

/// What a copy in flight lacks.
pub(super) fn missing(committed: &bool) -> &'static str {
    if *committed {
        "no cp_async::wait_group of that thread has covered it"
    } else {
        "no cp_async::commit_group of that thread has closed its group"
    }
}

/// Who waits where in a deadlock, and who does not.
pub(super) fn describe(waiting: &[Waiters], finished: &Threads) -> String {
    let mut parts: Vec<String> = waiting.iter().map(Waiters::to_string).collect();
    if !finished.0.is_empty() {
        parts.push(format!("{finished} finished"));
    }
    parts.join("; ")
}

/// Where something is, if anywhere.
pub(super) fn describe_site(site: Option<&Site>) -> String {
    site.map_or_else(String::new, |site| format!(" at {site}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_display_as_runs() {
        assert_eq!(Threads(vec![0, 1, 2, 7, 9, 10]).to_string(), "threads 0-2, 7, 9-10");
        assert_eq!(Threads(vec![3]).to_string(), "thread 3");
    }
}
