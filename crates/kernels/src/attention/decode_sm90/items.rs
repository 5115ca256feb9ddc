//! The work of a launch as a flat list of (sequence, head, tile), of which each block takes a part.
//!
//! Where whole tiles share the work out evenly, blocks take them in turn. Where they do not, as when one
//! sequence is much longer than others, each block gets as many steps as the others, in a row (Stream-K;
//! Osama and others 2023, arXiv:2301.03598), and tiles are cut where a piece of a sequence begins.

use core::hint::assert_unchecked;

use crate::attention::pieces::{self, Pieces};
use crate::attention::split_work::{Work, packed_rows, seen_by, seen_keys};
use crate::attention::splits::used_keys;
use crate::hopper::scheduler::{Announced, Slots};
use crate::mask::KeyRange;
use crate::params::{DecodeParams, PieceParams};
use crate::ptx::{index, shared, warp};
use crate::softmax::reduce;

use super::tile::Tile;

/// Sequences that a warp looks at once.
const LANES: u32 = 32;

/// Whole tiles share the work out evenly if no block has more than 1 + 1 / `EVEN` of a block's share.
const EVEN: u32 = 8;

/// 1 / `NEAR` of a block's share may be another's, so that a tile is not cut.
const NEAR: u32 = 16;

/// Steps of all of a launch.
struct Steps {
    all: u32,
    /// Of a tile of the longest sequence.
    longest: u32,
}

impl Steps {
    /// Counts them.
    ///
    /// # Safety
    /// As [`Items::new`].
    #[inline(always)]
    unsafe fn of(params: &DecodeParams) -> Self {
        let PieceParams { sequences, tiles, .. } = params.pieces;
        if params.seqused_k == 0 {
            let longest = pieces::steps(params, params.seqlen_k);
            return Self { all: sequences * tiles * longest, longest };
        }
        let (mut all, mut longest) = (0, 0);
        let mut batch = index::thread() % LANES;
        // SAFETY: sequences that exist have a length; all lanes are here.
        unsafe {
            while batch < sequences {
                let steps = pieces::steps(params, used_keys(params, batch));
                all += tiles * steps;
                longest = longest.max(steps);
                batch += LANES;
            }
            let mut distance = 1;
            while distance < LANES {
                all += shuffle(all, distance);
                longest = longest.max(shuffle(longest, distance));
                distance *= 2;
            }
        }
        Self { all, longest }
    }
}

/// A block's place in the list, as one warp walks it: what one sequence has lies behind that of the other.
pub(super) struct Items {
    /// Whether items are whole tiles, in which places of the list are counted; steps are otherwise.
    whole: bool,
    /// The place of the next item, from the first of the sequences that the lanes look at.
    next: u32,
    /// Steps of this block that are left.
    left: u32,
    /// How near a sequence's end a cut is not made.
    tolerance: u32,
    /// The sequence at hand, from the first.
    sequence: u32,
    /// Its tile at hand, and the pieces of it that are left.
    tile: u32,
    pieces: [u32; 2],
    /// The first of the sequences that the lanes look at.
    first_sequence: u32,
    /// What all of them have.
    total: u32,
    /// What those before this lane's have.
    before: u32,
    /// What this lane's has, and its keys.
    own: u32,
    used: u32,
}

impl Items {
    /// The first item of this block.
    ///
    /// # Safety
    /// `params` describes valid device memory, and sequences have pieces; all lanes of one warp make one, and
    /// call [`Self::next`] together.
    #[inline(always)]
    pub(super) unsafe fn new(params: &DecodeParams) -> Self {
        let (block, blocks) = (index::block(), index::blocks());
        let mut items = Self {
            whole: true,
            next: block,
            left: u32::MAX,
            tolerance: 0,
            sequence: 0,
            tile: 0,
            pieces: [0; 2],
            first_sequence: 0,
            total: 0,
            before: 0,
            own: 0,
            used: 0,
        };
        if params.pieces.cuts_tiles == 1 {
            // SAFETY: valid parameters; all lanes are here; a launch has blocks. Without that the divisions
            // would carry a call to the panic for a zero divisor, which a kernel cannot link.
            let steps = unsafe {
                assert_unchecked(blocks > 0);
                Steps::of(params)
            };
            let (share, more) = (steps.all / blocks, steps.all % blocks);
            if params.pieces.block_tiles * steps.longest > share + share / EVEN + 1 {
                items.whole = false;
                items.next = block * share + block.min(more);
                items.left = share + (block < more) as u32;
                items.tolerance = share / NEAR;
            }
        }
        items.look(params);
        items
    }

