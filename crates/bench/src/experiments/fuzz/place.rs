//! Where a tensor or matrix lies: gaps, order of the axes, repeated axes, and how far its first element is
//! from 256 bytes.

use flash_attention::TensorLayout;
use flash_attention::gemm::{MatrixLayout, Order};
use serde::{Deserialize, Serialize};

/// Where a tensor of four axes lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Place {
    /// Which of [`ORDERS`] the axes have in memory.
    pub(super) order: usize,
    /// Elements behind each row, behind each block of such rows, and so on outwards.
    pub(super) gaps: [usize; 3],
    /// Whether the axis (batch, seqlen, heads) repeats its first index: a stride of 0.
    pub(super) repeat: [bool; 3],
    /// Elements before the first one, counted from a multiple of 256 bytes.
    pub(super) offset: usize,
}

/// Axes from the inside out: 0 is batch, 1 seqlen, 2 heads. The first two orders are [B, S, H, D] and [B, H,
/// S, D].
pub(super) const ORDERS: [[usize; 3]; 6] = [[2, 1, 0], [1, 2, 0], [2, 0, 1], [0, 2, 1], [1, 0, 2], [0, 1, 2]];

impl Place {
    /// The layout of a tensor of this shape, B, S, H, D.
    pub(super) fn layout(&self, shape: [usize; 4]) -> TensorLayout {
        let [.., head_dim] = shape;
        let mut strides = [0, 0, 0, 1];
        let mut block = head_dim;
        for (axis, gap) in ORDERS[self.order % ORDERS.len()].into_iter().zip(self.gaps) {
            if self.repeat[axis] {
                continue;
            }
            strides[axis] = block.saturating_add(gap);
            block = strides[axis].saturating_mul(shape[axis]);
        }
        TensorLayout::strided(shape, strides)
    }
}

/// Where a matrix lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MatrixPlace {
    /// Whether elements of a column are neighbours, and not those of a row.
    pub(super) column_major: bool,
    /// Elements behind each row or column.
    pub(super) gap: usize,
    /// Elements before the first one, counted from a multiple of 256 bytes.
    pub(super) offset: usize,
}

impl MatrixPlace {
    /// The layout of a matrix of this shape.
    pub(super) fn layout(&self, rows: usize, columns: usize) -> MatrixLayout {
        let order = if self.column_major { Order::ColumnMajor } else { Order::RowMajor };
        let layout = order.matrix(rows, columns);
        layout.with_leading_dimension(layout.leading_dimension.saturating_add(self.gap))
    }
}

/// A raw value for a field of a layout, which makes shapes differ and outputs overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spoil {
    pub(super) tensor: String,
    pub(super) field: Field,
    pub(super) value: usize,
}

/// A field of a layout; matrices have `Seqlen` rows and `HeadDim` columns, `StrideSeq` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Field {
    Batch,
    Seqlen,
    Heads,
    HeadDim,
    StrideBatch,
    StrideSeq,
    StrideHead,
    StrideDim,
}

impl Field {
    pub(super) const ALL: [Self; 8] = [
        Self::Batch,
        Self::Seqlen,
        Self::Heads,
        Self::HeadDim,
        Self::StrideBatch,
        Self::StrideSeq,
        Self::StrideHead,
        Self::StrideDim,
    ];
}

/// The layout of the tensor `name` after what spoils it.
pub(super) fn spoiled(spoils: &[Spoil], name: &str, mut layout: TensorLayout) -> TensorLayout {
    for Spoil { field, value, .. } in spoils.iter().filter(|spoil| spoil.tensor == name) {
        let place = match field {
            Field::Batch => &mut layout.batch,
            Field::Seqlen => &mut layout.seqlen,
            Field::Heads => &mut layout.heads,
            Field::HeadDim => &mut layout.head_dim,
            Field::StrideBatch => &mut layout.stride_batch,
            Field::StrideSeq => &mut layout.stride_seq,
            Field::StrideHead => &mut layout.stride_head,
            Field::StrideDim => &mut layout.stride_dim,
        };
        *place = *value;
    }
    layout
}

/// As [`spoiled`], of a matrix.
pub(super) fn spoiled_matrix(spoils: &[Spoil], name: &str, mut layout: MatrixLayout) -> MatrixLayout {
    for Spoil { field, value, .. } in spoils.iter().filter(|spoil| spoil.tensor == name) {
        match field {
            Field::Seqlen => layout.rows = *value,
            Field::HeadDim => layout.columns = *value,
            Field::StrideSeq => layout.leading_dimension = *value,
            _ => {}
        }
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_without_gaps_are_contiguous() {
        let place = |order| Place { order, ..Place::default() };
        assert_eq!(place(0).layout([2, 3, 4, 5]), TensorLayout::bshd(2, 3, 4, 5));
        assert_eq!(place(1).layout([2, 3, 4, 5]), TensorLayout::bhsd(2, 3, 4, 5));
        for order in 0..ORDERS.len() {
            assert_eq!(place(order).layout([2, 3, 4, 5]).span(), 120);
        }
    }

    #[test]
    fn gaps_lie_behind_rows_and_repeated_axes_take_none() {
        // [1, 128, 2, 63] inside rows of 72.
        let place = Place { gaps: [9, 0, 0], ..Place::default() };
        let layout = place.layout([1, 128, 2, 63]);
        assert_eq!((layout.stride_head, layout.stride_seq), (72, 144));
        let place = Place { repeat: [false, false, true], gaps: [1, 2, 3], ..Place::default() };
        let layout = place.layout([2, 3, 4, 5]);
        assert_eq!((layout.stride_head, layout.stride_seq, layout.stride_batch), (0, 7, 24));
    }

    #[test]
    fn layouts_out_of_the_address_space_do_not_panic() {
        let place = Place { gaps: [usize::MAX; 3], ..Place::default() };
        assert_eq!(place.layout([usize::MAX; 4]).stride_batch, usize::MAX);
        let spoils = [Spoil { tensor: "o".to_owned(), field: Field::StrideSeq, value: 3 }];
        assert_eq!(spoiled(&spoils, "o", place.layout([1; 4])).stride_seq, 3);
        assert_ne!(spoiled(&spoils, "q", place.layout([1; 4])).stride_seq, 3);
    }
}
