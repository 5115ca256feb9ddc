//! Accesses to memory: what is checked of each.

use std::panic::Location;

use super::Block;
use crate::error::{AccessKind, Error};
use crate::state::shared::BASE;

impl Block {
    /// Checks and records a read; returns its offset, or `None` where the thread has to park.
    ///
    /// A read before the write that it should have waited for looks like a read of nothing. Where
    /// races are detected, the reader is therefore held here while the others run on: if one of
    /// them writes the bytes, that is the race; if none does, nothing ever initialises them.
    pub(crate) fn shared_read<T>(
        &mut self,
        address: u32,
        location: &'static Location<'static>,
    ) -> Result<Option<usize>, Box<Error>> {
        let bytes = size_of::<T>();
        let offset = self.locate(address, bytes, AccessKind::Read, location)?;
        self.shared.bytes_read += bytes as u64;
        if let Some(races) = &mut self.races {
            let site = self.sites.intern(location);
            if let Err(conflict) = races.read(self.current, offset, bytes, site) {
                return Err(self.race(conflict, AccessKind::Read, location));
            }
        }
        if self.shared.is_written(offset, bytes) {
            return Ok(Some(offset));
        }
        let error = self.uninitialised(address, bytes, AccessKind::Read, location);
        self.suspect(error)?;
        Ok(None)
    }

    /// Fails for a read of bytes that nothing has written, at once or, where races are detected, at the end.
    pub(super) fn suspect(&mut self, error: Box<Error>) -> Result<(), Box<Error>> {
        if self.races.is_none() {
            return Err(error);
        }
        self.suspicion.get_or_insert(error);
        Ok(())
    }

    /// Checks and records a write; returns its offset.
    pub(crate) fn shared_write<T>(
        &mut self,
        address: u32,
        location: &'static Location<'static>,
    ) -> Result<usize, Box<Error>> {
        let bytes = size_of::<T>();
        let offset = self.locate(address, bytes, AccessKind::Write, location)?;
        self.shared.mark_written(offset, bytes);
        self.shared.bytes_written += bytes as u64;
        if let Some(races) = &mut self.races {
            let site = self.sites.intern(location);
            if let Err(conflict) = races.write(self.current, offset, bytes, site) {
                return Err(self.race(conflict, AccessKind::Write, location));
            }
        }
        Ok(offset)
    }

    /// The offset of an access that is in bounds and aligned.
    #[inline]
    pub(super) fn locate(
        &self,
        address: u32,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<usize, Box<Error>> {
        // An address below the base wraps round to an offset past any end.
        let offset = address.wrapping_sub(BASE) as usize;
        if offset + bytes > self.shared.size() {
            return Err(self.out_of_bounds(address, bytes, kind, location));
        }
        if !offset.is_multiple_of(bytes) {
            return Err(self.misaligned(address, bytes, kind, location));
        }
        Ok(offset)
    }

    /// The bytes that an operation of the async proxy touches are inside shared memory.
    pub(super) fn check_span(
        &self,
        address: u32,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let offset = address.wrapping_sub(BASE) as usize;
        if offset + bytes > self.shared.size() {
            return Err(self.out_of_bounds(address, bytes, kind, location));
        }
        Ok(())
    }

    /// Checks and records an ordinary access, which is a multiple of its size.
    #[inline]
    pub(crate) fn access_global(
        &mut self,
        address: u64,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        self.check_global(address, bytes, bytes, kind, location)?;
        self.touch_global(address, bytes, kind, location)
    }

    /// Checks and counts an access, which may be of no bytes: then any aligned address will do.
    pub(crate) fn check_global(
        &mut self,
        address: u64,
        bytes: usize,
        alignment: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let size = bytes as u64;
        if bytes > 0 && !self.global.permits(address, size, kind) {
            return Err(self.global_out_of_bounds(address, bytes, kind, location));
        }
        if !address.is_multiple_of(alignment as u64) {
            return Err(self.global_misaligned(address, bytes, alignment, kind, location));
        }
        match kind {
            AccessKind::Read => self.global.bytes_read += size,
            _ => self.global.bytes_written += size,
        }
        Ok(())
    }
}
