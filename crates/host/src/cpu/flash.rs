//! FlashAttention on one task: a block of queries against all keys that they see.

use std::f32::consts::LOG2_E;

use super::isa::{Isa, Kernel, Panel};
use super::lanes::Lanes;
use super::microkernel::{Broadcast, Start, multiply};
use super::pack::{self, Columns, Outputs, Rows};
use super::softmax::{State, mask, update};
use super::tiles::TileChoice;
use crate::{Element, Problem, TensorLayout};

/// What all tasks of a call share.
#[derive(Clone, Copy)]
pub(super) struct Call<'a, T> {
    pub(super) problem: &'a Problem,
    pub(super) q: &'a [T],
    pub(super) k: &'a [T],
    pub(super) v: &'a [T],
    pub(super) outputs: Outputs<T>,
    pub(super) block_m: usize,
    pub(super) block_n: usize,
    pub(super) isa: Isa,
}

/// Offsets into one thread's scratch memory, in fp32 elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    /// Qᵀ, [panels][head_dim, width].
    queries: usize,
    /// Oᵀ, [panels][head_dim, width].
    results: usize,
    /// Scores, then weights, of one panel: [BLOCK_N, width].
    scores: usize,
    /// K in fp32, [BLOCK_N, head_dim], where it cannot be read in place.
    keys: usize,
    /// V likewise.
    values: usize,
    /// Running maximum and sum, [BLOCK_M].
    max: usize,
    sum: usize,
    /// Rescaling factors and key limits of one panel.
    rescale: usize,
    limits: usize,
    /// One row in fp32.
    row: usize,
    /// Elements in all.
    pub(super) total: usize,
}

impl Scratch {
    pub(super) fn new<T: Element>(problem: &Problem, tile: &TileChoice, panel: Panel) -> Self {
        let head_dim = problem.head_dim();
        let packed = |layout: &TensorLayout| {
            if pack::readable_in_place::<T>(layout.stride_seq, head_dim) {
                0
            } else {
                tile.block_n * head_dim
            }
        };
        let mut total = 0;
        let mut take = |elements: usize| {
            let offset = total;
            // Each part starts on a cache line.
            total += elements.next_multiple_of(16);
            offset
        };
        let queries = take(tile.block_m * head_dim);
        let results = take(tile.block_m * head_dim);
        let scores = take(tile.block_n * panel.width);
        let keys = take(packed(&problem.tensors().k));
        let values = take(packed(&problem.tensors().v));
        let [max, sum] = [take(tile.block_m), take(tile.block_m)];
        let [rescale, limits] = [take(panel.width), take(panel.width)];
        let row = take(head_dim);
        Self { queries, results, scores, keys, values, max, sum, rescale, limits, row, total }
    }
}

/// One task: these columns, at most BLOCK_M of them, from first key to last.
pub(super) struct Task<'a, T> {
    pub(super) call: Call<'a, T>,
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

impl<T: Element> Kernel for Task<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let problem = self.call.problem;
        let last_seen = self.columns.visible(problem, self.columns.end - 1);
        // SAFETY: the caller vouches for the instruction set, and the task's owner for the memory.
        unsafe {
            self.start();
            for first in (0..last_seen).step_by(self.call.block_n) {
                let block = self.load(first, self.call.block_n.min(last_seen - first));
                for panel in self.columns.panels(self.call.isa.panel()) {
                    match panel.registers(self.call.isa.panel()) {
                        4 if L::TILE_VECTORS >= 4 => self.attend::<L, 4>(panel, block),
                        3 if L::TILE_VECTORS >= 3 => self.attend::<L, 3>(panel, block),
                        2 if L::TILE_VECTORS >= 2 => self.attend::<L, 2>(panel, block),
                        _ => self.attend::<L, 1>(panel, block),
                    }
                }
            }
            self.finish();
        }
    }
}

