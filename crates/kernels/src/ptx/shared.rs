//! The block's dynamic shared memory, by 32-bit byte address (PTX ISA, `ld.shared`, `st.shared`).
//!
//! Rust has no shared address space, so an address is a plain `u32` that starts at [`base`].

#[cfg(target_arch = "nvptx64")]
use core::arch::{asm, global_asm};

// One array for all entries: its size is the launch's, not the source's.
#[cfg(target_arch = "nvptx64")]
global_asm!(".extern .shared .align 1024 .b8 dynamic_shared[];");

/// Address of the first byte of dynamic shared memory, aligned to 1,024 bytes.
#[inline(always)]
pub fn base() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let address: u32;
            // SAFETY: takes the address of a symbol.
            unsafe { asm!("mov.u32 {0}, dynamic_shared;", out(reg32) address, options(pure, nomem, nostack)) }
            address
        }
        _ => { twin!(fa_sim::shared::base()) }
    }
}

/// Loads one fp32 (`ld.shared.f32`).
///
/// # Safety
/// `address` is 4-byte aligned, inside the block's shared memory, written before, and not written
/// by another thread without a barrier between.
#[inline(always)]
#[track_caller]
pub unsafe fn load(address: u32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let value: f32;
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("ld.shared.f32 {0}, [{1}];", out(reg32) value, in(reg32) address, options(pure, readonly, nostack)) }
            value
        }
        _ => { twin!(fa_sim::shared::load::<f32>(address)) }
    }
}

/// Loads 4 bytes (`ld.shared.b32`).
///
/// # Safety
/// As [`load`].
#[inline(always)]
#[track_caller]
pub unsafe fn load_b32(address: u32) -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let value: u32;
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("ld.shared.b32 {0}, [{1}];", out(reg32) value, in(reg32) address, options(pure, readonly, nostack)) }
            value
        }
        _ => { twin!(fa_sim::shared::load::<u32>(address)) }
    }
}

/// Loads two consecutive fp32 (`ld.shared.v2.f32`).
///
/// # Safety
/// As [`load`], 8-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn load2(address: u32) -> [f32; 2] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b): (f32, f32);
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("ld.shared.v2.f32 {{{0}, {1}}}, [{2}];", out(reg32) a, out(reg32) b, in(reg32) address, options(pure, readonly, nostack)) }
            [a, b]
        }
        _ => { twin!(fa_sim::shared::load::<[f32; 2]>(address)) }
    }
}

/// Loads 2 bytes (`ld.shared.b16`).
///
/// # Safety
/// As [`load`], 2-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn load_b16(address: u32) -> u16 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let value: u16;
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("ld.shared.b16 {0}, [{1}];", out(reg16) value, in(reg32) address, options(pure, readonly, nostack)) }
            value
        }
        _ => { twin!(fa_sim::shared::load::<u16>(address)) }
    }
}

/// Loads four consecutive fp32 (`ld.shared.v4.f32`).
///
/// # Safety
/// As [`load`], 16-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn load4(address: u32) -> [f32; 4] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b, c, d): (f32, f32, f32, f32);
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("ld.shared.v4.f32 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
                    options(pure, readonly, nostack))
            }
            [a, b, c, d]
        }
        _ => { twin!(fa_sim::shared::load::<[f32; 4]>(address)) }
    }
}

/// Stores one fp32 (`st.shared.f32`).
///
/// # Safety
/// `address` is 4-byte aligned, inside the block's shared memory, and no other thread accesses it
/// without a barrier between.
#[inline(always)]
#[track_caller]
pub unsafe fn store(address: u32, value: f32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("st.shared.f32 [{0}], {1};", in(reg32) address, in(reg32) value, options(nostack)) }
        }
        _ => { twin!(fa_sim::shared::store::<f32>(address, value)) }
    }
}

/// Stores 4 bytes (`st.shared.b32`).
///
/// # Safety
/// As [`store`].
#[inline(always)]
#[track_caller]
pub unsafe fn store_b32(address: u32, value: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("st.shared.b32 [{0}], {1};", in(reg32) address, in(reg32) value, options(nostack)) }
        }
        _ => { twin!(fa_sim::shared::store::<u32>(address, value)) }
    }
}

/// Stores four consecutive 32-bit words (`st.shared.v4.b32`).
///
/// # Safety
/// As [`store`], 16-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn store4(address: u32, words: [u32; 4]) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("st.shared.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}};",
                    in(reg32) address, in(reg32) words[0], in(reg32) words[1], in(reg32) words[2], in(reg32) words[3],
                    options(nostack))
            }
        }
        _ => { twin!(fa_sim::shared::store::<[u32; 4]>(address, words)) }
    }
}

/// Stores 2 bytes (`st.shared.b16`).
///
/// # Safety
/// As [`store`], 2-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn store_b16(address: u32, value: u16) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("st.shared.b16 [{0}], {1};", in(reg32) address, in(reg16) value, options(nostack)) }
        }
        _ => { twin!(fa_sim::shared::store::<u16>(address, value)) }
    }
}
