//! Transfers under way: issue, landing, completion.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;

use crate::block::{Block, Role};
use crate::error::{Access, AccessKind, Error};
use crate::global;
use crate::shared::BASE;
use crate::tensor_map::{MAX_RANK, Swizzle, TensorMap};

/// Most bytes of a row: 256 elements of 8 bytes.
const MAX_ROW: usize = 2048;

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
struct Stores {
    /// The author of their reads.
    agent: usize,
    /// Committed groups that are not waited for, the oldest first.
    groups: VecDeque<StoreGroup>,
    open: StoreGroup,
}

#[derive(Default)]
struct StoreGroup {
    pieces: Vec<u64>,
    /// Where its first store was issued.
    first: Option<&'static Location<'static>>,
    /// The agent's epoch that ends with it.
    epoch: u32,
}

/// Rows of a box that land together.
struct Piece {
    transfer: Rc<Transfer>,
    rows: Range<u32>,
}

struct Transfer {
    map: TensorMap,
    shared: u32,
    coordinates: [i32; MAX_RANK],
    /// The mbarrier of a load; `None` for a store.
    barrier: Option<usize>,
    thread: usize,
    location: &'static Location<'static>,
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
}

impl Transfer {
    /// Shared addresses of the chunks of 16 bytes of some rows.
    fn chunks(&self, rows: Range<u32>) -> impl Iterator<Item = u32> + use<> {
        let row = self.map.row_bytes();
        let (shared, swizzle) = (self.shared, self.map.swizzle);
        (rows.start * row / 16..rows.end * row / 16).map(move |chunk| swizzle.apply(shared + 16 * chunk))
    }
}

impl Block {
    pub(super) fn issue_load(
        &mut self,
        shared: u32,
        map: [u64; 16],
        barrier: u32,
        coordinates: &[i32],
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let mut transfer = self.check_transfer(shared, map, coordinates, AccessKind::TmaLoad, location)?;
        let rows = transfer.map.rows();
        let bytes = u64::from(rows) * u64::from(transfer.map.row_bytes());
        let (index, agent) = self.begin_load(barrier, bytes, location)?;
        transfer.barrier = Some(index);
        if let Some(races) = &mut self.races {
            self.roles[agent - self.threads.len()] = Role::Loads { mbarrier: index, issuer: self.current };
            let site = self.sites.intern_as(location, AccessKind::TmaLoad);
            let mut chunks = transfer.chunks(0..rows);
            let written = chunks.try_for_each(|chunk| {
                races.write_by_agent(self.current, agent, (chunk - BASE) as usize, site)
            });
            if let Err(conflict) = written {
                return Err(self.race(conflict, AccessKind::TmaLoad, location));
            }
        }
        self.shared.bytes_written += bytes;
        self.begin_transfer(transfer);
        self.land_due_pieces()
    }

    /// Whether the store has begun; if not, the thread has to park as in `Block::shared_read`.
    pub(super) fn issue_store(
        &mut self,
        map: [u64; 16],
        shared: u32,
        coordinates: &[i32],
        location: &'static Location<'static>,
    ) -> Result<bool, Box<Error>> {
        let transfer = self.check_transfer(shared, map, coordinates, AccessKind::TmaStore, location)?;
        let agent = self.storing_agent();
        let rows = transfer.map.rows();
        if let Some(races) = &mut self.races {
            let site = self.sites.intern_as(location, AccessKind::TmaStore);
            let offsets = transfer.chunks(0..rows).map(|chunk| (chunk - BASE) as usize);
            if let Err(conflict) = races.read_by_agent(self.current, agent, offsets, site) {
                return Err(self.race(conflict, AccessKind::TmaStore, location));
            }
        }
        if let Some(address) = self.first_unwritten(&transfer) {
            let error = self.uninitialised(address, 16, AccessKind::TmaStore, location);
            return self.suspect(error).map(|()| false);
        }
        self.shared.bytes_read += u64::from(rows) * u64::from(transfer.map.row_bytes());
        let numbers = self.begin_transfer(transfer);
        if let Some(stores) = self.transfers.stores.get_mut(&self.current) {
            stores.open.pieces.extend(numbers);
            stores.open.first.get_or_insert(location);
        }
        self.land_due_pieces().map(|()| true)
    }

    /// A store of consecutive bytes is one to a tensor that is one box.
    pub(super) fn issue_store_of_bytes(
        &mut self,
        address: u64,
        shared: u32,
        bytes: u32,
        location: &'static Location<'static>,
    ) -> Result<bool, Box<Error>> {
        const ELEMENT: u32 = 8;
        let elements = bytes / ELEMENT;
        let map = TensorMap {
            address,
            element_bytes: ELEMENT,
            rank: 1,
            dims: [elements.into(), 1, 1, 1, 1],
            strides: [16; MAX_RANK - 1],
            box_dims: [elements, 1, 1, 1, 1],
            swizzle: Swizzle::None,
        };
        let encoded = if bytes.is_multiple_of(16) {
            map.encode()
        } else {
            Err(format!("{bytes} bytes, not a multiple of 16"))
        };
        match encoded {
            Ok(map) => self.issue_store(map, shared, &[0], location),
            Err(reason) => Err(self.invalid_transfer(AccessKind::TmaStore, location, reason)),
        }
    }

