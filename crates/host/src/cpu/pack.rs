//! Between the caller's tensors and the kernels' layout: queries across, in fp32.

use std::any::TypeId;
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

use float8::F8E4M3;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::isa::{Kernels, Panel};
use super::score::Alibi;
use super::softmax::Limits;
use crate::functions::Functions;
use crate::{DType, Element, Problem, TensorLayout};

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

    /// Those that are there: a sequence may have fewer rows than the longest, or none.
    pub(super) fn existing(self, problem: &Problem) -> Option<Self> {
        let end = self.end.min(problem.query_rows(self.batch).len() * problem.group());
        (self.first < end).then_some(Self { end, ..self })
    }

    /// Keys that a column sees.
    pub(super) fn visible(&self, problem: &Problem, column: usize) -> Range<usize> {
        problem.visible_keys(self.batch, column / problem.group())
    }

    /// Keys that any column sees: later columns see the same ones or later ones.
    pub(super) fn seen_by_any(&self, problem: &Problem) -> Range<usize> {
        self.visible(problem, self.first).start..self.visible(problem, self.end - 1).end
    }

    /// Whether each column sees all of `keys`.
    pub(super) fn all_see(&self, problem: &Problem, keys: &Range<usize>) -> bool {
        self.visible(problem, self.end - 1).start <= keys.start
            && keys.end <= self.visible(problem, self.first).end
    }

    /// Writes for each lane which of the keys from `first` on it sees, as [`Limits`] says. Lanes past the
    /// last column are like it.
    ///
    /// # Safety
    /// `to` is writable for twice `width` elements.
    pub(super) unsafe fn limits(
        &self,
        problem: &Problem,
        first: usize,
        width: usize,
        to: *mut f32,
    ) -> Limits {
        // SAFETY: `to` has room for two rows of `width` lanes.
        unsafe {
            limits(|lane| self.visible(problem, (self.first + lane).min(self.end - 1)), first, width, to)
        }
    }

    /// Changes the scores of these columns and the `keys` keys from `first` on as the problem says. `scratch`
    /// is overwritten.
    ///
    /// # Safety
    /// The CPU has the instruction set of `kernels`; `scores` is [keys, width] and readable and writable,
    /// `scratch` writable for twice `width` elements.
    pub(super) unsafe fn change_scores(
        &self,
        problem: &Problem,
        kernels: &Kernels,
        (first, keys): (usize, usize),
        width: usize,
        scores: *mut f32,
        scratch: *mut f32,
    ) {
        if let Some(functions) = problem.functions() {
            // SAFETY: the caller vouches.
            unsafe { self.call_functions(problem, functions, (first, keys), width, scores) };
        }
        // SAFETY: the caller vouches; lane < width.
        unsafe {
            if problem.softcap() != 0.0 {
                kernels.softcap(width, scores, keys, problem.softcap() * LOG2_E);
            }
            if problem.alibi_slopes().is_some() {
                let (slopes, diagonals) = (scratch, scratch.add(width));
                for lane in 0..width {
                    let (head, row) = self.query(problem, (self.first + lane).min(self.end - 1));
                    slopes.add(lane).write(-problem.alibi_slope(self.batch, head) * LOG2_E);
                    diagonals.add(lane).write((problem.diagonal(self.batch, row) - first as isize) as f32);
                }
                kernels.alibi(width, scores, keys, Alibi { slopes, diagonals });
            }
        }
    }

    /// The part of [`Self::change_scores`] that a program brings along. Scores are in units of ln 2.
    ///
    /// # Safety
    /// As [`Self::change_scores`].
    unsafe fn call_functions(
        &self,
        problem: &Problem,
        functions: &Functions,
        (first, keys): (usize, usize),
        width: usize,
        scores: *mut f32,
    ) {
        // Runs on the CPU are refused where the device alone has a tensor.
        let Ok(functions) = functions.on_host() else { return };
        for lane in 0..width {
            let (head, row) = self.query(problem, (self.first + lane).min(self.end - 1));
            for key in 0..keys {
                let at = problem.position(self.batch, head, row, first + key);
                // SAFETY: the score is one of [keys, width].
                unsafe {
                    let score = scores.add(key * width + lane);
                    score.write(functions.score(score.read() * LN_2, at) * LOG2_E);
                }
            }
        }
    }

    /// The columns in panels of at most the instruction set's width.
    pub(super) fn panels(self, panel: Panel) -> impl Iterator<Item = Self> {
        (self.first..self.end).step_by(panel.width).map(move |first| Self {
            first,
            end: self.end.min(first + panel.width),
            ..self
        })
    }
}

