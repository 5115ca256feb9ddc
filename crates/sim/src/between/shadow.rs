//! Who has touched which bytes.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

use super::past::Past;
use crate::error::AccessKind;

/// Bytes whose accesses are kept together: as many as one access has.
const GRANULE: u64 = 16;

/// Granules that are looked up together.
const PAGE: usize = 64;

/// Bytes of those.
const PAGE_BYTES: u64 = GRANULE * PAGE as u64;

/// Parts with a lock of their own, so that cores seldom wait for each other.
const SHARDS: usize = 64;

/// The accesses to global memory that later ones may still conflict with.
pub(crate) struct Shadow {
    shards: [Mutex<HashMap<u64, Page>>; SHARDS],
}

type Page = Box<[Granule; PAGE]>;

/// The accesses to a granule: by byte the last write, and what is not known to be ordered before others.
#[derive(Default)]
struct Granule(Vec<Entry>);

/// An access to some bytes of a granule.
#[derive(Clone, Copy)]
struct Entry {
    touch: Touch,
    /// A bit for each byte.
    mask: u16,
}

/// An access, by a thread of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) block: u32,
    /// The block's.
    pub(crate) epoch: u32,
    pub(crate) thread: u16,
    pub(crate) kind: AccessKind,
    pub(crate) location: &'static Location<'static>,
}

/// An earlier access that nothing orders before the one being recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    /// The first byte that both touch.
    pub(crate) address: u64,
    pub(crate) first: Touch,
}

/// What an access does to global memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Read,
    Write,
    /// A read that no atomic addition conflicts with.
    Await,
    Add,
}

impl Effect {
    fn of(kind: AccessKind) -> Self {
        match kind {
            AccessKind::Write | AccessKind::TmaStore => Self::Write,
            AccessKind::Add => Self::Add,
            AccessKind::Await => Self::Await,
            AccessKind::Read | AccessKind::Copy | AccessKind::TmaLoad | AccessKind::Wgmma => Self::Read,
        }
    }

    /// Whether two accesses of different blocks need an order.
    fn conflicts(self, other: Self) -> bool {
        match (self, other) {
            (Self::Write, _) | (_, Self::Write) => true,
            (Self::Add, other) | (other, Self::Add) => other == Self::Read,
            _ => false,
        }
    }

    /// Whether all that conflicts with `other` conflicts with this.
    fn covers(self, other: Self) -> bool {
        self == other || self == Self::Write || other == Self::Await
    }
}

impl Touch {
    /// Whether it is the same access by another part of its loop or warp.
    fn is_like(&self, other: &Self) -> bool {
        self.epoch == other.epoch
            && self.block == other.block
            && self.thread == other.thread
            && self.kind == other.kind
            && std::ptr::eq(self.location, other.location)
    }
}

impl Default for Shadow {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Shadow {
    /// Records an access to `bytes` bytes at `address`.
    pub(crate) fn touch(
        &self,
        past: &Past,
        (address, bytes): (u64, usize),
        touch: Touch,
    ) -> Result<(), Conflict> {
        let end = address + bytes as u64;
        let mut at = address;
        while at < end {
            let page = at / PAGE_BYTES;
            let page_end = end.min((page + 1) * PAGE_BYTES);
            let shard = &self.shards[page as usize % SHARDS];
            let mut pages = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let granules =
                pages.entry(page).or_insert_with(|| Box::new([const { Granule(Vec::new()) }; PAGE]));
            while at < page_end {
                let granule = at / GRANULE;
                let stop = page_end.min((granule + 1) * GRANULE);
                let mask = (((1_u32 << (stop - at)) - 1) << (at % GRANULE)) as u16;
                let conflict = granules[granule as usize % PAGE].touch(past, Entry { touch, mask });
                if let Some(Entry { touch: first, mask }) = conflict {
                    return Err(Conflict {
                        address: granule * GRANULE + u64::from(mask.trailing_zeros()),
                        first,
                    });
                }
                at = stop;
            }
        }
        Ok(())
    }
}

impl Granule {
    /// Records an access, or gives an earlier one that it conflicts with, of the bytes that both touch.
    fn touch(&mut self, past: &Past, new: Entry) -> Option<Entry> {
        let Entry { touch, mask } = new;
        let effect = Effect::of(touch.kind);
        let Self(entries) = self;
        for entry in &*entries {
            let common = entry.mask & mask;
            let old = Effect::of(entry.touch.kind);
            if common == 0 {
                continue;
            }
            if entry.touch.block == touch.block {
                // Whoever conflicts with this access conflicts with that.
                if entry.touch.epoch == touch.epoch && common == mask && old.covers(effect) {
                    return None;
                }
            } else if effect.conflicts(old) && !past.follows(entry.touch.block, entry.touch.epoch) {
                return Some(Entry { mask: common, ..*entry });
            }
        }
        // What is ordered before this access need not be kept, if whoever follows this follows that.
        for entry in &mut *entries {
            let is_ordered = past.follows(entry.touch.block, entry.touch.epoch);
            if entry.mask & mask != 0 && is_ordered && effect.covers(Effect::of(entry.touch.kind)) {
                entry.mask &= !mask;
            }
        }
        entries.retain(|entry| entry.mask != 0);
        match entries.iter_mut().find(|entry| entry.touch.is_like(&touch)) {
            Some(entry) => entry.mask |= mask,
            None => entries.push(new),
        }
        None
    }
}
