//! Tiles and lanes in plain Rust, so that layouts and edges are tested on every machine.

use std::array;

use super::lanes::TileLanes;
use super::product::{TILE_ROW_BYTES, TILE_ROWS, Tiles};
use crate::cpu::lanes::Lanes;

/// A tile's words, row by row.
type Tile = [[u32; TILE_ROW_BYTES / 4]; TILE_ROWS];

/// Eight tiles, and the arithmetic of `tdpbf16ps`.
pub(super) struct Model([Tile; 8]);

impl Tiles for Model {
    unsafe fn configure() {}

    unsafe fn release() {}

    /// Every bit set, a NaN of either type, where hardware keeps what was there.
    unsafe fn new() -> Self {
        Self([[[u32::MAX; 16]; 16]; 8])
    }

    fn zero<const T: usize>(&mut self) {
        self.0[T] = Tile::default();
    }

    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        for (i, row) in self.0[T].iter_mut().enumerate() {
            // SAFETY: the caller vouches for 16 rows of 64 bytes.
            *row = unsafe { from.add(i * stride).cast::<[u32; 16]>().read_unaligned() };
        }
    }

    unsafe fn store<const T: usize>(&self, to: *mut u8, stride: usize) {
        for (i, row) in self.0[T].iter().enumerate() {
            // SAFETY: the caller vouches for 16 rows of 64 bytes.
            unsafe { to.add(i * stride).cast::<[u32; 16]>().write_unaligned(*row) };
        }
    }

    /// As the SDM's pseudocode has it: even and odd elements of the depth are summed by themselves, then the
    /// two sums, then that and C. Each product is exact in fp32, so that rounding once after the addition is
    /// what the fused operation does.
    fn multiply<const C: usize, const A: usize, const B: usize>(&mut self) {
        for i in 0..TILE_ROWS {
            let (mut even, mut odd) = ([0.0_f32; 16], [0.0_f32; 16]);
            for k in 0..TILE_ROWS {
                let a = self.0[A][i][k];
                for j in 0..16 {
                    let b = self.0[B][k][j];
                    even[j] = flushed(even[j] + lower(a) * lower(b));
                    odd[j] = flushed(odd[j] + upper(a) * upper(b));
                }
            }
            for j in 0..16 {
                let c = flushed(f32::from_bits(self.0[C][i][j]));
                self.0[C][i][j] = flushed(c + flushed(even[j] + odd[j])).to_bits();
            }
        }
    }
}

/// The bf16 number in the lower half of a word.
fn lower(word: u32) -> f32 {
    flushed(f32::from_bits(word << 16))
}

/// The bf16 number in the upper half of a word.
fn upper(word: u32) -> f32 {
    flushed(f32::from_bits(word & 0xffff_0000))
}

/// Subnormal numbers, in and out, count as 0.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

/// Sixteen lanes, whatever the CPU has.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Sixteen([f32; 16]);

impl Sixteen {
    fn zip(self, other: Self, combine: impl Fn(f32, f32) -> f32) -> Self {
        Self(array::from_fn(|lane| combine(self.0[lane], other.0[lane])))
    }

    fn bits(self, change: impl Fn(u32) -> u32) -> Self {
        Self(self.0.map(|value| f32::from_bits(change(value.to_bits()))))
    }
}

impl Lanes for Sixteen {
    const WIDTH: usize = 16;
    const TILE_ROWS: usize = 1;
    const TILE_VECTORS: usize = 4;

    unsafe fn splat(value: f32) -> Self {
        Self([value; 16])
    }

    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for sixteen readable elements.
        Self(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
    }

    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for sixteen writable elements.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) }
    }

    fn mul_add(self, factor: Self, addend: Self) -> Self {
        self.mul(factor).add(addend)
    }

    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    fn where_below(self, index: Self, limit: Self, otherwise: Self) -> Self {
        Self(array::from_fn(
            |lane| if index.0[lane] < limit.0[lane] { self.0[lane] } else { otherwise.0[lane] },
        ))
    }

    fn exponent_from_low_bits(self) -> Self {
        self.bits(|bits| bits << 23)
    }
}

impl TileLanes for Sixteen {
    fn round_to_bf16(self) -> Self {
        self.bits(|bits| bits.wrapping_add(0x8000) & 0xffff_0000)
    }

    fn pair(self, upper: Self) -> Self {
        let word = |lane: usize| self.0[lane].to_bits() >> 16 | upper.0[lane].to_bits();
        Self(array::from_fn(|lane| f32::from_bits(word(lane))))
    }

    unsafe fn transpose(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
        for i in 0..16 {
            for j in 0..16 {
                // SAFETY: the caller vouches for 16 rows of 16 words on either side.
                unsafe { to.add(j * to_stride + i).write(*from.add(i * from_stride + j)) };
            }
        }
    }
}
