//! What functions of scores read beside the score.

use crate::ptx::global;

/// The most tensors that functions of one problem read.
pub const MAX_FUNCTION_TENSORS: usize = 4;

/// The most values that they are given by themselves.
pub const MAX_FUNCTION_VALUES: usize = 4;

/// Elements of 4 bytes, contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tensor {
    address: u64,
    len: u32,
}

/// What [`ScoreMod`](crate::functions::ScoreMod) and [`MaskMod`](crate::functions::MaskMod) read: tensors of
/// 4-byte elements, and values.
///
/// An element behind a tensor's end is 0, and so is one of a tensor that is not there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionData {
    /// Each one is readable.
    tensors: [Tensor; MAX_FUNCTION_TENSORS],
    values: [u32; MAX_FUNCTION_VALUES],
}

impl FunctionData {
    /// Tensors by their addresses and lengths in elements, and values by their bits.
    ///
    /// # Safety
    /// Each tensor is 4-byte aligned memory, readable where functions are called as long as this is used.
    pub unsafe fn new(
        tensors: [(u64, u32); MAX_FUNCTION_TENSORS],
        values: [u32; MAX_FUNCTION_VALUES],
    ) -> Self {
        Self { tensors: tensors.map(|(address, len)| Tensor { address, len }), values }
    }

    /// Element `index` of tensor number `tensor`, which is an fp32 one. Write the number as a constant.
    #[inline(always)]
    #[track_caller]
    pub fn f32(&self, tensor: usize, index: u32) -> f32 {
        f32::from_bits(self.bits(tensor, index))
    }

    /// As [`Self::f32`], of an int32 one.
    #[inline(always)]
    #[track_caller]
    pub fn i32(&self, tensor: usize, index: u32) -> i32 {
        self.bits(tensor, index) as i32
    }

    /// As [`Self::f32`], of a u32 one.
    #[inline(always)]
    #[track_caller]
    pub fn u32(&self, tensor: usize, index: u32) -> u32 {
        self.bits(tensor, index)
    }

    /// Elements of a tensor.
    #[inline(always)]
    pub fn len(&self, tensor: usize) -> u32 {
        self.tensors[tensor].len
    }

    /// Value number `index`, of type u32. Write the number as a constant.
    #[inline(always)]
    pub fn value(&self, index: usize) -> u32 {
        self.values[index]
    }

    /// As [`Self::value`], of type fp32.
    #[inline(always)]
    pub fn f32_value(&self, index: usize) -> f32 {
        f32::from_bits(self.values[index])
    }

    #[inline(always)]
    #[track_caller]
    fn bits(&self, tensor: usize, index: u32) -> u32 {
        let Tensor { address, len } = self.tensors[tensor];
        // SAFETY: `new` asks for readable tensors, and an element behind the end is not read.
        unsafe { global::read_b32_if(index < len, address + 4 * index as u64) }
    }
}
