//! Continuous batching with chunked prefill over pages: which tokens of which sequences a step computes. It
//! knows no clock and no device, so that the same calls give the same schedule.

use std::collections::VecDeque;

use super::trace::Request;

/// What bounds a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Tokens of a step, at least as many as sequences.
    pub(super) step_tokens: usize,
    /// Sequences that run at a time.
    pub(super) max_batch: usize,
    /// Keys of a page.
    pub(super) page_size: usize,
    /// Pages of the pool.
    pub(super) pages: usize,
}

/// Tokens of a sequence that a step computes: with one it decodes, with more it fills the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The request, by its number.
    pub(super) request: usize,
    /// Tokens in the cache before.
    pub(super) cached: usize,
    /// Tokens that are computed, at least 1.
    pub(super) tokens: usize,
    /// Pages that hold the keys of both.
    pub(super) pages: Vec<u32>,
    /// Whether the last token is the newest that is known, so that it gives another.
    pub(super) emits: bool,
}

impl Chunk {
    /// Keys that the last token sees.
    pub(super) const fn keys(&self) -> usize {
        self.cached + self.tokens
    }
}

/// What a step computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Sequences of one token first.
    pub(super) chunks: Vec<Chunk>,
    /// Sequences whose pages were taken away before this step, for those that run.
    pub(super) preempted: usize,
    /// Pages in use while it runs.
    pub(super) pages: usize,
}

impl Step {
    /// Tokens that are computed.
    pub(super) fn tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.tokens).sum()
    }

    /// Sequences of one token.
    pub(super) fn decoding(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk.tokens == 1).count()
    }
}

/// A request on its way.
#[derive(Clone, Debug)]
struct Sequence {
    request: usize,
    /// Tokens that are known: the prompt's and those generated so far.
    known: usize,
    /// Tokens that will be known at the end.
    end: usize,
    /// Tokens whose keys are in the pages.
    cached: usize,
    pages: Vec<u32>,
}

impl Sequence {
    const fn missing(&self) -> usize {
        self.known - self.cached
    }
}

/// Sequences that wait and that run, and the pages that are free.
#[derive(Clone, Debug)]
pub(super) struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Sequence>,
    /// In the order in which they began.
    running: Vec<Sequence>,
    free: Vec<u32>,
}

impl Scheduler {
    pub(super) fn new(limits: Limits) -> Self {
        // The last is given out first.
        let free = (0..limits.pages as u32).rev().collect();
        Self { limits, waiting: VecDeque::new(), running: Vec::new(), free }
    }

    /// Whether the pool holds a request that runs alone; one that it does not hold would wait for ever.
    pub(super) fn holds(limits: &Limits, request: &Request) -> bool {
        (request.prompt + request.output - 1).div_ceil(limits.page_size) <= limits.pages
    }

    /// A request that the pool holds, by its number, joins those that wait.
    pub(super) fn arrive(&mut self, number: usize, request: &Request) {
        self.waiting.push_back(Sequence {
            request: number,
            known: request.prompt,
            end: request.prompt + request.output,
            cached: 0,
            pages: Vec::new(),
        });
    }

    /// Sequences that run, and that wait.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// The next step; `None` where no sequence is there. Sequences that decode come first, then those that
    /// fill their cache, in the order in which they began, then those that wait, as tokens and pages last.
    pub(super) fn next(&mut self) -> Option<Step> {
        let mut step = Step::default();
        let mut budget = self.limits.step_tokens;
        for decodes in [true, false] {
            let mut index = 0;
            while index < self.running.len() && budget > 0 {
                let sequence = &self.running[index];
                if (sequence.missing() == 1) == decodes && !step.has(sequence.request) {
                    let tokens = sequence.missing().min(budget);
                    if self.make_room(index, tokens, &mut step) {
                        budget -= tokens;
                        step.chunks.push(self.chunk(index, tokens));
                    }
                }
                index += 1;
            }
        }
        // Whoever was preempted in this step would be let in again at once.
        while budget > 0 && step.preempted == 0 && self.admit(budget) {
            let index = self.running.len() - 1;
            let tokens = self.running[index].missing().min(budget);
            budget -= tokens;
            step.chunks.push(self.chunk(index, tokens));
        }
        step.chunks.sort_by_key(|chunk| chunk.tokens > 1);
        step.pages = self.limits.pages - self.free.len();
        (!step.chunks.is_empty()).then_some(step)
    }

