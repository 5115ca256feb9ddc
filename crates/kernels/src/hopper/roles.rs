//! Who does what in a block: the last warpgroup copies, and those before it multiply.

use crate::ptx::{barrier, index, setmaxnreg, warp, wgmma};

/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;

/// Warps of a warpgroup.
pub const WARPS: u32 = WARPGROUP / 32;

/// Rows of a warpgroup's products.
pub const WARPGROUP_ROWS: u32 = 64;

/// Rows of a warp's part of them.
pub const WARP_ROWS: u32 = WARPGROUP_ROWS / WARPS;

/// The threads of a warpgroup, which go on together: a claim that is made once, and what follows from it.
#[derive(Clone, Copy)]
pub struct Warpgroup(());

impl Warpgroup {
    /// This thread's warpgroup.
    ///
    /// # Safety
    /// All threads of the warpgroup make one, and call each of its methods together.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(())
    }

    /// Its index in the block, in a register that the compiler knows to be uniform; each call reads it again.
    #[inline(always)]
    pub fn index(self) -> u32 {
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::broadcast(index::reread_thread() / WARPGROUP, 0) }
    }

    /// Waits until all lanes of each warp are here.
    #[inline(always)]
    #[track_caller]
    pub fn sync_warps(self) {
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync() }
    }

    /// Waits at a hardware barrier until all warps are here.
    ///
    /// # Safety
    /// No other threads use the barrier meanwhile.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn sync(self, barrier: u32) {
        // SAFETY: all threads of the warpgroup are here, and no others come.
        unsafe { barrier::sync(barrier, WARPGROUP) }
    }

    /// Whether `value` holds in any lane of the warp.
    #[inline(always)]
    #[track_caller]
    pub fn any_of_warp(self, value: bool) -> bool {
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::vote_any(value) }
    }

    /// Orders accesses to registers before the products that follow ([`wgmma::fence`]).
    #[inline(always)]
    #[track_caller]
    pub fn fence_products(self) {
        // SAFETY: all threads of the warpgroup are here.
        unsafe { wgmma::fence() }
    }

    /// Closes a group of the products that were begun ([`wgmma::commit_group`]).
    #[inline(always)]
    #[track_caller]
    pub fn commit_products(self) {
        // SAFETY: all threads of the warpgroup are here.
        unsafe { wgmma::commit_group() }
    }
}

/// Whether this is its warp's first lane.
#[inline(always)]
pub fn leads_warp() -> bool {
    index::thread().is_multiple_of(32)
}

/// Leaves this thread so many registers (24, 32, 40, 56 or 64), and the others to warpgroups that multiply.
///
/// # Safety
/// All threads of the warpgroup call this together, with a number up to what they have.
#[inline(always)]
#[track_caller]
pub unsafe fn give_registers(left: u32) {
    // SAFETY: the threads are together, and have at least as many.
    unsafe {
        match left {
            24 => setmaxnreg::decrease::<24>(),
            32 => setmaxnreg::decrease::<32>(),
            40 => setmaxnreg::decrease::<40>(),
            56 => setmaxnreg::decrease::<56>(),
            64 => setmaxnreg::decrease::<64>(),
            _ => unreachable!("no tile asks for so many registers"),
        }
    }
}

/// Takes registers, up to so many for this thread (120, 152, 160, 208, 216, 224, 232 or 240), that warpgroups
/// which need fewer have given.
///
/// # Safety
/// All threads of the warpgroup call this together. The block starts with as many registers as all of its
/// threads have after [`give_registers`] and this.
#[inline(always)]
#[track_caller]
pub unsafe fn take_registers(wanted: u32) {
    // SAFETY: the threads are together, and the registers are given.
    unsafe {
        match wanted {
            120 => setmaxnreg::increase::<120>(),
            152 => setmaxnreg::increase::<152>(),
            160 => setmaxnreg::increase::<160>(),
            208 => setmaxnreg::increase::<208>(),
            216 => setmaxnreg::increase::<216>(),
            224 => setmaxnreg::increase::<224>(),
            232 => setmaxnreg::increase::<232>(),
            240 => setmaxnreg::increase::<240>(),
            _ => unreachable!("no tile asks for so many registers"),
        }
    }
}
