//! Matrix multiplication on all cores: fp32 products by `matrixmultiply`, bands of rows in parallel.

use rayon::prelude::*;

use super::{GemmKernel, GemmProblem, GemmRequest, Matrices, MatrixLayout};
use crate::operation::Choice;
use crate::{DType, Device, Element, Error, Result};

/// Most rows of C that a thread makes at a time: enough that packing B again for each band costs little.
const BAND: usize = 256;

/// Plans the one kernel that there is.
pub(super) fn plan(problem: &GemmProblem, why: String, request: &GemmRequest) -> Result<Choice<GemmProblem>> {
    let kernel = GemmKernel::GemmCpu;
    if request.block_m.is_some() || request.block_n.is_some() {
        return Err(Error::FixedTile { kernel: kernel.name(), tile: request.tile() });
    }
    let mut reasons =
        vec![why, format!("bands of at most {BAND} rows of C, products in fp32 by matrixmultiply")];
    if problem.dtype() != DType::F32 {
        reasons.push(format!("A and B are converted from {} to fp32 once", problem.dtype()));
    }
    Ok(Choice::on_cpu(kernel, reasons))
}

/// C = A·B, and the bytes of memory taken beside it. Elements of `c` outside the matrix keep their values.
///
/// # Errors
/// When the memory for A, B and C in fp32 cannot be had.
pub(super) fn run<T: Element>(
    problem: &GemmProblem,
    device: &Device,
    (a, b): (&[T], &[T]),
    c: &mut [T],
) -> Result<u64> {
    let (Matrices { a: la, b: lb, c: lc }, swapped) = problem.row_major();
    let (a, b) = if swapped { (b, a) } else { (a, b) };
    let a = widened(device, "A in fp32", &a[..la.span()])?;
    let b = widened(device, "B in fp32", &b[..lb.span()])?;
    let mut product: Vec<f32> = device.allocate("C in fp32", lc.elements())?;
    let band = lc.rows.div_ceil(rayon::current_num_threads()).min(BAND);
    let bands = product.par_chunks_mut(band * lc.columns).zip(c.par_chunks_mut(band * lc.leading_dimension));
    bands.enumerate().for_each(|(index, (product, c))| {
        let rows = product.len() / lc.columns;
        multiply((&la, &a), (&lb, &b), index * band, rows, product);
        for (from, to) in product.chunks_exact(lc.columns).zip(c.chunks_mut(lc.leading_dimension)) {
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = T::from_f32(from));
        }
    });
    Ok((size_of::<f32>() * (a.len() + b.len() + product.len())) as u64)
}

fn widened<T: Element>(device: &Device, what: &'static str, values: &[T]) -> Result<Vec<f32>> {
    let mut wide: Vec<f32> = device.allocate(what, values.len())?;
    wide.par_iter_mut().zip(values.par_iter()).for_each(|(wide, value)| *wide = value.to_f32());
    Ok(wide)
}

/// `product` = `rows` rows of A, from `first` on, times B.
fn multiply(
    (la, a): (&MatrixLayout, &[f32]),
    (lb, b): (&MatrixLayout, &[f32]),
    first: usize,
    rows: usize,
    product: &mut [f32],
) {
    let (k, n) = (lb.rows, lb.columns);
    let stride = |stride: usize| stride as isize;
    let ((a_row, a_column), (b_row, b_column)) = (la.strides(), lb.strides());
    let a = &a[first * a_row..];
    // SAFETY: A has `rows` rows from `first` on and K columns, B is K × N and `product` is `rows` × N and
    // contiguous; both buffers reach as far as their layouts say.
    unsafe {
        matrixmultiply::sgemm(
            rows,
            k,
            n,
            1.0,
            a.as_ptr(),
            stride(a_row),
            stride(a_column),
            b.as_ptr(),
            stride(b_row),
            stride(b_column),
            0.0,
            product.as_mut_ptr(),
            stride(n),
            1,
        );
    }
}
