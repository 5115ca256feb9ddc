//! What is right: rotations in f64, and all else bit by bit.

use super::problem::{NewRow, rows_of};
use super::{AppendInputs, AppendProblem, AppendResults, AppendTensors};
use crate::accuracy::Accuracy;
use crate::operation::bytes;
use crate::reference::Reference;
use crate::{DType, Element, TensorLayout};

/// What caches and queries must be near to, or equal.
#[derive(Clone, Debug)]
pub struct AppendExpected<T> {
    /// As they are where nothing is turned.
    copied: AppendResults<T>,
    /// Elements of the cache of keys that are turned, and of queries.
    turned: [Vec<usize>; 2],
    /// Those, keys first, in f64, and as computed in fp32.
    exact: Reference,
    standard: Vec<T>,
}

/// The judgement on one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendReport {
    /// Of what is turned.
    pub rotated: Accuracy,
    /// Other elements of the outputs' views that have not the bits that they should: those of new rows that
    /// are copied, and those that were there before.
    pub wrong: usize,
}

impl AppendReport {
    /// Whether all is right.
    pub fn passed(&self) -> bool {
        self.rotated.passed() && self.wrong == 0
    }
}

impl AppendProblem {
    /// What a run must give over caches and queries that are as `before`.
    ///
    /// # Panics
    /// When a buffer is shorter than its view, or a list names a place outside of the cache.
    pub fn expected<T: Element>(
        &self,
        inputs: &AppendInputs<'_, T>,
        before: &AppendResults<T>,
    ) -> AppendExpected<T> {
        let exact = Reference { o: Vec::new(), ..Reference::default() };
        let (turned, standard) = ([Vec::new(), Vec::new()], Vec::new());
        let mut expected = AppendExpected { copied: before.clone(), turned, exact, standard };
        let AppendTensors { k, v, k_cache, v_cache } = *self.tensors();
        for at @ NewRow { batch, row, head } in self.new_rows() {
            let source = &inputs.v[v.row(batch, row, head)..][..v.head_dim];
            let first = self.place(&v_cache, inputs, at);
            expected.copied.v_cache[first..][..v.head_dim].copy_from_slice(source);
            let source = &inputs.k[k.row(batch, row, head)..][..k.head_dim];
            let first = self.place(&k_cache, inputs, at);
            expected.copied.k_cache[first..][..k.head_dim].copy_from_slice(source);
            expected.turn(self, inputs, (0, first), (source, self.position(inputs, at)));
        }
        let Some(queries) = self.queries() else { return expected };
        for at @ NewRow { batch, row, head } in rows_of(&queries.q) {
            let source = &inputs.q[queries.q.row(batch, row, head)..][..queries.q.head_dim];
            let first = queries.q_out.row(batch, row, head);
            expected.copied.q[first..][..queries.q.head_dim].copy_from_slice(source);
            expected.turn(self, inputs, (1, first), (source, self.query_position(inputs, at)));
        }
        expected
    }
}

impl<T: Element> AppendExpected<T> {
    /// Adds the elements of a row that are turned, which is written from element `first` of `tensor` on.
    fn turn(
        &mut self,
        problem: &AppendProblem,
        inputs: &AppendInputs<'_, T>,
        (tensor, first): (usize, usize),
        (source, position): (&[T], usize),
    ) {
        let Some(rotary) = problem.options().rotary else { return };
        let half = rotary.dim / 2;
        for pair in 0..half {
            let [i, j] = if rotary.interleaved { [2 * pair, 2 * pair + 1] } else { [pair, pair + half] };
            let angle = position * half + pair;
            let [a, b, cos, sin] =
                [source[i], source[j], inputs.cos[angle], inputs.sin[angle]].map(Element::to_f32);
            let products = [(a, cos, -b, sin), (a, sin, b, cos)];
            for (column, (a, x, b, y)) in [i, j].into_iter().zip(products) {
                let terms = [f64::from(a) * f64::from(x), f64::from(b) * f64::from(y)];
                let moved = terms[0].abs() + terms[1].abs();
                // One rounding to fp32 of each term and of their sum.
                let rounding = DType::F32.roundoff() * 2.0 * moved;
                self.exact.output_rounding = self.exact.output_rounding.max(rounding);
                self.exact.o.push(terms[0] + terms[1]);
                self.standard.push(T::from_f32(a * x + b * y));
                self.turned[tensor].push(first + column);
            }
        }
    }

