//! Limits of registers.

use std::panic::Location;

use super::Block;
use crate::error::Error;
use crate::operation::Operation;
use crate::site::Site;

impl Block {
    /// All lanes of `warp` set the limit.
    pub(super) fn set_registers(
        &mut self,
        warp: usize,
        operation: Operation,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let set = self.register_limits.set(warp, self.warps.len(), operation, location);
        set.map_err(|reason| self.registers_error(location.into(), reason))
    }

    /// The warps of a warpgroup that have not all set the same limits when all threads have returned.
    pub(super) fn registers_left(&self) -> Option<Box<Error>> {
        self.register_limits.left().map(|(site, reason)| self.registers_error(site, reason))
    }

    #[cold]
    fn registers_error(&self, site: Site, reason: String) -> Box<Error> {
        Box::new(Error::InvalidRegisters {
            kernel: self.kernel.clone(),
            block: self.index,
            thread: self.current as u32,
            site,
            reason,
        })
    }
}
