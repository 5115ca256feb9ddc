//! Whether a result is as accurate as its storage type allows: FlashAttention's rule, as an object.
//!
//! A bare tolerance is either too wide for easy inputs or too narrow for hard ones. The rule of
//! FlashAttention's tests compares with what the plain computation in the same type achieves:
//!
//! max|out − ref| ≤ 2 · max|standard − ref| + atol, with atol = 2 · max|(ref + 0.3 − 0.3) − ref|
//!
//! where the sum is evaluated in the storage type, so that atol is what storing the result costs. One
//! term is added, [`Reference::output_rounding`]: with few elements the plain computation in fp32 is now and
//! then exact by luck, and no other order of the same sums can be held to that. In the 16-bit types
//! the term is below the others.

use std::fmt;

use crate::reference::{self, Reference, Row};
use crate::{DType, Element, Problem};

/// Roundings to fp32 that a kernel's log-sum-exp may be away from the exact one, beside those of partial
/// sums. Exponentials and logarithms in hardware are good to two units in the last place.
const LSE_ROUNDINGS: f64 = 8.0;

/// Roundings to fp32 of each intermediate that a kernel's gradient may be away from the exact one. dS is the
/// difference of two sums, which in fp32 and any order are each off by a few roundings of their terms, while
/// the plain computation's are now and then equal by luck.
pub(crate) const GRADIENT_ROUNDINGS: f64 = 4.0;

/// How far a result is from the reference, and how far it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    /// Largest absolute difference from the reference.
    pub max_error: f64,
    /// Largest absolute difference of the plain computation from the reference; none for the lse.
    pub standard_error: Option<f64>,
    /// What `max_error` may be.
    pub bound: f64,
    /// Elements where exactly one of result and reference is NaN, or is infinite with that sign.
    pub mismatches: usize,
    /// Elements compared.
    pub elements: usize,
}

impl Accuracy {
    /// Whether the result is within the bound, and nowhere NaN or infinite where the reference is not.
    pub fn passed(&self) -> bool {
        self.mismatches == 0 && self.max_error <= self.bound
    }

    /// Judges an output, [rows, D], against the reference and the plain computation of the same rows.
    ///
    /// # Panics
    /// When the three differ in length.
    pub fn of_output<T: Element>(out: &[T], reference: &Reference, standard: &[T]) -> Self {
        let Reference { o, output_rounding, weight_rounding, .. } = reference;
        Self::beside(out, o, standard, (2.0, *weight_rounding, *output_rounding))
    }

    /// Judges a gradient against that in f64 and the plain computation's.
    ///
    /// The rule of FlashAttention's tests for gradients (`hopper/test_flash_attn.py`): as for an output, but
    /// with a softcap, whose slope loses digits to cancellation, three times the plain computation's error in
    /// place of twice; and no less than `stored`, what storing intermediates that the plain computation does
    /// not have, or rounds by luck, costs. Four times `rounding` is added: how far one relative rounding to
    /// fp32 of each intermediate, and one of O to the storage type, moves an element.
    ///
    /// # Panics
    /// When the three differ in length.
    pub fn of_gradient<T: Element>(
        found: &[T],
        (exact, stored, rounding): (&[f64], f64, f64),
        standard: &[T],
        softcap: bool,
    ) -> Self {
        let factor = if softcap { 3.0 } else { 2.0 };
        Self::beside(found, exact, standard, (factor, stored, GRADIENT_ROUNDINGS * rounding))
    }

    /// At most `factor` times the plain computation's error and what storing the result costs twice, or
    /// `stored`, what storing results and intermediates costs, where both are lucky; and `rounding`.
    fn beside<T: Element>(
        found: &[T],
        exact: &[f64],
        standard: &[T],
        (factor, stored, rounding): (f64, f64, f64),
    ) -> Self {
        let wide = |values: &[T]| values.iter().map(|value| f64::from(value.to_f32())).collect::<Vec<_>>();
        let (standard_error, _) = compare(&wide(standard), exact);
        let storage = exact.iter().map(|&exact| storage_error::<T>(exact)).fold(0.0, f64::max);
        let bound = stored.max(factor * standard_error + 2.0 * storage) + rounding;
        Self::new(&wide(found), exact, Some(standard_error), bound)
    }

