//! Registers that warps give up and take (PTX ISA, `setmaxnreg`).
//!
//! All warps of a warpgroup execute the same ones in the same order, and what the warpgroups of a block hold
//! after that fits in the registers of a multiprocessor. How many a kernel starts with is the assembler's
//! choice, which the simulator does not know: the sum is checked once every warpgroup has said a number, and
//! that no value is used that a `decrease` has given up is the assembler's to see to.

use std::panic::Location;

use crate::operation::Operation;
use crate::warp;

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