    /// Takes note of a step that was computed: the requests that got a token, and whether it was their last.
    pub(super) fn complete(&mut self, step: &Step) -> Vec<(usize, bool)> {
        let mut emitted = Vec::new();
        for chunk in &step.chunks {
            let of_request = |sequence: &Sequence| sequence.request == chunk.request;
            let Some(index) = self.running.iter().position(of_request) else { continue };
            let sequence = &mut self.running[index];
            sequence.cached += chunk.tokens;
            if !chunk.emits {
                continue;
            }
            sequence.known += 1;
            let ended = sequence.known == sequence.end;
            if ended {
                self.free.extend(self.running.remove(index).pages);
            }
            emitted.push((chunk.request, ended));
        }
        emitted
    }

    /// Gives a running sequence pages for so many tokens more. Where none is free, the youngest that is not
    /// in the step yet loses its own; false where that is the sequence itself.
    fn make_room(&mut self, index: usize, tokens: usize, step: &mut Step) -> bool {
        while !self.grow(index, tokens) {
            let in_step = |sequence: &Sequence| step.has(sequence.request);
            let Some(youngest) = self.running.iter().rposition(|sequence| !in_step(sequence)) else {
                return false;
            };
            if youngest < index {
                return false;
            }
            let mut victim = self.running.remove(youngest);
            self.free.append(&mut victim.pages);
            victim.cached = 0;
            self.waiting.push_front(victim);
            step.preempted += 1;
            if youngest == index {
                return false;
            }
        }
        true
    }

    /// Gives a running sequence pages for so many tokens more, if there are enough.
    fn grow(&mut self, index: usize, tokens: usize) -> bool {
        let sequence = &mut self.running[index];
        let wanted = (sequence.cached + tokens).div_ceil(self.limits.page_size);
        let more = wanted.saturating_sub(sequence.pages.len());
        let Some(rest) = self.free.len().checked_sub(more) else { return false };
        sequence.pages.extend(self.free.drain(rest..).rev());
        true
    }

    /// Lets the first that waits run, if there are pages for what it computes in this step.
    fn admit(&mut self, budget: usize) -> bool {
        if self.running.len() == self.limits.max_batch {
            return false;
        }
        let Some(sequence) = self.waiting.pop_front() else { return false };
        let tokens = sequence.missing().min(budget);
        self.running.push(sequence);
        let grown = self.grow(self.running.len() - 1, tokens);
        if !grown && let Some(sequence) = self.running.pop() {
            self.waiting.push_front(sequence);
        }
        grown
    }

    fn chunk(&self, index: usize, tokens: usize) -> Chunk {
        let Sequence { request, cached, pages, .. } = &self.running[index];
        let emits = tokens == self.running[index].missing();
        Chunk { request: *request, cached: *cached, tokens, pages: pages.clone(), emits }
    }
}

