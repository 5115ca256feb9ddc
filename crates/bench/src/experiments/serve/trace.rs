//! Requests as a service sees them: lengths drawn from a published distribution, arrivals at random.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use crate::inputs::normal_pair;

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Request {
    /// Seconds from the beginning.
    pub(super) arrival: f64,
    /// Tokens of the prompt; at least 1.
    pub(super) prompt: usize,
    /// Tokens that are generated; at least 1.
    pub(super) output: usize,
}

/// A service of the Azure LLM inference trace of 2023 (Patel et al., Splitwise, ISCA 2024, arXiv:2311.18677).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Conversation,
    Code,
}

/// Lengths by median and mean, which together give a lognormal distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Lengths {
    median: f64,
    mean: f64,
}

impl Lengths {
    /// The length that a standard normal number stands for.
    fn at(self, normal: f64) -> f64 {
        // The mean of a lognormal distribution is exp(sigma²/2) times its median.
        let sigma = (2.0 * (self.mean / self.median).ln()).sqrt();
        self.median * (sigma * normal).exp()
    }
}

impl Source {
    pub(super) const ALL: [Self; 2] = [Self::Conversation, Self::Code];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Conversation => "conversation",
            Self::Code => "code",
        }
    }

    /// Tokens of prompts and of outputs: medians as the paper has them, means of the published requests.
    const fn lengths(self) -> [Lengths; 2] {
        match self {
            Self::Conversation => {
                [Lengths { median: 1020.0, mean: 1155.0 }, Lengths { median: 129.0, mean: 211.0 }]
            }
            Self::Code => [Lengths { median: 1500.0, mean: 2048.0 }, Lengths { median: 13.0, mean: 28.0 }],
        }
    }
}

/// What a trace is drawn from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) source: Source,
    pub(super) requests: usize,
    /// Requests a second, as a Poisson process; `None`: all are there at the beginning.
    pub(super) rate: Option<f64>,
    /// Tokens of a prompt and its output together at most; at least 2.
    pub(super) context: usize,
    /// What all lengths are divided by.
    pub(super) shrink: usize,
}

impl Recipe {
    /// The requests in the order in which they arrive: the same for a seed.
    pub(super) fn draw(&self, seed: u64) -> Vec<Request> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let [prompts, outputs] = self.source.lengths();
        let mut arrival = 0.0;
        let mut request = || {
            let [of_prompt, of_output] = normal_pair(rng.next_u64()).map(f64::from);
            let tokens = |lengths: Lengths, normal, most: usize| {
                ((lengths.at(normal) / self.shrink as f64).round() as usize).clamp(1, most)
            };
            let prompt = tokens(prompts, of_prompt, self.context - 1);
            let output = tokens(outputs, of_output, self.context - prompt);
            if let Some(rate) = self.rate {
                arrival += exponential(rng.next_u64()) / rate;
            }
            Request { arrival, prompt, output }
        };
        (0..self.requests).map(|_| request()).collect()
    }
}

/// A number of the exponential distribution with mean 1, by a random word.
fn exponential(bits: u64) -> f64 {
    const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
    // In (0, 1], so that the logarithm is finite.
    -((bits >> 11) as f64 * UNIT + UNIT).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe {
        source: Source::Conversation,
        requests: 20_000,
        rate: Some(4.0),
        context: 1 << 20,
        shrink: 1,
    };

    fn moments(values: impl Iterator<Item = usize>) -> (f64, f64) {
        let mut values: Vec<_> = values.collect();
        values.sort_unstable();
        let mean = values.iter().sum::<usize>() as f64 / values.len() as f64;
        (values[values.len() / 2] as f64, mean)
    }

    #[test]
    fn medians_and_means_are_the_published_ones() {
        for source in Source::ALL {
            let trace = Recipe { source, ..RECIPE }.draw(1);
            let found =
                [moments(trace.iter().map(|one| one.prompt)), moments(trace.iter().map(|one| one.output))];
            for ((median, mean), expected) in found.into_iter().zip(source.lengths()) {
                // The widest distribution's mean has a standard error of 1.4 % here, its median of 1.1 %; a
                // median of 13 is a whole number.
                assert!((median / expected.median - 1.0).abs() < 0.05, "{source:?} {median}");
                assert!((mean / expected.mean - 1.0).abs() < 0.06, "{source:?} {mean}");
            }
        }
    }

    #[test]
    fn arrivals_are_a_poisson_process() {
        let trace = RECIPE.draw(2);
        let gaps: Vec<_> = trace.windows(2).map(|pair| pair[1].arrival - pair[0].arrival).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((4.0 * mean - 1.0).abs() < 0.03, "{mean}");
        // Of exponential gaps, the variance is the square of the mean.
        let square = gaps.iter().map(|gap| gap * gap).sum::<f64>() / gaps.len() as f64;
        assert!((square / (2.0 * mean * mean) - 1.0).abs() < 0.1, "{square}");
        assert!(Recipe { rate: None, ..RECIPE }.draw(2).iter().all(|request| request.arrival == 0.0));
    }

    #[test]
    fn a_seed_names_a_trace_and_a_context_bounds_it() {
        assert_eq!(RECIPE.draw(3), RECIPE.draw(3));
        assert_ne!(RECIPE.draw(3), RECIPE.draw(4));
        let small = Recipe { context: 100, requests: 500, ..RECIPE }.draw(3);
        assert!(small.iter().all(|request| request.prompt >= 1 && request.output >= 1));
        assert!(small.iter().all(|request| request.prompt + request.output <= 100));
        let shrunk = Recipe { shrink: 64, ..RECIPE }.draw(3);
        let (median, _) = moments(shrunk.iter().map(|request| request.prompt));
        assert_eq!(median, 16.0, "1020 / 64");
    }
}
