//! Synchronisation through objects rather than among a group: who arrives releases its past into the object,
//! and who waits acquires what the object had gathered.

use std::rc::Rc;

use super::clock::Known;
use super::detector::Races;
use crate::threads::LANES;

/// What an object has gathered: the past of all who released into it.
#[derive(Default)]
pub(crate) struct Released {
    /// As in [`Known`], but as long as it had to be so far.
    epochs: Vec<u32>,
    /// What was joined last: threads in step bring the same one.
    last: Option<Rc<Known>>,
}

/// A [`Released`] at one moment.
#[derive(Default)]
pub(crate) struct Snapshot {
    epochs: Vec<u32>,
    /// The past of the last thread that acquired this, before and after: threads in step share both.
    last: Option<(Rc<Known>, Rc<Known>)>,
}

impl Released {
    fn join(&mut self, known: &Rc<Known>) {
        if self.last.as_ref().is_some_and(|last| Rc::ptr_eq(last, known)) {
            return;
        }
        if self.epochs.len() < known.epochs.len() {
            self.epochs.resize(known.epochs.len(), 0);
        }
        let pairs = self.epochs.iter_mut().zip(&known.epochs);
        pairs.for_each(|(a, &b)| *a = (*a).max(b));
        self.last = Some(Rc::clone(known));
    }

    /// Adds that `thread`, or an agent, is past `epoch`.
    pub(crate) fn raise(&mut self, thread: usize, epoch: u32) {
        if self.epochs.len() <= thread {
            self.epochs.resize(thread + 1, 0);
        }
        self.epochs[thread] = self.epochs[thread].max(epoch);
    }

    /// What has been gathered; `None` for nothing.
    pub(crate) fn into_snapshot(self) -> Option<Snapshot> {
        (!self.epochs.is_empty()).then_some(Snapshot { epochs: self.epochs, last: None })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot { epochs: self.epochs.clone(), last: None }
    }
}

impl Snapshot {
    /// `known` joined with this one; the same one where it holds nothing new.
    fn joined(&mut self, known: &Rc<Known>) -> Rc<Known> {
        if let Some((before, after)) = &self.last
            && Rc::ptr_eq(before, known)
        {
            return Rc::clone(after);
        }
        let is_new = |(thread, &epoch): (usize, &u32)| epoch > known.epoch(thread);
        let after = if self.epochs.iter().enumerate().any(is_new) {
            let mut epochs = known.epochs.clone();
            epochs.resize(epochs.len().max(self.epochs.len()), 0);
            epochs.iter_mut().zip(&self.epochs).for_each(|(a, &b)| *a = (*a).max(b));
            Rc::new(Known::new(epochs))
        } else {
            Rc::clone(known)
        };
        self.last = Some((Rc::clone(known), Rc::clone(&after)));
        after
    }
}

impl Races {
    /// Orders what `thread` did so far before whatever acquires a later snapshot of `object`.
    pub(crate) fn release(&mut self, thread: usize, object: &mut Released) {
        let clock = &mut self.clocks[thread];
        object.join(&clock.known);
        object.raise(thread, clock.own);
        clock.own += 1;
    }

    /// As [`Races::release`] of what others did before `thread`, without what it did itself.
    pub(crate) fn release_past(&self, thread: usize, object: &mut Released) {
        object.join(&self.clocks[thread].known);
    }

    /// Orders what `object` had gathered before what `thread` does from now on.
    pub(crate) fn acquire(&mut self, thread: usize, object: &mut Snapshot) {
        self.clocks[thread].known = object.joined(&self.clocks[thread].known);
        // A lane that arrived alone is an epoch ahead of its warp. Together again they share the records of
        // their reads, and an epoch may begin at any time.
        let warp = thread / LANES * LANES;
        let latest = self.clocks[warp..warp + LANES].iter().map(|clock| clock.own).max();
        self.clocks[thread].own = latest.unwrap_or(0);
    }

    /// Orders the past epochs of `agent`, up to `epoch`, before what `threads` do from now on.
    pub(crate) fn learn(&mut self, threads: impl Iterator<Item = usize>, agent: usize, epoch: u32) {
        let mut object = Released::default();
        object.raise(agent, epoch);
        let mut object = object.snapshot();
        threads.for_each(|thread| self.acquire(thread, &mut object));
    }

    /// Whether what `other` did up to `epoch` is ordered before what `thread` does now.
    pub(crate) fn follows(&self, thread: usize, other: usize, epoch: u32) -> bool {
        thread == other || self.clocks[thread].known.follows(other, epoch)
    }

    /// The epoch of `thread`.
    pub(crate) fn epoch_of(&self, thread: usize) -> u32 {
        self.clocks[thread].own
    }
}
