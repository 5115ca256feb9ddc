//! What a block does to memory that other blocks of its launch access too.

use std::ops::Range;
use std::panic::Location;

use super::Block;
use crate::between::{Conflict, Touch};
use crate::error::{Access, AccessKind, Error};
use crate::state::transfers::Transfer;

impl Block {
    /// Records the running thread's access to bytes of a buffer; `kind` says what it does there.
    #[inline]
    pub(crate) fn touch_global(
        &mut self,
        address: u64,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let Some(between) = &self.between else { return Ok(()) };
        if bytes == 0 || !self.global.is_writable(address) {
            return Ok(());
        }
        if !between.is_watched() {
            if self.early == 0 {
                return Ok(());
            }
            self.early -= 1;
        }
        let (block, epoch) = (self.past.block(), self.past.epoch());
        let touch = Touch { block, epoch, thread: self.current as u16, kind, location };
        match between.shadow.touch(&self.past, (address, bytes), touch) {
            Ok(()) => Ok(()),
            Err(conflict) => between.fail(self.race_between_blocks(conflict, kind, location)),
        }
    }

    /// As [`Block::touch_global`], of an access that began in `epoch` and has gone on until now.
    pub(super) fn touch_until_now(
        &mut self,
        epoch: u32,
        address: u64,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        // Whoever knows of its epoch knows of all of it, if that has not ended.
        if epoch == self.past.epoch() {
            return Ok(());
        }
        self.touch_global(address, bytes, kind, location)
    }

    /// As [`Block::touch_until_now`], of rows of a transfer.
    pub(super) fn touch_rows_until_now(
        &mut self,
        transfer: &Transfer,
        rows: Range<u32>,
    ) -> Result<(), Box<Error>> {
        let Transfer { map, coordinates, epoch, location, .. } = *transfer;
        if epoch == self.past.epoch() {
            return Ok(());
        }
        self.as_thread(transfer.thread, |block| {
            rows.map(|row| map.row(row, coordinates)).try_for_each(|row| match transfer.barrier {
                Some(_) => {
                    block.touch_until_now(epoch, row.address, row.bytes, AccessKind::TmaLoad, location)
                }
                None => {
                    let bytes = row.stored().bytes;
                    block.touch_until_now(epoch, row.address, bytes, AccessKind::TmaStore, location)
                }
            })
        })
    }

    /// The running thread has waited until all but the `pending` youngest of its groups are written.
    pub(crate) fn end_groups(&mut self, pending: usize) -> Result<(), Box<Error>> {
        while let Some(stores) = self.transfers.stores_mut(self.current)
            && let Some(transfers) = stores.take_unwritten(pending)
        {
            for transfer in transfers {
                self.touch_rows_until_now(&transfer, 0..transfer.map.rows())?;
            }
        }
        Ok(())
    }

    /// What is wrong with stores that no thread has waited for to be written: they may be until now, the end
    /// of the block.
    pub(crate) fn end_stores(&mut self) -> Option<Error> {
        if !self.past.has_ended_epochs() {
            return None;
        }
        let mut threads = 0..self.threads.len();
        let ended = threads.try_for_each(|thread| self.as_thread(thread, |block| block.end_groups(0)));
        ended.err().map(|error| *error)
    }

    /// From now on accesses of all blocks of the launch are recorded: they may learn of each other.
    pub(crate) fn watch(&self) -> Result<(), Box<Error>> {
        self.between.as_ref().map_or(Ok(()), |between| between.watch())
    }

    /// Adds to a word by `add`, which gives what it was before.
    pub(crate) fn add_global(
        &mut self,
        (address, value): (u64, u32),
        releases: bool,
        location: &'static Location<'static>,
        add: impl FnOnce() -> u32,
    ) -> Result<u32, Box<Error>> {
        self.touch_global(address, 4, AccessKind::Add, location)?;
        Ok(match &self.between {
            Some(between) => between.counters.add(&mut self.past, (address, value), releases, add),
            None => add(),
        })
    }

    /// The running thread has waited for a word.
    pub(crate) fn end_global_wait(
        &mut self,
        address: u64,
        value: u32,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        if let Some(between) = &self.between {
            between.counters.acquire(&mut self.past, address, value);
        }
        self.touch_global(address, 4, AccessKind::Await, location)
    }

    #[cold]
    fn race_between_blocks(
        &self,
        Conflict { address, first }: Conflict,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Box<Error> {
        let (buffer, offset) = self.global.place(address);
        let Touch { block: other, thread, .. } = first;
        let before = self.between.as_ref().map_or(0, |between| between.before());
        Box::new(Error::RaceBetweenBlocks {
            kernel: self.kernel.clone(),
            buffer: buffer.into(),
            offset,
            block: self.index,
            other: other.checked_sub(before).unwrap_or(other),
            of_launch: if other < before { " of a launch beside it" } else { "" },
            first: Box::new(Access { thread: thread.into(), kind: first.kind, site: first.location.into() }),
            second: Box::new(self.access(kind, location.into())),
        })
    }
}
