//! Arrays in registers, whose lengths follow from a tile's sizes.

use core::ops::IndexMut;

/// What a thread holds of an operand: `[f32; N]` or `[u32; N]`, with indices that the compiler knows.
pub trait Registers: Copy + IndexMut<usize, Output = Self::Value> {
    /// What a register holds.
    type Value: Copy;
    /// N.
    const LEN: usize;
    /// Zeros.
    const ZERO: Self;
}

impl<const N: usize> Registers for [f32; N] {
    type Value = f32;
    const LEN: usize = N;
    const ZERO: Self = [0.0; N];
}

impl<const N: usize> Registers for [u32; N] {
    type Value = u32;
    const LEN: usize = N;
    const ZERO: Self = [0; N];
}
