//! Registers that warps give up and take (PTX ISA, `setmaxnreg`).
//!
//! All warps of a warpgroup execute the same ones in the same order, and what the warpgroups of a block hold
//! after that fits in the registers of a multiprocessor. How many a kernel starts with is the assembler's
//! choice, which the simulator does not know: the sum is checked once every warpgroup has said a number, and
//! that no value is used that a `decrease` has given up is the assembler's to see to.

use std::panic::Location;

use crate::block::Block;
use crate::error::Error;
use crate::operation::Operation;
use crate::site::Site;
use crate::threads::WARP;
use crate::threads::{WARPGROUP, WARPGROUP_WARPS};
use crate::warp;

/// Registers of a multiprocessor (CUDA C++ Programming Guide, compute capabilities).
const REGISTERS: u32 = 65_536;

/// What the warps of a block have set.
#[derive(Default)]
pub(crate) struct RegisterLimits {
    /// By warpgroup: the limits in order, with the place of the first warp.
    set: Vec<Vec<(Operation, Site)>>,
    /// By warp: how many of them it has set.
    counts: Vec<usize>,
}

/// Gives up this warp's registers past `registers` a thread, a multiple of 8 from 24 to 256
/// (`setmaxnreg.dec.sync.aligned.u32`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn decrease(registers: u32) {
    warp::meet(Operation::SetRegisters { registers, increase: false }, [], Location::caller());
}

/// Waits until there are `registers` registers for each thread of this warp, and takes them
/// (`setmaxnreg.inc.sync.aligned.u32`); numbers as for [`decrease`].
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn increase(registers: u32) {
    warp::meet(Operation::SetRegisters { registers, increase: true }, [], Location::caller());
}

impl Block {
    /// All lanes of `warp` set the limit.
    pub(crate) fn set_registers(
        &mut self,
        warp: usize,
        operation: Operation,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let Operation::SetRegisters { registers, .. } = operation else { return Ok(()) };
        if !(24..=256).contains(&registers) || !registers.is_multiple_of(8) {
            let reason = format!("registers is {registers}, not a multiple of 8 from 24 to 256");
            return Err(self.registers_error(location.into(), reason));
        }
        let warpgroups = self.threads.len() / WARPGROUP as usize;
        let index = warp / WARPGROUP_WARPS;
        if index >= warpgroups {
            let reason = format!("threads {} on are no whole warpgroup", index * WARPGROUP as usize);
            return Err(self.registers_error(location.into(), reason));
        }
        let limits = &mut self.register_limits;
        limits.set.resize(warpgroups, Vec::new());
        limits.counts.resize(self.warps.len(), 0);
        let count = limits.counts[warp];
        limits.counts[warp] += 1;
        if let Some(&(first, site)) = limits.set[index].get(count) {
            if first == operation {
                return Ok(());
            }
            let reason = format!("another warp of the warpgroup executes {first} at {site}");
            return Err(self.registers_error(location.into(), reason));
        }
        limits.set[index].push((operation, location.into()));
        let held = limits.set.iter().map(|set| match set.last() {
            Some((Operation::SetRegisters { registers, .. }, _)) => Some(registers * WARPGROUP),
            _ => None,
        });
        match held.sum::<Option<u32>>() {
            Some(total) if total > REGISTERS => {
                let reason =
                    format!("the warpgroups of the block hold {total} registers, the limit is {REGISTERS}");
                Err(self.registers_error(location.into(), reason))
            }
            _ => Ok(()),
        }
    }

    /// The warps of a warpgroup that have not all set the same limits when all threads have returned.
    pub(crate) fn registers_left(&self) -> Option<Box<Error>> {
        let limits = &self.register_limits;
        let lacks = |(warp, &count): (usize, &usize)| {
            let (first, site) = limits.set.get(warp / WARPGROUP_WARPS)?.get(count)?;
            let thread = warp as u32 * WARP;
            Some(format!("threads {thread}-{} never execute {first} of their warpgroup", thread + WARP - 1))
                .map(|reason| self.registers_error(*site, reason))
        };
        limits.counts.iter().enumerate().find_map(lacks)
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
