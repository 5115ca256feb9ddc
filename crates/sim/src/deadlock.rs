//! Who waits where, once nobody can advance.

use crate::block::Block;
use crate::error::{Error, Threads, Waiters};
use crate::operation::Operation;
use crate::threads::WARP;

/// The deadlock of a block in which no thread is runnable; `None` where all have finished.
pub(crate) fn find(block: &Block) -> Option<Error> {
    let finished: Vec<u32> = threads_where(block, |thread| block.threads[thread].finished);
    if finished.len() == block.threads.len() {
        return None;
    }
    Some(Error::Deadlock {
        kernel: block.kernel.clone(),
        block: block.index,
        waiting: waiters(block),
        finished: Threads(finished),
    })
}

fn threads_where(block: &Block, keep: impl Fn(usize) -> bool) -> Vec<u32> {
    let threads = 0..block.threads.len();
    threads.filter(|&thread| keep(thread)).map(|thread| thread as u32).collect()
}

/// The waiting threads of all warps, those with the same reason in one group.
fn waiters(block: &Block) -> Vec<Waiters> {
    let mut groups: Vec<Waiters> = Vec::new();
    for (index, warp) in block.warps.iter().enumerate() {
        let Some(meeting) = &warp.meeting else { continue };
        let first = index as u32 * WARP;
        let lanes = (0..WARP).filter(|lane| meeting.arrived & (1 << lane) != 0);
        let threads = lanes.map(|lane| first + lane);
        let warp_incomplete = meeting.arrived != u32::MAX;
        let arrived = match meeting.operation {
            Operation::Barrier { barrier, .. } => block.barriers.arrived(barrier),
            _ => meeting.arrived.count_ones(),
        };
        add(
            &mut groups,
            Waiters {
                threads: Threads(threads.collect()),
                operation: meeting.operation,
                arrived,
                phase: None,
                warp_incomplete,
                site: meeting.site,
            },
        );
    }
    for (waiting, address, phase) in block.mbarriers.waiting() {
        add(
            &mut groups,
            Waiters {
                threads: Threads(vec![waiting.thread as u32]),
                operation: Operation::MbarrierWait { address, parity: waiting.parity },
                arrived: phase.count - phase.arrivals,
                phase: Some(phase),
                warp_incomplete: false,
                site: waiting.site,
            },
        );
    }
    for wait in &block.global_waits.waiting {
        add(
            &mut groups,
            Waiters {
                threads: Threads(vec![wait.thread as u32]),
                operation: Operation::GlobalWait { value: wait.value },
                arrived: 0,
                phase: None,
                warp_incomplete: false,
                site: wait.site,
            },
        );
    }
    groups.iter_mut().for_each(|group| group.threads.0.sort_unstable());
    groups
}

/// Adds waiting threads to those that wait for the same reason.
fn add(groups: &mut Vec<Waiters>, waiters: Waiters) {
    let same = groups.iter_mut().find(|group| {
        group.operation == waiters.operation
            && group.site == waiters.site
            && group.warp_incomplete == waiters.warp_incomplete
            && group.arrived == waiters.arrived
    });
    match same {
        Some(group) => group.threads.0.extend(waiters.threads.0),
        None => groups.push(waiters),
    }
}
