//! Whether gradients are as accurate as their storage type allows.

use std::fmt;

use super::reference::{Exact, ExactSinks, OfSink};
use super::{BackwardProblem, GradientInputs, Gradients, KvHead};
use crate::Element;
use crate::accuracy::Accuracy;

/// The accuracy of one call's gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientReport {
    /// Of dQ.
    pub dq: Accuracy,
    /// Of dK.
    pub dk: Accuracy,
    /// Of dV.
    pub dv: Accuracy,
    /// Of the sinks' gradient, where there is one.
    pub dsinks: Option<Accuracy>,
}

impl GradientReport {
    /// Whether all passed.
    pub fn passed(&self) -> bool {
        self.all().all(|(_, accuracy)| accuracy.passed())
    }

    /// The one that comes nearest to its bound, or passes it.
    pub fn worst(&self) -> Accuracy {
        let share = |accuracy: &Accuracy| {
            let share = accuracy.max_error / accuracy.bound.max(f64::MIN_POSITIVE);
            if accuracy.passed() { share } else { f64::INFINITY }
        };
        let worse = |a: Accuracy, b: Accuracy| if share(&b) > share(&a) { b } else { a };
        self.all().map(|(_, accuracy)| accuracy).fold(self.dq, worse)
    }

    /// Each with its gradient's name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Accuracy)> {
        let of_tensors = [("dQ", self.dq), ("dK", self.dk), ("dV", self.dv)];
        of_tensors.into_iter().chain(self.dsinks.map(|dsinks| ("dsinks", dsinks)))
    }
}

impl fmt::Display for GradientReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dq {}; dk {}; dv {}", self.dq, self.dk, self.dv)?;
        self.dsinks.map_or(Ok(()), |dsinks| write!(f, "; dsinks {dsinks}"))
    }
}

impl BackwardProblem {
    /// Every key/value head of each sequence.
    pub fn heads(&self) -> Vec<KvHead> {
        let problem = self.forward();
        let of_batch = |batch| (0..problem.kv_heads()).map(move |kv_head| KvHead { batch, kv_head });
        (0..problem.batch()).flat_map(of_batch).collect()
    }

    /// `count` heads, or all if there are no more: the first, the last, and others evenly between.
    pub fn sample(&self, count: usize) -> Vec<KvHead> {
        let all = self.heads();
        let count = count.clamp(1, all.len());
        let last = all.len() - 1;
        (0..count).map(|index| all[(index * last).checked_div(count - 1).unwrap_or(0)]).collect()
    }

    /// These heads' part of gradients in the problem's layouts.
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn gather<T: Element>(&self, [dq, dk, dv]: [&[T]; 3], heads: &[KvHead]) -> Gradients<T> {
        let (problem, layouts) = (self.forward(), self.layouts());
        let mut all = Gradients { dq: Vec::new(), dk: Vec::new(), dv: Vec::new() };
        for &KvHead { batch, kv_head } in heads {
            for head in kv_head * problem.group()..(kv_head + 1) * problem.group() {
                for row in 0..problem.query_rows(batch).len() {
                    let first = problem.query_index(&layouts.dq, batch, row, head);
                    all.dq.extend_from_slice(&dq[first..][..problem.head_dim()]);
                }
            }
            for key in 0..problem.key_rows(batch).len() {
                let first = |layout| problem.key_index(layout, batch, key, kv_head);
                all.dk.extend_from_slice(&dk[first(&layouts.dk)..][..problem.head_dim()]);
                all.dv.extend_from_slice(&dv[first(&layouts.dv)..][..problem.head_dim_v()]);
            }
        }
        all
    }

    /// What these heads' gradients must be near to.
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn expected<T: Element>(
        &self,
        inputs: GradientInputs<'_, T>,
        heads: &[KvHead],
    ) -> ExpectedGradients<T> {
        let (exact, standard) = (self.exact(inputs, heads), self.standard(inputs, heads));
        let sinks = self.sinks_of(heads);
        let of_sinks = (self.exact_sinks(inputs, &sinks), self.standard_sinks(inputs, &sinks));
        ExpectedGradients { heads: heads.to_vec(), exact, standard, sinks, of_sinks }
    }
}

/// Gradients of some heads in f64, and as the plain computation in the storage type has them.
#[derive(Clone, Debug)]
pub struct ExpectedGradients<T> {
    heads: Vec<KvHead>,
    exact: Exact,
    standard: Gradients<T>,
    /// The sinks of these heads.
    sinks: Vec<OfSink>,
    of_sinks: (ExactSinks, Vec<f32>),
}

impl<T: Element> ExpectedGradients<T> {
    /// Judges gradients of the problem that they were made for, those of sinks where there are some, by
    /// FlashAttention's rule ([`Accuracy::of_gradient`]).
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn judge(
        &self,
        problem: &BackwardProblem,
        found: [&[T]; 3],
        dsinks: Option<&[f32]>,
    ) -> GradientReport {
        let found = problem.gather(found, &self.heads);
        let softcap = problem.forward().softcap() != 0.0;
        let (Exact { gradients: exact, rounding, dq_stored }, standard) = (&self.exact, &self.standard);
        let of = |found: &[T], exact: &[f64], standard: &[T], stored, rounding| {
            Accuracy::of_gradient(found, (exact, stored, rounding), standard, softcap)
        };
        GradientReport {
            dq: of(&found.dq, &exact.dq, &standard.dq, *dq_stored, rounding[0]),
            dk: of(&found.dk, &exact.dk, &standard.dk, 0.0, rounding[1]),
            dv: of(&found.dv, &exact.dv, &standard.dv, 0.0, rounding[2]),
            dsinks: dsinks.map(|dsinks| {
                let dsinks: Vec<_> = self.sinks.iter().map(|sink| dsinks[sink.index]).collect();
                let (exact, standard) = &self.of_sinks;
                Accuracy::of_gradient(&dsinks, (&exact.gradients, 0.0, exact.rounding), standard, softcap)
            }),
        }
    }

    /// Query rows that are compared, over all heads of each group.
    pub fn query_rows(&self, problem: &BackwardProblem) -> usize {
        self.standard.dq.len() / problem.forward().head_dim()
    }
}
