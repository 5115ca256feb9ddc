//! A trace played: a clock that goes on by what steps take, and a log of them.

use anyhow::Result;

use super::scheduler::{Limits, Scheduler, Step};
use super::trace::Request;

/// Whatever computes the attention of steps.
pub(super) trait Player {
    /// Seconds of a step's attention in all layers.
    ///
    /// # Errors
    /// When it cannot be computed.
    fn play(&mut self, step: &Step) -> Result<f64>;
}

/// A model of all of a step but its attention: the larger of what reading the weights takes and what the
/// products of its tokens take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// Parameters, 2 bytes each.
    pub(super) parameters: f64,
    /// Bytes a second.
    pub(super) bandwidth: f64,
    /// Operations a second.
    pub(super) flops: f64,
}

impl Rest {
    /// Seconds of a step with so many tokens.
    pub(super) fn seconds(&self, tokens: usize) -> f64 {
        let weights = 2.0 * self.parameters / self.bandwidth;
        // A multiplication and an addition for each parameter and token.
        weights.max(2.0 * self.parameters * tokens as f64 / self.flops)
    }
}

/// What a step was and took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepRecord {
    /// Seconds from the beginning of the trace at its end.
    pub(super) end: f64,
    /// Seconds of attention.
    pub(super) attention: f64,
    /// Seconds of all else.
    pub(super) rest: f64,
    /// Tokens computed, and of these those of sequences that decode.
    pub(super) tokens: usize,
    pub(super) decoding: usize,
    /// Tokens that it gave.
    pub(super) emitted: usize,
    /// Pages in use.
    pub(super) pages: usize,
    /// Sequences that lost their pages before it.
    pub(super) preempted: usize,
}

/// When the tokens of a request came.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// Seconds from arrival to the first token.
    pub(super) first: f64,
    /// Seconds from there to the last.
    pub(super) rest: f64,
    /// Tokens so far.
    pub(super) tokens: usize,
}

/// A trace on its way.
pub(super) struct Service {
    requests: Vec<Request>,
    /// Requests that have arrived.
    arrived: usize,
    scheduler: Scheduler,
    rest: Rest,
    now: f64,
    pub(super) steps: Vec<StepRecord>,
    /// By the numbers of requests.
    pub(super) answers: Vec<Answer>,
}

impl Service {
    pub(super) fn new(requests: Vec<Request>, limits: Limits, rest: Rest) -> Self {
        let answers = vec![Answer::default(); requests.len()];
        let scheduler = Scheduler::new(limits);
        Self { requests, arrived: 0, scheduler, rest, now: 0.0, steps: Vec::new(), answers }
    }

    /// Requests that have their last token.
    pub(super) fn ended(&self) -> usize {
        let (running, waiting) = self.scheduler.counts();
        self.arrived - running - waiting
    }

    /// Plays a step; false where no request is left.
    ///
    /// # Errors
    /// The player's.
    pub(super) fn step(&mut self, player: &mut dyn Player) -> Result<bool> {
        self.arrive();
        let mut step = self.scheduler.next();
        if step.is_none() && self.arrived < self.requests.len() {
            self.now = self.requests[self.arrived].arrival;
            self.arrive();
            step = self.scheduler.next();
        }
        let Some(step) = step else { return Ok(false) };
        let (attention, rest) = (player.play(&step)?, self.rest.seconds(step.tokens()));
        self.now += attention + rest;
        let emitted = self.scheduler.complete(&step);
        for &(number, _) in &emitted {
            let (arrival, answer) = (self.requests[number].arrival, &mut self.answers[number]);
            match answer.tokens {
                0 => answer.first = self.now - arrival,
                _ => answer.rest = self.now - arrival - answer.first,
            }
            answer.tokens += 1;
        }
        self.steps.push(StepRecord {
            end: self.now,
            attention,
            rest,
            tokens: step.tokens(),
            decoding: step.decoding(),
            emitted: emitted.len(),
            pages: step.pages,
            preempted: step.preempted,
        });
        Ok(true)
    }

    /// Lets in what has arrived by now.
    fn arrive(&mut self) {
        while let Some(request) =
            self.requests.get(self.arrived).filter(|request| request.arrival <= self.now)
        {
            self.scheduler.arrive(self.arrived, request);
            self.arrived += 1;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Counts what it is given; attention takes a second a step, and one more for each key of those that
    /// decode.
    #[derive(Default)]
    pub(crate) struct Counting {
        pub(crate) steps: usize,
        pub(crate) tokens: usize,
    }

    impl Player for Counting {
        fn play(&mut self, step: &Step) -> Result<f64> {
            self.steps += 1;
            self.tokens += step.tokens();
            let keys = step.chunks.iter().filter(|chunk| chunk.tokens == 1).map(|chunk| chunk.keys());
            Ok(1.0 + keys.sum::<usize>() as f64)
        }
    }

    /// 10 seconds for the weights, and a second for each token above 10.
    pub(crate) const REST: Rest = Rest { parameters: 50.0, bandwidth: 10.0, flops: 100.0 };
    pub(crate) const LIMITS: Limits = Limits { step_tokens: 20, max_batch: 4, page_size: 4, pages: 16 };

    pub(crate) fn request(arrival: f64, prompt: usize, output: usize) -> Request {
        Request { arrival, prompt, output }
    }

    #[test]
    fn the_rest_is_bound_by_weights_or_by_products() {
        assert_eq!([1, 10, 20].map(|tokens| REST.seconds(tokens)), [10.0, 10.0, 20.0]);
    }

    #[test]
    fn the_clock_goes_on_by_what_steps_take_and_waits_for_arrivals() {
        let requests = vec![request(5.0, 20, 2), request(6.0, 4, 1), request(100.0, 2, 1)];
        let mut service = Service::new(requests, LIMITS, REST);
        let mut player = Counting::default();
        let mut ended = Vec::new();
        while service.step(&mut player).unwrap() {
            ended.push(service.ended());
        }
        // 5 to 26 the first prompt; then its second token, over 21 keys, beside the second prompt; an idle
        // time; the third.
        let ends: Vec<_> = service.steps.iter().map(|step| step.end).collect();
        assert_eq!(ends, [26.0, 26.0 + 10.0 + 22.0, 111.0]);
        assert_eq!(ended, [0, 2, 3]);
        let answer = |number: usize| service.answers[number];
        assert_eq!(answer(0), Answer { first: 21.0, rest: 32.0, tokens: 2 });
        assert_eq!(answer(1), Answer { first: 52.0, rest: 0.0, tokens: 1 });
        assert_eq!(answer(2), Answer { first: 11.0, rest: 0.0, tokens: 1 });
        assert_eq!((player.steps, player.tokens), (3, 20 + 1 + 4 + 2));
        let second = service.steps[1];
        assert_eq!((second.tokens, second.decoding, second.emitted, second.pages), (5, 1, 2, 7));
    }
}