impl Step {
    fn has(&self, request: usize) -> bool {
        self.chunks.iter().any(|chunk| chunk.request == request)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { step_tokens: 8, max_batch: 4, page_size: 4, pages: 8 };

    fn request(prompt: usize, output: usize) -> Request {
        Request { arrival: 0.0, prompt, output }
    }

    fn scheduler(limits: Limits, requests: &[Request]) -> Scheduler {
        let mut scheduler = Scheduler::new(limits);
        requests.iter().enumerate().for_each(|(number, request)| scheduler.arrive(number, request));
        scheduler
    }

    /// Chunks as (request, cached, tokens).
    fn shape(step: &Step) -> Vec<(usize, usize, usize)> {
        step.chunks.iter().map(|chunk| (chunk.request, chunk.cached, chunk.tokens)).collect()
    }

    #[test]
    fn prompts_are_cut_to_the_budget_beside_those_that_decode() {
        let mut scheduler = scheduler(LIMITS, &[request(6, 3), request(9, 1)]);
        let mut shapes = Vec::new();
        let mut emitted = Vec::new();
        while let Some(step) = scheduler.next() {
            shapes.push(shape(&step));
            emitted.push(scheduler.complete(&step));
        }
        assert_eq!(
            shapes,
            [vec![(0, 0, 6), (1, 0, 2)], vec![(0, 6, 1), (1, 2, 7)], vec![(0, 7, 1)]],
            "the first prompt, a part of the second; the rest of it beside the first's second token"
        );
        assert_eq!(emitted, [vec![(0, false)], vec![(0, false), (1, true)], vec![(0, true)]]);
        assert_eq!(scheduler.counts(), (0, 0));
    }

    #[test]
    fn the_youngest_gives_its_pages_up_and_computes_them_again() {
        let limits = Limits { pages: 4, ..LIMITS };
        // Each has two pages full after its prompt, and needs a third for its second token.
        let mut scheduler = scheduler(Limits { step_tokens: 16, ..limits }, &[request(8, 3), request(8, 2)]);
        let step = scheduler.next().unwrap();
        assert_eq!((shape(&step), step.pages), (vec![(0, 0, 8), (1, 0, 8)], 4));
        scheduler.complete(&step);
        let step = scheduler.next().unwrap();
        assert_eq!((shape(&step), step.preempted, step.pages), (vec![(0, 8, 1)], 1, 3));
        assert_eq!(scheduler.counts(), (1, 1));
        scheduler.complete(&step);
        // It does not fit beside the first, and comes back with the token that it had got.
        let step = scheduler.next().unwrap();
        assert_eq!(shape(&step), [(0, 9, 1)]);
        scheduler.complete(&step);
        let step = scheduler.next().unwrap();
        assert_eq!((shape(&step), step.chunks[0].emits), (vec![(1, 0, 9)], true));
        assert_eq!(scheduler.complete(&step), [(1, true)]);
    }

    #[test]
    fn a_pool_holds_what_it_has_pages_for() {
        let limits = Limits { pages: 3, ..LIMITS };
        // The last token that is generated has no key.
        assert!(Scheduler::holds(&limits, &request(12, 1)) && Scheduler::holds(&limits, &request(3, 10)));
        assert!(!Scheduler::holds(&limits, &request(12, 2)));
    }

    /// Checks a step against the limits, and its pages for owners and numbers.
    fn check(limits: &Limits, step: &Step) {
        assert!((1..=limits.step_tokens).contains(&step.tokens()));
        assert!(step.chunks.len() <= limits.max_batch);
        let mut owned = BTreeSet::new();
        for chunk in &step.chunks {
            assert_eq!(chunk.pages.len(), chunk.keys().div_ceil(limits.page_size));
            for &page in &chunk.pages {
                assert!((page as usize) < limits.pages && owned.insert(page), "page {page} has two owners");
            }
        }
        assert!(owned.len() <= step.pages && step.pages <= limits.pages);
        assert!(step.chunks.is_sorted_by_key(|chunk| chunk.tokens > 1));
    }

    fn limits() -> impl Strategy<Value = Limits> {
        (1_usize..6, 0_usize..12, 1_usize..5, 6_usize..40).prop_map(|(max_batch, more, page_size, pages)| {
            Limits { step_tokens: max_batch + more, max_batch, page_size, pages }
        })
    }

    fn requests() -> impl Strategy<Value = Vec<Request>> {
        let one = (1_usize..20, 1_usize..12).prop_map(|(prompt, output)| request(prompt, output));
        prop::collection::vec(one, 1..12)
    }

    /// Runs a schedule in which a request arrives with every third step and where none is there; its steps.
    fn run(limits: Limits, requests: &[Request]) -> Vec<Step> {
        let mut scheduler = Scheduler::new(limits);
        let (mut steps, mut tokens) = (Vec::new(), vec![0; requests.len()]);
        // The newest keys of each request lie behind what was computed before: nothing is left out.
        let mut cached = vec![0; requests.len()];
        let mut arrived = 0;
        loop {
            if arrived < requests.len() && (steps.len() % 3 == 0 || scheduler.counts() == (0, 0)) {
                scheduler.arrive(arrived, &requests[arrived]);
                arrived += 1;
            }
            let Some(step) = scheduler.next() else {
                assert_eq!(arrived, requests.len(), "a sequence waits in an idle pool");
                break;
            };
            check(&limits, &step);
            for chunk in &step.chunks {
                assert!(chunk.cached == cached[chunk.request] || chunk.cached == 0);
                cached[chunk.request] = chunk.keys();
            }
            for (number, ended) in scheduler.complete(&step) {
                tokens[number] += 1;
                assert_eq!(ended, tokens[number] == requests[number].output);
            }
            steps.push(step);
            assert!(steps.len() < 20_000, "it does not end");
        }
        assert!(requests.iter().zip(&tokens).all(|(request, &tokens)| request.output == tokens));
        assert_eq!((scheduler.counts(), scheduler.free.len()), ((0, 0), limits.pages), "pages leak");
        steps
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_request_ends_no_page_is_shared_or_leaks_and_the_schedule_repeats(
            limits in limits(),
            requests in requests(),
        ) {
            let held: Vec<_> =
                requests.into_iter().filter(|request| Scheduler::holds(&limits, request)).collect();
            if !held.is_empty() {
                prop_assert_eq!(run(limits, &held), run(limits, &held));
            }
        }
    }
}