    /// Judges the outputs of a run, which began as what this was made for.
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn judge(&self, problem: &AppendProblem, found: &AppendResults<T>) -> AppendReport {
        let AppendResults { k_cache, v_cache, q } = found;
        let [keys, queries] = &self.turned;
        let gathered = keys.iter().map(|&at| k_cache[at]).chain(queries.iter().map(|&at| q[at]));
        let rotated = Accuracy::of_output(&gathered.collect::<Vec<_>>(), &self.exact, &self.standard);
        let AppendTensors { k_cache: k_layout, v_cache: v_layout, .. } = problem.tensors();
        let mut wrong = differing(k_layout, (k_cache, &self.copied.k_cache), keys)
            + differing(v_layout, (v_cache, &self.copied.v_cache), &[]);
        if let Some(of) = problem.queries() {
            wrong += differing(&of.q_out, (q, &self.copied.q), queries);
        }
        AppendReport { rotated, wrong }
    }
}

/// Elements of a view, but for some, whose bits differ.
fn differing<T: Element>(layout: &TensorLayout, (found, expected): (&[T], &[T]), but: &[usize]) -> usize {
    let differs = |&at: &usize| bytes(&found[at..=at]) != bytes(&expected[at..=at]);
    let all = rows_of(layout).flat_map(|NewRow { batch, row, head }| {
        let first = layout.row(batch, row, head);
        first..first + layout.head_dim
    });
    all.filter(differs).count() - but.iter().filter(|at| differs(at)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::{AppendOptions, Rotary, RotaryQueries};

    #[test]
    fn a_rotation_by_hand() {
        let row = TensorLayout::bshd(1, 1, 1, 3);
        let cache = TensorLayout::bshd(1, 2, 1, 3);
        let tensors = AppendTensors { k: row, v: row, k_cache: cache, v_cache: cache };
        let queries = Some(RotaryQueries { q: row, q_out: row, in_order: true });
        let rotary = Some(Rotary { dim: 2, rows: 2, interleaved: true, queries });
        let options = AppendOptions { max_pages: None, rotary };
        let problem = AppendProblem::new(tensors, DType::F32, options).unwrap();
        let inputs = AppendInputs {
            seqused_k: &[1],
            cos: &[9.0, 0.6],
            sin: &[9.0, 0.8],
            q: &[1.0, 0.0, 3.0],
            ..AppendInputs::new(&[10.0, 5.0, 7.0], &[1.0, 2.0, 3.0])
        };
        let before = AppendResults { k_cache: vec![f32::NAN; 6], v_cache: vec![0.5; 6], q: vec![0.0; 3] };
        let expected = problem.expected(&inputs, &before);
        let nan = f32::NAN;
        let right = AppendResults {
            k_cache: vec![nan, nan, nan, 2.0, 11.0, 7.0],
            v_cache: vec![0.5, 0.5, 0.5, 1.0, 2.0, 3.0],
            q: vec![0.6, 0.8, 3.0],
        };
        assert!(expected.judge(&problem, &right).passed(), "{:?}", expected.judge(&problem, &right));
        let mut off = right.clone();
        off.k_cache[4] = 11.01;
        assert!(!expected.judge(&problem, &off).rotated.passed());
        let mut elsewhere = right.clone();
        (elsewhere.k_cache[2], elsewhere.v_cache[0], elsewhere.q[2]) = (1.0, -0.5, 3.5);
        assert_eq!(expected.judge(&problem, &elsewhere).wrong, 3);
    }
}
