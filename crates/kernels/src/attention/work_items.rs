//! The work of a launch as a flat list, of which each block takes every so many items.

use core::hint::{assert_unchecked, cold_path};

use crate::attention::split_work::{Work, packed_rows, seen_keys};
use crate::attention::splits::{self, Splits, used_keys};
use crate::hopper::scheduler::{Announced, Slots};
use crate::mask::KeyRange;
use crate::params::DecodeParams;
use crate::ptx::{cluster, index, shared, warp};
use crate::softmax::reduce;

/// Sizes of an item, whose rows and keys one block multiplies.
pub(super) trait ItemTile: Copy {
    /// Packed query rows.
    const ROWS: u32;
    /// Keys of a step.
    const KEYS: u32;
    /// Whether V has factors of its own.
    const DESCALES: bool;
    /// Whether a block can have several splits of a tile.
    const ADDS_UP: bool;
    /// Whether the blocks of a cluster, where there are some, have the splits of a tile.
    const CLUSTERS: bool;
}

/// Sequences that a warp looks at once.
const LANES: u32 = 32;

/// A block's place in the list, as one warp walks it: items of one sequence lie behind those of the other.
pub(super) struct Items {
    /// Index of the next item, from the first of those that the lanes look at.
    next: u32,
    /// The first of the sequences that the lanes look at.
    first_sequence: u32,
    /// Items of all of them; of none before the first look.
    total: u32,
    /// Items of those before this lane's.
    before: u32,
    /// Items of this lane's, and its keys.
    own: u32,
    used: u32,
    /// Whether the splits of a tile are one item; of unlike sequences, from the first look on.
    adds_up: bool,
}

impl Items {
    /// The first item of this block.
    ///
    /// # Safety
    /// `params` describes valid device memory; all lanes of one warp make one, and call [`Self::next`]
    /// together.
    #[inline(always)]
    pub(super) unsafe fn new<T: ItemTile>(params: &DecodeParams) -> Self {
        let adds_up = T::ADDS_UP && splits::are_enough_alike(params);
        let next = if has_clusters::<T>() { cluster::index() } else { index::block() };
        let first_sequence = 0u32.wrapping_sub(LANES);
        Self { next, first_sequence, total: 0, before: 0, own: 0, used: 0, adds_up }
    }

    /// The next item of this block.
    #[inline(always)]
    pub(super) fn next<T: ItemTile>(&mut self, params: &DecodeParams) -> Option<Item> {
        let (mut work, used) = if params.seqused_k == 0 {
            (self.of_alike::<T>(params)?, params.seqlen_k)
        } else {
            cold_path();
            self.of_unlike::<T>(params)?
        };
        self.next += index::blocks();
        if has_clusters::<T>() {
            work.split = cluster::rank();
        }
        Some(Item::new::<T>(params, work, used, self.adds_up))
    }

    /// Whether each tile has one item, whatever its splits are.
    #[inline(always)]
    fn are_tiles<T: ItemTile>(&self) -> bool {
        self.adds_up || has_clusters::<T>()
    }

    /// The next item's part of the problem, where all sequences have all keys.
    #[inline(always)]
    fn of_alike<T: ItemTile>(&self, params: &DecodeParams) -> Option<Work> {
        let work = Work::of_sequence(params, T::ROWS, 0, self.next);
        let work = if self.are_tiles::<T>() {
            Work { split: 0, batch: work.split, ..work }
        } else if params.cache.split_keys == 0 {
            Work::of_batch(params, T::ROWS, self.next)
        } else {
            let splits = Splits::of(params).count(params.seqlen_k);
            // SAFETY: a sequence has at least one. Without this the divisions would carry a call to the panic
            // for a zero divisor, which a kernel cannot link.
            unsafe { assert_unchecked(splits > 0) };
            Work { split: work.split % splits, batch: work.split / splits, ..work }
        };
        if work.batch < params.batch { Some(work) } else { None }
    }

    /// The next item's part of the problem, and its sequence's keys, where each sequence has its own.
    #[inline(always)]
    fn of_unlike<T: ItemTile>(&mut self, params: &DecodeParams) -> Option<(Work, u32)> {
        if T::ADDS_UP && self.total == 0 {
            // SAFETY: all lanes are here.
            self.adds_up = unsafe { splits::are_enough_unlike(params) };
        }
        while self.next >= self.total {
            self.next -= self.total;
            self.first_sequence = self.first_sequence.wrapping_add(LANES);
            if self.first_sequence >= params.batch {
                return None;
            }
            self.look::<T>(params);
        }
        let lane = index::thread() % LANES;
        let is_here = self.next.wrapping_sub(self.before) < self.own;
        // SAFETY: all lanes are here.
        unsafe {
            let of = reduce::<LANES>(if is_here { lane as f32 } else { 0.0 }, |a, b| a + b) as u32;
            let index = self.next - warp::broadcast(self.before, of);
            let used = warp::broadcast(self.used, of);
            Some((Work::of_sequence(params, T::ROWS, self.first_sequence + of, index), used))
        }
    }

    /// Counts the items of the sequences from `first_sequence` on.
    #[inline(always)]
    fn look<T: ItemTile>(&mut self, params: &DecodeParams) {
        let lane = index::thread() % LANES;
        let batch = self.first_sequence + lane;
        (self.own, self.used) = (0, 0);
        // SAFETY: the sequence exists; all lanes are here.
        unsafe {
            if batch < params.batch {
                self.used = used_keys(params, batch);
                let splits = if self.are_tiles::<T>() { 1 } else { Splits::of(params).count(self.used) };
                self.own = splits * params.tiles.get() * params.kv_heads.get();
            }
            (self.before, self.total) = (0, self.own);
            let mut distance = 1;
            while distance < LANES {
                let others = warp::shuffle_xor(f32::from_bits(self.total), distance).to_bits();
                if lane & distance != 0 {
                    self.before += others;
                }
                self.total += others;
                distance *= 2;
            }
        }
    }
}

