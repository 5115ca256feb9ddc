//! FlashAttention on one task: a block of queries against all keys that they see.

use super::dropout;
use super::isa::{Kernels, Panel};
use super::microkernel::Start;
use super::pack::{self, Columns, Outputs, Rows, Source};
use super::softmax::State;
use super::tiles::TileChoice;
use crate::{Problem, TensorLayout};

/// What all tasks of a call share.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) problem: &'a Problem,
    pub(super) q: Source<'a>,
    pub(super) k: Source<'a>,
    pub(super) v: Source<'a>,
    pub(super) outputs: Outputs,
    pub(super) block_m: usize,
    pub(super) block_n: usize,
    pub(super) kernels: Kernels,
}

/// Offsets into one thread's scratch memory, in fp32 elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    /// Qᵀ, [panels][head_dim, width].
    queries: usize,
    /// Oᵀ, [panels][head_dim_v, width].
    results: usize,
    /// Scores, then weights, of one panel: [BLOCK_N, width].
    scores: usize,
    /// K in fp32, [BLOCK_N, head_dim], where it cannot be read in place.
    keys: usize,
    /// V likewise, [BLOCK_N, head_dim_v].
    values: usize,
    /// Running maximum and sum, [BLOCK_M].
    max: usize,
    sum: usize,
    /// Rescaling factors of one panel.
    rescale: usize,
    /// Two rows of one panel: limits of the mask, or slopes and diagonals.
    lanes: usize,
    /// One row in fp32.
    row: usize,
    /// Elements in all.
    pub(super) total: usize,
}

impl Scratch {
    pub(super) fn new(problem: &Problem, tile: &TileChoice, panel: Panel) -> Self {
        let packed = |layout: &TensorLayout| {
            if pack::readable_in_place(problem, layout) { 0 } else { tile.block_n * layout.head_dim }
        };
        let mut total = 0;
        let mut take = |elements: usize| {
            let offset = total;
            // Each part starts on a cache line.
            total += elements.next_multiple_of(16);
            offset
        };
        let queries = take(tile.block_m * problem.head_dim());
        let results = take(tile.block_m * problem.head_dim_v());
        let scores = take(tile.block_n * panel.width);
        let keys = take(packed(&problem.tensors().k));
        let values = take(packed(&problem.tensors().v));
        let [max, sum] = [take(tile.block_m), take(tile.block_m)];
        let [rescale, lanes] = [take(panel.width), take(2 * panel.width)];
        let row = take(problem.widest_head_dim());
        Self { queries, results, scores, keys, values, max, sum, rescale, lanes, row, total }
    }
}

/// One task: these columns, at most BLOCK_M of them, from first key to last.
pub(super) struct Task<'a> {
    pub(super) call: Call<'a>,
    pub(super) columns: Columns,
    pub(super) scratch: Scratch,
    /// This thread's scratch memory.
    pub(super) memory: *mut f32,
}

/// A block of keys with its values.
#[derive(Clone, Copy)]
struct KvBlock {
    first: usize,
    len: usize,
    k: Rows,
    v: Rows,
}

