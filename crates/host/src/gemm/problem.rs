//! One matrix multiplication: validated once here, trusted by everything after.

use crate::{DType, Error, Result, TensorLayout};

/// The largest M, N, K and leading dimension: kernels count elements of an axis in 32 bits, with room for a
/// tile.
pub const MAX_EXTENT: usize = 1 << 30;

/// Which elements of a matrix are neighbours in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Those of a row.
    RowMajor,
    /// Those of a column.
    ColumnMajor,
}

impl Order {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::RowMajor, Self::ColumnMajor];

    /// The name that the command line uses: `row` or `col`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RowMajor => "row",
            Self::ColumnMajor => "col",
        }
    }

    /// A contiguous matrix in this order.
    pub const fn matrix(self, rows: usize, columns: usize) -> MatrixLayout {
        match self {
            Self::RowMajor => MatrixLayout::row_major(rows, columns),
            Self::ColumnMajor => MatrixLayout::column_major(rows, columns),
        }
    }
}

/// Shape and place in memory of a matrix, no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Elements from one row to the next in a row-major matrix, from one column to the next in the other.
    pub leading_dimension: usize,
    /// The order.
    pub order: Order,
}

impl MatrixLayout {
    /// A contiguous row-major matrix.
    pub const fn row_major(rows: usize, columns: usize) -> Self {
        Self { rows, columns, leading_dimension: columns, order: Order::RowMajor }
    }

    /// A contiguous column-major matrix.
    pub const fn column_major(rows: usize, columns: usize) -> Self {
        Self { rows, columns, leading_dimension: rows, order: Order::ColumnMajor }
    }

    /// The same matrix with another leading dimension.
    pub const fn with_leading_dimension(self, leading_dimension: usize) -> Self {
        Self { leading_dimension, ..self }
    }

    /// The same elements as rows of a tensor: each row, or column, of consecutive elements is one.
    pub(crate) const fn lines(&self) -> TensorLayout {
        let (length, lines) = match self.order {
            Order::RowMajor => (self.columns, self.rows),
            Order::ColumnMajor => (self.rows, self.columns),
        };
        TensorLayout::strided([1, lines, 1, length], [0, self.leading_dimension, 0, 1])
    }

    /// Elements from one row to the next, and from one column to the next.
    pub const fn strides(&self) -> (usize, usize) {
        match self.order {
            Order::RowMajor => (self.leading_dimension, 1),
            Order::ColumnMajor => (1, self.leading_dimension),
        }
    }

    /// Index of an element.
    #[inline]
    pub const fn at(&self, row: usize, column: usize) -> usize {
        let (of_row, of_column) = self.strides();
        row * of_row + column * of_column
    }

    /// Elements from the first to one past the last: the least length of its buffer.
    pub const fn span(&self) -> usize {
        if self.rows == 0 || self.columns == 0 { 0 } else { self.at(self.rows - 1, self.columns - 1) + 1 }
    }

    /// Number of elements.
    pub const fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// The same memory read as the transposed matrix.
    #[must_use]
    pub const fn transposed(&self) -> Self {
        let order = match self.order {
            Order::RowMajor => Order::ColumnMajor,
            Order::ColumnMajor => Order::RowMajor,
        };
        Self { rows: self.columns, columns: self.rows, order, ..*self }
    }

    fn check(&self, tensor: &'static str) -> Result<()> {
        for (axis, size) in [("rows", self.rows), ("columns", self.columns)] {
            if size == 0 {
                return Err(Error::EmptyAxis { tensor, axis });
            }
        }
        let extents = [
            ("rows", self.rows),
            ("columns", self.columns),
            ("the leading dimension", self.leading_dimension),
        ];
        for (what, value) in extents {
            if value > MAX_EXTENT {
                return Err(Error::Extent { tensor, what, value, limit: MAX_EXTENT });
            }
        }
        let run = match self.order {
            Order::RowMajor => self.columns,
            Order::ColumnMajor => self.rows,
        };
        if self.leading_dimension < run {
            return Err(Error::LeadingDimension { tensor, value: self.leading_dimension, needed: run });
        }
        Ok(())
    }
}

/// The three matrices of a multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// M × K.
    pub a: MatrixLayout,
    /// K × N.
    pub b: MatrixLayout,
    /// M × N.
    pub c: MatrixLayout,
}

/// A validated matrix multiplication C = A·B, accumulated in fp32 whatever the storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmProblem {
    matrices: Matrices,
    dtype: DType,
}

