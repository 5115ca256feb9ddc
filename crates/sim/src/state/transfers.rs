//! The tensor transfers of a block that are under way.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;

use crate::state::shared::{BASE, Shared};
use crate::tensor_map::{MAX_RANK, TensorMap};

/// The pick at which a piece lands whose time has not been drawn: when nothing else can happen, or when it is
/// waited for.
const LAST: u64 = u64::MAX;

/// The transfers under way of a block.
#[derive(Default)]
pub(crate) struct Transfers {
    /// The pick at which each piece is due, and its number.
    landings: BinaryHeap<Reverse<(u64, u64)>>,
    pieces: HashMap<u64, Piece>,
    issued: u64,
    /// By thread.
    stores: HashMap<usize, Stores>,
}

/// One thread's stores.
#[derive(Default)]
pub(crate) struct Stores {
    /// The author of their reads.
    pub(crate) agent: usize,
    /// Committed groups that are not waited for, the oldest first.
    groups: VecDeque<StoreGroup>,
    open: StoreGroup,
    /// Of each committed group that may not be written yet, its transfers; the oldest first.
    unwritten: VecDeque<Vec<Rc<Transfer>>>,
}

/// Stores that are waited for together.
#[derive(Default)]
pub(crate) struct StoreGroup {
    pub(crate) pieces: Vec<u64>,
    transfers: Vec<Rc<Transfer>>,
    /// Where its first store was issued.
    first: Option<&'static Location<'static>>,
    /// The agent's epoch that ends with it.
    pub(crate) epoch: u32,
}

/// Rows of a box that land together.
pub(crate) struct Piece {
    pub(crate) transfer: Rc<Transfer>,
    pub(crate) rows: Range<u32>,
}

/// One copy of a box.
pub(crate) struct Transfer {
    pub(crate) map: TensorMap,
    pub(crate) shared: u32,
    pub(crate) coordinates: [i32; MAX_RANK],
    /// The mbarrier of a load; `None` for a store.
    pub(crate) barrier: Option<usize>,
    pub(crate) thread: usize,
    /// The block's epoch when it was issued.
    pub(crate) epoch: u32,
    pub(crate) location: &'static Location<'static>,
}

impl Transfers {
    pub(crate) fn begin_block(&mut self) {
        self.landings.clear();
        self.pieces.clear();
        self.stores.clear();
    }

    /// Whether a piece lands before the `pick`-th pick.
    #[inline]
    pub(crate) fn is_due(&self, pick: u64) -> bool {
        self.landings.peek().is_some_and(|Reverse((due, _))| *due <= pick)
    }

    /// How many pieces there have been: the number of the next.
    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    /// A piece is under way, which lands at pick `due` if one was drawn.
    pub(crate) fn begin(&mut self, piece: Piece, due: Option<u64>) {
        self.landings.push(Reverse((due.unwrap_or(LAST), self.issued)));
        self.pieces.insert(self.issued, piece);
        self.issued += 1;
    }

    /// Takes the next landing: the number of its piece.
    pub(crate) fn take_landing(&mut self) -> Option<u64> {
        self.landings.pop().map(|Reverse((_, number))| number)
    }

    /// Takes a piece; `None` where it has landed.
    pub(crate) fn take_piece(&mut self, number: u64) -> Option<Piece> {
        self.pieces.remove(&number)
    }

    /// The oldest transfer of which a piece is under way.
    pub(crate) fn oldest(&self) -> Option<&Transfer> {
        let (_, piece) = self.pieces.iter().min_by_key(|(number, _)| **number)?;
        Some(&piece.transfer)
    }

    /// The stores of `thread`.
    pub(crate) fn stores(&self, thread: usize) -> Option<&Stores> {
        self.stores.get(&thread)
    }

    /// As [`Transfers::stores`], to change.
    pub(crate) fn stores_mut(&mut self, thread: usize) -> Option<&mut Stores> {
        self.stores.get_mut(&thread)
    }

    /// `agent` is the author of the stores of `thread`.
    pub(crate) fn begin_stores(&mut self, thread: usize, agent: usize) {
        self.stores.insert(thread, Stores { agent, ..Stores::default() });
    }
}

impl Stores {
    /// A store of `pieces` is issued.
    pub(crate) fn issue(&mut self, pieces: Range<u64>, transfer: Rc<Transfer>) {
        self.open.pieces.extend(pieces);
        self.open.first.get_or_insert(transfer.location);
        self.open.transfers.push(transfer);
    }

    /// Closes a group, with which the agent's epoch ends.
    pub(crate) fn commit(&mut self, epoch: u32) {
        let mut open = std::mem::take(&mut self.open);
        self.unwritten.push_back(std::mem::take(&mut open.transfers));
        self.groups.push_back(StoreGroup { epoch, ..open });
    }

    /// Takes the oldest group, where more than `pending` are left.
    pub(crate) fn take_group(&mut self, pending: usize) -> Option<StoreGroup> {
        if self.groups.len() > pending { self.groups.pop_front() } else { None }
    }

    /// Takes the transfers of the oldest group that may not be written, where more than `pending` are left.
    pub(crate) fn take_unwritten(&mut self, pending: usize) -> Option<Vec<Rc<Transfer>>> {
        if self.unwritten.len() > pending { self.unwritten.pop_front() } else { None }
    }

    /// Where a store was issued that has not been waited for, and what it lacks.
    pub(crate) fn left(&self) -> Option<(&'static Location<'static>, &'static str)> {
        let committed = self.groups.iter().find_map(|group| group.first);
        match (committed, self.open.first) {
            (Some(location), _) => {
                Some((location, "no tma::wait_group or tma::wait_group_read of it covers that"))
            }
            (None, Some(location)) => Some((location, "no tma::commit_group of it closes that group")),
            (None, None) => None,
        }
    }
}

impl Transfer {
    /// Shared addresses of the chunks of 16 bytes of some rows.
    pub(crate) fn chunks(&self, rows: Range<u32>) -> impl Iterator<Item = u32> + use<> {
        let row = self.map.row_bytes();
        let (shared, swizzle) = (self.shared, self.map.swizzle);
        (rows.start * row / 16..rows.end * row / 16).map(move |chunk| swizzle.apply(shared + 16 * chunk))
    }

    /// Address of the first chunk with bytes for global memory that nothing has written.
    pub(crate) fn first_unwritten(&self, shared: &Shared) -> Option<u32> {
        let map = &self.map;
        let chunks = (0..map.rows()).flat_map(|row| {
            let inside = map.row(row, self.coordinates).stored();
            let start = self.shared + row * map.row_bytes() + inside.skipped as u32;
            (0..inside.bytes)
                .step_by(16)
                .map(move |byte| (map.swizzle.apply(start + byte as u32), (inside.bytes - byte).min(16)))
        });
        let is_unwritten =
            |&(address, bytes): &(u32, usize)| !shared.is_written((address - BASE) as usize, bytes);
        { chunks }.find(is_unwritten).map(|(address, _)| address)
    }
}
