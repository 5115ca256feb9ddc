//! Attention without fusion: scores, softmax and values as three passes over a matrix in memory.

use super::isa::{Isa, Kernels};
use super::memory::Buffer;
use super::microkernel::Start;
use super::pack::{self, Columns, Outputs, Rows, Source};
use super::schedule::{self, Tasks};
use super::softmax::State;
use super::tiles::Machine;
use super::{Stats, TileChoice};
use crate::{Problem, Result, TensorLayout};

/// Keys that a matrix product takes at once, so that its operands stay in cache.
const DEPTH: usize = 96;

/// One of the three passes.
#[derive(Clone, Copy)]
enum Pass {
    Scores,
    Softmax,
    Values,
}

/// What all tasks of a call share.
#[derive(Clone, Copy)]
struct Call<'a> {
    problem: &'a Problem,
    q: Source<'a>,
    k: Matrix,
    v: Matrix,
    outputs: Outputs,
    /// All scores, [B, Hkv][panels][Sk, width].
    scores: *mut f32,
    /// Maximum and sum of each column, [B, Hkv][columns, padded to panels].
    max: *mut f32,
    sum: *mut f32,
    kernels: Kernels,
}

// SAFETY: the pointers are to memory that outlives the call, and each task writes its own columns of it only.
unsafe impl Send for Call<'_> {}
// SAFETY: as above.
unsafe impl Sync for Call<'_> {}

/// All rows of K or V in fp32.
#[derive(Clone, Copy)]
struct Matrix {
    data: *const f32,
    stride: usize,
    stride_head: usize,
    stride_batch: usize,
}

impl Matrix {
    /// The rows of one head.
    fn rows(&self, problem: &Problem, columns: Columns) -> Rows {
        // A packed batch lies in one.
        let batch = if problem.is_packed() { 0 } else { columns.batch };
        let first = problem.key_rows(columns.batch).start;
        let offset = batch * self.stride_batch + columns.kv_head * self.stride_head + first * self.stride;
        // SAFETY: batch, head and row are in range, so that the address is inside the tensor or at its end.
        Rows { data: unsafe { self.data.add(offset) }, stride: self.stride }
    }
}

/// Runs the three passes.
///
/// # Errors
/// When memory cannot be had.
pub(super) fn run(problem: &Problem, [q, k, v]: [Source; 3], outputs: Outputs) -> Result<Stats> {
    let isa = Isa::widest_vectors();
    let width = isa.kernels().panel.width;
    let heads = problem.batch() * problem.kv_heads();
    let padded = (problem.seqlen_q() * problem.group()).next_multiple_of(width);
    let per_column = heads as u128 * padded as u128;
    let mut scores = Buffer::new("the matrix of scores", per_column * problem.seqlen_k() as u128)?;
    let mut state = Buffer::new("maxima and sums of the scores", 2 * per_column)?;
    let (k, k_copy) = in_fp32(problem, &problem.tensors().k, k)?;
    let (v, v_copy) = in_fp32(problem, &problem.tensors().v, v)?;
    let tasks = Tasks::new(problem, width);
    let threads = Machine::here(isa.kernels().panel).threads.min(tasks.len());
    // A panel of Qᵀ or Oᵀ, a row, and two of a panel: rescaling factors, key limits, or slopes.
    let share = (problem.widest_head_dim() * (width + 1) + 2 * width).next_multiple_of(16);
    let mut scratch = Buffer::new("the scratch memory of all threads", share as u128 * threads as u128)?;
    let max = state.as_mut_ptr();
    // SAFETY: the buffer holds two entries per column.
    let sum = unsafe { max.add(heads * padded) };
    let call =
        Call { problem, q, k, v, outputs, scores: scores.as_mut_ptr(), max, sum, kernels: isa.kernels() };
    for pass in [Pass::Scores, Pass::Softmax, Pass::Values] {
        schedule::run(tasks.len(), threads, &mut scratch, share, |index, memory| {
            let call = &call;
            if let Some(columns) = tasks.get(index).existing(problem) {
                // SAFETY: `isa` is available, and the memory is this thread's own.
                unsafe { Task { call, columns, memory }.run(pass) }
            }
        });
    }
    let buffers = [Some(&scores), Some(&state), k_copy.as_ref(), v_copy.as_ref(), Some(&scratch)];
    let tile = TileChoice {
        block_m: width,
        block_n: DEPTH,
        reason: "all scores are kept; the tile is that of the matrix products alone".to_owned(),
    };
    Ok(Stats { extra_bytes: buffers.into_iter().flatten().map(Buffer::bytes).sum(), tile, threads, isa })
}

/// K or V as fp32: in place if it is, else a copy, [B, Hkv, Sk, D].
fn in_fp32(problem: &Problem, layout: &TensorLayout, source: Source) -> Result<(Matrix, Option<Buffer>)> {
    use rayon::prelude::*;
    let TensorLayout { batch, seqlen, heads, head_dim, stride_seq: stride, .. } = *layout;
    if pack::readable_in_place(problem, layout) {
        let (stride_head, stride_batch) = (layout.stride_head, layout.stride_batch);
        return Ok((Matrix { data: source.rows(stride).data, stride, stride_head, stride_batch }, None));
    }
    let elements = [batch, heads, seqlen, head_dim].iter().map(|&size| size as u128).product();
    let mut copy = Buffer::new("K or V in fp32", elements)?;
    let address = copy.as_mut_ptr() as usize;
    (0..batch * heads).into_par_iter().for_each(|index| {
        let from = source.skip(layout.row(index / heads, 0, index % heads));
        let to = (address as *mut f32).wrapping_add(index * seqlen * head_dim);
        // SAFETY: the copy holds seqlen · head_dim elements for each head, which this closure alone writes.
        unsafe { pack::rows(from, stride, seqlen, head_dim, to) };
    });
    let stride_head = seqlen * head_dim;
    let data = copy.as_mut_ptr();
    Ok((Matrix { data, stride: head_dim, stride_head, stride_batch: heads * stride_head }, Some(copy)))
}

