//! Storage types as the device sees them: loads widen to fp32, stores round to nearest even.

use crate::ptx::{convert, global};

/// A type that Q, K, V and O can be stored in.
pub trait Element: Copy {
    /// Size in bytes.
    const BYTES: u64;

    /// Loads the element at byte address `address` if it `exists`, else gives 0.
    ///
    /// # Safety
    /// As [`global::load_b32_if`], aligned to [`Self::BYTES`].
    unsafe fn load_if(exists: bool, address: u64) -> f32;

    /// Loads the element at byte address `address`.
    ///
    /// # Safety
    /// As [`Self::load_if`] of an element that exists.
    #[inline(always)]
    #[track_caller]
    unsafe fn load(address: u64) -> f32 {
        // SAFETY: the element exists, aligned to its size, and no other thread writes it.
        unsafe { Self::load_if(true, address) }
    }

    /// The `index`-th element of 16 bytes.
    fn unpack(chunk: &[u32; 4], index: usize) -> f32;

    /// Rounds the first values, as many as 16 bytes hold.
    fn pack_chunk(values: &[f32; 8]) -> [u32; 4];

    /// Rounds `value` and stores it at byte address `address`.
    ///
    /// # Safety
    /// As [`global::store_b32`], aligned to [`Self::BYTES`].
    unsafe fn store(address: u64, value: f32);

    /// Copies the bits of the element at byte address `from` to `to`.
    ///
    /// # Safety
    /// As [`Self::load`] of the one and [`Self::store`] of the other.
    unsafe fn copy_bits(from: u64, to: u64);
}

impl Element for f32 {
    const BYTES: u64 = 4;

    #[inline(always)]
    #[track_caller]
    unsafe fn load_if(exists: bool, address: u64) -> f32 {
        // SAFETY: an element that exists is aligned to its size, and no other thread writes it.
        f32::from_bits(unsafe { global::load_b32_if(exists, address) })
    }

    #[inline(always)]
    fn unpack(chunk: &[u32; 4], index: usize) -> f32 {
        f32::from_bits(chunk[index])
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn store(address: u64, value: f32) {
        // SAFETY: the element is aligned to its size, and no other thread accesses it.
        unsafe { global::store_b32(address, value.to_bits()) }
    }

    #[inline(always)]
    fn pack_chunk(values: &[f32; 8]) -> [u32; 4] {
        let [a, b, c, d, ..] = *values;
        [a.to_bits(), b.to_bits(), c.to_bits(), d.to_bits()]
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn copy_bits(from: u64, to: u64) {
        // SAFETY: both elements are aligned to their size, and no other thread accesses the second.
        unsafe { global::store_b32(to, global::load_b32_if(true, from)) }
    }
}

/// IEEE binary16 by its bits.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct F16(pub u16);

impl Element for F16 {
    const BYTES: u64 = 2;

    #[inline(always)]
    #[track_caller]
    unsafe fn load_if(exists: bool, address: u64) -> f32 {
        // SAFETY: an element that exists is aligned to its size, and no other thread writes it.
        convert::f16_to_f32(unsafe { global::load_b16_if(exists, address) })
    }

    #[inline(always)]
    fn unpack(chunk: &[u32; 4], index: usize) -> f32 {
        convert::f16_to_f32((chunk[index / 2] >> (16 * (index % 2))) as u16)
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn store(address: u64, value: f32) {
        // SAFETY: the element is aligned to its size, and no other thread accesses it.
        unsafe { global::store_b16(address, convert::f32_to_f16(value)) }
    }

    #[inline(always)]
    fn pack_chunk(values: &[f32; 8]) -> [u32; 4] {
        let pair = |i: usize| {
            convert::f32_to_f16(values[i]) as u32 | (convert::f32_to_f16(values[i + 1]) as u32) << 16
        };
        [pair(0), pair(2), pair(4), pair(6)]
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn copy_bits(from: u64, to: u64) {
        // SAFETY: both elements are aligned to their size, and no other thread accesses the second.
        unsafe { global::store_b16(to, global::load_b16_if(true, from)) }
    }
}

/// bfloat16 by its bits.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Element for Bf16 {
    const BYTES: u64 = 2;

    #[inline(always)]
    #[track_caller]
    unsafe fn load_if(exists: bool, address: u64) -> f32 {
        // SAFETY: an element that exists is aligned to its size, and no other thread writes it.
        convert::bf16_to_f32(unsafe { global::load_b16_if(exists, address) })
    }

    #[inline(always)]
    fn unpack(chunk: &[u32; 4], index: usize) -> f32 {
        convert::bf16_to_f32((chunk[index / 2] >> (16 * (index % 2))) as u16)
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn store(address: u64, value: f32) {
        // SAFETY: the element is aligned to its size, and no other thread accesses it.
        unsafe { global::store_b16(address, convert::f32_to_bf16(value)) }
    }

    #[inline(always)]
    fn pack_chunk(values: &[f32; 8]) -> [u32; 4] {
        let pair = |i: usize| {
            convert::f32_to_bf16(values[i]) as u32 | (convert::f32_to_bf16(values[i + 1]) as u32) << 16
        };
        [pair(0), pair(2), pair(4), pair(6)]
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn copy_bits(from: u64, to: u64) {
        // SAFETY: both elements are aligned to their size, and no other thread accesses the second.
        unsafe { global::store_b16(to, global::load_b16_if(true, from)) }
    }
}

/// A type of 16 bits in which each number of e4m3 is exact.
pub trait Widened: Element {
    /// Four numbers of e4m3, the first in the lowest byte.
    fn from_e4m3x4(bits: u32) -> [u32; 2];
}

impl Widened for F16 {
    #[inline(always)]
    fn from_e4m3x4(bits: u32) -> [u32; 2] {
        convert::e4m3x4_to_f16x4(bits)
    }
}

impl Widened for Bf16 {
    #[inline(always)]
    fn from_e4m3x4(bits: u32) -> [u32; 2] {
        convert::e4m3x4_to_f16x4(bits).map(|pair| {
            let [low, high] = [pair as u16, (pair >> 16) as u16].map(convert::f16_to_f32);
            convert::pack_bf16x2(low, high)
        })
    }
}

/// e4m3 (OCP 8-bit floating point: bias 7, up to 448, no infinities) by its bits: a type of Q, K and V alone,
/// which nothing but tensor cores reads.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct E4m3(pub u8);
