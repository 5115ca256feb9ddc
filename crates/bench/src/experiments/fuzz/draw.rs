//! Random choices that a seed names.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// A stream of choices.
pub(super) struct Draw(ChaCha8Rng);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 0 to below `limit`, which is at least 1.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    /// `least` to `most`, both included.
    pub(super) fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// True once in `n` times.
    pub(super) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// 0 to below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// `least` to `most`, both included, each power of two as likely as the next; `least` is at least 1.
    pub(super) fn logarithmic(&mut self, least: usize, most: usize) -> usize {
        let (low, high) = ((least as f64).ln(), (most as f64 + 1.0).ln());
        ((low + self.unit() * (high - low)).exp() as usize).clamp(least, most)
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// One of the values, each as often as its weight says.
    pub(super) fn weighted<T: Copy>(&mut self, of: &[(usize, T)]) -> T {
        let mut left = self.below(of.iter().map(|(weight, _)| weight).sum());
        for &(weight, value) in of {
            if left < weight {
                return value;
            }
            left -= weight;
        }
        of[of.len() - 1].1
    }
}

/// Name of problem `index` of a run: problem 0 has the run's own, so that `--seed NAME --runs 1` replays any
/// of them.
pub(super) fn problem_seed(run: u64, index: u64) -> u64 {
    if index == 0 {
        return run;
    }
    // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), whose outputs for different inputs differ.
    let mut z = run ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_stay_in_their_range_and_reach_its_ends() {
        let mut draw = Draw::new(1);
        let drawn: Vec<_> = (0..1000).map(|_| draw.logarithmic(1, 9)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&1), Some(&9)));
        let drawn: Vec<_> = (0..1000).map(|_| draw.between(3, 5)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&5)));
        let heads = (0..1000).filter(|_| draw.weighted(&[(9, true), (1, false)])).count();
        assert!((850..950).contains(&heads), "{heads}");
    }

    #[test]
    fn problem_0_has_the_name_of_the_run_and_no_other_has() {
        let names: std::collections::HashSet<_> =
            (0..100).flat_map(|run| (0..100).map(move |index| problem_seed(run, index))).collect();
        assert_eq!(names.len(), 10_000);
        assert_eq!(problem_seed(7, 0), 7);
    }
}
