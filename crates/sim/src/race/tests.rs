//! The detector against a direct reading of the definition of a race.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

const THREADS: usize = 64;
const BYTES: usize = 64;
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
        let clock = |thread| (0..THREADS).map(|other| u32::from(other == thread)).collect();
        Self { clocks: (0..THREADS).map(clock).collect(), accesses: Vec::new() }
    }

    fn synchronize(&mut self, threads: &[usize]) {
        let joined: Vec<u32> = (0..THREADS)
            .map(|other| threads.iter().map(|&thread| self.clocks[thread][other]).max().unwrap_or(0))
            .collect();
        for &thread in threads {
            self.clocks[thread].clone_from(&joined);
            self.clocks[thread][thread] += 1;
        }
    }

    /// The earlier accesses that race with `access`.
    fn races(&self, access: &Past) -> Vec<Past> {
        let clock = &self.clocks[access.thread];
        let racing = self.accesses.iter().filter(|(past, epoch)| {
            let overlap =
                past.offset < access.offset + access.bytes && access.offset < past.offset + past.bytes;
            let writes = past.kind != AccessKind::Read || access.kind != AccessKind::Read;
            let unordered =
                epoch.is_none_or(|epoch| past.thread != access.thread && epoch > clock[past.thread]);
            overlap && writes && unordered
        });
        racing.map(|(past, _)| *past).collect()
    }

    fn record(&mut self, access: Past) {
        let epoch = self.clocks[access.thread][access.thread];
        self.accesses.push((access, (access.kind != AccessKind::Copy).then_some(epoch)));
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

#[test]
fn lanes_out_of_step_keep_their_own_places() {
    let mut races = Races::new(THREADS, BYTES);
    assert_eq!(races.read(1, 0, 4, 10), Ok(()));
    // Lane 0 moves on to its next epoch alone, and reads the same word.
    races.synchronize([0, 40].into_iter());
    assert_eq!(races.read(0, 0, 4, 11), Ok(()));
    races.synchronize([0, 41].into_iter());
    let conflict = Conflict {
        offset: 0,
        thread: 1,
        kind: AccessKind::Read,
        site: 10,
        in_flight: false,
        unfenced: false,
    };
    assert_eq!(races.write(41, 0, 4, 12), Err(conflict));
}

#[test]
fn three_places_in_one_epoch_are_told_apart() {
    for left_out in 0..3 {
        let mut races = Races::new(THREADS, BYTES);
        for lane in 0..3 {
            assert_eq!(races.read(lane, 8, 4, 20 + lane as SiteId), Ok(()));
        }
        races.synchronize([0, 1, 2, 50].into_iter().filter(|&thread| thread != left_out));
        let site = 20 + left_out as SiteId;
        let conflict = Conflict {
            offset: 8,
            thread: left_out,
            kind: AccessKind::Read,
            site,
            in_flight: false,
            unfenced: false,
        };
        assert_eq!(races.write(50, 8, 4, 30), Err(conflict));
    }
}

/// Lanes 1, then 2, then 3 read a word, each an epoch later than the last and unordered with it.
fn reads_in_three_epochs() -> Races {
    let mut races = Races::new(THREADS, BYTES);
    for (lane, partner) in [(2, 40), (3, 41), (3, 42)] {
        races.synchronize([lane, partner].into_iter());
    }
    for lane in 1..4 {
        assert_eq!(races.read(lane, 0, 4, 10 + lane as SiteId), Ok(()));
    }
    races
}

#[test]
fn reads_of_many_epochs_are_all_kept() {
    for left_out in 1..4 {
        let mut races = reads_in_three_epochs();
        races.synchronize([1, 2, 3, 50].into_iter().filter(|&thread| thread != left_out));
        let site = 10 + left_out as SiteId;
        let conflict = Conflict {
            offset: 0,
            thread: left_out,
            kind: AccessKind::Read,
            site,
            in_flight: false,
            unfenced: false,
        };
        assert_eq!(races.write(50, 0, 4, 30), Err(conflict));
    }
}

#[test]
fn reads_of_many_epochs_survive_a_split() {
    for left_out in 1..4 {
        let mut races = reads_in_three_epochs();
        races.synchronize([1, 2, 3, 50].into_iter().filter(|&thread| thread != left_out));
        let site = 10 + left_out as SiteId;
        let conflict = Conflict {
            offset: 3,
            thread: left_out,
            kind: AccessKind::Read,
            site,
            in_flight: false,
            unfenced: false,
        };
        assert_eq!(races.write(50, 3, 1, 30), Err(conflict));
    }
}

#[test]
fn a_new_block_starts_with_no_past() {
    let mut races = Races::new(THREADS, BYTES);
    assert_eq!(races.write(3, 0, 4, 0), Ok(()));
    assert_eq!(races.read(5, 4, 2, 0), Ok(()));
    races.begin_block();
    assert_eq!(races.write(40, 0, 4, 0), Ok(()));
    assert_eq!(races.write(41, 4, 4, 0), Ok(()));
}

#[test]
fn epochs_start_over_before_they_run_out() {
    let mut races = Races::new(THREADS, BYTES);
    assert_eq!(races.write(3, 0, 4, 0), Ok(()));
    races.clocks[7].own = u32::MAX / 2 + 1;
    races.begin_block();
    assert!(races.clocks.iter().all(|clock| clock.own == 2));
    assert_eq!(races.write(40, 0, 4, 0), Ok(()));
}