impl Task<'_> {
    /// Computes O and the lse of the task's columns.
    ///
    /// # Safety
    /// The CPU has the call's instruction set; `memory` is this task's own and holds
    /// `scratch.total` elements; nobody else writes the results of these columns.
    pub(super) unsafe fn run(&self) {
        let problem = self.call.problem;
        let seen = self.columns.seen_by_any(problem);
        // SAFETY: the caller vouches for everything below.
        unsafe {
            self.start();
            for first in seen.clone().step_by(self.call.block_n) {
                let block = self.load(first, self.call.block_n.min(seen.end - first));
                for panel in self.columns.panels(self.call.kernels.panel) {
                    self.attend(panel, block);
                }
            }
            self.finish();
        }
    }

    /// Address of a part of the scratch memory.
    fn at(&self, offset: usize) -> *mut f32 {
        // SAFETY: offsets are below `scratch.total`, which the memory holds.
        unsafe { self.memory.add(offset) }
    }

    /// Lanes that a panel occupies.
    fn width(&self, panel: Columns) -> usize {
        (panel.end - panel.first).next_multiple_of(self.call.kernels.panel.lanes)
    }

    /// Writes Qᵀ, and the state of a softmax over no keys.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn start(&self) {
        let (call, head_dim) = (&self.call, self.call.problem.head_dim());
        let factor = pack::query_factor(call.problem, self.columns.batch, self.columns.kv_head);
        // SAFETY: each part lies inside the scratch memory, and parts do not overlap.
        unsafe {
            self.at(self.scratch.results).write_bytes(0, call.block_m * call.problem.head_dim_v());
            self.at(self.scratch.sum).write_bytes(0, call.block_m);
            std::slice::from_raw_parts_mut(self.at(self.scratch.max), call.block_m).fill(f32::MIN);
            let row = std::slice::from_raw_parts_mut(self.at(self.scratch.row), head_dim);
            for panel in self.columns.panels(call.kernels.panel) {
                let to = self.at(self.scratch.queries + (panel.first - self.columns.first) * head_dim);
                pack::queries(call.problem, call.q, panel, self.width(panel), factor, row, to);
            }
        }
    }

    /// The block's rows of K and V: in place, or packed.
    ///
    /// # Safety
    /// As [`Self::run`]; the block has at most BLOCK_N keys.
    unsafe fn load(&self, first: usize, len: usize) -> KvBlock {
        let (call, columns) = (&self.call, self.columns);
        let tensors = call.problem.tensors();
        let rows = |layout: &TensorLayout, source: Source, packed: usize| {
            let from = source.skip(call.problem.key_index(layout, columns.batch, first, columns.kv_head));
            if pack::readable_in_place(call.problem, layout) {
                return from.rows(layout.stride_seq);
            }
            // SAFETY: where rows are not readable in place, the scratch memory has room for BLOCK_N of them.
            unsafe { pack::rows(from, layout.stride_seq, len, layout.head_dim, self.at(packed)) };
            Rows { data: self.at(packed), stride: layout.head_dim }
        };
        let k = rows(&tensors.k, call.k, self.scratch.keys);
        let v = rows(&tensors.v, call.v, self.scratch.values);
        KvBlock { first, len, k, v }
    }

    /// One panel of queries against one block of keys: S = Q·Kᵀ, P = softmax, O = rescaled O + P·V.
    ///
    /// # Safety
    /// As [`Self::run`]; the panel is one of the task's.
    unsafe fn attend(&self, panel: Columns, block: KvBlock) {
        let (problem, kernels, scratch) = (self.call.problem, &self.call.kernels, &self.scratch);
        let (head_dim, head_dim_v, width) = (problem.head_dim(), problem.head_dim_v(), self.width(panel));
        let seen = panel.seen_by_any(problem);
        let seen = seen.start.max(block.first)..seen.end.min(block.first + block.len);
        if seen.is_empty() {
            return;
        }
        let keys = seen.len();
        let column = panel.first - self.columns.first;
        let scores = self.at(scratch.scores);
        let queries = self.at(scratch.queries + column * head_dim);
        let results = self.at(scratch.results + column * head_dim_v);
        let state = State {
            max: self.at(scratch.max + column),
            sum: self.at(scratch.sum + column),
            rescale: self.at(scratch.rescale),
        };
        // SAFETY: the block holds `keys` rows of K and V from the first seen on, and the scratch memory a
        // panel of each part.
        unsafe {
            let (k, v) = (block.k.skip(seen.start - block.first), block.v.skip(seen.start - block.first));
            kernels.scores(width, k, keys, head_dim, queries, scores);
            let lanes = self.at(scratch.lanes);
            panel.change_scores(problem, kernels, (seen.start, keys), width, scores, lanes);
            if !panel.all_see(problem, &seen) {
                let limits = panel.limits(problem, seen.start, width, lanes);
                kernels.mask(width, scores, keys, limits);
            }
            kernels.update(width, scores, keys, state);
            if let Some(dropout) = problem.dropout() {
                let weights = std::slice::from_raw_parts_mut(scores, keys * width);
                dropout::apply(dropout, weights, width, |key, lane| {
                    let (head, row) = panel.query(problem, (panel.first + lane).min(panel.end - 1));
                    (panel.batch * problem.heads() + head, row, seen.start + key)
                });
            }
            kernels.values(width, v, head_dim_v, keys, scores, results, Start::Rescaled(state.rescale));
        }
    }

    /// Writes O and the lse.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn finish(&self) {
        let (call, head_dim) = (&self.call, self.call.problem.head_dim_v());
        // SAFETY: each part lies inside the scratch memory; the caller vouches for the outputs.
        unsafe {
            let row = std::slice::from_raw_parts_mut(self.at(self.scratch.row), head_dim);
            for panel in self.columns.panels(call.kernels.panel) {
                let column = panel.first - self.columns.first;
                let from = self.at(self.scratch.results + column * head_dim);
                let (max, sum) = (self.at(self.scratch.max + column), self.at(self.scratch.sum + column));
                pack::results(call.problem, panel, self.width(panel), from, max, sum, row, call.outputs);
            }
        }
    }
}