    /// Looks at the sequences from `first_sequence` on.
    #[inline(always)]
    fn look(&mut self, params: &DecodeParams) {
        let lane = index::thread() % LANES;
        let batch = self.first_sequence + lane;
        (self.own, self.used) = (0, 0);
        // SAFETY: the sequence exists; valid parameters have no empty axis; all lanes are here.
        unsafe {
            if batch < params.pieces.sequences {
                self.used = used_keys(params, batch);
                let of_tile = if self.whole { 1 } else { pieces::steps(params, self.used) };
                self.own = params.pieces.tiles * of_tile;
            }
            (self.before, self.total) = (0, self.own);
            let mut distance = 1;
            while distance < LANES {
                let others = shuffle(self.total, distance);
                if lane & distance != 0 {
                    self.before += others;
                }
                self.total += others;
                distance *= 2;
            }
        }
    }

    /// The next item of this block.
    #[inline(always)]
    pub(super) fn next<T: Tile>(&mut self, params: &DecodeParams) -> Option<Item> {
        loop {
            if self.pieces[0] < self.pieces[1] {
                return Some(self.item::<T>(params));
            }
            if self.left == 0 {
                return None;
            }
            while self.next >= self.total {
                self.next -= self.total;
                self.first_sequence += LANES;
                if self.first_sequence >= params.pieces.sequences {
                    return None;
                }
                self.look(params);
            }
            let lane = index::thread() % LANES;
            let is_here = self.next.wrapping_sub(self.before) < self.own;
            // SAFETY: all lanes are here; sequences have pieces.
            unsafe {
                self.sequence = reduce::<LANES>(if is_here { lane as f32 } else { 0.0 }, |a, b| a + b) as u32;
                let place = self.next - warp::broadcast(self.before, self.sequence);
                self.take(place, &Pieces::of(params, self.keys_of_sequence()));
            }
        }
    }

    /// Keys of the sequence at hand.
    #[inline(always)]
    fn keys_of_sequence(&self) -> u32 {
        // SAFETY: all lanes are here.
        unsafe { warp::broadcast(self.used, self.sequence) }
    }

    /// Takes what is next, at a place of a sequence's.
    #[inline(always)]
    fn take(&mut self, place: u32, pieces: &Pieces) {
        if self.whole {
            self.next += index::blocks();
            (self.tile, self.pieces) = (place, [0, pieces.count]);
            return;
        }
        // SAFETY: there is at least one step. Without this the division would carry a call to the panic for
        // a zero divisor, which a kernel cannot link.
        unsafe { assert_unchecked(pieces.steps > 0) };
        let step = place % pieces.steps;
        let taken = self.left.min(pieces.steps - step);
        self.next += taken;
        self.left -= taken;
        self.tile = place / pieces.steps;
        self.pieces = [step, step + taken].map(|step| pieces.cut(step, self.tolerance));
    }

    /// The pieces at hand as an item, or the first of them where no thread has registers for several.
    #[inline(always)]
    fn item<T: Tile>(&mut self, params: &DecodeParams) -> Item {
        let [piece, end] = self.pieces;
        let end = if T::FOLDS { end } else { piece + 1 };
        self.pieces[0] = end;
        let used = self.keys_of_sequence();
        let tiles = packed_rows(params).div_ceil(T::BLOCK_M);
        // One tile has all rows of a head, nearly always, and takes no division.
        let (tile, kv_head) =
            if tiles <= 1 { (0, self.tile) } else { (self.tile % tiles, self.tile / tiles) };
        let batch = self.first_sequence + self.sequence;
        let work = Work { first_row: tile * T::BLOCK_M, kv_head, split: piece, batch };
        // SAFETY: sequences have pieces.
        Item::new::<T>(params, work, used, &unsafe { Pieces::of(params, used) }, end)
    }
}

