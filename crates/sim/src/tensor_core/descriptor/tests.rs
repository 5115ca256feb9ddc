//! Addresses worked out by hand from the figures and tables of the PTX ISA, "Shared Memory Matrix Layout" and
//! "Strides" of `wgmma.mma_async`, for 16-bit elements.

use super::*;

fn chunks(bits: u64, extent: usize, transposed: bool) -> Vec<u32> {
    Descriptor::decode(bits).unwrap().chunks(extent, transposed).collect()
}

/// Start, leading and stride in bytes, and the number of the swizzle.
fn bits(start: u64, leading: u64, stride: u64, swizzle: u64) -> u64 {
    start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62
}

#[test]
fn k_major_128b() {
    // Rows of 128 bytes; row r has its chunk c where c ^ r is; the next 8 rows are 1,024 bytes on.
    let found = chunks(bits(0x400, 16, 1024, 1), 64, false);
    assert_eq!(found.len(), 128);
    assert_eq!(found[..8], [0x400, 0x410, 0x490, 0x480, 0x520, 0x530, 0x5b0, 0x5a0]);
    assert_eq!(found[14..20], [0x7f0, 0x7e0, 0x800, 0x810, 0x890, 0x880]);
    // The second 16 columns: chunks 2 and 3.
    let found = chunks(bits(0x420, 16, 1024, 1), 64, false);
    assert_eq!(found[..8], [0x420, 0x430, 0x4b0, 0x4a0, 0x500, 0x510, 0x590, 0x580]);
}

#[test]
fn k_major_64b_and_32b() {
    // Two rows in 128 bytes, permuted alike, and four patterns.
    let found = chunks(bits(0x400, 16, 512, 2), 16, false);
    assert_eq!(found[..8], [0x400, 0x410, 0x440, 0x450, 0x490, 0x480, 0x4d0, 0x4c0]);
    assert_eq!(found[8..16], [0x520, 0x530, 0x560, 0x570, 0x5b0, 0x5a0, 0x5f0, 0x5e0]);
    assert_eq!(found[16..18], [0x600, 0x610]);
    // Four rows in 128 bytes, and two patterns.
    let found = chunks(bits(0x400, 16, 256, 3), 16, false);
    assert_eq!(found[..8], [0x400, 0x410, 0x420, 0x430, 0x440, 0x450, 0x460, 0x470]);
    assert_eq!(found[8..16], [0x490, 0x480, 0x4b0, 0x4a0, 0x4d0, 0x4c0, 0x4f0, 0x4e0]);
    assert_eq!(found[16..18], [0x500, 0x510]);
}

#[test]
fn k_major_without_swizzle() {
    // Core matrices of 8 rows by 16 bytes, 128 bytes each: the second of a row is `leading` on, the next 8
    // rows `stride`.
    let found = chunks(bits(0x400, 0x100, 0x80, 0), 16, false);
    assert_eq!(found[..4], [0x400, 0x500, 0x410, 0x510]);
    assert_eq!(found[14..18], [0x470, 0x570, 0x480, 0x580]);
}

#[test]
fn mn_major_128b() {
    // A row of K is 64 elements in 128 bytes; 8 rows of K, then `stride`; elements from 64 on `leading`
    // further.
    let found = chunks(bits(0x400, 0x2000, 0x400, 1), 128, true);
    assert_eq!(found.len(), 256);
    assert_eq!(found[..8], [0x400, 0x410, 0x420, 0x430, 0x440, 0x450, 0x460, 0x470]);
    assert_eq!(found[8..10], [0x2400, 0x2410]);
    assert_eq!(found[16..20], [0x490, 0x480, 0x4b0, 0x4a0]);
    assert_eq!(found[24], 0x2490);
    assert_eq!(found[8 * 16..8 * 16 + 2], [0x800, 0x810]);
    assert_eq!(found[9 * 16 + 9], 0x2880);
}

#[test]
fn mn_major_64b_and_32b() {
    let found = chunks(bits(0x400, 0x1000, 0x200, 2), 64, true);
    assert_eq!(found[..6], [0x400, 0x410, 0x420, 0x430, 0x1400, 0x1410]);
    assert_eq!(found[16..20], [0x490, 0x480, 0x4b0, 0x4a0]);
    assert_eq!(found[64], 0x600);
    let found = chunks(bits(0x400, 0x1000, 0x100, 3), 32, true);
    assert_eq!(found[..4], [0x400, 0x410, 0x1400, 0x1410]);
    assert_eq!(found[16..18], [0x490, 0x480]);
    assert_eq!(found[32], 0x500);
}

#[test]
fn mn_major_without_swizzle() {
    // Core matrices of 8 rows of K by 16 bytes: the next 8 elements are `stride` on, the next 8 rows of K
    // `leading`.
    let found = chunks(bits(0x400, 0x800, 0x80, 0), 32, true);
    assert_eq!(found[..5], [0x400, 0x480, 0x500, 0x580, 0x410]);
    assert_eq!(found[32], 0xc00);
}

#[test]
fn descriptors_that_are_not_modelled() {
    assert!(Descriptor::decode(1 << 49).unwrap_err().contains("base offset 1"));
    for bit in [14, 15, 30, 31, 46, 48, 52, 61] {
        assert!(Descriptor::decode(1 << bit).unwrap_err().contains("reserved bits"), "bit {bit}");
    }
}
