//! FlashAttention on one task: a block of queries against all keys that they see.

use super::kernels::{PANEL, TileKernels};
use super::operands::{Keys, Layout};
use super::product::{BLOCK, Operand, Product, STEP, TILE_ROW_BYTES, TILE_ROWS};
use crate::Problem;
use crate::cpu::pack::{self, Columns, Outputs, Source};
use crate::cpu::softmax::State;
use crate::cpu::tiles::TileChoice;

/// What all tasks of a call share.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) problem: &'a Problem,
    pub(super) q: Source<'a>,
    /// K and V, packed.
    pub(super) keys: &'a Keys<'a>,
    pub(super) outputs: Outputs,
    pub(super) block_m: usize,
    /// Whole steps of keys.
    pub(super) block_n: usize,
    pub(super) kernels: TileKernels,
}

/// Offsets into one thread's scratch memory, in fp32 elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    /// Qᵀ in tiles, [columns in tiles][parts][head_dim in steps].
    queries: usize,
    /// Oᵀ, [panels][head_dim_v, width].
    results: usize,
    /// Scores of one panel, [BLOCK_N, width], then weights in pairs of keys.
    scores: usize,
    /// Running maximum and sum, [BLOCK_M].
    max: usize,
    sum: usize,
    /// Rescaling factors of one panel.
    rescale: usize,
    /// Two rows of one panel: limits of the mask, or slopes and diagonals.
    lanes: usize,
    /// Rows between tensors and tiles.
    pub(super) rows: usize,
    /// Elements in all.
    pub(super) total: usize,
}

impl Scratch {
    pub(super) fn new(layout: &Layout, tile: &TileChoice) -> Self {
        let mut total = 0;
        let mut take = |elements: usize| {
            let offset = total;
            // Each part starts on a cache line.
            total += elements.next_multiple_of(16);
            offset
        };
        let queries = take(tile.block_m * layout.parts * layout.head_dim / 2);
        let results = take(tile.block_m * layout.head_dim_v);
        let scores = take(tile.block_n * PANEL);
        let [max, sum] = [take(tile.block_m), take(tile.block_m)];
        let [rescale, lanes] = [take(PANEL), take(2 * PANEL)];
        let rows = take(layout.row_elements());
        Self { queries, results, scores, max, sum, rescale, lanes, rows, total }
    }
}

/// One task: these columns, at most BLOCK_M of them, from first key to last.
pub(super) struct Task<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) columns: Columns,
    pub(super) scratch: Scratch,
    /// This thread's scratch memory.
    pub(super) memory: *mut f32,
}

