//! The detector in cases that its shortcuts could get wrong, one by one.

mod definition;

use super::*;
use crate::error::AccessKind;
use crate::site::SiteId;
use crate::threads::LANES;

const THREADS: usize = 64;
const BYTES: usize = 64;

#[test]
fn a_fence_counts_if_it_lies_between_the_write_and_the_release() {
    let (writer, issuer) = (0, 40);
    for (before, between, after, fenced) in
        [(true, false, false, false), (false, true, false, true), (false, false, true, false)]
    {
        let mut races = Races::new(THREADS, BYTES);
        let agent = races.new_agent();
        let fence = |races: &mut Races, here: bool| {
            if here {
                races.fence(writer);
            }
        };
        fence(&mut races, before);
        assert_eq!(races.write(writer, 0, 16, 1), Ok(()));
        fence(&mut races, between);
        races.synchronize([writer, issuer].into_iter());
        fence(&mut races, after);
        let read = races.read_by_agent(issuer, agent, std::iter::once(0), 2);
        assert_eq!(read.is_ok(), fenced);
        assert!(read.is_ok() || read.is_err_and(|conflict| conflict.unfenced && conflict.thread == writer));
    }
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
