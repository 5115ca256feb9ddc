//! One matrix multiplication with random inputs: run, checked, timed.

use flash_attention::gemm::reference::{Expected, sample};
use flash_attention::gemm::{GemmPlan, GemmProblem, Matrices, MatrixLayout};
use flash_attention::{Backend, Element, Prepared, Result};

use crate::check::Verdict;
use crate::inputs::normal;

/// A problem with its inputs and what must come out.
pub(crate) struct Product<T> {
    pub(crate) problem: GemmProblem,
    a: Vec<T>,
    b: Vec<T>,
    expected: Expected<T>,
}

/// Elements of C that are compared with the reference take about this many products in all.
const CHECKED_PRODUCTS: usize = 1 << 30;

/// Rows that are compared at most.
const CHECKED_ROWS: usize = 64;

impl<T: Element> Product<T> {
    /// Rows of C that are worth comparing.
    pub(crate) fn rows_to_check(problem: &GemmProblem) -> usize {
        (CHECKED_PRODUCTS / (problem.n() * problem.k())).clamp(2, CHECKED_ROWS)
    }

    /// Normal inputs that `seed` names, and the reference of at most `rows` rows.
    pub(crate) fn new(problem: &GemmProblem, seed: u64, rows: usize) -> Self {
        let matrices = problem.matrices();
        let (a, b) = (normal(seed, 0, matrices.a.span()), normal(seed, 1, matrices.b.span()));
        let expected = Expected::new(problem, (&a, &b), sample(problem, rows));
        Self { problem: *problem, a, b, expected }
    }

    /// Runs `plan` once over a poisoned C and judges it.
    ///
    /// # Errors
    /// When the memory cannot be had, or the device or the kernel fails.
    pub(crate) fn judge<'a>(
        &'a self,
        backend: &'a Backend,
        plan: &GemmPlan,
    ) -> Result<(Prepared<'a, T, GemmProblem>, Verdict)> {
        let mut prepared = backend.prepare(plan, (&self.a[..], &self.b[..]))?;
        prepared.poison()?;
        prepared.run()?;
        let c = prepared.outputs()?;
        let layout = self.problem.matrices().c;
        let all = (0..layout.rows).flat_map(|row| (0..layout.columns).map(move |column| (row, column)));
        let unwritten = all.filter(|&(row, column)| !c[layout.at(row, column)].to_f32().is_finite()).count();
        let verdict =
            Verdict::of_product(self.expected.judge(&self.problem, c), unwritten, self.expected.len());
        Ok((prepared, verdict))
    }
}

/// The problem in one line.
pub(crate) fn describe(problem: &GemmProblem) -> String {
    let Matrices { a, b, c } = problem.matrices();
    let of = |layout: &MatrixLayout| {
        format!("{} (leading dimension {})", layout.order.name(), layout.leading_dimension)
    };
    format!(
        "M={} N={} K={} {} A {} B {} C {}",
        problem.m(),
        problem.n(),
        problem.k(),
        problem.dtype(),
        of(a),
        of(b),
        of(c)
    )
}
