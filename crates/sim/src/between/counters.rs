//! Words that blocks add to and wait for, and what passes through them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::past::{Past, raise};

/// By address.
#[derive(Default)]
pub(crate) struct Counters(Mutex<HashMap<u64, Counter>>);

/// What has been added to a word, and what those who wait for it learn.
#[derive(Default)]
struct Counter {
    /// What the word is before the first addition.
    initial: u32,
    /// In the order in which they are made.
    additions: Vec<Addition>,
    /// Blocks, each with an epoch that is ordered before who has waited: what releases add to those before.
    news: Vec<(u32, u32)>,
    /// By block: the last epoch in `news`.
    released: Vec<u32>,
}

struct Addition {
    /// What the word is after it.
    value: u32,
    /// How many of the news there are with it.
    news: usize,
}

impl Counters {
    /// Adds `value` to the word at `address` by `add`, which gives what it was before. What the block knows
    /// passes to those who wait, if it `releases` that.
    pub(crate) fn add(
        &self,
        past: &mut Past,
        (address, value): (u64, u32),
        releases: bool,
        add: impl FnOnce() -> u32,
    ) -> u32 {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Counter { initial, additions, news, released } = counters.entry(address).or_default();
        if releases {
            past.end_epoch(|block, epoch| {
                if raise(released, block, epoch) {
                    news.push((block, epoch));
                }
            });
        }
        // While the others wait for the lock, so that additions are listed in their order.
        let before = add();
        if additions.is_empty() {
            *initial = before;
        }
        additions.push(Addition { value: before.wrapping_add(value), news: news.len() });
        before
    }

    /// A block has seen the word at `address` to be at least `value`.
    ///
    /// The block may have come late, and the word be larger than it asked for. What was added behind the
    /// awaited value could as well not have been there yet, and so it orders nothing.
    pub(crate) fn acquire(&self, past: &mut Past, address: u64, value: u32) {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Counter { initial, additions, news, .. }) = counters.get(&address) else { return };
        if value <= *initial {
            return;
        }
        let reached = additions.partition_point(|addition| addition.value < value);
        let Some(addition) = additions.get(reached) else { return };
        news[..addition.news].iter().for_each(|&(block, epoch)| past.learn(block, epoch));
    }
}