/// Writes for each lane which rows from `first` on it sees, of those that `visible` says, as [`Limits`] has
/// it.
///
/// # Safety
/// `to` is writable for twice `width` elements.
pub(super) unsafe fn limits(
    visible: impl Fn(usize) -> Range<usize>,
    first: usize,
    width: usize,
    to: *mut f32,
) -> Limits {
    let (before, end) = (to, to.wrapping_add(width));
    for lane in 0..width {
        let seen = visible(lane);
        // SAFETY: lane < width. Outside of a block a limit has no effect, so that rounding of large
        // ones has none either.
        unsafe {
            before.add(lane).write(seen.start.saturating_sub(first) as f32 - 1.0);
            end.add(lane).write(seen.end.saturating_sub(first) as f32);
        }
    }
    Limits { before, end }
}

/// Rows of an fp32 matrix, wherever it lies.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) data: *const f32,
    pub(super) stride: usize,
}

impl Rows {
    /// The rows after the first `count`.
    ///
    /// # Safety
    /// `count` times `stride` elements from `data` on lie in one allocation.
    pub(super) const unsafe fn skip(self, count: usize) -> Self {
        // SAFETY: the pointer stays in the allocation, or one element behind it.
        Self { data: unsafe { self.data.add(count * self.stride) }, ..self }
    }
}

/// An input tensor whose storage type is known at run time only, so that all types share one copy
/// of the algorithms.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
    E4m3(&'a [F8E4M3]),
}

impl<'a> Source<'a> {
    pub(super) fn new<T: Element>(data: &'a [T]) -> Self {
        match T::DTYPE {
            DType::F32 => Self::F32(same_type(data)),
            DType::F16 => Self::F16(same_type(data)),
            DType::Bf16 => Self::Bf16(same_type(data)),
            DType::E4m3 => Self::E4m3(same_type(data)),
        }
    }

    /// What lies `elements` further on.
    pub(super) fn skip(self, elements: usize) -> Self {
        match self {
            Self::F32(data) => Self::F32(&data[elements..]),
            Self::F16(data) => Self::F16(&data[elements..]),
            Self::Bf16(data) => Self::Bf16(&data[elements..]),
            Self::E4m3(data) => Self::E4m3(&data[elements..]),
        }
    }

    /// The rows from here on, `stride` apart, where they are in fp32.
    ///
    /// # Panics
    /// When they are not: [`readable_in_place`] tells.
    pub(super) fn rows(self, stride: usize) -> Rows {
        let Self::F32(data) = self else {
            unreachable!("only fp32 is read in place");
        };
        Rows { data: data.as_ptr(), stride }
    }

    /// Widens the elements from `offset` on to fp32, as many as `to` has.
    pub(super) fn widen(self, offset: usize, to: &mut [f32]) {
        let range = offset..offset + to.len();
        match self {
            Self::F32(data) => to.copy_from_slice(&data[range]),
            Self::F16(data) => data[range].convert_to_f32_slice(to),
            Self::Bf16(data) => {
                for (to, from) in to.iter_mut().zip(&data[range]) {
                    *to = f32::from_bits(u32::from(from.to_bits()) << 16);
                }
            }
            Self::E4m3(data) => {
                for (to, from) in to.iter_mut().zip(&data[range]) {
                    *to = Element::to_f32(*from);
                }
            }
        }
    }
}

/// The slice itself, under the name that its type has in one branch of a match.
fn same_type<T: 'static, U: 'static>(slice: &[T]) -> &[U] {
    assert!(TypeId::of::<T>() == TypeId::of::<U>(), "only called where both types are the same");
    // SAFETY: both are the same type.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) }
}

/// Whether the kernels can read such rows where they lie. Rows with gaps are packed instead, because
/// usual gaps are powers of two, which map all rows to few sets of the L1 cache.
pub(super) fn readable_in_place(problem: &Problem, layout: &TensorLayout) -> bool {
    problem.dtype() == DType::F32 && layout.stride_seq == layout.head_dim
}

