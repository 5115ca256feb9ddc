//! Storage types of Q, K and V, and all that follows from them.

use crate::attention::transpose;
use crate::element::{Bf16, E4m3, F16};
use crate::ptx::convert;
use crate::ptx::wgmma::{Format, Span};
use crate::registers::Registers;
use crate::softmax::{P_LIMIT, Weight};
use crate::tile::mma::MmaElement;

/// A storage type of Q, K and V, and how P is rounded to it.
pub trait Operand: Format + Weight + Copy {
    /// Storage type of O.
    type Output: MmaElement;

    /// P of a block of `W` keys, as A of its product with V.
    type Packed<W: Span>: Registers<Value = u32>;

    /// Size of an element in bytes.
    const BYTES: u32;

    /// Whether V lies in shared memory with its columns as rows, as [`transpose`] has written it.
    const TRANSPOSES_VALUES: bool;

    /// Blocks begin with a multiple of this many keys.
    const KEY_MULTIPLE: u32;

    /// Whether P·V is summed in two levels (`consumer::parts`).
    const SUMS_IN_PARTS: bool;

    /// Register `index` of P as A of its product with V; `p` gives a thread's scores, as
    /// [`wgmma`](crate::ptx::wgmma) has both.
    fn pack_p(index: usize, p: impl Fn(usize) -> f32) -> u32;
}

/// The registers of four blocks of eight columns are A as they come.
impl<E: MmaElement + Format + Weight> Operand for E {
    type Output = E;
    type Packed<W: Span> = W::Packed16;

    const BYTES: u32 = <E as crate::element::Element>::BYTES as u32;
    const TRANSPOSES_VALUES: bool = false;
    const KEY_MULTIPLE: u32 = 1;
    const SUMS_IN_PARTS: bool = false;

    #[inline(always)]
    fn pack_p(index: usize, p: impl Fn(usize) -> f32) -> u32 {
        E::pack(p(2 * index), p(2 * index + 1))
    }
}

impl Weight for F16 {
    const EXPONENT: f32 = 0.0;
}

impl Weight for Bf16 {
    const EXPONENT: f32 = 0.0;
}

/// A wants four neighbours along K in a register, where S has two of each block of eight columns. So each
/// register takes two from either of two blocks, and [`transpose`] has put V's keys into the order that this
/// gives.
impl Operand for E4m3 {
    type Output = Bf16;
    type Packed<W: Span> = W::Packed8;

    const BYTES: u32 = 1;
    const TRANSPOSES_VALUES: bool = true;
    const KEY_MULTIPLE: u32 = transpose::KEYS;
    const SUMS_IN_PARTS: bool = true;

    #[inline(always)]
    fn pack_p(index: usize, p: impl Fn(usize) -> f32) -> u32 {
        let first = 8 * (index / 2) + 2 * (index % 2);
        convert::pack_e4m3x4([p(first), p(first + 1), p(first + 4), p(first + 5)])
    }
}

/// e4m3 has nothing between 0 and 2^−9, where fp16 and bf16 keep P's relative precision (FlashAttention-3 has
/// the same factor).
impl Weight for E4m3 {
    const EXPONENT: f32 = P_LIMIT;
    const MAX_BY_BITS: bool = true;
}
