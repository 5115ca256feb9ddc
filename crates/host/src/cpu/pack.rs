//! Between the caller's tensors and the kernels' layout: queries across, in fp32.

use std::any::TypeId;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::isa::Panel;
use crate::{DType, Element, Problem};

/// The queries that read one key/value head, over all its query heads.
///
/// Column c is query row c / group of head c % group, so that the heads of a group share each pass
/// over K and V, and neighbouring columns see nearly the same keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub(super) batch: usize,
    pub(super) kv_head: usize,
    /// First column and one past the last.
    pub(super) first: usize,
    pub(super) end: usize,
}

impl Columns {
    /// Query head and row of a column.
    pub(super) const fn query(&self, problem: &Problem, column: usize) -> (usize, usize) {
        let group = problem.group();
        (self.kv_head * group + column % group, column / group)
    }

    /// Keys that a column sees.
    pub(super) const fn visible(&self, problem: &Problem, column: usize) -> usize {
        problem.visible_keys(column / problem.group())
    }

    /// The columns in panels of at most the instruction set's width.
    pub(super) fn panels(self, panel: Panel) -> impl Iterator<Item = Self> {
        (self.first..self.end).step_by(panel.width).map(move |first| Self {
            first,
            end: self.end.min(first + panel.width),
            ..self
        })
    }

    /// Registers that the columns of one panel fill.
    pub(super) const fn registers(&self, panel: Panel) -> usize {
        (self.end - self.first).div_ceil(panel.lanes)
    }
}

/// Rows of an fp32 matrix, wherever it lies.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) data: *const f32,
    pub(super) stride: usize,
}

/// Widens a row to fp32; `to` is as long as `from`.
#[inline(always)]
pub(super) fn widen<T: Element>(from: &[T], to: &mut [f32]) {
    match T::DTYPE {
        DType::F32 => to.copy_from_slice(same_type(from)),
        DType::F16 => same_type::<T, f16>(from).convert_to_f32_slice(to),
        DType::Bf16 => {
            for (to, from) in to.iter_mut().zip(same_type::<T, bf16>(from)) {
                *to = f32::from_bits(u32::from(from.to_bits()) << 16);
            }
        }
    }
}

/// The slice itself, under the name that its type has in this branch of a match.
#[inline(always)]
fn same_type<T: 'static, U: 'static>(slice: &[T]) -> &[U] {
    assert!(TypeId::of::<T>() == TypeId::of::<U>(), "only called where both types are the same");
    // SAFETY: both are the same type.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) }
}

/// Rounds a row to its storage type; `to` is as long as `from`.
#[inline(always)]
pub(super) fn narrow<T: Element>(from: &[f32], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = T::from_f32(*from);
    }
}

/// Whether the kernels can read such rows where they lie. Rows with gaps are packed instead, because
/// usual gaps are powers of two, which map all rows to few sets of the L1 cache.
pub(super) fn readable_in_place<T: Element>(stride: usize, head_dim: usize) -> bool {
    T::DTYPE == DType::F32 && stride == head_dim
}

/// Copies `count` rows, which lie `stride` apart in `from`, side by side to `to` in fp32.
///
/// # Safety
/// `to` is writable for `count * head_dim` elements.
#[inline(always)]
pub(super) unsafe fn rows<T: Element>(
    from: &[T],
    stride: usize,
    count: usize,
    head_dim: usize,
    to: *mut f32,
) {
    for row in 0..count {
        // SAFETY: `row` < `count`.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(row * head_dim), head_dim) };
        widen(&from[row * stride..][..head_dim], to);
    }
}

/// Writes Qᵀ of one panel, times `factor`, as [head_dim, width]; columns past the last query are 0.
///
/// # Safety
/// `to` is writable for `head_dim * width` elements, and `row` for `head_dim`.
#[inline(always)]
pub(super) unsafe fn queries<T: Element>(
    problem: &Problem,
    q: &[T],
    columns: Columns,
    width: usize,
    factor: f32,
    row: &mut [f32],
    to: *mut f32,
) {
    let (layout, head_dim) = (&problem.tensors().q, problem.head_dim());
    for lane in 0..width {
        let column = columns.first + lane;
        if column < columns.end {
            let (head, seq) = columns.query(problem, column);
            widen(&q[layout.row(columns.batch, seq, head)..][..head_dim], row);
        } else {
            row.fill(0.0);
        }
        for (d, value) in row.iter().enumerate() {
            // SAFETY: d < head_dim and lane < width.
            unsafe { to.add(d * width + lane).write(value * factor) };
        }
    }
}

/// Where the results go; tasks on several threads write disjoint parts.
pub(super) struct Outputs<T> {
    pub(super) o: *mut T,
    /// Null when it is not wanted.
    pub(super) lse: *mut f32,
}

impl<T> Clone for Outputs<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Outputs<T> {}

// SAFETY: the pointers come from exclusive borrows that outlive the call, and no two tasks share a
// column: `Problem` has checked that rows of O do not overlap.
unsafe impl<T: Element> Send for Outputs<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Outputs<T> {}

/// Divides Oᵀ [head_dim, width] of one panel by the sums and writes it and the lse to their places.
///
/// # Safety
/// `from` is readable for `head_dim * width` elements, `max` and `sum` for one per column, and the
/// outputs are writable where the problem's layout leads; nobody else writes these columns.
#[expect(clippy::too_many_arguments, reason = "a copy between two layouts has two of everything")]
#[inline(always)]
pub(super) unsafe fn results<T: Element>(
    problem: &Problem,
    columns: Columns,
    width: usize,
    from: *const f32,
    max: *const f32,
    sum: *const f32,
    row: &mut [f32],
    outputs: Outputs<T>,
) {
    let (layout, head_dim) = (&problem.tensors().o, problem.head_dim());
    for lane in 0..columns.end - columns.first {
        let (head, seq) = columns.query(problem, columns.first + lane);
        // SAFETY: lane is a column of the panel, d < head_dim, and the caller vouches for the rest.
        unsafe {
            let (max, sum) = (*max.add(lane), *sum.add(lane));
            let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            for (d, value) in row.iter_mut().enumerate() {
                *value = *from.add(d * width + lane) * factor;
            }
            let to = outputs.o.add(layout.row(columns.batch, seq, head));
            narrow(row, std::slice::from_raw_parts_mut(to, head_dim));
            if !outputs.lse.is_null() {
                let index = problem.lse_index(columns.batch, head, seq);
                outputs.lse.add(index).write(log_sum_exp(max, sum));
            }
        }
    }
}

/// Natural logarithm of sum · 2^max; −∞ for an empty sum.
fn log_sum_exp(max: f32, sum: f32) -> f32 {
    if sum == 0.0 {
        return f32::NEG_INFINITY;
    }
    ((f64::from(max) + f64::from(sum).log2()) * std::f64::consts::LN_2) as f32
}
