//! The order in which the threads of a block advance, as a function of a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Which runnable thread advances next, and with it when an asynchronous operation takes place: at
/// a drawn time between its issue and the wait for it, or as said here of copies and meant of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Ascending thread index, round and round. Copies write when they are waited for.
    Ascending,
    /// Descending thread index, round and round. Copies write when they are issued.
    Descending,
    /// Any runnable thread, with equal chance.
    Random,
    /// One warp, drawn for each block, runs whenever it can: as far ahead as barriers allow.
    WarpAhead,
    /// One warp, drawn for each block, runs only when no other can: as far behind as barriers allow.
    WarpBehind,
}

/// How a block's threads interleave. The same schedule gives a bit-identical execution of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// Seed of all random draws; each block has a stream of its own.
    pub seed: u64,
    /// Which runnable thread advances next.
    pub order: Order,
    /// Mean number of shared-memory accesses (of all threads) from one preemption to the next;
    /// a preempted thread stays runnable. `None` lets each thread run until it waits.
    pub preemption: Option<u32>,
    /// Whether data races in shared memory, and between blocks, are reported. Off, a race shows as the result
    /// it gives.
    pub detect_races: bool,
}

impl Schedule {
    /// The schedule that a seed stands for: 0 to 7 are the distinct policies, seed 0 the plainest
    /// (ascending order, no preemption); higher seeds repeat 2 to 7 with other draws.
    pub fn from_seed(seed: u64) -> Self {
        let policy = if seed < 8 { seed } else { 2 + (seed - 8) % 6 };
        let (order, preemption) = match policy {
            0 => (Order::Ascending, None),
            1 => (Order::Descending, None),
            2 => (Order::Random, None),
            3 => (Order::Random, Some(16)),
            4 => (Order::WarpAhead, None),
            5 => (Order::WarpBehind, None),
            6 => (Order::Random, Some(3)),
            _ => (Order::WarpBehind, Some(64)),
        };
        Self { seed, order, preemption, detect_races: true }
    }

    /// The same interleaving with races unreported, to see what a race does to the result.
    pub fn without_race_detection(self) -> Self {
        Self { detect_races: false, ..self }
    }
}

const WORDS: usize = 16;

/// The set of runnable threads of a block of at most 1,024.
#[derive(Clone, Default)]
pub(crate) struct Runnable {
    words: [u64; WORDS],
    count: u32,
}

impl Runnable {
    /// Threads 0 to `threads` − 1.
    pub(crate) fn all(threads: usize) -> Self {
        let mut set = Self::default();
        (0..threads).for_each(|thread| set.insert(thread));
        set
    }

    #[inline]
    pub(crate) fn insert(&mut self, thread: usize) {
        let bit = 1 << (thread % 64);
        debug_assert_eq!(self.words[thread / 64] & bit, 0);
        self.words[thread / 64] |= bit;
        self.count += 1;
    }

    #[inline]
    fn remove(&mut self, thread: usize) {
        self.words[thread / 64] &= !(1 << (thread % 64));
        self.count -= 1;
    }

    /// The runnable lanes of a warp.
    fn lanes(&self, warp: usize) -> u32 {
        (self.words[warp / 2] >> (32 * (warp % 2))) as u32
    }

    /// The first thread at or after `from`.
    fn at_or_after(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = *self.words.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.words.get(word)?;
        }
        Some(64 * word + bits.trailing_zeros() as usize)
    }

    /// The last thread before `end`.
    fn before(&self, end: usize) -> Option<usize> {
        (0..end.div_ceil(64)).rev().find_map(|word| {
            let below = (end - 64 * word).min(64) as u32;
            let bits = self.words[word] & u64::MAX.checked_shr(64 - below).unwrap_or(0);
            (bits != 0).then(|| 64 * word + 63 - bits.leading_zeros() as usize)
        })
    }

    /// The thread with `rank` threads before it in the set.
    fn nth(&self, mut rank: u32) -> Option<usize> {
        for (word, &bits) in self.words.iter().enumerate() {
            if rank < bits.count_ones() {
                return Some(64 * word + nth_bit(bits, rank) as usize);
            }
            rank -= bits.count_ones();
        }
        None
    }
}

/// Index of the set bit of `bits` with `rank` set bits below it.
fn nth_bit(mut bits: u64, rank: u32) -> u32 {
    for _ in 0..rank {
        bits &= bits - 1;
    }
    bits.trailing_zeros()
}

/// Draws the threads of one block in the order of its schedule.
pub(crate) struct Picker {
    order: Order,
    preemption: Option<u32>,
    rng: ChaCha8Rng,
    warp: usize,
    last: Option<usize>,
    until_preemption: u32,
    /// Hash of the threads picked so far.
    pub(crate) trace: u64,
    /// Threads picked so far.
    pub(crate) picks: u64,
}

impl Picker {
    pub(crate) fn new(schedule: &Schedule, block: u32, warps: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(schedule.seed);
        rng.set_stream(u64::from(block));
        let mut picker = Self {
            order: schedule.order,
            preemption: schedule.preemption,
            rng,
            warp: 0,
            last: None,
            until_preemption: 0,
            trace: 0,
            picks: 0,
        };
        picker.warp = picker.below(warps as u32) as usize;
        picker.draw_preemption();
        picker
    }