impl Task<'_> {
    /// Computes O and the lse of the task's columns.
    ///
    /// # Safety
    /// The CPU has the call's instruction sets; `memory` is this task's own and holds `scratch.total`
    /// elements; all keys are packed; nobody else writes the results of these columns.
    pub(super) unsafe fn run(&self) {
        let seen = self.columns.seen_by_any(self.call.problem);
        // SAFETY: the CPU has the instruction sets, and tiles are used between the two calls alone; the rest
        // is this function's own contract.
        unsafe {
            (self.call.kernels.configure)();
            self.start();
            // Blocks begin where tiles of keys do.
            for first in (seen.start / STEP * STEP..seen.end).step_by(self.call.block_n) {
                for panel in self.panels() {
                    self.attend(panel, first);
                }
            }
            self.finish();
            (self.call.kernels.release)();
        }
    }

    /// Address of a part of the scratch memory.
    fn at(&self, offset: usize) -> *mut f32 {
        // SAFETY: offsets are below `scratch.total`, which the memory holds.
        unsafe { self.memory.add(offset) }
    }

    /// The task's columns in panels of at most 64.
    fn panels(&self) -> impl Iterator<Item = Columns> {
        self.columns.panels(self.call.kernels.vectors.panel)
    }

    /// Writes Qᵀ, and the state of a softmax over no keys.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn start(&self) {
        let Call { problem, q, keys, block_m, kernels, .. } = self.call;
        let layout = keys.layout();
        let rows = layout.rows(self.at(self.scratch.rows));
        // SAFETY: each part lies inside the scratch memory, and parts do not overlap.
        unsafe {
            self.at(self.scratch.results).write_bytes(0, block_m * layout.head_dim_v);
            self.at(self.scratch.sum).write_bytes(0, *block_m);
            std::slice::from_raw_parts_mut(self.at(self.scratch.max), *block_m).fill(f32::MIN);
            // A last panel of few columns is padded to whole blocks.
            let padded = (self.columns.end - self.columns.first).next_multiple_of(BLOCK);
            for column in (0..padded).step_by(TILE_ROWS) {
                let columns = Columns { first: self.columns.first + column, ..self.columns };
                let to = self.queries(column).data.cast_mut();
                rows.pack_queries(problem, *q, columns, kernels, to);
            }
        }
    }

    /// Qᵀ from a column of the task on.
    fn queries(&self, column: usize) -> Operand {
        let layout = self.call.keys.layout();
        layout.queries(self.at(self.scratch.queries + column * layout.parts * layout.head_dim / 2))
    }

    /// One panel of queries against the block of keys that begins with `first`: S = Q·Kᵀ, P = softmax,
    /// O = rescaled O + P·V.
    ///
    /// # Safety
    /// As [`Self::run`]; the panel is one of the task's.
    unsafe fn attend(&self, panel: Columns, first: usize) {
        let Call { problem, keys, block_n, kernels, .. } = self.call;
        let (layout, scratch) = (keys.layout(), &self.scratch);
        let seen = panel.seen_by_any(problem);
        // Keys in the same tile as the first that is seen have the weight 0.
        let seen = first.max(seen.start / STEP * STEP)..seen.end.min(first + block_n);
        if seen.is_empty() {
            return;
        }
        let (count, width) = (seen.len(), width(panel));
        let column = panel.first - self.columns.first;
        let scores = self.at(scratch.scores);
        let results = self.at(scratch.results + column * layout.head_dim_v);
        let state = State {
            max: self.at(scratch.max + column),
            sum: self.at(scratch.sum + column),
            rescale: self.at(scratch.rescale),
        };
        let [k, v] = keys.operands(panel.batch, panel.kv_head, seen.start / STEP);
        let of_scores = Product {
            a: k,
            b: self.queries(column),
            parts: layout.parts_of_scores(),
            steps: layout.head_dim / STEP,
            blocks: (count.div_ceil(BLOCK), width / BLOCK),
            c: scores,
            c_stride: width,
            adds: false,
        };
        let of_values = Product {
            a: v,
            b: weights(scores, width, layout.parts),
            parts: layout.parts_of_values(),
            steps: count.div_ceil(STEP),
            blocks: (layout.head_dim_v / BLOCK, width / BLOCK),
            c: results,
            c_stride: width,
            adds: true,
        };
        // SAFETY: both sides have tiles for the keys seen in whole steps; the scratch memory has a panel of
        // each part; rows of scores past the last key are not read before the softmax writes zeros there.
        unsafe {
            (kernels.multiply)(&of_scores);
            let factor = self.change_scores(panel, (seen.start, count));
            if !panel.all_see(problem, &seen) {
                let limits = panel.limits(problem, seen.start, width, self.at(scratch.lanes));
                kernels.vectors.mask(width, scores, count, limits);
            }
            kernels.update((width, layout.parts), scores, count, factor, state);
            let factors = std::slice::from_raw_parts(state.rescale, width);
            if factors.iter().any(|factor| *factor != 1.0) {
                kernels.rescale(width, results, layout.head_dim_v, state.rescale);
            }
            (kernels.multiply)(&of_values);
        }
    }

    /// Changes the scores of a panel as the problem says, and returns the positive factor that makes them
    /// exponents of 2.
    ///
    /// # Safety
    /// As [`Self::run`]; the scores are those of the panel and of so many keys from the first on.
    unsafe fn change_scores(&self, panel: Columns, keys: (usize, usize)) -> f32 {
        let Call { problem, kernels, .. } = self.call;
        let factor = pack::query_factor(problem, panel.batch, panel.kv_head);
        if factor > 0.0 && !problem.changes_scores() {
            return factor;
        }
        let (width, scores) = (width(panel), self.at(self.scratch.scores));
        let lanes = self.at(self.scratch.lanes);
        // SAFETY: the scores of `keys.1` keys are in the scratch memory, and two rows of lanes.
        unsafe {
            for score in std::slice::from_raw_parts_mut(scores, keys.1 * width) {
                *score *= factor;
            }
            panel.change_scores(problem, &kernels.vectors, keys, width, scores, lanes);
        }
        1.0
    }

    /// Writes O and the lse.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn finish(&self) {
        let Call { problem, keys, outputs, kernels, .. } = self.call;
        let layout = keys.layout();
        let rows = layout.rows(self.at(self.scratch.rows));
        for panel in self.panels() {
            let (width, column) = (width(panel), panel.first - self.columns.first);
            let results = self.at(self.scratch.results + column * layout.head_dim_v);
            for lane in 0..panel.end - panel.first {
                let (max, sum) = (self.scratch.max + column + lane, self.scratch.sum + column + lane);
                // SAFETY: each part lies inside the scratch memory; rows are unpacked 16 at a time, before
                // the first of them is written; the caller vouches for the outputs.
                unsafe {
                    if lane % TILE_ROWS == 0 {
                        rows.unpack_results(results.add(lane), width, kernels);
                    }
                    let row = rows.unpacked(lane % TILE_ROWS, problem.head_dim_v());
                    pack::result(problem, panel, lane, (*self.at(max), *self.at(sum)), row, *outputs);
                }
            }
        }
    }
}

/// Lanes that a panel occupies.
fn width(panel: Columns) -> usize {
    (panel.end - panel.first).next_multiple_of(BLOCK)
}

/// P in pairs of keys, as a right operand.
fn weights(pairs: *const f32, width: usize, parts: usize) -> Operand {
    let row = width * size_of::<f32>();
    Operand {
        data: pairs.cast(),
        row: parts * row,
        tile: TILE_ROW_BYTES,
        step: TILE_ROWS * parts * row,
        part: row,
    }
}
