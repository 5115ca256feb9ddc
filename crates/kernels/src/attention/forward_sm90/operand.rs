//! Storage types of Q, K and V.

use crate::element::{Bf16, E4m3};
use crate::ptx::convert;
use crate::ptx::wgmma::Format;
use crate::tile::mma::MmaElement;

/// A storage type of Q, K and V, and how P is rounded to it.
pub trait Operand: Format {
    /// Storage type of O.
    type Output: MmaElement;

    /// Size of an element in bytes.
    const BYTES: u32;

    /// Register `index` of P as A of its product with V; `p` gives a thread's scores, as
    /// [`wgmma`](crate::ptx::wgmma) has both.
    fn pack_p(index: usize, p: impl Fn(usize) -> f32) -> u32;
}

/// The registers of four blocks of eight columns are A as they come.
impl<E: MmaElement + Format> Operand for E {
    type Output = E;

    const BYTES: u32 = <E as crate::element::Element>::BYTES as u32;

    #[inline(always)]
    fn pack_p(index: usize, p: impl Fn(usize) -> f32) -> u32 {
        E::pack(p(2 * index), p(2 * index + 1))
    }
}

/// A wants four neighbours along K in a register, where S has two of each block of eight columns. So each
/// register takes two from either of two blocks, and [`transpose`](crate::attention::transpose) has put V's
/// keys into the order that this gives.
impl Operand for E4m3 {
    type Output = Bf16;

    const BYTES: u32 = 1;

    #[inline(always)]
    fn pack_p(index: usize, p: impl Fn(usize) -> f32) -> u32 {
        let first = 8 * (index / 2) + 2 * (index % 2);
        convert::pack_e4m3x4([p(first), p(first + 1), p(first + 4), p(first + 5)])
    }
}
