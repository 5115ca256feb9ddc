//! Which task runs where: a queue that the threads of the pool empty.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::memory::Buffer;
use super::pack::Columns;
use crate::Problem;

/// The tasks of a call, in the order in which they are handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tasks {
    heads: usize,
    kv_heads: usize,
    columns: usize,
    block_m: usize,
    blocks: usize,
    causal: bool,
}

impl Tasks {
    pub(super) fn new(problem: &Problem, block_m: usize) -> Self {
        let columns = problem.seqlen_q() * problem.group();
        Self {
            heads: problem.batch() * problem.kv_heads(),
            kv_heads: problem.kv_heads(),
            columns,
            block_m,
            blocks: columns.div_ceil(block_m),
            causal: problem.causal(),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.heads * self.blocks
    }

    /// The task at `index`: equal tasks go head by head, so that the threads share K and V in cache;
    /// under a causal mask the last blocks, which see the most keys, go first.
    pub(super) const fn get(&self, index: usize) -> Columns {
        let (head, block) = if self.causal {
            (index % self.heads, self.blocks - 1 - index / self.heads)
        } else {
            (index / self.blocks, index % self.blocks)
        };
        let first = block * self.block_m;
        let end = if first + self.block_m < self.columns { first + self.block_m } else { self.columns };
        Columns { batch: head / self.kv_heads, kv_head: head % self.kv_heads, first, end }
    }
}

/// An address that may cross threads.
#[derive(Clone, Copy)]
struct Address(*mut f32);

// SAFETY: each worker gets its own part of the memory behind it.
unsafe impl Send for Address {}
// SAFETY: as above; what is shared is the address only.
unsafe impl Sync for Address {}

impl Address {
    /// Where the share of `thread` begins.
    const fn share(self, thread: usize, share: usize) -> *mut f32 {
        self.0.wrapping_add(thread * share)
    }
}

/// Hands the index of each of `tasks` tasks to `work`, with the scratch memory of the thread that runs it:
/// `share` elements of `memory`, which holds that for `threads` threads.
pub(super) fn run(
    tasks: usize,
    threads: usize,
    memory: &mut Buffer,
    share: usize,
    work: impl Fn(usize, *mut f32) + Sync,
) {
    let next = AtomicUsize::new(0);
    let (next, work) = (&next, &work);
    let base = Address(memory.as_mut_ptr());
    rayon::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move |_| {
                let own = base.share(thread, share);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= tasks {
                        return;
                    }
                    work(index, own);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_in_exactly_one_task() {
        for causal in [false, true] {
            let tasks = Tasks { heads: 6, kv_heads: 3, columns: 100, block_m: 48, blocks: 3, causal };
            let mut seen = vec![0; 6 * 100];
            for index in 0..tasks.len() {
                let task = tasks.get(index);
                assert!(task.end - task.first <= 48);
                for column in task.first..task.end {
                    seen[(task.batch * 3 + task.kv_head) * 100 + column] += 1;
                }
            }
            assert!(seen.iter().all(|&count| count == 1));
        }
    }

    #[test]
    fn the_longest_causal_tasks_go_first() {
        let tasks = Tasks { heads: 2, kv_heads: 2, columns: 100, block_m: 48, blocks: 3, causal: true };
        let order: Vec<_> = (0..6).map(|index| tasks.get(index).first).collect();
        assert_eq!(order, [96, 96, 48, 48, 0, 0]);
    }
}