/// One pass over one panel of columns.
struct Task<'a> {
    call: &'a Call<'a>,
    columns: Columns,
    memory: *mut f32,
}

impl Task<'_> {
    /// # Safety
    /// The CPU has the call's instruction set, `memory` is this task's own, and nobody else works on
    /// these columns.
    unsafe fn run(&self, pass: Pass) {
        let problem = self.call.problem;
        let width = self.call.kernels.panel.width;
        let padded = (problem.seqlen_q() * problem.group()).next_multiple_of(width);
        let keys = problem.key_rows(self.columns.batch).len();
        let head = self.columns.batch * problem.kv_heads() + self.columns.kv_head;
        let column = head * padded + self.columns.first;
        // SAFETY: the column is one of the matrix, which has Sk entries for each.
        unsafe {
            let scores = self.call.scores.add(column * problem.seqlen_k());
            let (max, sum) = (self.call.max.add(column), self.call.sum.add(column));
            match pass {
                Pass::Scores => self.scores(scores, keys),
                Pass::Softmax => self.softmax(scores, keys, max, sum),
                Pass::Values => self.values(scores, keys, max, sum),
            }
        }
    }

    /// Lanes that the columns occupy.
    fn width(&self) -> usize {
        (self.columns.end - self.columns.first).next_multiple_of(self.call.kernels.panel.lanes)
    }

    /// This task's row of `columns` elements, after the panel of Qᵀ or Oᵀ.
    ///
    /// # Safety
    /// `memory` is this task's own, and the last such row is no longer in use.
    unsafe fn row<'row>(&self, width: usize, columns: usize) -> &'row mut [f32] {
        let panel = self.call.problem.widest_head_dim() * width;
        // SAFETY: the scratch memory holds a panel and a row; nobody else has a reference to it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.add(panel), columns) }
    }

    /// # Safety
    /// As [`Self::run`].
    unsafe fn scores(&self, scores: *mut f32, keys: usize) {
        let (call, head_dim, width) = (self.call, self.call.problem.head_dim(), self.width());
        let factor = pack::query_factor(call.problem, self.columns.batch, self.columns.kv_head);
        // SAFETY: K has `keys` rows, and the scores have as many of this width.
        unsafe {
            pack::queries(
                call.problem,
                call.q,
                self.columns,
                width,
                factor,
                self.row(width, head_dim),
                self.memory,
            );
            call.kernels.scores(
                width,
                call.k.rows(call.problem, self.columns),
                keys,
                head_dim,
                self.memory,
                scores,
            );
            let lanes = self.memory.add(call.problem.widest_head_dim() * (width + 1));
            let (columns, kernels) = (self.columns, &call.kernels);
            columns.change_scores(call.problem, kernels, (0, keys), width, scores, lanes);
        }
    }

    /// # Safety
    /// As [`Self::run`].
    unsafe fn softmax(&self, scores: *mut f32, keys: usize, max: *mut f32, sum: *mut f32) {
        let (problem, width) = (self.call.problem, self.width());
        // SAFETY: the state has one entry per column, and the scratch memory more than two rows of them.
        unsafe {
            for first in (0..keys).step_by(DEPTH) {
                let len = DEPTH.min(keys - first);
                if self.columns.all_see(problem, &(first..first + len)) {
                    continue;
                }
                let limits = self.columns.limits(problem, first, width, self.memory);
                self.call.kernels.mask(width, scores.add(first * width), len, limits);
            }
            std::slice::from_raw_parts_mut(max, width).fill(f32::MIN);
            std::slice::from_raw_parts_mut(sum, width).fill(0.0);
            self.call.kernels.update(width, scores, keys, State { max, sum, rescale: self.memory });
        }
    }

    /// # Safety
    /// As [`Self::run`].
    unsafe fn values(&self, scores: *mut f32, keys: usize, max: *mut f32, sum: *mut f32) {
        let (call, head_dim, width) = (self.call, self.call.problem.head_dim_v(), self.width());
        let rows = call.v.rows(call.problem, self.columns);
        // SAFETY: V has `keys` rows, the scores as many, and the scratch memory a panel, a row, and one
        // row of the panel's width.
        unsafe {
            let ones = self.memory.add(call.problem.widest_head_dim() * (width + 1));
            std::slice::from_raw_parts_mut(ones, width).fill(1.0);
            if keys == 0 {
                self.memory.write_bytes(0, head_dim * width);
            }
            for first in (0..keys).step_by(DEPTH) {
                let start = if first == 0 { Start::Zero } else { Start::Rescaled(ones) };
                let v = rows.skip(first);
                let depth = DEPTH.min(keys - first);
                call.kernels.values(width, v, head_dim, depth, scores.add(first * width), self.memory, start);
            }
            pack::results(
                call.problem,
                self.columns,
                width,
                self.memory,
                max,
                sum,
                self.row(width, head_dim),
                call.outputs,
            );
        }
    }
}
