//! Whether ranks decode what is right: rows of two heads against f64, and all elements against one GPU's.

use anyhow::Result;
use flash_attention::accuracy::Accuracy;
use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodePlan, DecodeProblem};
use flash_attention::reference::{Reference, Row};
use flash_attention::{Element, TensorLayout, Tensors};

use super::super::tensors::PATTERN;
use crate::bytes;

/// O and lse.
pub(super) struct Results<T> {
    pub(super) o: Vec<T>,
    pub(super) lse: Vec<f32>,
}

/// What some heads must be near to.
pub(super) struct Expected<T: Element> {
    /// The whole problem.
    problem: DecodeProblem,
    /// The relative error of scores.
    score_roundoff: f64,
    heads: Vec<Head<T>>,
}

/// A sequence's query head in f64, and by the plain computation.
struct Head<T> {
    batch: usize,
    head: usize,
    exact: Reference,
    standard: Vec<T>,
}

impl<T: Element<Output = T>> Expected<T> {
    /// Of the first sequence's first head, and of the last one's last, of tensors that repeat a pattern.
    pub(super) fn new(whole: &DecodePlan, pattern: &[Vec<T>; 3]) -> Result<Self> {
        let (problem, score_roundoff) = (whole.problem().clone(), whole.score_roundoff());
        let last = (problem.dense().batch() - 1, problem.dense().heads() - 1);
        let heads = [(0, 0), last].map(|at| Head::new(&problem, at, pattern));
        Ok(Self { problem, score_roundoff, heads: heads.into_iter().collect::<Result<_>>()? })
    }

    /// The accuracies of O and lse of each head.
    fn judge(&self, results: &Results<T>) -> impl Iterator<Item = [Accuracy; 2]> {
        let dense = self.problem.dense();
        self.heads.iter().map(move |Head { batch, head, exact, standard }| {
            let first = dense.tensors().o.row(*batch, 0, *head);
            let lse = results.lse[dense.lse_index(*batch, *head, 0)];
            let o = &results.o[first..first + dense.head_dim_v()];
            [Accuracy::of_output(o, exact, standard), Accuracy::of_lse(&[lse], exact, self.score_roundoff)]
        })
    }
}

impl<T: Element<Output = T>> Head<T> {
    fn new(whole: &DecodeProblem, (batch, head): (usize, usize), pattern: &[Vec<T>; 3]) -> Result<Self> {
        let gather = |layout: &TensorLayout, head: usize, pattern: &[T]| -> Vec<T> {
            let first = |row| layout.row(batch, row, head);
            let row = |row| (first(row)..first(row) + layout.head_dim).map(|at| pattern[at % PATTERN]);
            (0..layout.seqlen).flat_map(row).collect()
        };
        let (dense, [of_q, of_k, of_v]) = (whole.dense(), pattern);
        let (Tensors { q, o, .. }, kv_head) = (dense.tensors(), head / dense.group());
        let one = |layout: &TensorLayout| TensorLayout::bshd(1, layout.seqlen, 1, layout.head_dim);
        let tensors = Tensors { q: one(q), k: one(whole.k()), v: one(whole.v()), o: one(o) };
        let problem = DecodeProblem::new(tensors, T::DTYPE, DecodeOptions::default())?;
        let (k, v) = (gather(whole.k(), kv_head, of_k), gather(whole.v(), kv_head, of_v));
        let q = gather(q, head, of_q);
        let inputs = DecodeInputs::new(&q, &k, &v);
        let (exact, standard) = problem.reference(&inputs, &[Row { batch: 0, head: 0, row: 0 }]);
        Ok(Self { batch, head, exact, standard })
    }
}

/// What was found of so many runs.
#[derive(Default)]
pub(in super::super) struct Errors {
    pub(super) runs: usize,
    /// The largest error of the rows that were compared with attention in f64, over what it may be.
    pub(in super::super) of_bound: f64,
    /// The largest difference from one GPU's O, over the same.
    pub(in super::super) difference_of_bound: f64,
    pub(in super::super) failure: Option<String>,
}

impl<T: Element> Results<T> {
    /// Whether all bits are the same.
    pub(super) fn are_those_of(&self, other: &Self) -> bool {
        bytes::of(&self.o) == bytes::of(&other.o) && bytes::of(&self.lse) == bytes::of(&other.lse)
    }
}

impl Errors {
    pub(super) fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
    }

    /// Takes a rank's results in, beside one GPU's.
    pub(super) fn take<T: Element<Output = T>>(
        &mut self,
        rank: usize,
        expected: &Expected<T>,
        (of_one, results): (&Results<T>, &Results<T>),
    ) {
        let mut bound = 0.0_f64;
        for [output, lse] in expected.judge(results) {
            bound = bound.max(output.bound);
            self.of_bound = self.of_bound.max(output.max_error / output.bound);
            if !(output.passed() && lse.passed()) {
                self.fail(format!("rank {rank}: o {output}; lse {lse}"));
            }
        }
        let wide = |value: &T| f64::from(value.to_f32());
        for (at, (ours, theirs)) in results.o.iter().zip(&of_one.o).enumerate() {
            let difference = (wide(ours) - wide(theirs)).abs();
            self.difference_of_bound = self.difference_of_bound.max(difference / bound);
            if difference.is_nan() || difference > 2.0 * bound {
                self.fail(format!(
                    "rank {rank}: element {at} of O is {}, one GPU's {}",
                    wide(ours),
                    wide(theirs)
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::normal;
    use flash_attention::{Backend, BackendKind, DType, reference};
    use half::f16;

    #[test]
    fn what_is_wrong_anywhere_is_found() {
        let (q, k) = (TensorLayout::bshd(2, 1, 6, 16), TensorLayout::bshd(2, 300, 2, 16));
        let tensors = Tensors { q, k, v: k, o: q };
        let problem = DecodeProblem::new(tensors, DType::F16, DecodeOptions::default()).unwrap();
        let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let plan = cpu.plan(&problem, &Default::default()).unwrap();
        let pattern = [0, 1, 2].map(|tensor| normal::<f16>(7, tensor, PATTERN));
        let expected = Expected::new(&plan, &pattern).unwrap();
        let inputs = DecodeInputs::new(&pattern[0], &pattern[1], &pattern[2]);
        let rows = reference::all(problem.dense());
        let (exact, standard) = problem.reference(&inputs, &rows);
        // Rows are in the order of O, and with one query row of lse.
        let right =
            || Results { o: standard.clone(), lse: exact.lse.iter().map(|&lse| lse as f32).collect() };
        let failure = |results: &Results<f16>| {
            let mut verdict = Errors::default();
            verdict.take(1, &expected, (&right(), results));
            verdict.failure
        };
        assert_eq!(failure(&right()), None);
        for wrong in [f16::NAN, f16::ONE] {
            // Of a head that was sampled, and of one that was not.
            for at in [3, 2 * 16 + 3] {
                let mut results = right();
                results.o[at] += wrong;
                assert!(failure(&results).unwrap().starts_with("rank 1: "));
            }
        }
        let mut results = right();
        results.lse[0] += 1.0;
        assert!(failure(&results).unwrap().contains("lse FAILED"));
    }
}
