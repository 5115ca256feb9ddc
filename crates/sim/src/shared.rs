//! A block's shared memory, by 32-bit byte address (PTX ISA, `ld.shared`, `st.shared`).
//!
//! Each access is checked: inside the block's shared memory, a multiple of its size, written
//! before it is read, and ordered against the accesses of other threads.

use std::panic::Location;

use bytemuck::Pod;

use crate::block::{Block, Role};
use crate::context;
use crate::error::{Access, AccessKind, Error, Wait};
use crate::race::{Conflict, Races};

/// Address of the first byte; not 0, so that a forgotten base address is out of bounds.
pub(crate) const BASE: u32 = 1024;

/// Most shared memory that a block can have: 227 KiB, as on compute capability 9.0.
pub(crate) const MAX_BYTES: u32 = 227 * 1024;

/// The bytes of shared memory, and which of them this block has written.
pub(crate) struct Shared {
    bytes: Vec<u8>,
    /// One bit for each byte.
    written: Vec<u64>,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

impl Shared {
    pub(crate) fn new(bytes: u32) -> Self {
        Self {
            bytes: vec![0; bytes as usize],
            written: vec![0; bytes.div_ceil(64) as usize],
            bytes_read: 0,
            bytes_written: 0,
        }
    }

    /// Shared memory begins undefined for each block.
    pub(crate) fn begin_block(&mut self) {
        self.written.fill(0);
    }

    /// The bits of an aligned access of at most 16 bytes, which never cross a word of `written`.
    #[inline]
    fn bits(offset: usize, bytes: usize) -> u64 {
        ((1 << bytes) - 1) << (offset % 64)
    }

    /// Writes `bytes` at `offset`, aligned to their number.
    pub(crate) fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.written[offset / 64] |= Self::bits(offset, bytes.len());
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The value at `offset`.
    #[inline]
    pub(crate) fn get<T: Pod>(&self, offset: usize) -> T {
        bytemuck::pod_read_unaligned(&self.bytes[offset..offset + size_of::<T>()])
    }

    /// As if nothing had written the bytes at `offset`.
    pub(crate) fn forget(&mut self, offset: usize, bytes: usize) {
        self.written[offset / 64] &= !Self::bits(offset, bytes);
    }

    /// Whether the `bytes` bytes at `offset`, at most 16 at a multiple of 16, have been written.
    #[inline]
    pub(crate) fn is_written(&self, offset: usize, bytes: usize) -> bool {
        let bits = Self::bits(offset, bytes);
        self.written[offset / 64] & bits == bits
    }
}

/// Address of the first byte of shared memory, aligned to 1,024 bytes.
#[inline]
pub fn base() -> u32 {
    BASE
}

/// Loads a value of 1, 2, 4, 8 or 16 bytes (`ld.shared`). `address` is a multiple of its size,
/// whatever its alignment in Rust: a vector of four fp32 takes a multiple of 16.
///
/// # Panics
/// Outside a kernel.
#[inline]
#[track_caller]
pub fn load<T: Pod>(address: u32) -> T {
    const { assert_access_size(size_of::<T>()) };
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| {
        let read = block.shared_read::<T>(address, location)?;
        Ok(read.map(|offset| block.shared.get(offset)))
    }))
    .unwrap_or_else(|| context::park())
}

/// Stores a value of 1, 2, 4, 8 or 16 bytes (`st.shared`); `address` as for [`load`].
///
/// # Panics
/// Outside a kernel.
#[inline]
#[track_caller]
pub fn store<T: Pod>(address: u32, value: T) {
    const { assert_access_size(size_of::<T>()) };
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    context::unwrap_or_fail(current.with(|block| {
        let offset = block.shared_write::<T>(address, location)?;
        let bytes = &mut block.shared.bytes[offset..offset + size_of::<T>()];
        bytes.copy_from_slice(bytemuck::bytes_of(&value));
        Ok(())
    }));
}

