//! Coroutine stacks, kept from one block and launch to the next.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use corosensei::stack::DefaultStack;

/// Bytes of a thread's stack: room for a kernel's register arrays and the calls of an unoptimised
/// build. Pages that no kernel touches cost address space only.
const STACK_BYTES: usize = 256 * 1024;

/// Stacks in use at once. Each is two mappings (the stack and its guard page), and Linux
/// gives a process 65,530 mappings unless told otherwise.
pub(crate) const MAX_STACKS: usize = 16 * 1024;

struct Pool {
    idle: Vec<DefaultStack>,
    in_use: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: Vec::new(), in_use: 0 });
static RETURNED: Condvar = Condvar::new();

/// A number of stacks on loan from the pool.
pub(crate) struct Stacks {
    pub(crate) free: Vec<DefaultStack>,
    count: usize,
}

impl Stacks {
    /// Takes `count` stacks, at most [`MAX_STACKS`]; waits while others hold too many.
    ///
    /// # Errors
    /// The operating system refuses a mapping.
    pub(crate) fn take(count: usize) -> io::Result<Self> {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever holds stacks is running a block, and waits for no further ones.
        while pool.in_use + count > MAX_STACKS {
            pool = RETURNED.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
        Self::of_pool(pool, count)
    }

    /// As [`Self::take`], without waiting; `None` where others hold too many, or the system refuses.
    pub(crate) fn try_take(count: usize) -> Option<Self> {
        let pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.in_use + count > MAX_STACKS { None } else { Self::of_pool(pool, count).ok() }
    }

    /// Of a pool that has so many more.
    fn of_pool(mut pool: MutexGuard<'_, Pool>, count: usize) -> io::Result<Self> {
        pool.in_use += count;
        let kept = pool.idle.len().saturating_sub(count);
        let free = pool.idle.split_off(kept);
        drop(pool);
        let mut stacks = Self { free, count };
        while stacks.free.len() < count {
            stacks.free.push(DefaultStack::new(STACK_BYTES)?);
        }
        Ok(stacks)
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.idle.append(&mut self.free);
        pool.in_use -= self.count;
        RETURNED.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use corosensei::stack::Stack;

    #[test]
    fn stacks_are_distinct() {
        let stacks = Stacks::take(8).unwrap();
        let mut bases: Vec<_> = stacks.free.iter().map(|stack| stack.base()).collect();
        bases.sort_unstable();
        bases.dedup();
        assert_eq!(bases.len(), 8);
    }
}
