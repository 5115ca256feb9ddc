//! Registers that warpgroups hand to one another (PTX ISA, `setmaxnreg`, from sm_90a on).
//!
//! A kernel starts with the same number for each thread, which its launch bounds decide. A
//! warpgroup that only copies gives most of them away, and those that multiply take them.

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32"]
    fn setmaxnreg_dec(registers: u32);
    #[link_name = "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"]
    fn setmaxnreg_inc(registers: u32);
}

/// Gives up all registers of this thread beyond `REGISTERS` (`setmaxnreg.dec.sync.aligned.u32`).
///
/// # Safety
/// All threads of the warpgroup execute this call together; they have at least as many registers.
#[inline(always)]
#[track_caller]
pub unsafe fn decrease<const REGISTERS: u32>() {
    const { assert!(in_range(REGISTERS)) };
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { setmaxnreg_dec(const { REGISTERS }) }
        }
        _ => { twin!(fa_sim::setmaxnreg::decrease(REGISTERS)) }
    }
}

/// Waits until the block has registers left for `REGISTERS` for this thread, and takes them
/// (`setmaxnreg.inc.sync.aligned.u32`). What was in the others stays there.
///
/// # Safety
/// All threads of the warpgroup execute this call together; they have at most as many registers, and other
/// warpgroups give up as many as are asked for.
#[inline(always)]
#[track_caller]
pub unsafe fn increase<const REGISTERS: u32>() {
    const { assert!(in_range(REGISTERS)) };
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { setmaxnreg_inc(const { REGISTERS }) }
        }
        _ => { twin!(fa_sim::setmaxnreg::increase(REGISTERS)) }
    }
}

/// The instruction's range.
#[inline]
const fn in_range(registers: u32) -> bool {
    registers >= 24 && registers <= 256 && registers.is_multiple_of(8)
}
