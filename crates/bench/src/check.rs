//! Whether outputs are right: sampled rows against the f64 reference, and every element written.

use flash_attention::accuracy::{self, Accuracy};
use flash_attention::decode::{DecodeInputs, DecodeProblem};
use flash_attention::reference::{self, Row};
use flash_attention::{Element, Problem};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use rayon::prelude::*;

use crate::inputs::Inputs;

/// What the outputs of a problem must be near to, on some rows.
pub(crate) struct Expected<T: Element>(accuracy::Expected<T>);

/// The verdict on the outputs of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) output: Accuracy,
    pub(crate) lse: Accuracy,
    /// Elements of O that are not finite, and of lse that are NaN, over all rows: not written, or wrong.
    pub(crate) unwritten: usize,
    pub(crate) rows: usize,
}

/// Of no elements, which are right.
const NO_LSE: Accuracy =
    Accuracy { max_error: 0.0, standard_error: None, bound: 0.0, mismatches: 0, elements: 0 };

impl Verdict {
    /// On a product of matrices, which has no lse: an empty one is right.
    pub(crate) fn of_product(output: Accuracy, unwritten: usize, rows: usize) -> Self {
        Self { output, lse: NO_LSE, unwritten, rows }
    }

    pub(crate) fn passed(&self) -> bool {
        self.output.passed() && self.lse.passed() && self.unwritten == 0
    }
}

impl<T: Element> Expected<T> {
    /// Computes what at most about `count` rows must be near to.
    pub(crate) fn new(problem: &Problem, inputs: &Inputs<T>, count: usize, seed: u64) -> Self {
        Self::of_tensors(problem, inputs.tensors(), count, seed)
    }

    /// As [`Self::new`], of Q, K and V.
    pub(crate) fn of_tensors(
        problem: &Problem,
        tensors: (&[T], &[T], &[T]),
        count: usize,
        seed: u64,
    ) -> Self {
        let rows = sample(problem, count, seed);
        Self(accuracy::Expected::new(problem, tensors, rows))
    }

    /// As [`Self::new`], for a decode problem.
    pub(crate) fn of_decode(
        problem: &DecodeProblem,
        inputs: &DecodeInputs<'_, T>,
        count: usize,
        seed: u64,
    ) -> Self {
        let rows = sample(problem.dense(), count, seed);
        let (exact, standard) = problem.reference(inputs, &rows);
        Self(accuracy::Expected { rows, exact, standard })
    }

    /// Mean of O, which is contiguous, less the reference.
    pub(crate) fn mean_error(&self, problem: &Problem, o: &[T::Output]) -> f64 {
        let found = self.0.gather(problem, o);
        let errors =
            found.iter().zip(&self.0.exact.o).map(|(found, exact)| f64::from(found.to_f32()) - exact);
        errors.sum::<f64>() / found.len() as f64
    }

    /// Judges O, which is contiguous, and lse, made from scores with a relative error of `score_roundoff`.
    pub(crate) fn judge(
        &self,
        problem: &Problem,
        score_roundoff: f64,
        o: &[T::Output],
        lse: &[f32],
    ) -> Verdict {
        let accuracy::Report { output, lse: of_lse } = self.0.judge(problem, o, Some(lse), score_roundoff);
        let not_finite = o.par_iter().filter(|value| !value.to_f32().is_finite()).count();
        Verdict {
            output,
            lse: of_lse.unwrap_or(NO_LSE),
            unwritten: not_finite + lse.par_iter().filter(|value| value.is_nan()).count(),
            rows: self.0.rows.len(),
        }
    }
}