/// Copies `count` rows, which lie `stride` apart in `from`, side by side to `to` in fp32.
///
/// # Safety
/// `to` is writable for `count * head_dim` elements.
pub(super) unsafe fn rows(from: Source, stride: usize, count: usize, head_dim: usize, to: *mut f32) {
    for row in 0..count {
        // SAFETY: `row` < `count`.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(row * head_dim), head_dim) };
        from.widen(row * stride, to);
    }
}

/// What Qᵀ is multiplied by for a sequence's key/value head: scores in units of log2 need no multiplication
/// before each exponential, and with a softcap they are the argument of its tanh.
pub(super) fn query_factor(problem: &Problem, batch: usize, kv_head: usize) -> f32 {
    let scale = problem.scores().softmax_scale_of(batch, kv_head);
    match problem.softcap() {
        0.0 => scale * LOG2_E,
        softcap => scale / softcap,
    }
}

/// Writes Qᵀ of one panel, times `factor`, as [head_dim, width]; columns past the last query are 0.
///
/// # Safety
/// `to` is writable for `head_dim * width` elements, and `row` for `head_dim`.
pub(super) unsafe fn queries(
    problem: &Problem,
    q: Source,
    columns: Columns,
    width: usize,
    factor: f32,
    row: &mut [f32],
    to: *mut f32,
) {
    let at = |lane: usize| {
        let column = Some(columns.first + lane).filter(|column| *column < columns.end);
        column.map(|column| {
            let (head, seq) = columns.query(problem, column);
            problem.query_index(&problem.tensors().q, columns.batch, seq, head)
        })
    };
    // SAFETY: `to` has room for `head_dim` rows of `width` lanes.
    unsafe { transposed(q, at, width, factor, row, to) }
}

/// Writes rows of a tensor across the lanes, times `factor`, as [columns, width]: lane by lane that which
/// starts where `at` says, or 0.
///
/// # Safety
/// `to` is writable for as many rows of `width` elements as `row` has elements.
pub(super) unsafe fn transposed(
    source: Source,
    at: impl Fn(usize) -> Option<usize>,
    width: usize,
    factor: f32,
    row: &mut [f32],
    to: *mut f32,
) {
    for lane in 0..width {
        match at(lane) {
            Some(first) => source.widen(first, row),
            None => row.fill(0.0),
        }
        for (d, value) in row.iter().enumerate() {
            // SAFETY: d is below the row's length and lane < width.
            unsafe { to.add(d * width + lane).write(value * factor) };
        }
    }
}

/// Where the results go; tasks on several threads write disjoint parts.
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    o: *mut u8,
    /// Null when it is not wanted.
    lse: *mut f32,
    dtype: DType,
}

// SAFETY: the pointers come from exclusive borrows that outlive the call, and no two tasks share a
// column: `Problem` has checked that rows of O do not overlap.
unsafe impl Send for Outputs {}
// SAFETY: as above.
unsafe impl Sync for Outputs {}

impl Outputs {
    pub(super) fn new<T: Element>(o: &mut [T], lse: Option<&mut [f32]>) -> Self {
        let lse = lse.map_or(std::ptr::null_mut(), |lse| lse.as_mut_ptr());
        Self { o: o.as_mut_ptr().cast(), lse, dtype: T::DTYPE }
    }

    /// Writes lane `lane` of a panel [columns, width] at `from`, times `factor`, from element `offset` on.
    /// `row` is overwritten.
    ///
    /// # Safety
    /// `from` is readable for as many rows of `width` elements as `row` has elements; otherwise as
    /// [`Self::write`].
    pub(super) unsafe fn write_lane(
        self,
        from: *const f32,
        (lane, width): (usize, usize),
        factor: f32,
        row: &mut [f32],
        offset: usize,
    ) {
        // SAFETY: d is below the row's length and lane < width; the caller vouches for the rest.
        unsafe {
            for (d, value) in row.iter_mut().enumerate() {
                *value = *from.add(d * width + lane) * factor;
            }
            self.write(row, offset);
        }
    }

