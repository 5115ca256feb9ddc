//! Reading the chunks of rows that start at any multiple of 2 bytes.

use crate::ptx::global;

/// The first `elements` (0 to 8) 16-bit elements at `address`, a multiple of 2, zeros after them.
///
/// Nothing beyond them is read: another tensor, or nothing at all, may lie there.
///
/// # Safety
/// The elements are readable.
#[inline(always)]
#[track_caller]
pub unsafe fn load_chunk(address: u64, elements: u32) -> [u32; 4] {
    // SAFETY: the elements are readable, and each load stays inside them.
    unsafe {
        if address.is_multiple_of(4) {
            let word = |i: u32| load_pair(address + 4 * i as u64, elements.saturating_sub(2 * i));
            [word(0), word(1), word(2), word(3)]
        } else {
            // Words straddle the pairs: one element, three aligned words, one element.
            let word = |i: u32| load_pair(address + 2 + 4 * i as u64, elements.saturating_sub(2 * i + 1));
            let first = load_pair(address, elements.min(1));
            let (a, b, c) = (word(0), word(1), word(2));
            let last = load_pair(address + 14, elements.saturating_sub(7));
            [first | (a << 16), (a >> 16) | (b << 16), (b >> 16) | (c << 16), (c >> 16) | (last << 16)]
        }
    }
}

/// The first two of `elements` 16-bit elements at `address`, zeros where there are fewer.
///
/// # Safety
/// The elements are readable; with two or more, `address` is a multiple of 4.
#[inline(always)]
#[track_caller]
unsafe fn load_pair(address: u64, elements: u32) -> u32 {
    // SAFETY: the elements are readable, and where there are two, they start at a multiple of 4 bytes.
    unsafe {
        global::load_b32_if(elements >= 2, address) | global::load_b16_if(elements == 1, address) as u32
    }
}