    /// Judges a log-sum-exp, in the order of the reference's, made from scores with a relative error of
    /// `score_roundoff` ([`Plan::score_roundoff`](crate::Plan::score_roundoff)).
    ///
    /// Its bound is eight times [`Reference::lse_rounding`] and once [`Reference::lse_sums`], and as much
    /// more as that error costs: a score that is off moves the lse by its weight's share of that.
    ///
    /// # Panics
    /// When the two differ in length.
    pub fn of_lse(lse: &[f32], reference: &Reference, score_roundoff: f64) -> Self {
        let lse: Vec<_> = lse.iter().copied().map(f64::from).collect();
        let fp32 = DType::F32.roundoff();
        let scores = if score_roundoff > fp32 { score_roundoff / fp32 } else { 0.0 };
        Self::new(
            &lse,
            &reference.lse,
            None,
            (LSE_ROUNDINGS + scores) * reference.lse_rounding + reference.lse_sums,
        )
    }

    fn new(result: &[f64], exact: &[f64], standard_error: Option<f64>, bound: f64) -> Self {
        let (max_error, mismatches) = compare(result, exact);
        Self { max_error, standard_error, bound, mismatches, elements: result.len() }
    }
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed() { "ok" } else { "FAILED" };
        write!(f, "{verdict}: max error {:.2e}, bound {:.2e}", self.max_error, self.bound)?;
        if let Some(standard) = self.standard_error {
            write!(f, ", standard {standard:.2e}")?;
        }
        write!(f, " over {} elements", self.elements)?;
        if self.mismatches > 0 {
            write!(
                f,
                ", {} NaN or infinite where the reference is not, or not where it is",
                self.mismatches
            )?;
        }
        Ok(())
    }
}

/// The accuracy of one call's results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Of O.
    pub output: Accuracy,
    /// Of the lse, where it was asked for.
    pub lse: Option<Accuracy>,
}

impl Report {
    /// Whether both passed.
    pub fn passed(&self) -> bool {
        self.output.passed() && self.lse.is_none_or(|lse| lse.passed())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "o {}", self.output)?;
        self.lse.map_or(Ok(()), |lse| write!(f, "; lse {lse}"))
    }
}

/// What some rows of O and lse must be near to.
#[derive(Clone, Debug)]
pub struct Expected<T: Element> {
    /// The rows.
    pub rows: Vec<Row>,
    /// Attention of these rows in f64.
    pub exact: Reference,
    /// The plain computation of them in the storage type, [rows, Dv].
    pub standard: Vec<T::Output>,
}

impl<T: Element> Expected<T> {
    /// Computes both.
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn new(problem: &Problem, (q, k, v): (&[T], &[T], &[T]), rows: Vec<Row>) -> Self {
        let exact = reference::rows(problem, q, k, v, &rows);
        let standard = reference::standard_rows(problem, q, k, v, &rows);
        Self { rows, exact, standard }
    }

    /// The rows of `o`, which is laid out as the problem says.
    ///
    /// # Panics
    /// When `o` is shorter than its view.
    pub fn gather(&self, problem: &Problem, o: &[T::Output]) -> Vec<T::Output> {
        reference::gather(problem, o, &self.rows)
    }

    /// Judges `o`, laid out as the problem says, and `lse`, [B, H, Sq], made from scores with a relative
    /// error of `score_roundoff`.
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn judge(
        &self,
        problem: &Problem,
        o: &[T::Output],
        lse: Option<&[f32]>,
        score_roundoff: f64,
    ) -> Report {
        let lse = lse.map(|lse| {
            let of_rows = self.rows.iter().map(|at| lse[problem.lse_index(at.batch, at.head, at.row)]);
            Accuracy::of_lse(&of_rows.collect::<Vec<_>>(), &self.exact, score_roundoff)
        });
        Report { output: Accuracy::of_output(&self.gather(problem, o), &self.exact, &self.standard), lse }
    }
}

