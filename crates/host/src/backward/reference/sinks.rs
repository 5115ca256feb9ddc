//! Gradients of sinks: sums over the rows of a head, in every sequence that shares its sink.

use std::ops::Range;

use rayon::prelude::*;

use super::{GradientInputs, HeadInputs, KvHead, ROUNDOFF};
use crate::Element;
use crate::backward::BackwardProblem;

/// A sink, and the rows that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfSink {
    /// Which of the problem's.
    pub(crate) index: usize,
    head: usize,
    sequences: Range<usize>,
}

/// Gradients of some sinks in f64, and how far roundings move one of them, as [`super::Exact`] has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExactSinks {
    pub(crate) gradients: Vec<f64>,
    pub(crate) rounding: f64,
}

impl BackwardProblem {
    /// The gradients of all sinks in f64, as they lie; none without sinks.
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn sinks_reference<T: Element>(&self, inputs: GradientInputs<'_, T>) -> Vec<f64> {
        self.exact_sinks(inputs, &self.sinks_of(&self.heads())).gradients
    }

    /// The sinks of these key/value heads' query heads, in their order, each once; none without sinks.
    pub(crate) fn sinks_of(&self, heads: &[KvHead]) -> Vec<OfSink> {
        let (problem, Ok(count)) = (self.forward(), self.sinks()) else { return Vec::new() };
        let each_its_own = count > problem.heads();
        let of_head = |&KvHead { batch, kv_head }: &KvHead| {
            let heads = kv_head * problem.group()..(kv_head + 1) * problem.group();
            heads.map(move |head| if each_its_own { batch * problem.heads() + head } else { head })
        };
        let mut indices: Vec<_> = heads.iter().flat_map(of_head).collect();
        indices.sort_unstable();
        indices.dedup();
        let of_index = |index| {
            let (batch, head) = (index / problem.heads(), index % problem.heads());
            let sequences = if each_its_own { batch..batch + 1 } else { 0..problem.batch() };
            OfSink { index, head, sequences }
        };
        indices.into_iter().map(of_index).collect()
    }

    pub(crate) fn exact_sinks<T: Element>(
        &self,
        inputs: GradientInputs<'_, T>,
        sinks: &[OfSink],
    ) -> ExactSinks {
        let mut all = ExactSinks::default();
        for sink in sinks {
            let rows = self.rows_of(inputs, sink, |head, row| head.exact_row(row));
            let sum = |of: fn(&_) -> f64| rows.iter().map(of).sum::<f64>();
            let by_chance = sum(|(_, _, stored): &(_, _, super::OfStoredO)| stored.of_sink.0.powi(2)).sqrt();
            let of_slip = |slip: usize| rows.iter().map(|(_, _, stored)| stored.of_sink.1[slip]).sum();
            let by_rounding = super::largest((0..super::SLIPS.len()).map(of_slip));
            let moved = sum(|(_, moved, _)| moved.dsink) + by_chance + by_rounding;
            all.gradients.push(sum(|(row, ..)| row.dsink));
            all.rounding = all.rounding.max(ROUNDOFF * moved);
        }
        all
    }

    /// The plain computation: a sink is a column of P and dS, which are rounded to the storage type.
    pub(crate) fn standard_sinks<T: Element>(
        &self,
        inputs: GradientInputs<'_, T>,
        sinks: &[OfSink],
    ) -> Vec<f32> {
        let gradient = |sink| {
            let rows = self.rows_of(inputs, sink, |head, row| head.standard_row::<T>(row));
            rows.iter().map(|row| row.dsink).sum()
        };
        sinks.iter().map(gradient).collect()
    }

    /// What `row` makes of each row that has the sink.
    fn rows_of<T: Element, R: Send>(
        &self,
        inputs: GradientInputs<'_, T>,
        sink: &OfSink,
        row: impl Fn(&HeadInputs<'_>, usize) -> R + Sync,
    ) -> Vec<R> {
        let group = self.forward().group();
        let (kv_head, place) = (sink.head / group, sink.head % group);
        let mut all = Vec::new();
        for batch in sink.sequences.clone() {
            let head = HeadInputs::new(self, inputs, KvHead { batch, kv_head });
            let rows = self.forward().query_rows(batch).len();
            all.par_extend((place * rows..(place + 1) * rows).into_par_iter().map(|index| row(&head, index)));
        }
        all
    }
}
