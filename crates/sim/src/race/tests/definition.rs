//! The detector against a direct reading of the definition of a race.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

/// Agents that load, then agents that store, each for one thread of [`ACTIVE`].
const LOADERS: usize = 2;
const AGENTS: usize = LOADERS + 2;
const ACTIVE: [usize; 9] = [0, 1, 2, 3, 4, 5, 32, 33, 63];

/// Remembers every access and every clock, and compares each pair.
struct Oracle {
    clocks: Vec<Vec<u32>>,
    /// With the epoch of each; `None` for a copy in flight, which nobody is ordered after.
    accesses: Vec<(Past, Option<u32>)>,
}

/// An access, to be compared with what the detector reports.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Past {
    thread: usize,
    offset: usize,
    bytes: usize,
    kind: AccessKind,
    site: SiteId,
}

impl Oracle {
    fn new() -> Self {
        let clock = |thread| (0..THREADS + AGENTS).map(|other| u32::from(other == thread)).collect();
        Self { clocks: (0..THREADS + AGENTS).map(clock).collect(), accesses: Vec::new() }
    }

    fn synchronize(&mut self, threads: &[usize]) {
        let joined: Vec<u32> = (0..THREADS + AGENTS)
            .map(|other| threads.iter().map(|&thread| self.clocks[thread][other]).max().unwrap_or(0))
            .collect();
        for &thread in threads {
            self.clocks[thread].clone_from(&joined);
            self.clocks[thread][thread] += 1;
        }
    }

    /// The earlier accesses that race with `access`.
    fn races(&self, access: &Past) -> Vec<Past> {
        self.races_from(access.thread, access)
    }

    /// As [`Oracle::races`], of an access that `issuer` issues.
    fn races_from(&self, issuer: usize, access: &Past) -> Vec<Past> {
        let clock = &self.clocks[issuer];
        let racing = self.accesses.iter().filter(|(past, epoch)| {
            let overlap =
                past.offset < access.offset + access.bytes && access.offset < past.offset + past.bytes;
            let writes = past.kind != AccessKind::Read || access.kind != AccessKind::Read;
            let unordered = epoch.is_none_or(|epoch| past.thread != issuer && epoch > clock[past.thread]);
            overlap && writes && unordered
        });
        racing.map(|(past, _)| *past).collect()
    }

    fn record(&mut self, access: Past) {
        let epoch = self.clocks[access.thread][access.thread];
        self.accesses.push((access, (access.kind != AccessKind::Copy).then_some(epoch)));
    }

    /// What `thread` did, or only what it knew, goes into `object`.
    fn release(&mut self, thread: usize, object: &mut [u32], own: bool) {
        for (other, epoch) in object.iter_mut().enumerate().filter(|(other, _)| own || *other != thread) {
            *epoch = (*epoch).max(self.clocks[thread][other]);
        }
        self.clocks[thread][thread] += u32::from(own);
    }

    fn acquire(&mut self, thread: usize, object: &[u32]) {
        let own = self.clocks[thread][thread];
        self.clocks[thread].iter_mut().zip(object).for_each(|(a, &b)| *a = (*a).max(b));
        self.clocks[thread][thread] = own;
    }

    fn in_flight(&self, past: &Past) -> bool {
        self.accesses.iter().any(|(other, epoch)| other == past && epoch.is_none())
    }

    /// The thread waits for its oldest copy in flight.
    fn complete_copy(&mut self, thread: usize) -> Option<Past> {
        let now = self.clocks[thread][thread];
        let mut copies = self.accesses.iter_mut();
        let (copy, epoch) = copies.find(|(past, epoch)| past.thread == thread && epoch.is_none())?;
        *epoch = Some(now);
        Some(*copy)
    }
}

fn below(rng: &mut ChaCha8Rng, end: usize) -> usize {
    (rng.next_u32() as usize) % end
}

/// Few threads and 16 bytes, so that the histories of cells grow long.
fn random_access(rng: &mut ChaCha8Rng, narrow: bool) -> Past {
    let bytes = if narrow { 1 << below(rng, 5) } else { 4 << below(rng, 3) };
    Past {
        thread: ACTIVE[below(rng, ACTIVE.len())],
        offset: below(rng, 16 / bytes) * bytes,
        bytes,
        kind: match below(rng, 12) {
            0 => AccessKind::Write,
            1 if bytes >= 4 => AccessKind::Copy,
            1 => AccessKind::Write,
            _ => AccessKind::Read,
        },
        site: below(rng, 5) as SiteId,
    }
}

