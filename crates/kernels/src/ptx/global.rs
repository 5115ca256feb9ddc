//! Device-memory loads and stores (PTX ISA, `ld.global`, `st.global`).

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Loads 4 bytes if `exists`, else gives 0: one predicated instruction (`@p ld.global.b32`).
///
/// # Safety
/// If `exists`, `address` is 4-byte aligned device memory that no other thread writes in this kernel.
#[inline(always)]
#[track_caller]
pub unsafe fn load_b32_if(exists: bool, address: u64) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let value: u32;
            // SAFETY: the caller's contract is the instruction's; a false predicate touches no memory.
            unsafe {
                asm!("{{", ".reg .pred p;", "setp.ne.b32 p, {2}, 0;", "mov.b32 {0}, 0;",
                    "@p ld.global.b32 {0}, [{1}];", "}}",
                    out(reg32) value, in(reg64) address, in(reg32) exists as u32, options(pure, readonly, nostack))
            }
            value
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(if exists { unsafe { fa_sim::global::load::<u32>(address) } } else { 0 }) }
    }
}

/// Begins to bring the line that holds an address into the second level of the cache (`prefetch.global.L2`).
///
/// # Safety
/// The address is device memory.
#[inline(always)]
pub unsafe fn prefetch(address: u64) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: nothing is written, and what is read is seen by no one.
            unsafe { asm!("prefetch.global.L2 [{0}];", in(reg64) address, options(readonly, nostack)) }
        }
        _ => { let _ = address; }
    }
}

/// As [`load_b32_if`]; on the host also outside of the simulator.
///
/// # Safety
/// As [`load_b32_if`]; outside of the simulator the address is host memory.
#[inline(always)]
#[track_caller]
pub unsafe fn read_b32_if(exists: bool, address: u64) -> u32 {
    #[cfg(not(target_arch = "nvptx64"))]
    if !crate::ptx::is_simulated() {
        let address = core::ptr::with_exposed_provenance::<u32>(address as usize);
        // SAFETY: an element that exists is readable host memory.
        return if exists { unsafe { address.read() } } else { 0 };
    }
    // SAFETY: as the caller says.
    unsafe { load_b32_if(exists, address) }
}

/// Loads 2 bytes if `exists`, else gives 0: one predicated instruction (`@p ld.global.b16`).
///
/// # Safety
/// As [`load_b32_if`], 2-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn load_b16_if(exists: bool, address: u64) -> u16 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let value: u16;
            // SAFETY: the caller's contract is the instruction's; a false predicate touches no memory.
            unsafe {
                asm!("{{", ".reg .pred p;", "setp.ne.b32 p, {2}, 0;", "mov.b16 {0}, 0;",
                    "@p ld.global.b16 {0}, [{1}];", "}}",
                    out(reg16) value, in(reg64) address, in(reg32) exists as u32, options(pure, readonly, nostack))
            }
            value
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(if exists { unsafe { fa_sim::global::load::<u16>(address) } } else { 0 }) }
    }
}

/// Loads a byte if it `exists`, else gives 0: one predicated instruction (`@p ld.global.u8`).
///
/// # Safety
/// As [`load_b32_if`], at any address.
#[inline(always)]
#[track_caller]
pub unsafe fn load_b8_if(exists: bool, address: u64) -> u8 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let value: u16;
            // SAFETY: the caller's contract is the instruction's; a false predicate touches no memory.
            unsafe {
                asm!("{{", ".reg .pred p;", "setp.ne.b32 p, {2}, 0;", "mov.b16 {0}, 0;",
                    "@p ld.global.u8 {0}, [{1}];", "}}",
                    out(reg16) value, in(reg64) address, in(reg32) exists as u32, options(pure, readonly, nostack))
            }
            value as u8
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(if exists { unsafe { fa_sim::global::load::<u8>(address) } } else { 0 }) }
    }
}

/// Loads two consecutive 32-bit words if they `exist`, else gives zeros: one predicated instruction
/// (`@p ld.global.v2.b32`).
///
/// # Safety
/// As [`load_b32_if`], 8-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn load2_if(exist: bool, address: u64) -> [u32; 2] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b): (u32, u32);
            // SAFETY: the caller's contract is the instruction's; a false predicate touches no memory.
            unsafe {
                asm!("{{", ".reg .pred p;", "setp.ne.b32 p, {3}, 0;", "mov.b32 {0}, 0;", "mov.b32 {1}, 0;",
                    "@p ld.global.v2.b32 {{{0}, {1}}}, [{2}];", "}}",
                    out(reg32) a, out(reg32) b, in(reg64) address, in(reg32) exist as u32,
                    options(pure, readonly, nostack))
            }
            [a, b]
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(if exist { unsafe { fa_sim::global::load::<[u32; 2]>(address) } } else { [0; 2] }) }
    }
}