    /// Rounds a row to the storage type and writes it from element `offset` on.
    ///
    /// # Safety
    /// O is writable there for the row's length, and nobody else writes there.
    unsafe fn write(self, row: &[f32], offset: usize) {
        // SAFETY: the caller vouches; O has the type that `dtype` names.
        unsafe {
            match self.dtype {
                DType::F32 => narrow(row, self.o.cast::<f32>().add(offset)),
                DType::F16 => {
                    let to = std::slice::from_raw_parts_mut(self.o.cast::<f16>().add(offset), row.len());
                    to.convert_from_f32_slice(row);
                }
                DType::Bf16 => {
                    for (d, value) in row.iter().enumerate() {
                        self.o.cast::<bf16>().add(offset + d).write(to_bf16(*value));
                    }
                }
                DType::E4m3 => narrow(row, self.o.cast::<F8E4M3>().add(offset)),
            }
        }
    }
}

/// Rounds to nearest even as [`bf16::from_f32`] does, without its branches, for many values at a time.
fn to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet_nan = bits >> 16 | 0x40;
    bf16::from_bits(if value.is_nan() { quiet_nan } else { rounded } as u16)
}

/// # Safety
/// `to` is writable for the row's length.
unsafe fn narrow<T: Element>(row: &[f32], to: *mut T) {
    for (d, value) in row.iter().enumerate() {
        // SAFETY: d is below the row's length.
        unsafe { to.add(d).write(T::from_f32(*value)) };
    }
}

/// Divides Oᵀ [head_dim, width] of one panel by the sums and writes it and the lse to their places.
///
/// # Safety
/// `from` is readable for `head_dim * width` elements, `max` and `sum` for one per column, and the
/// outputs are writable where the problem's layout leads; nobody else writes these columns.
#[expect(clippy::too_many_arguments, reason = "a copy between two layouts has two of everything")]
pub(super) unsafe fn results(
    problem: &Problem,
    columns: Columns,
    width: usize,
    from: *const f32,
    max: *const f32,
    sum: *const f32,
    row: &mut [f32],
    outputs: Outputs,
) {
    for lane in 0..columns.end - columns.first {
        // SAFETY: lane is a column of the panel, d < head_dim, and the caller vouches for the rest.
        unsafe {
            for (d, value) in row.iter_mut().enumerate() {
                *value = *from.add(d * width + lane);
            }
            result(problem, columns, lane, (*max.add(lane), *sum.add(lane)), row, outputs);
        }
    }
}

/// Divides a row of O by the sum of one lane of a panel, and writes it and the lse to their places.
///
/// # Safety
/// The outputs are writable where the problem's layout leads, and nobody else writes this column.
pub(super) unsafe fn result(
    problem: &Problem,
    columns: Columns,
    lane: usize,
    (max, sum): (f32, f32),
    row: &mut [f32],
    outputs: Outputs,
) {
    let (head, seq) = columns.query(problem, columns.first + lane);
    let (factor, lse) = finish(max, sum, problem.scores().sink(columns.batch, head));
    let factor = problem.scores().v_descale_of(columns.batch, columns.kv_head) * factor;
    for value in &mut *row {
        *value *= factor;
    }
    let offset = problem.query_index(&problem.tensors().o, columns.batch, seq, head);
    // SAFETY: the caller vouches for the outputs.
    unsafe {
        outputs.write(row, offset);
        if !outputs.lse.is_null() {
            let index = problem.lse_index(columns.batch, head, seq);
            outputs.lse.add(index).write(lse);
        }
    }
}

/// The factor 1/l of a row, and its natural log-sum-exp, from a sum of weights relative to 2^max, and a sink:
/// 0 and the sink for an empty sum.
fn finish(max: f32, sum: f32, sink: f32) -> (f32, f32) {
    if sum == 0.0 {
        return (0.0, sink);
    }
    let lse = |max: f64, sum: f64| ((max + sum.log2()) * std::f64::consts::LN_2) as f32;
    if sink == f32::NEG_INFINITY {
        return (1.0 / sum, lse(max.into(), sum.into()));
    }
    let sink = f64::from(sink) * std::f64::consts::LOG2_E;
    let top = sink.max(max.into());
    let kept = (f64::from(max) - top).exp2();
    let sum = f64::from(sum) * kept + (sink - top).exp2();
    ((kept / sum) as f32, lse(top, sum))
}