/// What an item is: unsplit, one split, or all splits of a tile; above that, several of them, and how many.
/// Nothing is 0.
const WHOLE: u32 = 1;
const OF_SPLIT: u32 = 2;
const OF_ALL_SPLITS: u32 = 3;

/// Whether the launch has clusters, whose blocks have the splits of a tile: then each has one item.
#[inline(always)]
pub(super) fn has_clusters<T: ItemTile>() -> bool {
    T::CLUSTERS && cluster::size() > 1
}

/// An item, as all warps see it.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) work: Work,
    /// Whether its results are those of splits, which are merged with others.
    pub(super) of_split: bool,
    /// How many of these it has: several in a cluster alone, where each block has as many.
    pub(super) splits: u32,
    /// Keys of each of the splits that it has, if there are several.
    pub(super) split_keys: u32,
    /// Packed rows of the tile that exist.
    pub(super) rows: u32,
    /// The keys of its steps, from a multiple of KEYS on; none where the end is not behind the first.
    pub(super) keys: KeyRange,
    /// The keys that all rows of the tile see.
    pub(super) whole: KeyRange,
    /// Keys of the sequence.
    pub(super) used: u32,
    /// What V in 8 bits is multiplied by.
    pub(super) v_descale: f32,
}

/// Splits of each block where a sequence has `count` of them: all blocks of a cluster have as many.
#[inline(always)]
fn splits_of_a_block<T: ItemTile>(count: u32) -> u32 {
    if !T::ADDS_UP || !has_clusters::<T>() {
        return 1;
    }
    let blocks = cluster::size();
    // SAFETY: a cluster has at least one block. Without this the division would carry a call to the panic for
    // a zero divisor, which a kernel cannot link.
    unsafe { assert_unchecked(blocks > 0) };
    count.div_ceil(blocks)
}

impl Item {
    #[inline(always)]
    fn new<T: ItemTile>(params: &DecodeParams, work: Work, used: u32, adds_up: bool) -> Self {
        let end_row = (work.first_row + T::ROWS).min(packed_rows(params));
        let first = seen_keys(params, used, work.first_row);
        let last = seen_keys(params, used, end_row - 1);
        // Pages are copied in boxes that begin with multiples of their rows.
        let seen = KeyRange { first: first.first - first.first % T::KEYS, end: last.end };
        let mut v_descale = 1.0;
        if T::DESCALES {
            // SAFETY: the factors are readable, and the head is one of the launch's.
            v_descale = unsafe { params.cache.v_descale.of(work.batch, work.kv_head) };
        }
        let count = Splits::of(params).count(used);
        let splits = splits_of_a_block::<T>(count);
        let has_several = splits > 1 || adds_up && count > 1;
        let split_keys = if has_several { Splits::of(params).keys(used) } else { 0 };
        Self {
            of_split: count > 1 && !adds_up,
            splits,
            split_keys,
            rows: end_row - work.first_row,
            keys: match splits {
                _ if adds_up => seen,
                1 => Splits::of(params).part(work.split, used, seen, T::KEYS),
                _ => splits::run(work.split * splits, splits, split_keys, seen),
            },
            whole: KeyRange { first: last.first, end: first.end },
            used,
            v_descale,
            work,
        }
    }

    /// Writes it to a slot.
    ///
    /// # Safety
    /// The slot is this thread's.
    #[inline(always)]
    pub(super) unsafe fn write(&self, slot: u32) {
        let Self { work, of_split, splits, split_keys, rows, keys, whole, used, v_descale } = *self;
        let (kind, split) = match (of_split, split_keys) {
            (true, 0) => (OF_SPLIT, work.split),
            (true, keys) => (OF_SPLIT + splits, keys),
            (false, 0) => (WHOLE, work.split),
            (false, keys) => (OF_ALL_SPLITS, keys),
        };
        // SAFETY: the slot is this thread's.
        unsafe {
            shared::store4(slot, [work.batch, work.kv_head, kind, split]);
            shared::store4(slot + 16, [work.first_row, rows, keys.first, keys.end]);
            shared::store4(slot + 32, [used, whole.first, whole.end, v_descale.to_bits()]);
        }
    }
}

/// The words that [`Item::write`] writes.
#[derive(Clone, Copy)]
pub(super) struct ItemWords;

impl Announced for ItemWords {
    const BYTES: u32 = 48;
    const EXISTS: u32 = 2;
}

/// The slots that items are announced in.
pub(super) type ItemSlots = Slots<ItemWords>;

impl ItemSlots {
    /// The item at hand.
    #[inline(always)]
    pub(super) fn item(&self) -> Item {
        let word = |index: u32| self.word(index);
        let has_several = word(2) >= OF_ALL_SPLITS;
        Item {
            work: Work { batch: word(0), kv_head: word(1), split: word(3), first_row: word(4) },
            of_split: word(2) == OF_SPLIT || word(2) > OF_ALL_SPLITS,
            splits: if word(2) > OF_ALL_SPLITS { word(2) - OF_SPLIT } else { 1 },
            split_keys: if has_several { word(3) } else { 0 },
            rows: word(5),
            keys: KeyRange { first: word(6), end: word(7) },
            whole: KeyRange { first: word(9), end: word(10) },
            used: word(8),
            v_descale: f32::from_bits(word(11)),
        }
    }
}
