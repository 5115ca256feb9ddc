//! Launches that begin before the one in front of them has ended (PTX ISA, `griddepcontrol`, from sm_90 on).
//!
//! The host asks for it (`CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`); in other launches neither
//! function does anything, nor in the simulator, where launches follow one another.

/// Lets the launch behind this one begin, once all blocks have called this or ended: its threads run up to
/// their [`wait`].
#[inline(always)]
pub fn launch_dependents() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: no memory is accessed.
    unsafe {
        core::arch::asm!("griddepcontrol.launch_dependents;", options(nostack, nomem))
    }
}

/// Waits until the launch in front of this one has ended, and its writes are visible.
#[inline(always)]
pub fn wait() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: no memory is accessed; accesses of this thread that come behind stay behind.
    unsafe {
        core::arch::asm!("griddepcontrol.wait;", options(nostack))
    }
}
