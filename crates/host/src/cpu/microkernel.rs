//! The register-tiled matrix product under both products of attention.
//!
//! Everything is transposed: queries lie along the lanes, so that the softmax's running maximum and
//! sum are lane-wise, with no reduction across a register, and K and V are read as scalars, straight
//! from where they lie.

#![expect(
    clippy::needless_range_loop,
    reason = "iterators would be calls compiled without the instruction set wherever they are not inlined"
)]

use super::lanes::Lanes;

/// The operand whose elements are broadcast: element (row, depth) is at `row * row_stride + depth *
/// depth_stride`.
#[derive(Clone, Copy)]
pub(super) struct Broadcast {
    pub(super) data: *const f32,
    pub(super) row_stride: usize,
    pub(super) depth_stride: usize,
    /// Whether to fetch ahead: steps of depth are cache lines apart, which the hardware does not foresee.
    pub(super) prefetch: bool,
}

/// Steps of depth between two tests of the loop's end.
const UNROLL: usize = 4;

/// Steps of depth between a prefetch and the use: about the latency of L2. It makes the whole 2 to 6 %
/// faster.
const AHEAD: usize = 8;

/// What a product is added to. Its terms are summed among themselves before: with one long chain of
/// additions, the rounding of a sum over thousands of keys would show in O.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// 0.
    Zero,
    /// The result already there, each column times its factor, one register's panel of them.
    Rescaled(*const f32),
}

/// result[rows, N registers] = start + a[rows, depth] · panel[depth, N registers].
///
/// `panel` and `result` are row-major with a row of exactly N registers.
///
/// # Safety
/// The CPU has the instruction set of `L`; `a` is readable for `rows` × `depth`, `panel` for `depth`
/// rows, `result` is readable and writable for `rows` rows, and overlaps neither.
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, const N: usize>(
    a: Broadcast,
    rows: usize,
    depth: usize,
    panel: *const f32,
    result: *mut f32,
    start: Start,
) {
    let width = N * L::WIDTH;
    let mut row = 0;
    // Full register tiles first, then what is left in halves.
    while row < rows {
        let left = rows - row;
        // SAFETY: `row` < `rows`, and the tile takes at most `left` rows from there.
        row += unsafe {
            let a = Broadcast { data: a.data.add(row * a.row_stride), ..a };
            let result = result.add(row * width);
            match left.min(L::TILE_ROWS) {
                6.. => tile::<L, 6, N>(a, depth, panel, result, start),
                4..6 => tile::<L, 4, N>(a, depth, panel, result, start),
                2..4 => tile::<L, 2, N>(a, depth, panel, result, start),
                _ => tile::<L, 1, N>(a, depth, panel, result, start),
            }
        };
    }
}

/// One register tile; returns R.
///
/// # Safety
/// As [`multiply`], for R rows.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const N: usize>(
    a: Broadcast,
    depth: usize,
    panel: *const f32,
    result: *mut f32,
    start: Start,
) -> usize {
    // SAFETY: all offsets stay inside the R × depth, depth × N and R × N registers that the caller
    // vouches for.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; R];
        let (mut column, mut row) = (a.data, panel);
        // Unrolled, because the front end of a CPU has hardly a slot left for counting.
        for _ in 0..depth / UNROLL {
            for unrolled in 0..UNROLL {
                let (column, row) = (column.add(unrolled * a.depth_stride), row.add(unrolled * N * L::WIDTH));
                if a.prefetch {
                    L::prefetch(column.wrapping_add(AHEAD * a.depth_stride));
                }
                step::<L, R, N>(&mut sums, column, a.row_stride, row);
            }
            column = column.add(UNROLL * a.depth_stride);
            row = row.add(UNROLL * N * L::WIDTH);
        }
        for _ in 0..depth % UNROLL {
            step::<L, R, N>(&mut sums, column, a.row_stride, row);
            column = column.add(a.depth_stride);
            row = row.add(N * L::WIDTH);
        }
        if let Start::Rescaled(factors) = start {
            for n in 0..N {
                let factor = L::load(factors.add(n * L::WIDTH));
                for r in 0..R {
                    let earlier = L::load(result.add((r * N + n) * L::WIDTH));
                    sums[r][n] = earlier.mul_add(factor, sums[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                sums[r][n].store(result.add((r * N + n) * L::WIDTH));
            }
        }
    }
    R
}

/// sums[R, N registers] += column[R] · row[N registers].
///
/// # Safety
/// As [`multiply`], for R rows and one step of depth.
#[inline(always)]
unsafe fn step<L: Lanes, const R: usize, const N: usize>(
    sums: &mut [[L; N]; R],
    column: *const f32,
    row_stride: usize,
    row: *const f32,
) {
    // SAFETY: the caller vouches for R elements of the column and N registers of the row.
    unsafe {
        let mut operands = [L::splat(0.0); N];
        for n in 0..N {
            operands[n] = L::load(row.add(n * L::WIDTH));
        }
        for r in 0..R {
            let scalar = L::splat(*column.add(r * row_stride));
            for n in 0..N {
                sums[r][n] = scalar.mul_add(operands[n], sums[r][n]);
            }
        }
    }
}
