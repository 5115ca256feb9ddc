//! Asynchronous copies from global to shared memory (PTX ISA, `cp.async`, from sm_80 on).
//!
//! A copy is in flight from its issue until a [`wait_group`] of the same thread covers its group.
//! What it writes is then there for that thread, and for others behind a barrier after the wait.
//!
//! Inline assembly rather than LLVM's intrinsics, which take pointers to the shared and the global
//! address space, and Rust has neither; none of these instructions synchronises threads.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Copies `bytes` bytes (0 to 16) from `global` to `shared` and fills the rest of the 16 bytes there
/// with 0, past the L1 cache (`cp.async.cg.shared.global`). Nothing behind `bytes` is read.
///
/// # Safety
/// Both addresses are 16-byte aligned. The bytes at `global` are device memory that nobody writes in
/// this kernel. The 16 bytes at `shared` are inside the block's shared memory, and nobody
/// accesses them, this thread included, until it has waited for the copy and, for other threads, a
/// barrier has followed. The thread waits for all its copies before it returns.
#[inline(always)]
#[track_caller]
pub unsafe fn copy16(shared: u32, global: u64, bytes: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("cp.async.cg.shared.global [{0}], [{1}], 16, {2};",
                    in(reg32) shared, in(reg64) global, in(reg32) bytes, options(nostack))
            }
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::cp_async::copy::<16>(shared, global, bytes) }) }
    }
}

/// As [`copy16`], 8 bytes by way of the L1 cache (`cp.async.ca.shared.global`).
///
/// # Safety
/// As [`copy16`], with 8 for 16.
#[inline(always)]
#[track_caller]
pub unsafe fn copy8(shared: u32, global: u64, bytes: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("cp.async.ca.shared.global [{0}], [{1}], 8, {2};",
                    in(reg32) shared, in(reg64) global, in(reg32) bytes, options(nostack))
            }
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::cp_async::copy::<8>(shared, global, bytes) }) }
    }
}

/// As [`copy16`], 4 bytes by way of the L1 cache (`cp.async.ca.shared.global`).
///
/// # Safety
/// As [`copy16`], with 4 for 16.
#[inline(always)]
#[track_caller]
pub unsafe fn copy4(shared: u32, global: u64, bytes: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("cp.async.ca.shared.global [{0}], [{1}], 4, {2};",
                    in(reg32) shared, in(reg64) global, in(reg32) bytes, options(nostack))
            }
        }
        // SAFETY: the address is device memory, which the simulator also checks against the launch's buffers.
        _ => { twin!(unsafe { fa_sim::cp_async::copy::<4>(shared, global, bytes) }) }
    }
}

/// Closes a group of all copies that this thread has issued since the last one; without any it is an
/// empty group, which counts like the others (`cp.async.commit_group`).
#[inline(always)]
#[track_caller]
pub fn commit_group() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: touches no memory of its own.
            unsafe { asm!("cp.async.commit_group;", options(nostack)) }
        }
        _ => { twin!(fa_sim::cp_async::commit_group()) }
    }
}

/// Waits until at most the `PENDING` youngest groups of this thread are in flight
/// (`cp.async.wait_group`). A copy in no group yet is not waited for.
#[inline(always)]
#[track_caller]
pub fn wait_group<const PENDING: usize>() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: waits; that memory has changed is in the lack of `nomem`.
            unsafe { asm!("cp.async.wait_group {0};", const PENDING, options(nostack)) }
        }
        _ => { twin!(fa_sim::cp_async::wait_group(PENDING)) }
    }
}

/// Waits until of this thread's `STAGES` − 1 youngest groups the oldest has landed, in a ring of 2 to 4.
#[inline(always)]
#[track_caller]
pub fn wait_for_oldest<const STAGES: u32>() {
    match STAGES {
        2 => wait_group::<0>(),
        3 => wait_group::<1>(),
        _ => wait_group::<2>(),
    }
}
