//! What is wrong with an access, as an error.

use std::panic::Location;

use super::{Block, Role};
use crate::error::{Access, AccessKind, Error, Wait};
use crate::race::{Conflict, Races};
use crate::site::Site;
use crate::state::shared::BASE;

impl Block {
    /// The running thread's access, for a message.
    pub(super) fn access(&self, kind: AccessKind, site: Site) -> Access {
        Access { thread: self.current as u32, kind, site }
    }

    #[cold]
    pub(super) fn out_of_bounds(
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
            end: BASE + self.shared.size() as u32,
            access: self.access(kind, location.into()),
        })
    }

    #[cold]
    pub(super) fn misaligned(
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
    pub(super) fn uninitialised(
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
    pub(super) fn race(
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
            Role::Loads { mbarrier, .. } => Wait::Mbarrier { address: self.mbarriers.get(mbarrier).address },
            Role::Stores { .. } => Wait::Stores,
            Role::Products { .. } => Wait::Products,
        }
    }

    /// An access to `offset` of shared memory, which `copy` is still writing.
    #[cold]
    fn copy_in_flight(&self, address: u32, offset: usize, access: Access, copy: Access) -> Box<Error> {
        Box::new(Error::CopyInFlight {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            offset: offset as u32,
            access,
            copy,
            committed: self.copies.is_committed(copy.thread as usize, offset),
        })
    }

    /// An access to the bytes of a barrier as memory.
    #[cold]
    pub(super) fn mbarrier_accessed(
        &self,
        offset: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Option<Box<Error>> {
        let (address, site) = self.mbarriers.covering(offset)?;
        let access = self.access(kind, location.into());
        let reason = format!("{access} bytes of it as memory, and it is initialised at {site}");
        Some(self.mbarrier_error(address, location, reason))
    }

    #[cold]
    pub(super) fn mbarrier_error(
        &self,
        address: u32,
        location: &'static Location<'static>,
        reason: String,
    ) -> Box<Error> {
        Box::new(Error::Mbarrier {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            offset: address.wrapping_sub(BASE),
            thread: self.current as u32,
            site: location.into(),
            reason,
        })
    }

    #[cold]
    pub(super) fn global_out_of_bounds(
        &self,
        address: u64,
        bytes: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Box<Error> {
        Box::new(Error::GlobalOutOfBounds {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            bytes: bytes as u32,
            nearest: self.global.nearest(address, bytes as u64),
            access: self.access(kind, location.into()),
        })
    }

    #[cold]
    pub(super) fn global_misaligned(
        &self,
        address: u64,
        bytes: usize,
        alignment: usize,
        kind: AccessKind,
        location: &'static Location<'static>,
    ) -> Box<Error> {
        Box::new(Error::GlobalMisaligned {
            kernel: self.kernel.clone(),
            block: self.index,
            address,
            bytes: bytes as u32,
            alignment: alignment as u32,
            access: self.access(kind, location.into()),
        })
    }
}
