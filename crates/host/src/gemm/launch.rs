//! From a problem and addresses to the kernels' parameters.

use fa_kernels::params::GemmParams;

use super::{GemmProblem, Order};

/// Addresses of a problem's matrices on the device that runs it (host addresses in the simulator), each of
/// the first element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmAddresses {
    /// M × K.
    pub a: u64,
    /// K × N.
    pub b: u64,
    /// M × N.
    pub c: u64,
}

/// The parameters that every entry of a plan for `problem` takes.
pub(crate) fn params(problem: &GemmProblem, addresses: &GemmAddresses) -> GemmParams {
    let (matrices, swapped) = problem.row_major();
    let (a, b) = if swapped { (addresses.b, addresses.a) } else { (addresses.a, addresses.b) };
    // `GemmProblem::new` bounds extents by MAX_EXTENT, so these casts keep their values.
    GemmParams {
        a,
        b,
        c: addresses.c,
        lda: matrices.a.leading_dimension as u32,
        ldb: matrices.b.leading_dimension as u32,
        ldc: matrices.c.leading_dimension as u32,
        m: matrices.c.rows as u32,
        n: matrices.c.columns as u32,
        k: matrices.a.columns as u32,
        a_along_k: (matrices.a.order == Order::RowMajor).into(),
        b_along_k: (matrices.b.order == Order::ColumnMajor).into(),
    }
}