impl GemmProblem {
    /// Validates shapes and leading dimensions.
    ///
    /// # Errors
    /// Names the matrix, the axis, its value and the limit when an axis is empty, mismatched or too large, or
    /// a leading dimension is shorter than what lies between.
    pub fn new(matrices: Matrices, dtype: DType) -> Result<Self> {
        dtype.check_as_result("gemm")?;
        let Matrices { a, b, c } = &matrices;
        for (layout, name) in [(a, "a"), (b, "b"), (c, "c")] {
            layout.check(name)?;
        }
        let matches = |tensor, axis, value, other, expected| {
            let mismatch = Error::ShapeMismatch { tensor, axis, value, other, expected };
            if value == expected { Ok(()) } else { Err(mismatch) }
        };
        matches("b", "rows (K)", b.rows, "a", a.columns)?;
        matches("c", "rows (M)", c.rows, "a", a.rows)?;
        matches("c", "columns (N)", c.columns, "b", b.columns)?;
        Ok(Self { matrices, dtype })
    }

    /// Shapes and leading dimensions.
    pub const fn matrices(&self) -> &Matrices {
        &self.matrices
    }

    /// Storage type of all three matrices.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows of A and C.
    pub const fn m(&self) -> usize {
        self.matrices.c.rows
    }

    /// Columns of B and C.
    pub const fn n(&self) -> usize {
        self.matrices.c.columns
    }

    /// Columns of A and rows of B.
    pub const fn k(&self) -> usize {
        self.matrices.a.columns
    }

    /// Multiplications and additions, 2·M·N·K.
    pub fn flops(&self) -> f64 {
        2.0 * self.m() as f64 * self.n() as f64 * self.k() as f64
    }

    /// Bytes of A, B and C: what any kernel must move at least.
    pub const fn bytes(&self) -> u64 {
        let Matrices { a, b, c } = &self.matrices;
        (a.elements() as u64 + b.elements() as u64 + c.elements() as u64) * self.dtype.bytes() as u64
    }

    /// The same product with a row-major C, and whether A and B have changed places for it: a column-major C
    /// is a row-major Cᵀ = Bᵀ·Aᵀ.
    pub(crate) fn row_major(&self) -> (Matrices, bool) {
        let Matrices { a, b, c } = self.matrices;
        match c.order {
            Order::RowMajor => (self.matrices, false),
            Order::ColumnMajor => {
                (Matrices { a: b.transposed(), b: a.transposed(), c: c.transposed() }, true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(a: MatrixLayout, b: MatrixLayout, c: MatrixLayout) -> String {
        GemmProblem::new(Matrices { a, b, c }, DType::F16).unwrap_err().to_string()
    }

    #[test]
    fn each_refusal_names_argument_value_and_limit() {
        let row = MatrixLayout::row_major;
        assert_eq!(
            message(row(0, 2), row(2, 3), row(0, 3)),
            "a: axis rows has length 0; at least 1 is needed"
        );
        assert_eq!(message(row(4, 2), row(3, 3), row(4, 3)), "b: rows (K) is 3, but a has 2");
        assert_eq!(message(row(4, 2), row(2, 3), row(5, 3)), "c: rows (M) is 5, but a has 4");
        assert_eq!(message(row(4, 2), row(2, 3), row(4, 2)), "c: columns (N) is 2, but b has 3");
        assert_eq!(
            message(row(4, 2), row(2, 3).with_leading_dimension(2), row(4, 3)),
            "b: the leading dimension is 2; at least 3 is needed"
        );
        assert_eq!(
            message(row(4, 2_000_000_000), row(2, 3), row(4, 3)),
            "a: columns is 2000000000; the limit is 1073741824"
        );
    }

    #[test]
    fn a_column_major_product_is_the_transposed_row_major_one() {
        let matrices = Matrices {
            a: MatrixLayout::row_major(4, 2),
            b: MatrixLayout::column_major(2, 3),
            c: MatrixLayout::column_major(4, 3).with_leading_dimension(7),
        };
        let (other, swapped) = GemmProblem::new(matrices, DType::F16).unwrap().row_major();
        assert!(swapped);
        assert_eq!(other.a, MatrixLayout::row_major(3, 2));
        assert_eq!(other.b, MatrixLayout::column_major(2, 4));
        assert_eq!(other.c, MatrixLayout::row_major(3, 4).with_leading_dimension(7));
        assert_eq!(other.c.at(2, 1), matrices.c.at(1, 2));
    }
}
