//! Work that waits for child processes, on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, anyhow};

/// Applies `work` to each item; results are in the order of the items.
///
/// # Errors
/// When `work` panics.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut results = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let joined: Result<Vec<_>, _> = workers.into_iter().map(|worker| worker.join()).collect();
        joined.map(|parts| parts.into_iter().flatten().collect::<Vec<_>>())
    })
    .map_err(|_| anyhow!("a thread of the build panicked"))?;
    results.sort_by_key(|&(at, _)| at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(map(&items, |item| item * 2).unwrap(), (0..200).step_by(2).collect::<Vec<_>>());
        assert!(map(&[] as &[u32], |item| *item).unwrap().is_empty());
    }
}
