//! The registers that the warps of a block have set as their limits.

use std::panic::Location;

use crate::operation::Operation;
use crate::site::Site;
use crate::threads::{WARP, WARPGROUP, WARPGROUP_WARPS};

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

impl RegisterLimits {
    /// `warp`, of `warps` warps of the block, sets a limit.
    ///
    /// # Errors
    /// The device does not take it.
    pub(crate) fn set(
        &mut self,
        warp: usize,
        warps: usize,
        operation: Operation,
        location: &'static Location<'static>,
    ) -> Result<(), String> {
        let Operation::SetRegisters { registers, .. } = operation else { return Ok(()) };
        if !(24..=256).contains(&registers) || !registers.is_multiple_of(8) {
            return Err(format!("registers is {registers}, not a multiple of 8 from 24 to 256"));
        }
        let warpgroups = warps / WARPGROUP_WARPS;
        let index = warp / WARPGROUP_WARPS;
        if index >= warpgroups {
            return Err(format!("threads {} on are no whole warpgroup", index * WARPGROUP as usize));
        }
        self.set.resize(warpgroups, Vec::new());
        self.counts.resize(warps, 0);
        let count = self.counts[warp];
        self.counts[warp] += 1;
        if let Some(&(first, site)) = self.set[index].get(count) {
            if first == operation {
                return Ok(());
            }
            return Err(format!("another warp of the warpgroup executes {first} at {site}"));
        }
        self.set[index].push((operation, location.into()));
        match self.held() {
            Some(total) if total > REGISTERS => {
                Err(format!("the warpgroups of the block hold {total} registers, the limit is {REGISTERS}"))
            }
            _ => Ok(()),
        }
    }

    /// Registers of all warpgroups; `None` where one has not said its number.
    fn held(&self) -> Option<u32> {
        let held = self.set.iter().map(|set| match set.last() {
            Some((Operation::SetRegisters { registers, .. }, _)) => Some(registers * WARPGROUP),
            _ => None,
        });
        held.sum()
    }

    /// The warps of a warpgroup that have not set a limit which others have, and where those did.
    pub(crate) fn left(&self) -> Option<(Site, String)> {
        self.counts.iter().enumerate().find_map(|(warp, &count)| {
            let (first, site) = self.set.get(warp / WARPGROUP_WARPS)?.get(count)?;
            let thread = warp as u32 * WARP;
            let reason =
                format!("threads {thread}-{} never execute {first} of their warpgroup", thread + WARP - 1);
            Some((*site, reason))
        })
    }
}