impl<T: Element> Task<'_, T> {
    /// Address of a part of the scratch memory.
    #[inline(always)]
    fn at(&self, offset: usize) -> *mut f32 {
        // SAFETY: offsets are below `scratch.total`, which the memory holds.
        unsafe { self.memory.add(offset) }
    }

    /// Lanes that a panel occupies.
    #[inline(always)]
    fn width(&self, panel: Columns) -> usize {
        panel.registers(self.call.isa.panel()) * self.call.isa.panel().lanes
    }

    /// Writes Qᵀ, and the state of a softmax over no keys.
    ///
    /// # Safety
    /// `memory` is this task's own, and holds `scratch.total` elements.
    #[inline(always)]
    unsafe fn start(&self) {
        let (call, head_dim) = (&self.call, self.call.problem.head_dim());
        // Scores in units of log2 need no multiplication before each exponential.
        let factor = call.problem.softmax_scale() * LOG2_E;
        // SAFETY: each part lies inside the scratch memory, and parts do not overlap.
        unsafe {
            self.at(self.scratch.results).write_bytes(0, call.block_m * head_dim);
            self.at(self.scratch.sum).write_bytes(0, call.block_m);
            std::slice::from_raw_parts_mut(self.at(self.scratch.max), call.block_m).fill(f32::MIN);
            let row = std::slice::from_raw_parts_mut(self.at(self.scratch.row), head_dim);
            for panel in self.columns.panels(call.isa.panel()) {
                let to = self.at(self.scratch.queries + (panel.first - self.columns.first) * head_dim);
                pack::queries(call.problem, call.q, panel, self.width(panel), factor, row, to);
            }
        }
    }

    /// The block's rows of K and V: in place, or packed.
    ///
    /// # Safety
    /// As [`Self::start`]; the block has at most BLOCK_N keys.
    #[inline(always)]
    unsafe fn load(&self, first: usize, len: usize) -> KvBlock {
        let (call, columns) = (&self.call, self.columns);
        let tensors = call.problem.tensors();
        let rows = |layout: &TensorLayout, data: &[T], packed: usize| {
            let from = &data[layout.row(columns.batch, first, columns.kv_head)..];
            if pack::readable_in_place::<T>(layout.stride_seq, layout.head_dim) {
                return Rows { data: from.as_ptr().cast(), stride: layout.head_dim };
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
    /// The CPU has the instruction set of `L`; N is the panel's registers; otherwise as [`Self::load`].
    #[inline(always)]
    unsafe fn attend<L: Lanes, const N: usize>(&self, panel: Columns, block: KvBlock) {
        let (problem, scratch) = (self.call.problem, &self.scratch);
        let head_dim = problem.head_dim();
        let seen = panel.visible(problem, panel.end - 1).saturating_sub(block.first);
        let keys = block.len.min(seen);
        if keys == 0 {
            return;
        }
        let column = panel.first - self.columns.first;
        let scores = self.at(scratch.scores);
        let state = State {
            max: self.at(scratch.max + column),
            sum: self.at(scratch.sum + column),
            rescale: self.at(scratch.rescale),
        };
        let k = Broadcast { data: block.k.data, row_stride: block.k.stride, depth_stride: 1 };
        let v = Broadcast { data: block.v.data, row_stride: 1, depth_stride: block.v.stride };
        // SAFETY: the block holds `keys` rows of K and V, and the scratch memory a panel of each part.
        unsafe {
            let queries = self.at(scratch.queries + column * head_dim);
            multiply::<L, N>(k, keys, head_dim, queries, scores, Start::Zero);
            if panel.visible(problem, panel.first) < block.first + keys {
                mask::<L, N>(scores, keys, self.limits(panel, block.first, N * L::WIDTH));
            }
            update::<L, N>(scores, keys, state);
            let results = self.at(scratch.results + column * head_dim);
            multiply::<L, N>(v, head_dim, keys, scores, results, Start::Rescaled(state.rescale));
        }
    }

    /// Writes how many keys from `first` on each query of the panel sees.
    ///
    /// # Safety
    /// As [`Self::start`].
    #[inline(always)]
    unsafe fn limits(&self, panel: Columns, first: usize, width: usize) -> *const f32 {
        let limits = self.at(self.scratch.limits);
        for lane in 0..width {
            let visible = panel.visible(self.call.problem, (panel.first + lane).min(panel.end - 1));
            // SAFETY: lane < width, which the scratch memory holds. Beyond the block's end a limit has
            // no effect, so that rounding of large ones does none either.
            unsafe { limits.add(lane).write(visible.saturating_sub(first) as f32) };
        }
        limits
    }

    /// Writes O and the lse.
    ///
    /// # Safety
    /// As [`Self::start`], and nobody else writes the results of these columns.
    #[inline(always)]
    unsafe fn finish(&self) {
        let (call, head_dim) = (&self.call, self.call.problem.head_dim());
        // SAFETY: each part lies inside the scratch memory; the caller vouches for the outputs.
        unsafe {
            let row = std::slice::from_raw_parts_mut(self.at(self.scratch.row), head_dim);
            for panel in self.columns.panels(call.isa.panel()) {
                let column = panel.first - self.columns.first;
                let from = self.at(self.scratch.results + column * head_dim);
                let (max, sum) = (self.at(self.scratch.max + column), self.at(self.scratch.sum + column));
                pack::results(call.problem, panel, self.width(panel), from, max, sum, row, call.outputs);
            }
        }
    }
}