/// About `count` rows in the order of the tensor, or all if there are no more: half of them spread
/// evenly with the corners, the rest where the seed says and where the mask begins and ends.
pub(crate) fn sample(problem: &Problem, count: usize, seed: u64) -> Vec<Row> {
    let of_head: usize = (0..problem.batch()).map(|batch| problem.query_rows(batch).len()).sum();
    if of_head * problem.heads() <= count {
        return reference::all(problem);
    }
    let mut rows = reference::sample(problem, count.div_ceil(2));
    rows.extend(mask_boundary(problem));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut below = |limit: usize| (rng.next_u64() % limit as u64) as usize;
    while rows.len() < count {
        let (batch, head) = (below(problem.batch()), below(problem.heads()));
        let of_sequence = problem.query_rows(batch).len();
        if of_sequence > 0 {
            rows.push(Row { batch, head, row: below(of_sequence) });
        }
    }
    rows.sort_unstable_by_key(|at| (at.batch, at.row, at.head));
    rows.dedup();
    rows
}

/// Of the last head, the rows on either side of where the mask begins and ends to hide keys: the last that
/// sees no key and the first that sees one, and with a left side the last that sees key 0.
fn mask_boundary(problem: &Problem) -> Vec<Row> {
    let (left, right) = problem.window();
    let (batch, head) = (problem.batch() - 1, problem.heads() - 1);
    let (sq, sk) = (problem.query_rows(batch).len(), problem.key_rows(batch).len());
    let first_to_see = right.map(|right| sq.saturating_sub(sk.saturating_add(right)));
    let first_to_miss = left.map(|left| (sq + 1).saturating_add(left).saturating_sub(sk));
    let boundary = [first_to_see, first_to_miss].into_iter().flatten();
    boundary
        .flat_map(|row| [row.checked_sub(1), Some(row)])
        .flatten()
        .filter(|&row| row < sq)
        .map(|row| Row { batch, head, row })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash_attention::{DType, Options, TensorLayout, Tensors};

    fn problem(sq: usize, sk: usize, causal: bool) -> Problem {
        let q = TensorLayout::bshd(2, sq, 3, 4);
        let k = TensorLayout::bshd(2, sk, 1, 4);
        let options = Options { causal, ..Options::default() };
        Problem::new(Tensors { q, k, v: k, o: q }, DType::F32, options).unwrap()
    }

    #[test]
    fn samples_are_distinct_seeded_and_hold_corners_and_boundary() {
        let problem = problem(500, 100, true);
        let rows = sample(&problem, 64, 3);
        assert!((48..=64).contains(&rows.len()), "{}", rows.len());
        assert!(rows.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(rows, sample(&problem, 64, 3));
        assert_ne!(rows, sample(&problem, 64, 4));
        for (batch, head, row) in [(0, 0, 0), (1, 2, 499), (1, 2, 399), (1, 2, 400)] {
            assert!(rows.contains(&Row { batch, head, row }), "{batch} {head} {row}");
        }
    }

    #[test]
    fn small_problems_are_checked_in_full() {
        assert_eq!(sample(&problem(10, 3, true), 64, 0).len(), 60);
    }

    #[test]
    fn wrong_and_unwritten_elements_fail() {
        let problem = problem(5, 1, false);
        let inputs = Inputs::<f32>::random(&problem, 0);
        let expected = Expected::new(&problem, &inputs, 64, 0);
        // With one key, each output row is its value row.
        let (q, k, v) = inputs.tensors();
        let kv = problem.tensors().k;
        let mut o: Vec<f32> = (0..2)
            .flat_map(|batch| (0..15).flat_map(move |_| &v[kv.row(batch, 0, 0)..][..4]))
            .copied()
            .collect();
        let exact = reference::forward(&problem, q, k, v);
        let lse: Vec<_> = exact.lse.iter().map(|&lse| lse as f32).collect();
        let verdict = expected.judge(&problem, DType::F32.roundoff(), &o, &lse);
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!(verdict.rows, 30);
        o[17] += 1e-3;
        assert!(!expected.judge(&problem, DType::F32.roundoff(), &o, &lse).passed());
        o[17] = f32::NAN;
        assert_eq!(expected.judge(&problem, DType::F32.roundoff(), &o, &lse).unwritten, 1);
    }
}