/// Any set of threads may meet here, so that lanes of a warp fall out of step.
fn random_threads(rng: &mut ChaCha8Rng) -> Vec<usize> {
    match below(rng, 4) {
        0 => (0..THREADS).collect(),
        1 => (0..LANES).collect(),
        2 => (LANES..THREADS).collect(),
        _ => (0..THREADS).filter(|_| below(rng, 3) > 0).collect(),
    }
}

fn perform(races: &mut Races, access: &Past) -> Result<(), Conflict> {
    let Past { thread, offset, bytes, site, kind } = *access;
    match kind {
        AccessKind::Read => races.read(thread, offset, bytes, site),
        AccessKind::Write => races.write(thread, offset, bytes, site),
        _ => races.copy(thread, offset, bytes, site),
    }
}

/// Runs accesses that the oracle permits and, rarely, ends with one that it does not.
fn compare_with_oracle(seed: u64, narrow: bool) -> bool {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut races, mut oracle) = (Races::new(THREADS, BYTES), Oracle::new());
    for step in 0..600 {
        if below(&mut rng, 4) == 0 {
            let threads = random_threads(&mut rng);
            oracle.synchronize(&threads);
            races.synchronize(threads.iter().copied());
            continue;
        }
        if below(&mut rng, 4) == 0 {
            let thread = ACTIVE[below(&mut rng, ACTIVE.len())];
            if let Some(copy) = oracle.complete_copy(thread) {
                races.complete_copy(thread, copy.offset, copy.bytes);
            }
            continue;
        }
        let access = random_access(&mut rng, narrow);
        let racing = oracle.races(&access);
        if racing.is_empty() {
            assert_eq!(perform(&mut races, &access), Ok(()), "seed {seed} step {step}: {access:?}");
            oracle.record(access);
        } else if below(&mut rng, 50) == 0 {
            let conflict = perform(&mut races, &access);
            let conflict =
                conflict.expect_err(&format!("seed {seed} step {step}: {access:?} races with {racing:?}"));
            assert!(
                racing.iter().any(|past| past.thread == conflict.thread
                    && (past.kind == AccessKind::Read) == (conflict.kind == AccessKind::Read)
                    && oracle.in_flight(past) == conflict.in_flight
                    && past.site == conflict.site
                    && past.offset < conflict.offset + 4
                    && conflict.offset < past.offset + past.bytes),
                "seed {seed} step {step}: {conflict:?} is none of {racing:?}"
            );
            return true;
        }
    }
    false
}

#[test]
fn whole_words_agree_with_the_definition() {
    let raced = (0..400).filter(|&seed| compare_with_oracle(seed, false)).count();
    assert!((200..400).contains(&raced), "{raced} of 400 runs ended in a race");
}

#[test]
fn split_words_agree_with_the_definition() {
    let raced = (1000..1400).filter(|&seed| compare_with_oracle(seed, true)).count();
    assert!((200..400).contains(&raced), "{raced} of 400 runs ended in a race");
}

/// An object, as the detector has it and by the definition, with what it had when it was last seen complete.
#[derive(Default)]
struct Object {
    released: Released,
    snapshot: Snapshot,
    clock: Vec<u32>,
    complete: Vec<u32>,
}

/// Threads that order themselves through objects, and agents that they issue accesses of.
struct Asynchronous {
    races: Races,
    oracle: Oracle,
    objects: Vec<Object>,
}

impl Asynchronous {
    fn new() -> Self {
        let mut races = Races::new(THREADS, BYTES);
        let agents: Vec<usize> = (0..AGENTS).map(|_| races.new_agent()).collect();
        assert_eq!(agents, (THREADS..THREADS + AGENTS).collect::<Vec<_>>());
        let object = || Object { clock: vec![0; THREADS + AGENTS], ..Object::default() };
        Self { races, oracle: Oracle::new(), objects: (0..LOADERS).map(|_| object()).collect() }
    }

    /// The object's phase ends, and with it the epoch of its loader.
    fn complete(&mut self, index: usize) {
        let agent = THREADS + index;
        let Object { released, snapshot, clock, complete } = &mut self.objects[index];
        released.raise(agent, self.races.end_epoch(agent));
        *snapshot = released.snapshot();
        clock[agent] = self.oracle.clocks[agent][agent];
        self.oracle.clocks[agent][agent] += 1;
        complete.clone_from(clock);
    }

