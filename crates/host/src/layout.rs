//! Tensor views: shape and strides, no data.

use std::ops::Range;

use crate::Error;

/// Shape and strides of a four-dimensional tensor with the logical axes
/// batch (B), sequence (S), heads (H) and head dimension (D), in elements.
///
/// The order of the axes in memory is whatever the strides say: [`Self::bshd`] and
/// [`Self::bhsd`] are the two usual ones, and any view whose last dimension is contiguous works
/// without a copy. A stride of 0 repeats an input along that axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorLayout {
    /// Number of sequences (B).
    pub batch: usize,
    /// Number of rows of each sequence (S).
    pub seqlen: usize,
    /// Number of heads (H).
    pub heads: usize,
    /// Elements of each row (D).
    pub head_dim: usize,
    /// Elements from one sequence to the next.
    pub stride_batch: usize,
    /// Elements from one row to the next.
    pub stride_seq: usize,
    /// Elements from one head to the next.
    pub stride_head: usize,
    /// Elements from one column to the next; kernels take 1 only.
    pub stride_dim: usize,
}

impl TensorLayout {
    /// A contiguous [B, S, H, D] tensor.
    pub const fn bshd(batch: usize, seqlen: usize, heads: usize, head_dim: usize) -> Self {
        Self {
            batch,
            seqlen,
            heads,
            head_dim,
            // A stride that does not fit stays too large, and `Problem::new` refuses it.
            stride_batch: seqlen.saturating_mul(heads).saturating_mul(head_dim),
            stride_seq: heads.saturating_mul(head_dim),
            stride_head: head_dim,
            stride_dim: 1,
        }
    }

    /// A contiguous [B, H, S, D] tensor. The arguments keep the order B, S, H, D.
    pub const fn bhsd(batch: usize, seqlen: usize, heads: usize, head_dim: usize) -> Self {
        Self {
            batch,
            seqlen,
            heads,
            head_dim,
            stride_batch: heads.saturating_mul(seqlen).saturating_mul(head_dim),
            stride_seq: head_dim,
            stride_head: seqlen.saturating_mul(head_dim),
            stride_dim: 1,
        }
    }

    /// A view with strides in the order B, S, H, D, both in elements.
    pub const fn strided(shape: [usize; 4], strides: [usize; 4]) -> Self {
        Self {
            batch: shape[0],
            seqlen: shape[1],
            heads: shape[2],
            head_dim: shape[3],
            stride_batch: strides[0],
            stride_seq: strides[1],
            stride_head: strides[2],
            stride_dim: strides[3],
        }
    }

    /// Number of logical elements, B·S·H·D.
    pub const fn elements(&self) -> usize {
        self.batch * self.seqlen * self.heads * self.head_dim
    }

    /// Elements from the first to one past the last that the view touches: the least length of its buffer.
    pub const fn span(&self) -> usize {
        if self.batch == 0 || self.seqlen == 0 || self.heads == 0 || self.head_dim == 0 {
            return 0;
        }
        (self.batch - 1) * self.stride_batch
            + (self.seqlen - 1) * self.stride_seq
            + (self.heads - 1) * self.stride_head
            + (self.head_dim - 1) * self.stride_dim
            + 1
    }

    /// Element index of the first column of a row.
    #[inline]
    pub const fn row(&self, batch: usize, seq: usize, head: usize) -> usize {
        batch * self.stride_batch + seq * self.stride_seq + head * self.stride_head
    }

    /// The bytes of each row of a view of elements of `element_bytes` bytes, from the view's first byte on.
    pub(crate) fn byte_rows(&self, element_bytes: usize) -> impl Iterator<Item = Range<usize>> {
        let Self { batch, seqlen, heads, head_dim, .. } = *self;
        (0..batch * seqlen * heads).map(move |index| {
            let first = self.row(index / heads / seqlen, index / heads % seqlen, index % heads);
            first * element_bytes..(first + head_dim) * element_bytes
        })
    }

    /// The four axes as (name, size, stride), B, S, H, D.
    fn axes(&self) -> [(&'static str, usize, usize); 4] {
        [
            ("batch", self.batch, self.stride_batch),
            ("seqlen", self.seqlen, self.stride_seq),
            ("heads", self.heads, self.stride_head),
            ("head_dim", self.head_dim, self.stride_dim),
        ]
    }

    /// Checks what holds for every tensor: no axis is empty, sizes and offsets fit, rows are contiguous.
    pub(crate) fn check(&self, tensor: &'static str) -> Result<(), Error> {
        let mut span = 1_usize;
        for (axis, size, stride) in self.axes() {
            if size == 0 {
                return Err(Error::EmptyAxis { tensor, axis });
            }
            span = (size - 1)
                .checked_mul(stride)
                .and_then(|reach| span.checked_add(reach))
                .filter(|&span| span <= isize::MAX as usize / 4)
                .ok_or(Error::AddressSpace { tensor, axis, size, stride })?;
        }
        if self.head_dim > 1 && self.stride_dim != 1 {
            return Err(Error::NonContiguousRow { tensor, stride: self.stride_dim });
        }
        Ok(())
    }

    /// Checks that no two logical elements share an address, which an output must not.
    ///
    /// Sorted by stride, each axis must step past everything that the axes below it reach.
    pub(crate) fn check_disjoint(&self, tensor: &'static str) -> Result<(), Error> {
        let mut axes = self.axes();
        axes.sort_by_key(|&(_, _, stride)| stride);
        let mut reach = 0;
        for (axis, size, stride) in axes {
            if size > 1 && stride <= reach {
                return Err(Error::OverlappingOutput { tensor, axis, stride, reach: reach + 1 });
            }
            reach += (size - 1) * stride;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_of_a_contiguous_tensor_is_its_size() {
        for layout in [TensorLayout::bshd(2, 3, 4, 5), TensorLayout::bhsd(2, 3, 4, 5)] {
            assert_eq!(layout.span(), 120);
            assert_eq!(layout.elements(), 120);
        }
    }

    #[test]
    fn layouts_differ_only_in_strides() {
        assert_eq!(TensorLayout::bshd(2, 3, 4, 5).row(1, 2, 3), 60 + 40 + 15);
        assert_eq!(TensorLayout::bhsd(2, 3, 4, 5).row(1, 2, 3), 60 + 10 + 45);
    }

    #[test]
    fn repeated_axes_are_inputs_only() {
        let repeated = TensorLayout::strided([2, 3, 4, 5], [0, 20, 5, 1]);
        assert!(repeated.check("k").is_ok());
        let error = repeated.check_disjoint("o").unwrap_err().to_string();
        assert_eq!(error, "o: stride 0 of axis batch overlaps its neighbours; an output needs at least 1");
    }

    #[test]
    fn offsets_past_the_address_space_are_refused() {
        let error = TensorLayout::strided([2, 2, 1, 1], [usize::MAX, 1, 1, 1]).check("q").unwrap_err();
        assert!(matches!(error, Error::AddressSpace { tensor: "q", axis: "batch", .. }));
        let huge = usize::MAX / 2;
        for layout in [TensorLayout::bshd(1, huge, huge, 64), TensorLayout::bhsd(huge, 3, huge, 64)] {
            assert!(matches!(layout.check("q").unwrap_err(), Error::AddressSpace { .. }));
        }
    }
}
