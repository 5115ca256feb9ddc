//! A row of an operation's table of tensors.

use crate::{Element, Error, Result, TensorLayout};

/// A tensor of a call.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// Its name in messages.
    pub name: &'static str,
    /// What the operation reads or writes of it, in elements.
    pub layout: TensorLayout,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Its place in host memory, and whether it is read or written.
    pub data: Data<'a>,
}

/// Host memory of a tensor.
#[derive(Debug)]
pub enum Data<'a> {
    /// Read.
    Input(&'a [u8]),
    /// Written where the layout reaches, and not elsewhere.
    Output(&'a mut [u8]),
    /// As an output of which parts keep their values.
    Updated(&'a mut [u8]),
    /// Written and read by the launches alone; it starts at a multiple of 16 bytes.
    Workspace,
}

impl<'a> Tensor<'a> {
    pub(crate) fn input<T: Plain>(name: &'static str, values: &'a [T], layout: TensorLayout) -> Self {
        Self { name, layout, element_bytes: size_of::<T>(), data: Data::Input(bytes(values)) }
    }

    /// A contiguous input of `len` elements.
    pub(crate) fn list<T: Plain>(name: &'static str, values: &'a [T], len: usize) -> Self {
        Self::input(name, values, TensorLayout::bshd(1, 1, 1, len))
    }

    pub(crate) fn output<T: Plain>(name: &'static str, values: &'a mut [T], layout: TensorLayout) -> Self {
        Self { name, layout, element_bytes: size_of::<T>(), data: Data::Output(bytes_mut(values)) }
    }

    pub(crate) fn updated<T: Plain>(name: &'static str, values: &'a mut [T], layout: TensorLayout) -> Self {
        Self { name, layout, element_bytes: size_of::<T>(), data: Data::Updated(bytes_mut(values)) }
    }

    /// An output; one of which some rows keep their values where it `keeps` them.
    pub(crate) fn written<T: Plain>(
        name: &'static str,
        values: &'a mut [T],
        layout: TensorLayout,
        keeps: bool,
    ) -> Self {
        if keeps { Self::updated(name, values, layout) } else { Self::output(name, values, layout) }
    }

    pub(crate) const fn workspace(name: &'static str, bytes: u64) -> Self {
        let layout = TensorLayout::bshd(1, 1, 1, bytes as usize);
        Self { name, layout, element_bytes: 1, data: Data::Workspace }
    }

    /// Bytes from its first element to the end of its last.
    pub const fn bytes(&self) -> usize {
        self.layout.span() * self.element_bytes
    }

    /// Checks that the host memory holds what the operation reads or writes.
    pub(crate) fn check(&self) -> Result<()> {
        let (len, needed) = match &self.data {
            Data::Input(data) => (data.len(), self.bytes()),
            Data::Output(data) | Data::Updated(data) => (data.len(), self.bytes()),
            Data::Workspace => return Ok(()),
        };
        if len >= needed {
            return Ok(());
        }
        let [len, needed] = [len, needed].map(|bytes| bytes / self.element_bytes);
        Err(Error::BufferTooSmall { tensor: self.name, len, needed })
    }
}

/// Copies what `layout` reaches, row by row.
pub(crate) fn copy_rows(layout: &TensorLayout, element_bytes: usize, from: &[u8], to: &mut [u8]) {
    for row in layout.byte_rows(element_bytes) {
        to[row.clone()].copy_from_slice(&from[row]);
    }
}

/// A type whose values are their bytes.
///
/// # Safety
/// It has no padding, and any bits are a value.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: the trait is sealed over f32, f16, bf16 and e4m3, numbers whose bits may be anything.
unsafe impl<T: Element> Plain for T {}
// SAFETY: as any integer.
unsafe impl Plain for i32 {}
// SAFETY: as any integer.
unsafe impl Plain for u32 {}
// SAFETY: as any integer.
unsafe impl Plain for u64 {}

pub(crate) fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the bytes are those of the slice, none of them is padding, and u8 has no alignment to keep.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub(crate) fn bytes_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes`; whatever is written is a value, and the slice stays borrowed meanwhile.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