    /// The author of the running thread's stores.
    fn storing_agent(&mut self) -> usize {
        if let Some(stores) = self.transfers.stores.get(&self.current) {
            return stores.agent;
        }
        let mut agent = 0;
        if let Some(races) = &mut self.races {
            agent = races.new_agent();
            self.roles.push(Role::Stores { thread: self.current });
        }
        self.transfers.stores.insert(self.current, Stores { agent, ..Stores::default() });
        agent
    }

    /// Checks all of a transfer's arguments, and the bytes in global memory.
    fn check_transfer(
        &mut self,
        shared: u32,
        map: [u64; 16],
        coordinates: &[i32],
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<Transfer, Box<Error>> {
        let Some(map) = TensorMap::decode(&map) else {
            return Err(self.invalid_transfer(
                kind,
                location,
                "the map is not what TensorMap::encode made".into(),
            ));
        };
        if coordinates.len() != map.rank as usize {
            let reason = format!("{} coordinates for a map of rank {}", coordinates.len(), map.rank);
            return Err(self.invalid_transfer(kind, location, reason));
        }
        let start = i64::from(coordinates[0]) * i64::from(map.element_bytes);
        if start % 16 != 0 {
            let reason =
                format!("coordinate 0 is {}, which is byte {start}, no multiple of 16", coordinates[0]);
            return Err(self.invalid_transfer(kind, location, reason));
        }
        if kind == AccessKind::TmaStore && start < 0 {
            // Seen on an H200, which takes such loads.
            let reason =
                format!("coordinate 0 of a store is {}, below 0: an illegal instruction", coordinates[0]);
            return Err(self.invalid_transfer(kind, location, reason));
        }
        let alignment = map.shared_alignment();
        if !shared.is_multiple_of(alignment) {
            let reason = format!("shared address {shared} is not a multiple of {alignment}");
            return Err(self.invalid_transfer(kind, location, reason));
        }
        let bytes = (map.rows() * map.row_bytes()) as usize;
        // A box of swizzled chunks stays within the blocks of 128 bytes that it touches.
        let end = if map.swizzle == Swizzle::None { bytes } else { bytes.next_multiple_of(128) };
        self.check_span(shared, end, kind, location)?;
        let mut all = [0; MAX_RANK];
        all[..coordinates.len()].copy_from_slice(coordinates);
        for row in 0..map.rows() {
            let row = map.row(row, all);
            if kind == AccessKind::TmaLoad {
                self.check_global(row.address, row.bytes, 16, AccessKind::Read, location)?;
            } else {
                self.check_global(row.address, row.stored().bytes, 16, AccessKind::Write, location)?;
            }
        }
        Ok(Transfer { map, shared, coordinates: all, barrier: None, thread: self.current, location })
    }

    /// Address of the first chunk with bytes for global memory that nothing has written.
    fn first_unwritten(&self, transfer: &Transfer) -> Option<u32> {
        let map = &transfer.map;
        let chunks = (0..map.rows()).flat_map(|row| {
            let inside = map.row(row, transfer.coordinates).stored();
            let start = transfer.shared + row * map.row_bytes() + inside.skipped as u32;
            (0..inside.bytes)
                .step_by(16)
                .map(move |byte| (map.swizzle.apply(start + byte as u32), (inside.bytes - byte).min(16)))
        });
        let is_unwritten =
            |&(address, bytes): &(u32, usize)| !self.shared.is_written((address - BASE) as usize, bytes);
        { chunks }.find(is_unwritten).map(|(address, _)| address)
    }

    /// Splits a transfer into pieces and draws when each lands; returns their numbers.
    fn begin_transfer(&mut self, transfer: Transfer) -> Range<u64> {
        let rows = transfer.map.rows();
        let count = self.picker.draw_pieces().min(rows);
        let transfer = Rc::new(transfer);
        let first = self.transfers.issued;
        for piece in 0..count {
            let rows = rows * piece / count..rows * (piece + 1) / count;
            let due = self.picker.draw_landing().unwrap_or(LAST);
            let number = self.transfers.issued;
            self.transfers.issued += 1;
            self.transfers.landings.push(Reverse((due, number)));
            self.transfers.pieces.insert(number, Piece { transfer: Rc::clone(&transfer), rows });
        }
        first..self.transfers.issued
    }

    /// Lands all pieces that are due.
    pub(crate) fn land_due_pieces(&mut self) -> Result<(), Box<Error>> {
        while self.transfers.is_due(self.picker.picks) {
            self.land_next_piece()?;
        }
        Ok(())
    }

    /// Lands the next piece, due or not; false where none is left.
    pub(crate) fn land_next_piece(&mut self) -> Result<bool, Box<Error>> {
        let Some(Reverse((_, number))) = self.transfers.landings.pop() else { return Ok(false) };
        self.land_piece(number)?;
        Ok(true)
    }

    /// Lands a piece that has not landed yet.
    fn land_piece(&mut self, number: u64) -> Result<(), Box<Error>> {
        let Some(Piece { transfer, rows }) = self.transfers.pieces.remove(&number) else { return Ok(()) };
        let row_bytes = transfer.map.row_bytes() as usize;
        let mut data = [0; MAX_ROW];
        for row in rows.clone() {
            let inside = transfer.map.row(row, transfer.coordinates);
            let inside = if transfer.barrier.is_some() { inside } else { inside.stored() };
            let part = inside.skipped..inside.skipped + inside.bytes;
            let offsets = transfer.chunks(row..row + 1).map(|chunk| (chunk - BASE) as usize);
            let chunks = data[..row_bytes].chunks_exact_mut(16);
            if transfer.barrier.is_some() {
                chunks.for_each(|chunk| chunk.fill(0));
                // SAFETY: the bytes were checked at the issue to be aligned and in a buffer, and whoever
                // issued the transfer vouched for the buffers until the end of the launch.
                unsafe { global::read_bytes(inside.address, &mut data[part]) };
                let chunks = data[..row_bytes].chunks_exact(16);
                offsets.zip(chunks).for_each(|(offset, chunk)| self.shared.set(offset, chunk));
            } else {
                offsets.zip(chunks).for_each(|(offset, chunk)| {
                    chunk.copy_from_slice(&self.shared.get::<[u8; 16]>(offset));
                });
                // SAFETY: as above, of a buffer that may be written.
                unsafe { global::write_bytes(inside.address, &data[part]) };
            }
        }
        let Some(barrier) = transfer.barrier else { return Ok(()) };
        let bytes = u64::from(rows.end - rows.start) * row_bytes as u64;
        self.as_thread(transfer.thread, |block| block.complete_bytes(barrier, bytes, transfer.location))
    }

    pub(super) fn commit_stores(&mut self) {
        let agent = self.storing_agent();
        let epoch = self.races.as_mut().map_or(0, |races| races.end_epoch(agent));
        if let Some(stores) = self.transfers.stores.get_mut(&self.current) {
            let open = std::mem::take(&mut stores.open);
            stores.groups.push_back(StoreGroup { epoch, ..open });
        }
    }

    pub(super) fn wait_for_stores(&mut self, pending: usize) -> Result<(), Box<Error>> {
        while let Some(stores) = self.transfers.stores.get_mut(&self.current)
            && stores.groups.len() > pending
            && let Some(group) = stores.groups.pop_front()
        {
            let agent = stores.agent;
            group.pieces.into_iter().try_for_each(|number| self.land_piece(number))?;
            if let Some(races) = &mut self.races {
                races.learn(std::iter::once(self.current), agent, group.epoch);
            }
        }
        Ok(())
    }

    /// Fails the launch if the running thread returns with stores that it has not waited for.
    pub(crate) fn check_stores_awaited(&mut self) {
        let Some(stores) = self.transfers.stores.get(&self.current) else { return };
        let committed = stores.groups.iter().find_map(|group| group.first);
        let (location, reason) = match (committed, stores.open.first) {
            (Some(location), _) => (location, "no tma::wait_group or tma::wait_group_read of it covers that"),
            (None, Some(location)) => (location, "no tma::commit_group of it closes that group"),
            (None, None) => return,
        };
        let transfer = self.access(AccessKind::TmaStore, location.into());
        self.fail(*self.transfer_not_awaited(transfer, reason));
    }

    /// The load that is under way although all threads have returned.
    pub(crate) fn load_left(&self) -> Option<Box<Error>> {
        let (_, piece) = self.transfers.pieces.iter().min_by_key(|(number, _)| **number)?;
        let Transfer { thread, location, .. } = *piece.transfer;
        let transfer = Access { thread: thread as u32, kind: AccessKind::TmaLoad, site: location.into() };
        Some(self.transfer_not_awaited(transfer, "the block ends while its bytes are under way"))
    }

    #[cold]
    fn transfer_not_awaited(&self, transfer: Access, reason: &'static str) -> Box<Error> {
        Box::new(Error::TransferNotAwaited {
            kernel: self.kernel.clone(),
            block: self.index,
            transfer,
            reason,
        })
    }

    #[cold]
    fn invalid_transfer(
        &self,
        kind: AccessKind,
        location: &'static Location<'static>,
        reason: String,
    ) -> Box<Error> {
        Box::new(Error::InvalidTransfer {
            kernel: self.kernel.clone(),
            block: self.index,
            access: self.access(kind, location.into()),
            reason,
        })
    }
}
