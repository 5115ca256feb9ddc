//! AMX's instructions (Intel SDM, volume 1, "Programming with Intel AMX"), one a function.
//!
//! Rust has no stable intrinsics for them. The compiler never uses tiles, so that they keep their contents
//! from one `asm!` block to the next.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

use super::product::{TILE_ROW_BYTES, TILE_ROWS, Tiles};

/// Whether the CPU multiplies bf16 in tiles, and the system lets this process do so. Asks once.
pub(in crate::cpu) fn is_available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| has_instructions() && system_saves_tiles() && permission_is_granted())
}

/// CPUID's leaf 7: EDX has bit 22 for AMX-BF16 and bit 24 for AMX-TILE.
fn has_instructions() -> bool {
    const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    let has_leaf = __cpuid(0).eax >= 7;
    has_leaf && __cpuid_count(7, 0).edx & BF16_AND_TILE == BF16_AND_TILE
}

/// Whether XCR0 has the tiles' configuration, bit 17, and their data, bit 18.
fn system_saves_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILES: u32 = 1 << 17 | 1 << 18;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let low: u32;
    // SAFETY: OSXSAVE says that the instruction may be used; it reads XCR0 alone.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    low & TILES == TILES
}

/// Asks Linux for the tiles' 8 KiB of state in each thread (Documentation/arch/x86/xstate.rst).
fn permission_is_granted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let status: isize;
    // SAFETY: the call changes nothing but what this process may use; the kernel keeps all registers except
    // those named here.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    status == 0
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Palette 1: eight tiles, all of them whole.
static WHOLE_TILES: Configuration = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        (row_bytes[tile], rows[tile]) = (TILE_ROW_BYTES as u16, TILE_ROWS as u8);
        tile += 1;
    }
    Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// The tiles of the thread that runs.
pub(super) struct Amx;

impl Tiles for Amx {
    unsafe fn configure() {
        // SAFETY: the caller vouches for AMX; the configuration has 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE_TILES, options(nostack, preserves_flags)) }
    }

    unsafe fn release() {
        // SAFETY: the caller vouches for AMX.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
    }

    unsafe fn new() -> Self {
        Self
    }

    #[inline(always)]
    fn zero<const T: usize>(&mut self) {
        // SAFETY: a value exists only between `configure` and `release`.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nomem, nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: a value exists only between `configure` and `release`; the caller vouches for the rows.
        unsafe {
            asm!(
                "tileloadd tmm{t}, [{from} + 1*{stride}]",
                t = const T,
                from = in(reg) from,
                stride = in(reg) stride,
                options(readonly, nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    unsafe fn store<const T: usize>(&self, to: *mut u8, stride: usize) {
        // SAFETY: a value exists only between `configure` and `release`; the caller vouches for the rows.
        unsafe {
            asm!(
                "tilestored [{to} + 1*{stride}], tmm{t}",
                t = const T,
                to = in(reg) to,
                stride = in(reg) stride,
                options(nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    fn multiply<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: a value exists only between `configure` and `release`; all tiles are whole, so that their
        // sizes agree.
        unsafe {
            asm!(
                "tdpbf16ps tmm{c}, tmm{a}, tmm{b}",
                c = const C,
                a = const A,
                b = const B,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}