/// A type of another size is a mistake in the instruction wrapper: it fails to compile.
pub(crate) const fn assert_access_size(bytes: usize) {
    assert!(matches!(bytes, 1 | 2 | 4 | 8 | 16), "an access moves 1, 2, 4, 8 or 16 bytes");
}

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
    pub(crate) fn suspect(&mut self, error: Box<Error>) -> Result<(), Box<Error>> {
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
        self.shared.written[offset / 64] |= Shared::bits(offset, bytes);
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
    pub(crate) fn locate(
        &self,
        address: u32,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<usize, Box<Error>> {
        // An address below the base wraps round to an offset past any end.
        let offset = address.wrapping_sub(BASE) as usize;
        if offset + bytes > self.shared.bytes.len() {
            return Err(self.out_of_bounds(address, bytes, kind, location));
        }
        if !offset.is_multiple_of(bytes) {
            return Err(self.misaligned(address, bytes, kind, location));
        }
        Ok(offset)
    }

    /// The bytes that an operation of the async proxy touches are inside shared memory.
    pub(crate) fn check_span(
        &self,
        address: u32,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let offset = address.wrapping_sub(BASE) as usize;
        if offset + bytes > self.shared.bytes.len() {
            return Err(self.out_of_bounds(address, bytes, kind, location));
        }
        Ok(())
    }

    #[cold]
    fn out_of_bounds(
        &self,
        address: u32,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Box<Error> {
        Box::new(Error::SharedOutOfBounds {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            bytes: bytes as u32,
            base: BASE,
            end: BASE + self.shared.bytes.len() as u32,
            access: self.access(kind, location.into()),
        })
    }

    #[cold]
    fn misaligned(
        &self,
        address: u32,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Box<Error> {
        Box::new(Error::SharedMisaligned {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            offset: address - BASE,
            bytes: bytes as u32,
            access: self.access(kind, location.into()),
        })
    }

    #[cold]
    pub(crate) fn uninitialised(
        &self,
        address: u32,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Box<Error> {
        if let Some(error) = self.mbarrier_accessed((address - BASE) as usize, kind, location) {
            return error;
        }
        Box::new(Error::SharedUninitialised {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            offset: address - BASE,
            bytes: bytes as u32,
            access: self.access(kind, location.into()),
        })
    }

    #[cold]
    pub(crate) fn race(
        &self,
        conflict: Conflict,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Box<Error> {
        let Conflict { offset, thread, site, .. } = conflict;
        if Races::is_reserved(&conflict)
            && let Some(error) = self.mbarrier_accessed(offset, kind, location)
        {
            return error;
        }
        let address = BASE + offset as u32;
        let second = self.access(kind, location.into());
        let kind = self.sites.operation(site).unwrap_or(conflict.kind);
        let role = thread.checked_sub(self.threads.len()).and_then(|agent| self.roles.get(agent));
        let thread = role.map_or(thread, |role| role.thread()) as u32;
        let first = Access { thread, kind, site: self.sites.get(site) };
        if conflict.in_flight {
            return self.copy_in_flight(address, offset, second, first);
        }
        let (kernel, block, offset) = (self.kernel.clone(), self.index, offset as u32);
        Box::new(match role {
            Some(&role) => Error::NotAwaited {
                kernel,
                block,
                address,
                offset,
                access: second,
                operation: first,
                wait: self.missing_wait(role),
            },
            None if conflict.unfenced => {
                Error::MissingProxyFence { kernel, block, address, offset, access: second, write: first }
            }
            None => Error::Race { kernel, block, address, offset, first, second },
        })
    }

    /// The wait that an operation of `role` asks for.
    fn missing_wait(&self, role: Role) -> Wait {
        match role {
            Role::Loads { mbarrier, .. } => Wait::Mbarrier { address: self.mbarriers.address(mbarrier) },
            Role::Stores { .. } => Wait::Stores,
            Role::Products { .. } => Wait::Products,
        }
    }
}