    /// Removes the next thread to run from `runnable`; `None` where it is empty.
    pub(crate) fn pick(&mut self, runnable: &mut Runnable) -> Option<usize> {
        let thread = self.choose(runnable)?;
        runnable.remove(thread);
        self.last = Some(thread);
        self.trace = (self.trace ^ thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        self.picks += 1;
        Some(thread)
    }

    /// Whether the running thread is preempted before its next shared-memory access.
    #[inline]
    pub(crate) fn preempts(&mut self) -> bool {
        if self.preemption.is_none() {
            return false;
        }
        self.until_preemption -= 1;
        let now = self.until_preemption == 0;
        if now {
            self.draw_preemption();
        }
        now
    }

    /// The pick at which a copy issued now writes its bytes; `None` for when it is waited for.
    pub(crate) fn draw_landing(&mut self) -> Option<u64> {
        /// Picks that the longest copies take: a few rounds of a small block.
        const LONGEST: u32 = 512;
        match self.order {
            Order::Ascending => None,
            Order::Descending => Some(self.picks),
            Order::Random | Order::WarpAhead | Order::WarpBehind => match self.below(4) {
                0 => None,
                1 => Some(self.picks),
                _ => Some(self.picks + 1 + u64::from(self.below(LONGEST))),
            },
        }
    }

    /// Whether a product of matrices is computed when it is issued rather than when it is waited for.
    pub(crate) fn draws_early(&mut self) -> bool {
        match self.order {
            Order::Ascending => false,
            Order::Descending => true,
            Order::Random | Order::WarpAhead | Order::WarpBehind => self.below(2) == 0,
        }
    }

    /// In how many pieces a tensor transfer issued now lands.
    pub(crate) fn draw_pieces(&mut self) -> u32 {
        match self.order {
            Order::Ascending | Order::Descending => 1,
            Order::Random | Order::WarpAhead | Order::WarpBehind => 1 + self.below(3),
        }
    }

    fn choose(&mut self, runnable: &Runnable) -> Option<usize> {
        match self.order {
            Order::Ascending => {
                let from = self.last.map_or(0, |last| last + 1);
                runnable.at_or_after(from).or_else(|| runnable.at_or_after(0))
            }
            Order::Descending => {
                let end = self.last.unwrap_or(64 * WORDS);
                runnable.before(end).or_else(|| runnable.before(64 * WORDS))
            }
            Order::Random => self.any(runnable),
            Order::WarpAhead => self.of_warp(runnable).or_else(|| self.any(runnable)),
            Order::WarpBehind => {
                let mut others = runnable.clone();
                others.words[self.warp / 2] &= !(0xffff_ffff << (32 * (self.warp % 2)));
                others.count -= runnable.lanes(self.warp).count_ones();
                self.any(&others).or_else(|| self.of_warp(runnable))
            }
        }
    }

    fn any(&mut self, runnable: &Runnable) -> Option<usize> {
        if runnable.count == 0 {
            return None;
        }
        let rank = self.below(runnable.count);
        runnable.nth(rank)
    }

    fn of_warp(&mut self, runnable: &Runnable) -> Option<usize> {
        let lanes = runnable.lanes(self.warp);
        if lanes == 0 {
            return None;
        }
        let lane = nth_bit(lanes.into(), self.below(lanes.count_ones()));
        Some(32 * self.warp + lane as usize)
    }

    fn draw_preemption(&mut self) {
        if let Some(mean) = self.preemption {
            self.until_preemption = 1 + self.below(mean.saturating_mul(2).saturating_sub(1).max(1));
        }
    }

    /// A draw from 0 to `end` − 1; the bias of multiply-and-shift is below 2^-22 for these ranges.
    fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.rng.next_u32()) * u64::from(end)) >> 32) as u32
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn order_of(schedule: Schedule, block: u32, threads: usize) -> Vec<usize> {
        let mut runnable = Runnable::all(threads);
        let mut picker = Picker::new(&schedule, block, threads / 32);
        std::iter::from_fn(|| picker.pick(&mut runnable)).collect()
    }

    #[test]
    fn each_order_runs_each_thread_once() {
        for seed in 0..16 {
            for threads in [32, 96, 1024] {
                let mut order = order_of(Schedule::from_seed(seed), 5, threads);
                order.sort_unstable();
                assert_eq!(order, (0..threads).collect::<Vec<_>>(), "seed {seed}");
            }
        }
    }

    #[test]
    fn ascending_and_descending_are_what_they_say() {
        let ascending = order_of(Schedule::from_seed(0), 0, 256);
        assert!(ascending.is_sorted());
        let descending = order_of(Schedule::from_seed(1), 0, 256);
        assert!(descending.is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn one_warp_comes_first_or_last() {
        let ahead = order_of(Schedule::from_seed(4), 1, 256);
        assert!(ahead[..32].iter().all(|thread| thread / 32 == ahead[0] / 32));
        let behind = order_of(Schedule::from_seed(5), 1, 256);
        assert!(behind[224..].iter().all(|thread| thread / 32 == behind[255] / 32));
    }

    #[test]
    fn seeds_and_blocks_draw_different_orders_and_the_same_seed_the_same() {
        let order = |seed, block| order_of(Schedule::from_seed(seed), block, 128);
        assert_eq!(order(8, 3), order(8, 3));
        assert_ne!(order(8, 3), order(8, 4));
        assert_ne!(order(8, 3), order(14, 3));
    }

    #[test]
    fn preemptions_come_at_their_mean() {
        let schedule = Schedule { preemption: Some(16), ..Schedule::from_seed(0) };
        let mut picker = Picker::new(&schedule, 0, 1);
        let preemptions = (0..160_000).filter(|_| picker.preempts()).count();
        assert!((9_500..10_500).contains(&preemptions), "{preemptions}");
    }
}
