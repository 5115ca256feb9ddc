//! Tensor transfers: issue, landing, completion.

use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;

use super::{Block, Role};
use crate::error::{Access, AccessKind, Error};
use crate::state::global;
use crate::state::shared::BASE;
use crate::state::transfers::{Piece, Transfer};
use crate::tensor_map::{MAX_RANK, Swizzle, TensorMap};

/// Most bytes of a row: 256 elements of 8 bytes.
const MAX_ROW: usize = 2048;

/// The map of a tensor of consecutive bytes that is one box, or why there is none.
fn one_box(address: u64, bytes: u32) -> Result<[u64; 16], String> {
    const ELEMENT: u32 = 8;
    if !bytes.is_multiple_of(16) {
        return Err(format!("{bytes} bytes, not a multiple of 16"));
    }
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
    map.encode()
}

impl Block {
    pub(crate) fn issue_load(
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
        self.begin_transfer(&Rc::new(transfer));
        self.land_due_pieces()
    }

    /// Whether the store has begun; if not, the thread has to park as in `Block::shared_read`.
    pub(crate) fn issue_store(
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
        if let Some(address) = transfer.first_unwritten(&self.shared) {
            let error = self.uninitialised(address, 16, AccessKind::TmaStore, location);
            return self.suspect(error).map(|()| false);
        }
        self.shared.bytes_read += u64::from(rows) * u64::from(transfer.map.row_bytes());
        let transfer = Rc::new(transfer);
        let numbers = self.begin_transfer(&transfer);
        if let Some(stores) = self.transfers.stores_mut(self.current) {
            stores.issue(numbers, transfer);
        }
        self.land_due_pieces().map(|()| true)
    }

    /// A load of consecutive bytes is one of a tensor that is one box.
    pub(crate) fn issue_load_of_bytes(
        &mut self,
        shared: u32,
        (address, bytes): (u64, u32),
        barrier: u32,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        match one_box(address, bytes) {
            Ok(map) => self.issue_load(shared, map, barrier, &[0], location),
            Err(reason) => Err(self.invalid_transfer(AccessKind::TmaLoad, location, reason)),
        }
    }

    /// As [`Block::issue_load_of_bytes`], of a store.
    pub(crate) fn issue_store_of_bytes(
        &mut self,
        address: u64,
        shared: u32,
        bytes: u32,
        location: &'static Location<'static>,
    ) -> Result<bool, Box<Error>> {
        match one_box(address, bytes) {
            Ok(map) => self.issue_store(map, shared, &[0], location),
            Err(reason) => Err(self.invalid_transfer(AccessKind::TmaStore, location, reason)),
        }
    }

    /// The author of the running thread's stores.
    fn storing_agent(&mut self) -> usize {
        if let Some(stores) = self.transfers.stores(self.current) {
            return stores.agent;
        }
        let mut agent = 0;
        if let Some(races) = &mut self.races {
            agent = races.new_agent();
            self.roles.push(Role::Stores { thread: self.current });
        }
        self.transfers.begin_stores(self.current, agent);
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
            let (bytes, access) = match kind {
                AccessKind::TmaLoad => (row.bytes, AccessKind::Read),
                _ => (row.stored().bytes, AccessKind::Write),
            };
            self.check_global(row.address, bytes, 16, access, location)?;
            self.touch_global(row.address, bytes, kind, location)?;
        }
        let (thread, epoch) = (self.current, self.past.epoch());
        Ok(Transfer { map, shared, coordinates: all, barrier: None, thread, epoch, location })
    }

    /// Splits a transfer into pieces and draws when each lands; returns their numbers.
    fn begin_transfer(&mut self, transfer: &Rc<Transfer>) -> Range<u64> {
        let rows = transfer.map.rows();
        let count = self.picker.draw_pieces().min(rows);
        let first = self.transfers.issued();
        for piece in 0..count {
            let rows = rows * piece / count..rows * (piece + 1) / count;
            let due = self.picker.draw_landing();
            self.transfers.begin(Piece { transfer: Rc::clone(transfer), rows }, due);
        }
        first..self.transfers.issued()
    }

    /// Lands all pieces that are due.
    pub(super) fn land_due_pieces(&mut self) -> Result<(), Box<Error>> {
        while self.transfers.is_due(self.picker.picks) {
            self.land_next_piece()?;
        }
        Ok(())
    }

    /// Lands the next piece, due or not; false where none is left.
    pub(super) fn land_next_piece(&mut self) -> Result<bool, Box<Error>> {
        let Some(number) = self.transfers.take_landing() else { return Ok(false) };
        self.land_piece(number)?;
        Ok(true)
    }

    /// Lands a piece that has not landed yet.
    fn land_piece(&mut self, number: u64) -> Result<(), Box<Error>> {
        let Some(Piece { transfer, rows }) = self.transfers.take_piece(number) else { return Ok(()) };
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
        self.touch_rows_until_now(&transfer, rows.clone())?;
        let bytes = u64::from(rows.end - rows.start) * row_bytes as u64;
        self.as_thread(transfer.thread, |block| block.complete_bytes(barrier, bytes, transfer.location))
    }

    pub(crate) fn commit_stores(&mut self) {
        let agent = self.storing_agent();
        let epoch = self.races.as_mut().map_or(0, |races| races.end_epoch(agent));
        if let Some(stores) = self.transfers.stores_mut(self.current) {
            stores.commit(epoch);
        }
    }

    pub(crate) fn wait_for_stores(&mut self, pending: usize) -> Result<(), Box<Error>> {
        while let Some(stores) = self.transfers.stores_mut(self.current)
            && let Some(group) = stores.take_group(pending)
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
    pub(super) fn check_stores_awaited(&mut self) {
        let Some(stores) = self.transfers.stores(self.current) else { return };
        let Some((location, reason)) = stores.left() else { return };
        let transfer = self.access(AccessKind::TmaStore, location.into());
        self.fail(*self.transfer_not_awaited(transfer, reason));
    }

    /// The load that is under way although all threads have returned.
    pub(super) fn load_left(&self) -> Option<Box<Error>> {
        let &Transfer { thread, location, .. } = self.transfers.oldest()?;
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
