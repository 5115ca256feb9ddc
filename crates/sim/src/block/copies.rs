//! Asynchronous copies: issue, landing, completion.

use std::panic::Location;

use super::Block;
use crate::error::{AccessKind, Error};
use crate::state::copies::Copy;
use crate::state::global;

/// Most bytes that one copy writes.
const MAX_BYTES: usize = 16;

impl Block {
    /// Checks a copy, records it as in flight, and draws when it lands.
    pub(crate) fn issue_copy(
        &mut self,
        shared: u32,
        source: u64,
        size: usize,
        bytes: u32,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        if bytes as usize > size {
            return Err(self.invalid_copy(bytes, size, location));
        }
        let bytes = bytes as usize;
        self.check_global(source, bytes, size, AccessKind::Read, location)?;
        self.touch_global(source, bytes, AccessKind::Copy, location)?;
        let offset = self.locate(shared, size, AccessKind::Copy, location)?;
        if let Some(races) = &mut self.races {
            let site = self.sites.intern_as(location, AccessKind::Copy);
            if let Err(conflict) = races.copy(self.current, offset, size, site) {
                return Err(self.race(conflict, AccessKind::Copy, location));
            }
        }
        self.shared.bytes_written += size as u64;
        let epoch = self.past.epoch();
        let copy = Copy { offset, size, source, bytes, landed: false, epoch, location };
        let due = self.picker.draw_landing();
        self.copies.issue(self.current, copy, due);
        if due.is_some() {
            self.land_due_copies();
        }
        Ok(())
    }

    /// Writes the bytes of all copies that are due.
    pub(super) fn land_due_copies(&mut self) {
        while let Some(copy) = self.copies.land_due(self.picker.picks) {
            self.land(&copy);
        }
    }

    fn land(&mut self, copy: &Copy) {
        let mut data = [0; MAX_BYTES];
        // SAFETY: the bytes were checked at the issue to be aligned and in a buffer, and whoever
        // issued the copy vouched for the buffers until the end of the launch.
        unsafe { global::read_bytes(copy.source, &mut data[..copy.bytes]) };
        self.shared.set(copy.offset, &data[..copy.size]);
    }

    /// The running thread waits until at most the `pending` youngest of its groups are in flight.
    pub(crate) fn wait_for_copies(&mut self, pending: usize) -> Result<(), Box<Error>> {
        while self.copies.groups(self.current) > pending {
            self.complete_group()?;
        }
        Ok(())
    }

    /// The running thread has waited for its oldest group.
    fn complete_group(&mut self) -> Result<(), Box<Error>> {
        let thread = self.current;
        for _ in 0..self.copies.take_group(thread) {
            let Some(copy) = self.copies.take_copy(thread) else { break };
            if !copy.landed {
                self.land(&copy);
            }
            if let Some(races) = &mut self.races {
                races.complete_copy(thread, copy.offset, copy.size);
            }
            self.touch_until_now(copy.epoch, copy.source, copy.bytes, AccessKind::Copy, copy.location)?;
        }
        Ok(())
    }

    /// Fails the launch if the running thread returns with copies in flight.
    pub(super) fn check_copies_awaited(&mut self) {
        let Some((location, committed)) = self.copies.oldest(self.current) else { return };
        let error = Error::CopyNotAwaited {
            kernel: self.kernel.clone(),
            block: self.index,
            copy: self.access(AccessKind::Copy, location.into()),
            committed,
        };
        self.fail(error);
    }

    #[cold]
    fn invalid_copy(&self, bytes: u32, size: usize, location: &'static Location<'static>) -> Box<Error> {
        Box::new(Error::InvalidCopy {
            kernel: self.kernel.clone(),
            block: self.index,
            bytes,
            limit: size as u32,
            access: self.access(AccessKind::Copy, location.into()),
        })
    }
}
