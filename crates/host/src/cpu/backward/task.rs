//! One task: owned rows across the lanes, and a pass over the others.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::super::dropout;
use super::super::gradient::{Queries, RowStats};
use super::super::microkernel::Start;
use super::super::pack::{self, Outputs, Rows, Source};
use super::super::score::Alibi;
use super::super::softmax::Limits;
use super::scratch::Scratch;
use super::{Call, Kind, Owned, STEP};
use crate::backward::GradientLayouts;
use crate::{Problem, TensorLayout};

/// One task.
pub(super) struct Task<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) owned: Owned,
    /// This thread's scratch memory.
    pub(super) memory: *mut f32,
}

/// Rows that the owned ones are multiplied with: of query head `head`, or keys.
struct Step {
    head: usize,
    rows: Range<usize>,
    first: Rows,
    second: Rows,
}

impl Task<'_> {
    /// Computes the gradients of the owned rows.
    ///
    /// # Safety
    /// The CPU has the call's instruction set; `memory` is this task's own and holds the scratch's elements;
    /// nobody else writes the gradients of these rows.
    pub(super) unsafe fn run(&self) {
        let (problem, group) = (self.problem(), self.problem().group());
        let heads = match self.owned.kind {
            Kind::Keys => self.owned.kv_head * group..(self.owned.kv_head + 1) * group,
            Kind::Queries(head) => head..head + 1,
        };
        let seen = self.seen_by_any(&self.owned.rows);
        // SAFETY: the caller vouches for everything below.
        unsafe {
            self.start();
            for head in heads {
                for first in seen.clone().step_by(STEP) {
                    let step = self.load(head, first..seen.end.min(first + STEP));
                    for panel in self.panels() {
                        self.attend(&panel, &step);
                    }
                }
            }
            let layouts = self.call.problem.layouts();
            let scale = problem.softmax_scale();
            let GradientLayouts { dq, dk, dv, .. } = layouts;
            match self.owned.kind {
                Kind::Keys => {
                    self.finish(self.scratch().of_first, dk, scale, self.call.dk);
                    self.finish(self.scratch().of_second, dv, 1.0, self.call.dv);
                }
                Kind::Queries(_) => self.finish(self.scratch().of_first, dq, scale, self.call.dq),
            }
        }
    }

    const fn problem(&self) -> &Problem {
        self.call.problem.forward()
    }

    const fn scratch(&self) -> &Scratch {
        &self.call.scratch
    }

    /// Address of a part of the scratch memory.
    fn at(&self, offset: usize) -> *mut f32 {
        // SAFETY: offsets are below `scratch.total`, which the memory holds.
        unsafe { self.memory.add(offset) }
    }

    /// The owned rows in panels of at most the instruction set's width.
    fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, width) = (self.owned.rows.clone(), self.call.kernels.panel.width);
        rows.clone().step_by(width).map(move |first| first..rows.end.min(first + width))
    }

    /// Lanes that a panel occupies.
    fn width(&self, panel: &Range<usize>) -> usize {
        panel.len().next_multiple_of(self.call.kernels.panel.lanes)
    }

    /// Which of the others an owned row sees, or is seen by: of a later row these lie no earlier.
    fn visible(&self, row: usize) -> Range<usize> {
        match self.owned.kind {
            Kind::Keys => self.problem().seeing_queries(self.owned.batch, row),
            Kind::Queries(_) => self.problem().visible_keys(self.owned.batch, row),
        }
    }

    fn seen_by_any(&self, rows: &Range<usize>) -> Range<usize> {
        self.visible(rows.start).start..self.visible(rows.end - 1).end
    }

    /// Where a row of the owned kind, or of the others, starts in a tensor.
    fn index(&self, layout: &TensorLayout, head: usize, row: usize, of_keys: bool) -> usize {
        let batch = self.owned.batch;
        if of_keys {
            self.problem().key_index(layout, batch, row, self.owned.kv_head)
        } else {
            self.problem().query_index(layout, batch, row, head)
        }
    }

    /// Layouts of K and V, or of Q and dO.
    fn layouts(&self, of_keys: bool) -> [&TensorLayout; 2] {
        let tensors = self.problem().tensors();
        if of_keys { [&tensors.k, &tensors.v] } else { [&tensors.q, &self.call.problem.layouts().dout] }
    }

    /// Writes the owned rows across the lanes, those that make scores times their factor, and gradients of 0.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn start(&self) {
        let (scratch, problem) = (self.scratch(), self.problem());
        let (of_keys, head, pair) = match self.owned.kind {
            Kind::Keys => (true, 0, self.call.keys),
            Kind::Queries(head) => (false, head, self.call.queries),
        };
        let [first, second] = self.layouts(of_keys);
        let parts = [
            (
                pair.first,
                first,
                scratch.first,
                pack::query_factor(problem, self.owned.batch, self.owned.kv_head),
            ),
            (pair.second, second, scratch.second, 1.0),
        ];
        // SAFETY: each part lies inside the scratch memory, and parts do not overlap.
        unsafe {
            let panel_width = self.call.kernels.panel.width;
            std::slice::from_raw_parts_mut(self.at(scratch.ones), panel_width).fill(1.0);
            let lanes = self.owned.rows.len().next_multiple_of(panel_width);
            self.at(scratch.of_first).write_bytes(0, lanes * problem.head_dim());
            self.at(scratch.of_second).write_bytes(0, lanes * problem.head_dim_v());
            for (source, layout, to, factor) in parts {
                let row = std::slice::from_raw_parts_mut(self.at(scratch.row), layout.head_dim);
                for panel in self.panels() {
                    let to = self.at(to + (panel.start - self.owned.rows.start) * layout.head_dim);
                    let at = |lane: usize| {
                        let row = Some(panel.start + lane).filter(|row| *row < panel.end);
                        row.map(|row| self.index(layout, head, row, of_keys))
                    };
                    pack::transposed(source, at, self.width(&panel), factor, row, to);
                }
            }
        }
    }

    /// The others' `rows`: in place, or packed.
    ///
    /// # Safety
    /// As [`Self::run`]; there are at most [`STEP`] rows.
    unsafe fn load(&self, head: usize, rows: Range<usize>) -> Step {
        let (of_keys, pair) = match self.owned.kind {
            Kind::Keys => (false, self.call.queries),
            Kind::Queries(_) => (true, self.call.keys),
        };
        let [first, second] = self.layouts(of_keys);
        let load = |source: Source<'_>, layout: &TensorLayout, packed: usize| {
            let from = source.skip(self.index(layout, head, rows.start, of_keys));
            if pack::readable_in_place(self.problem(), layout) {
                return from.rows(layout.stride_seq);
            }
            // SAFETY: the scratch memory has room for so many rows.
            unsafe { pack::rows(from, layout.stride_seq, rows.len(), layout.head_dim, self.at(packed)) };
            Rows { data: self.at(packed), stride: layout.head_dim }
        };
        let first = load(pair.first, first, self.scratch().step_first);
        let second = load(pair.second, second, self.scratch().step_second);
        Step { head, rows, first, second }
    }

    /// One panel of owned rows against a step of the others.
    ///
    /// # Safety
    /// As [`Self::run`]; the panel is one of the task's.
    unsafe fn attend(&self, panel: &Range<usize>, step: &Step) {
        let (problem, kernels, scratch) = (self.problem(), &self.call.kernels, self.scratch());
        let (head_dim, head_dim_v, width) = (problem.head_dim(), problem.head_dim_v(), self.width(panel));
        let seen = self.seen_by_any(panel);
        let seen = seen.start.max(step.rows.start)..seen.end.min(step.rows.end);
        if seen.is_empty() {
            return;
        }
        let (count, column) = (seen.len(), panel.start - self.owned.rows.start);
        let (p, ds) = (self.at(scratch.p), self.at(scratch.ds));
        let (of_first, of_second) =
            (self.at(scratch.of_first + column * head_dim), self.at(scratch.of_second + column * head_dim_v));
        // SAFETY: the step holds `count` rows from the first seen on, and the scratch memory a panel of each
        // part.
        unsafe {
            let skipped = seen.start - step.rows.start;
            let (first, second) = (step.first.skip(skipped), step.second.skip(skipped));
            kernels.scores(width, first, count, head_dim, self.at(scratch.first + column * head_dim), p);
            kernels.scores(
                width,
                second,
                count,
                head_dim_v,
                self.at(scratch.second + column * head_dim_v),
                ds,
            );
            self.change_scores(panel, step.head, &seen, p);
            let all_see =
                self.visible(panel.end - 1).start <= seen.start && seen.end <= self.visible(panel.start).end;
            if !all_see {
                kernels.mask(width, p, count, self.limits(panel, seen.start));
            }
            let (stats, queries) = self.stats(panel, step.head, seen.start);
            self.drop_weights(panel, step.head, &seen, ds);
            kernels.differentiate(width, (p, ds), count, stats, queries);
            self.drop_weights(panel, step.head, &seen, p);
            if problem.softcap() != 0.0 {
                let slopes = std::slice::from_raw_parts(self.at(scratch.slopes), count * width);
                let ds = std::slice::from_raw_parts_mut(ds, count * width);
                ds.iter_mut().zip(slopes).for_each(|(ds, slope)| *ds *= slope);
            }
            let start = Start::Rescaled(self.at(scratch.ones));
            kernels.values(width, first, head_dim, count, ds, of_first, start);
            if self.owned.kind == Kind::Keys {
                kernels.values(width, second, head_dim_v, count, p, of_second, start);
            }
        }
    }

    /// Multiplies `values` [seen, width] by what dropout multiplies their weights by.
    ///
    /// # Safety
    /// As [`Self::attend`].
    unsafe fn drop_weights(&self, panel: &Range<usize>, head: usize, seen: &Range<usize>, values: *mut f32) {
        let (problem, width) = (self.problem(), self.width(panel));
        let Some(dropout) = problem.dropout() else { return };
        let head = self.owned.batch * problem.heads() + head;
        // SAFETY: the values are a row of `width` lanes for each that is seen, and this task's alone.
        let values = unsafe { std::slice::from_raw_parts_mut(values, seen.len() * width) };
        dropout::apply(dropout, values, width, |row, lane| {
            let (owned, other) = (panel.start + lane, seen.start + row);
            if self.owned.kind == Kind::Keys { (head, other, owned) } else { (head, owned, other) }
        });
    }

    /// Changes a panel's scores as the problem says, and notes the softcap's slopes.
    ///
    /// # Safety
    /// As [`Self::attend`]; `p` is [seen, width].
    unsafe fn change_scores(&self, panel: &Range<usize>, head: usize, seen: &Range<usize>, p: *mut f32) {
        let (problem, kernels, width) = (self.problem(), &self.call.kernels, self.width(panel));
        let batch = self.owned.batch;
        // SAFETY: P is [seen, width], and the scratch memory holds a panel of slopes and two rows of lanes.
        unsafe {
            if problem.softcap() != 0.0 {
                kernels.softcap(width, p, seen.len(), 1.0);
                let slopes =
                    std::slice::from_raw_parts_mut(self.at(self.scratch().slopes), seen.len() * width);
                let scores = std::slice::from_raw_parts_mut(p, seen.len() * width);
                for (slope, score) in slopes.iter_mut().zip(scores) {
                    *slope = 1.0 - *score * *score;
                    *score *= problem.softcap() * LOG2_E;
                }
            }
            if problem.alibi_slopes().is_some() {
                let lanes = self.at(self.scratch().lanes);
                let (slopes, diagonals) = (lanes, lanes.add(width));
                let of_key = problem.diagonal(batch, 0);
                for lane in 0..width {
                    let row = panel.start + lane;
                    let on_diagonal = match self.owned.kind {
                        Kind::Keys => row as isize - of_key,
                        Kind::Queries(_) => problem.diagonal(batch, row),
                    };
                    slopes.add(lane).write(-problem.alibi_slope(batch, head) * LOG2_E);
                    diagonals.add(lane).write((on_diagonal - seen.start as isize) as f32);
                }
                kernels.alibi(width, p, seen.len(), Alibi { slopes, diagonals });
            }
        }
    }

    /// Which of the others from `first` on each lane sees, as [`Limits`] says; lanes past the last row are
    /// like it.
    ///
    /// # Safety
    /// As [`Self::attend`].
    unsafe fn limits(&self, panel: &Range<usize>, first: usize) -> Limits {
        let width = self.width(panel);
        let lanes = self.at(self.scratch().lanes);
        // SAFETY: the scratch memory has two rows of lanes.
        unsafe {
            pack::limits(|lane| self.visible((panel.start + lane).min(panel.end - 1)), first, width, lanes)
        }
    }

    /// lse and delta of the queries in a panel against the others from `first` on: along the lanes, where the
    /// queries are the owned rows, and there padded.
    ///
    /// # Safety
    /// As [`Self::attend`].
    unsafe fn stats(&self, panel: &Range<usize>, head: usize, first: usize) -> (RowStats, Queries) {
        let all = self.call.stats;
        let at = |row: usize| self.problem().lse_index(self.owned.batch, head, row);
        if self.owned.kind == Kind::Keys {
            // SAFETY: rows of a head lie behind one another in the order of lse.
            return (unsafe { all.skip(at(first)) }, Queries::Down);
        }
        let width = self.width(panel);
        let shift = self.at(self.scratch().stats);
        // SAFETY: the scratch memory has two rows of lanes, and the rows of the panel exist.
        unsafe {
            let (delta, of_panel) = (shift.add(width), all.skip(at(panel.start)));
            std::slice::from_raw_parts_mut(shift, width).fill(f32::INFINITY);
            std::slice::from_raw_parts_mut(delta, width).fill(0.0);
            shift.copy_from_nonoverlapping(of_panel.shift, panel.len());
            delta.copy_from_nonoverlapping(of_panel.delta, panel.len());
            (RowStats { shift, delta }, Queries::Across)
        }
    }

    /// Writes the owned rows of a gradient, times `factor`.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn finish(&self, from: usize, layout: &TensorLayout, factor: f32, to: Outputs) {
        let (of_keys, head) = match self.owned.kind {
            Kind::Keys => (true, 0),
            Kind::Queries(head) => (false, head),
        };
        // SAFETY: each part lies inside the scratch memory; the caller vouches for the output.
        unsafe {
            let row = std::slice::from_raw_parts_mut(self.at(self.scratch().row), layout.head_dim);
            for panel in self.panels() {
                let from = self.at(from + (panel.start - self.owned.rows.start) * layout.head_dim);
                for lane in 0..panel.len() {
                    let index = self.index(layout, head, panel.start + lane, of_keys);
                    to.write_lane(from, (lane, self.width(&panel)), factor, row, index);
                }
            }
        }
    }
}