    fn synchronize(&mut self, rng: &mut ChaCha8Rng) {
        let thread = ACTIVE[below(rng, ACTIVE.len())];
        let index = below(rng, LOADERS);
        match below(rng, 4) {
            0 => {
                let object = &mut self.objects[index];
                self.races.release(thread, &mut object.released);
                self.oracle.release(thread, &mut object.clock, true);
            }
            1 => {
                let object = &mut self.objects[index];
                self.races.acquire(thread, &mut object.snapshot);
                self.oracle.acquire(thread, &object.complete);
            }
            2 => self.complete(index),
            _ => {
                // The thread of a storing agent waits for all that the agent has read.
                let agent = THREADS + LOADERS + below(rng, AGENTS - LOADERS);
                let thread = ACTIVE[agent - THREADS];
                let epoch = self.races.end_epoch(agent);
                self.races.learn(std::iter::once(thread), agent, epoch);
                self.oracle.clocks[thread][agent] = self.oracle.clocks[agent][agent];
                self.oracle.clocks[agent][agent] += 1;
            }
        }
    }

    /// An access of an agent to all 16 bytes, with the thread that issues it.
    fn random_agent(rng: &mut ChaCha8Rng) -> (usize, Past) {
        let agent = below(rng, AGENTS);
        let loads = agent < LOADERS;
        let issuer = if loads { ACTIVE[below(rng, ACTIVE.len())] } else { ACTIVE[agent] };
        let kind = if loads { AccessKind::Write } else { AccessKind::Read };
        (issuer, Past { thread: THREADS + agent, offset: 0, bytes: 16, kind, site: below(rng, 5) as SiteId })
    }

    fn perform(&mut self, issuer: usize, access: &Past) -> Result<(), Conflict> {
        let Past { thread: author, site, kind, .. } = *access;
        if author < THREADS {
            return perform(&mut self.races, access);
        }
        if kind == AccessKind::Read {
            return self.races.read_by_agent(issuer, author, std::iter::once(0), site);
        }
        let object = &mut self.objects[author - THREADS];
        self.races.release_past(issuer, &mut object.released);
        self.oracle.release(issuer, &mut object.clock, false);
        self.races.write_by_agent(issuer, author, 0, site)
    }

    /// As [`compare_with_oracle`].
    fn compare(seed: u64, narrow: bool) -> bool {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut both = Self::new();
        for step in 0..600 {
            if below(&mut rng, 2) == 0 {
                both.synchronize(&mut rng);
                continue;
            }
            let (issuer, access) = if below(&mut rng, 4) == 0 {
                Self::random_agent(&mut rng)
            } else {
                let access = random_access(&mut rng, narrow);
                let is_copy = access.kind == AccessKind::Copy;
                let kind = if is_copy { AccessKind::Write } else { access.kind };
                (access.thread, Past { kind, ..access })
            };
            let racing = both.oracle.races_from(issuer, &access);
            if racing.is_empty() {
                assert_eq!(both.perform(issuer, &access), Ok(()), "seed {seed} step {step}: {access:?}");
                if access.thread >= THREADS && access.kind == AccessKind::Write {
                    // It overwrites all bytes after everything recorded. That its issuer's own past is not
                    // ordered before those who wait for it makes no difference to these bytes.
                    both.oracle.accesses.clear();
                }
                both.oracle.record(access);
                if access.thread < THREADS && access.kind == AccessKind::Write {
                    both.races.fence(access.thread);
                }
            } else if below(&mut rng, 50) == 0 {
                let conflict = both.perform(issuer, &access);
                let conflict = conflict
                    .expect_err(&format!("seed {seed} step {step}: {access:?} races with {racing:?}"));
                assert!(
                    racing.iter().any(|past| past.thread == conflict.thread
                        && (past.kind == AccessKind::Read) == (conflict.kind == AccessKind::Read)
                        && past.site == conflict.site
                        && !conflict.unfenced),
                    "seed {seed} step {step}: {conflict:?} is none of {racing:?}"
                );
                return true;
            }
        }
        false
    }
}

#[test]
fn objects_and_agents_agree_with_the_definition() {
    let raced = (2000..2400).filter(|&seed| Asynchronous::compare(seed, seed % 2 == 0)).count();
    assert!((200..=400).contains(&raced), "{raced} of 400 runs ended in a race");
}
