//! From a problem and addresses to the kernels' parameters.

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, GemmTile, Params};
use fa_kernels::params::{GemmParams, Mapped};
use fa_kernels::ptx::tma;

use super::{GemmProblem, MatrixLayout, Order};
use crate::Result;
use crate::tensor_map::{Dimension, TensorMap, swizzled};

/// Addresses of a problem's matrices on the device that runs it (host addresses in the simulator), each of
/// the first element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GemmAddresses {
    /// M × K.
    pub a: u64,
    /// K × N.
    pub b: u64,
    /// M × N.
    pub c: u64,
}

/// The parameters that `entry` takes; its tensor maps, where it has some, in the form that `encode` gives
/// them.
pub(crate) fn params(
    problem: &GemmProblem,
    entry: &GemmEntry,
    addresses: &GemmAddresses,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<Params> {
    let params = plain_params(problem, addresses);
    if entry.algorithm != GemmAlgorithm::GemmSm90 {
        return Ok(Params::Gemm(params));
    }
    let mut maps = [tma::TensorMap::default(); 3];
    for (map, tensor) in maps.iter_mut().zip(tensor_maps(problem, &entry.tile, &params)) {
        if let Some(tensor) = tensor {
            *map = encode(&tensor)?;
        }
    }
    Ok(Params::MappedGemm(Mapped { maps, params }))
}

/// What `gemm_sm90` copies of A, B and C: of A and B the box of a step, 64 elements of each line; of C 64
/// elements of a warp's rows, or no map where its rows do not start at multiples of 16 bytes. A store through
/// a map writes whole chunks of 16 bytes, so that of C ends with the last one that its rows have all of.
fn tensor_maps(problem: &GemmProblem, tile: &GemmTile, params: &GemmParams) -> [Option<TensorMap>; 3] {
    const LINE: u32 = 64;
    const WARP_ROWS: u32 = 16;
    const CHUNK: usize = 8;
    let (matrices, _) = problem.row_major();
    let map = |address, layout: &MatrixLayout, lines| {
        let (inner, outer) = match layout.order {
            Order::RowMajor => (layout.columns, layout.rows),
            Order::ColumnMajor => (layout.rows, layout.columns),
        };
        let inner = Dimension { length: inner, stride: 1, boxed: LINE };
        swizzled(
            (address, 2),
            [inner, Dimension { length: outer, stride: layout.leading_dimension, boxed: lines }],
        )
    };
    let lines = |along_k: u32, block| if along_k == 1 { block } else { LINE };
    let c = MatrixLayout { columns: matrices.c.columns / CHUNK * CHUNK, ..matrices.c };
    let c_in_chunks = params.c.is_multiple_of(16) && params.ldc.is_multiple_of(CHUNK as u32) && c.columns > 0;
    [
        Some(map(params.a, &matrices.a, lines(params.a_along_k, tile.block_m))),
        Some(map(params.b, &matrices.b, lines(params.b_along_k, tile.block_n))),
        c_in_chunks.then(|| map(params.c, &c, WARP_ROWS)),
    ]
}

/// The parameters that every entry takes.
fn plain_params(problem: &GemmProblem, addresses: &GemmAddresses) -> GemmParams {
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