/// What the lane that is so far from this one has.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
unsafe fn shuffle(value: u32, distance: u32) -> u32 {
    // SAFETY: all lanes are here.
    unsafe { warp::shuffle_xor(f32::from_bits(value), distance).to_bits() }
}

/// Where the results of an item's pieces go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// The item has its sequence's only piece, and stores its result.
    Output,
    /// It has all of several, takes one after the other in, and stores the result.
    Folded,
    /// It stores the result of each by itself.
    Pieces,
}

/// An item, as all warps see it.
#[derive(Clone, Copy)]
pub(super) struct Item {
    /// Its tile, and its first piece.
    pub(super) work: Work,
    /// One past its last piece.
    pub(super) end_piece: u32,
    pub(super) destination: Destination,
    /// Keys of each piece but the last of the sequence.
    pub(super) piece_keys: u32,
    /// The keys of its steps, from a multiple of BLOCK_N on; none where the end is not behind the first.
    pub(super) keys: KeyRange,
    /// The keys that all rows of the tile see.
    pub(super) whole: KeyRange,
    /// Keys of the sequence.
    pub(super) used: u32,
    /// What V in 8 bits is multiplied by.
    pub(super) v_descale: f32,
}

impl Item {
    /// The pieces of a tile from that of `work` to before `end_piece`.
    #[inline(always)]
    fn new<T: Tile>(params: &DecodeParams, work: Work, used: u32, pieces: &Pieces, end_piece: u32) -> Self {
        let end_row = (work.first_row + T::BLOCK_M).min(packed_rows(params));
        let (first, last) = if packed_rows(params) <= T::BLOCK_M {
            (seen_by(params, used, 0), seen_by(params, used, params.seqlen_q - 1))
        } else {
            (seen_keys(params, used, work.first_row), seen_keys(params, used, end_row - 1))
        };
        let key_of = |piece| pieces::first_key(params, used) + pieces.first_step(piece) * T::BLOCK_N;
        // Pages are copied in boxes that begin with multiples of their rows.
        let first_seen = first.first - first.first % T::BLOCK_N;
        let mut v_descale = 1.0;
        if T::WIDENS {
            // SAFETY: the factors are readable, and the head is one of the launch's.
            v_descale = unsafe { params.v_descale.of(work.batch, work.kv_head) };
        }
        let destination = match end_piece - work.split == pieces.count {
            true if pieces.count == 1 => Destination::Output,
            true if T::FOLDS => Destination::Folded,
            _ => Destination::Pieces,
        };
        Self {
            work,
            end_piece,
            destination,
            piece_keys: pieces.length() * T::BLOCK_N,
            keys: KeyRange {
                first: key_of(work.split).max(first_seen),
                end: key_of(end_piece).min(last.end),
            },
            whole: KeyRange { first: last.first, end: first.end },
            used,
            v_descale,
        }
    }

    /// Writes it to a slot.
    ///
    /// # Safety
    /// The slot is this thread's.
    #[inline(always)]
    pub(super) unsafe fn write(&self, slot: u32) {
        let Self { work, end_piece, destination, piece_keys, keys, whole, used, v_descale } = *self;
        // SAFETY: the slot is this thread's.
        unsafe {
            let pieces = work.split << 16 | end_piece;
            shared::store4(slot, [work.batch, work.kv_head, 1 + destination as u32, pieces]);
            shared::store4(slot + 16, [work.first_row, piece_keys, keys.first, keys.end]);
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
        let pieces = word(3);
        Item {
            work: Work { batch: word(0), kv_head: word(1), split: pieces >> 16, first_row: word(4) },
            end_piece: pieces & 0xffff,
            destination: match word(2) - 1 {
                0 => Destination::Output,
                1 => Destination::Folded,
                _ => Destination::Pieces,
            },
            piece_keys: word(5),
            keys: KeyRange { first: word(6), end: word(7) },
            whole: KeyRange { first: word(9), end: word(10) },
            used: word(8),
            v_descale: f32::from_bits(word(11)),
        }
    }
}
