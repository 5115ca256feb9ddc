//! A tensor as a caller has it: where its elements are, and how they lie.

use crate::{DType, Element, TensorLayout};

/// A tensor in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostTensor<'a, T> {
    pub(super) values: &'a [T],
    pub(super) layout: TensorLayout,
}

impl<'a, T: Element> HostTensor<'a, T> {
    /// The tensor whose elements lie in `values` as `layout` says.
    pub const fn new(values: &'a [T], layout: TensorLayout) -> Self {
        Self { values, layout }
    }

    /// A contiguous tensor of the shape [B, S, H, D].
    pub const fn bshd(values: &'a [T], [batch, seqlen, heads, head_dim]: [usize; 4]) -> Self {
        Self::new(values, TensorLayout::bshd(batch, seqlen, heads, head_dim))
    }

    /// A contiguous tensor of the shape [B, H, S, D].
    pub const fn bhsd(values: &'a [T], [batch, heads, seqlen, head_dim]: [usize; 4]) -> Self {
        Self::new(values, TensorLayout::bhsd(batch, seqlen, heads, head_dim))
    }
}

/// A tensor in the memory of a GPU, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) dtype: DType,
    pub(super) layout: TensorLayout,
}

impl DeviceTensor {
    /// The tensor whose elements lie as `layout` says in the `len` elements of type `dtype` that begin at
    /// `address`.
    pub const fn new(address: u64, len: usize, dtype: DType, layout: TensorLayout) -> Self {
        Self { address, len, dtype, layout }
    }

    /// Address of its first element.
    pub const fn address(&self) -> u64 {
        self.address
    }
}

/// A tensor on the host or on a GPU.
pub trait TensorView: sealed::Sealed + Copy {
    /// Shape and strides.
    fn layout(&self) -> TensorLayout;

    /// Storage type.
    fn dtype(&self) -> DType;

    /// Elements from the tensor's first to the end of its memory.
    fn available(&self) -> usize;
}

impl<T: Element> TensorView for HostTensor<'_, T> {
    fn layout(&self) -> TensorLayout {
        self.layout
    }

    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn available(&self) -> usize {
        self.values.len()
    }
}

impl TensorView for DeviceTensor {
    fn layout(&self) -> TensorLayout {
        self.layout
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn available(&self) -> usize {
        self.len
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for super::HostTensor<'_, T> {}
    impl Sealed for super::DeviceTensor {}
}