/// Loads four consecutive 32-bit words if they `exist`, else gives zeros: one predicated instruction
/// (`@p ld.global.v4.b32`).
///
/// # Safety
/// As [`load_b32_if`], 16-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn load4_if(exist: bool, address: u64) -> [u32; 4] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b, c, d): (u32, u32, u32, u32);
            // SAFETY: the caller's contract is the instruction's; a false predicate touches no memory.
            unsafe {
                asm!("{{", ".reg .pred p;", "setp.ne.b32 p, {5}, 0;",
                    "mov.b32 {0}, 0;", "mov.b32 {1}, 0;", "mov.b32 {2}, 0;", "mov.b32 {3}, 0;",
                    "@p ld.global.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];", "}}",
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
                    in(reg64) address, in(reg32) exist as u32, options(pure, readonly, nostack))
            }
            [a, b, c, d]
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(if exist { unsafe { fa_sim::global::load::<[u32; 4]>(address) } } else { [0; 4] }) }
    }
}

/// Stores 4 bytes (`st.global.b32`).
///
/// # Safety
/// `address` is 4-byte aligned device memory that no other thread accesses in this kernel.
#[inline(always)]
#[track_caller]
pub unsafe fn store_b32(address: u64, value: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("st.global.b32 [{0}], {1};", in(reg64) address, in(reg32) value, options(nostack)) }
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::global::store::<u32>(address, value) }) }
    }
}

/// Stores 2 bytes (`st.global.b16`).
///
/// # Safety
/// As [`store_b32`], 2-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn store_b16(address: u64, value: u16) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("st.global.b16 [{0}], {1};", in(reg64) address, in(reg16) value, options(nostack)) }
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::global::store::<u16>(address, value) }) }
    }
}

/// Stores four consecutive 32-bit words (`st.global.v4.b32`).
///
/// # Safety
/// As [`store_b32`], 16-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn store4(address: u64, words: [u32; 4]) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("st.global.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}};",
                    in(reg64) address, in(reg32) words[0], in(reg32) words[1], in(reg32) words[2], in(reg32) words[3],
                    options(nostack))
            }
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::global::store::<[u32; 4]>(address, words) }) }
    }
}

/// Adds to a word, and gives what it was before (`atom.global.add.u32`).
///
/// # Safety
/// `address` is 4-byte aligned device memory that the kernel's threads access by this and what follows alone.
#[inline(always)]
#[track_caller]
pub unsafe fn fetch_add(address: u64, value: u32) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let before: u32;
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("atom.global.add.u32 {0}, [{1}], {2};",
                    out(reg32) before, in(reg64) address, in(reg32) value, options(nostack))
            }
            before
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::global::fetch_add(address, value) }) }
    }
}

/// Adds to a word that threads of other blocks wait for by [`wait_at_least`]: what this thread did, and what
/// it knows to be done, is done for them (`red.release.gpu.global.add.u32`).
///
/// # Safety
/// As [`fetch_add`].
#[inline(always)]
#[track_caller]
pub unsafe fn add_release(address: u64, value: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("red.release.gpu.global.add.u32 [{0}], {1};",
                    in(reg64) address, in(reg32) value, options(nostack))
            }
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::global::add_release(address, value) }) }
    }
}

/// Waits until a word is at least `value` (`ld.acquire.gpu.global.u32`, again and again, with a pause).
///
/// # Safety
/// As [`fetch_add`]; who adds to the word waits for nothing that comes behind this in the launch.
#[inline(always)]
#[track_caller]
#[allow(named_asm_labels, reason = "labels of PTX belong to the braces that they stand in")]
pub unsafe fn wait_at_least(address: u64, value: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("{{", ".reg .pred there;", ".reg .b32 word;", "AGAIN:",
                    "ld.acquire.gpu.global.u32 word, [{0}];", "setp.ge.u32 there, word, {1};", "@there bra THERE;",
                    "nanosleep.u32 100;", "bra AGAIN;", "THERE:", "}}",
                    in(reg64) address, in(reg32) value, options(nostack))
            }
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::global::wait_at_least(address, value) }) }
    }
}