/// Judges the given rows of one call's results: [`Expected::judge`].
///
/// # Panics
/// When a buffer is shorter than its view.
pub fn check<T: Element>(
    problem: &Problem,
    tensors: (&[T], &[T], &[T]),
    o: &[T::Output],
    lse: Option<&[f32]>,
    score_roundoff: f64,
    rows: &[Row],
) -> Report {
    Expected::new(problem, tensors, rows.to_vec()).judge(problem, o, lse, score_roundoff)
}

/// Largest difference over elements that are finite on both sides, and the number of elements of which
/// only one is NaN or has that infinity.
fn compare(result: &[f64], exact: &[f64]) -> (f64, usize) {
    assert_eq!(result.len(), exact.len(), "the result must have the reference's rows");
    let mut largest = 0.0_f64;
    let mut mismatches = 0;
    for (&result, &exact) in result.iter().zip(exact) {
        if result.is_finite() && exact.is_finite() {
            largest = largest.max((result - exact).abs());
        } else if result != exact && !(result.is_nan() && exact.is_nan()) {
            mismatches += 1;
        }
    }
    (largest, mismatches)
}

/// |(x + 0.3 − 0.3) − x| in the storage type; 0 where x is not finite.
fn storage_error<T: Element>(exact: f64) -> f64 {
    let stored = |value: f32| T::from_f32(value).to_f32();
    let offset = stored(0.3);
    let there_and_back = stored(stored(stored(exact as f32) + offset) - offset);
    let error = (f64::from(there_and_back) - exact).abs();
    if error.is_finite() { error } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn reference(o: &[f64]) -> Reference {
        Reference {
            o: o.to_vec(),
            lse: vec![1.0],
            output_rounding: 1e-7,
            lse_rounding: 1e-7,
            ..Reference::default()
        }
    }

    #[test]
    fn the_bound_follows_the_baseline() {
        let exact = reference(&[1.0, 2.0]);
        let loose = Accuracy::of_output(&[1.0_f32, 2.015], &exact, &[1.01, 2.0]);
        assert!(loose.passed(), "{loose}");
        let tight = Accuracy::of_output(&[1.0_f32, 2.015], &exact, &[1.001, 2.0]);
        assert!(!tight.passed(), "{tight}");
        assert!((tight.max_error - 0.015).abs() < 1e-6);
    }

    #[test]
    fn a_lucky_baseline_leaves_room_for_storage_only() {
        let exact = reference(&[1.0]);
        let ulp = f16::EPSILON.to_f32();
        assert!(Accuracy::of_output(&[f16::ONE], &exact, &[f16::ONE]).passed());
        assert!(!Accuracy::of_output(&[f16::from_f32(1.0 + 4.0 * ulp)], &exact, &[f16::ONE]).passed());
        assert!(!Accuracy::of_output(&[1.000_001_f32], &exact, &[1.0]).passed());
    }

    #[test]
    fn one_sided_nan_and_infinity_fail() {
        let exact = reference(&[1.0]);
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!Accuracy::of_output(&[wrong], &exact, &[1.0]).passed());
        }
        // A baseline that is no number must not widen the bound.
        assert!(!Accuracy::of_output(&[1.5_f32], &exact, &[f32::NAN]).passed());
        assert!(Accuracy::of_output(&[f32::NAN], &reference(&[f64::NAN]), &[1.0]).passed());
    }

    #[test]
    fn an_empty_row_has_lse_minus_infinity() {
        let mut exact = reference(&[0.0]);
        exact.lse = vec![f64::NEG_INFINITY, 2.0];
        assert!(Accuracy::of_lse(&[f32::NEG_INFINITY, 2.0], &exact, DType::F32.roundoff()).passed());
        assert!(!Accuracy::of_lse(&[-1e30, 2.0], &exact, DType::F32.roundoff()).passed());
        assert!(!Accuracy::of_lse(&[f32::NEG_INFINITY, 2.00001], &exact, DType::F32.roundoff()).passed());
    }

    #[test]
    fn displays_in_one_line() {
        let exact = reference(&[1.0]);
        let shown = Accuracy::of_output(&[f32::NAN], &exact, &[1.0]).to_string();
        assert!(shown.starts_with("FAILED: max error 0.00e0, bound "), "{shown}");
        assert!(
            shown.ends_with("1 NaN or infinite where the reference is not, or not where it is"),
            "{shown}"
        );
    }
}
