//! What is right: the product in f64, and the plain computation in the storage type beside it, by rows.

use rayon::prelude::*;

use super::{GemmProblem, Matrices};
use crate::Element;
use crate::accuracy::Accuracy;
use crate::reference::Reference;

/// Unit roundoff of fp32.
const ROUNDOFF: f64 = 0.5 * f32::EPSILON as f64;

/// Some rows of a product: in f64, and as summed in fp32 and stored in the storage type.
#[derive(Clone, Debug)]
pub struct Expected<T> {
    rows: Vec<usize>,
    exact: Reference,
    standard: Vec<T>,
}

/// At most `count` rows of C: the first, the last, and others spread by a fixed rule.
pub fn sample(problem: &GemmProblem, count: usize) -> Vec<usize> {
    let m = problem.m();
    if count >= m {
        return (0..m).collect();
    }
    // Multiples of the golden ratio, modulo 1, are spread evenly at every count.
    let spread = (0..count).map(|i| ((i as f64 * 0.618_033_988_749_895).fract() * m as f64) as usize);
    let mut rows: Vec<_> = [0, m - 1].into_iter().chain(spread).take(count).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

impl<T: Element> Expected<T> {
    /// Computes `rows` of the product.
    ///
    /// # Panics
    /// When a buffer is shorter than its matrix.
    pub fn new(problem: &GemmProblem, (a, b): (&[T], &[T]), rows: Vec<usize>) -> Self {
        let computed: Vec<_> = rows.par_iter().map(|&row| row_of(problem, a, b, row)).collect();
        let rounding = computed.iter().map(|row| row.moved).fold(0.0, f64::max);
        let (exact, standard): (Vec<_>, Vec<_>) =
            computed.into_iter().map(|row| (row.exact, row.standard)).unzip();
        let exact =
            Reference { o: exact.concat(), output_rounding: ROUNDOFF * rounding, ..Reference::default() };
        Self { rows, exact, standard: standard.concat() }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Judges C by the rule of [`crate::accuracy`].
    ///
    /// # Panics
    /// When `c` is shorter than its matrix.
    pub fn judge(&self, problem: &GemmProblem, c: &[T]) -> Accuracy {
        let layout = problem.matrices().c;
        let columns = 0..problem.n();
        let of_row = |&row: &usize| columns.clone().map(move |column| c[layout.at(row, column)]);
        Accuracy::of_output(
            &self.rows.iter().flat_map(of_row).collect::<Vec<_>>(),
            &self.exact,
            &self.standard,
        )
    }
}

/// One row of the product.
struct Row<T> {
    exact: Vec<f64>,
    standard: Vec<T>,
    /// Largest sum of the absolute values of an element's terms and partial sums: one relative rounding of
    /// each moves the element by so much.
    moved: f64,
}

fn row_of<T: Element>(problem: &GemmProblem, a: &[T], b: &[T], row: usize) -> Row<T> {
    let Matrices { a: la, b: lb, .. } = problem.matrices();
    let (of_k, of_n) = lb.strides();
    let a: Vec<f32> = (0..problem.k()).map(|k| a[la.at(row, k)].to_f32()).collect();
    let mut sums = vec![(0.0_f64, 0.0_f32, 0.0_f64); problem.n()];
    let mut add = |k: usize, n: usize| {
        let (exact, standard, moved) = &mut sums[n];
        let (a, b) = (a[k], b[k * of_k + n * of_n].to_f32());
        let product = f64::from(a) * f64::from(b);
        *exact += product;
        *standard += a * b;
        *moved += product.abs() + exact.abs();
    };
    // Along whichever way B's elements are neighbours; for each element of C, K runs upwards either way.
    if of_n == 1 {
        (0..problem.k()).for_each(|k| (0..problem.n()).for_each(|n| add(k, n)));
    } else {
        (0..problem.n()).for_each(|n| (0..problem.k()).for_each(|k| add(k, n)));
    }
    Row {
        exact: sums.iter().map(|sum| sum.0).collect(),
        standard: sums.iter().map(|sum| T::from_f32(sum.1)).collect(),
        moved: sums.iter().map(|sum| sum.2).fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::gemm::MatrixLayout;

    #[test]
    fn a_product_by_hand() {
        let matrices = Matrices {
            a: MatrixLayout::row_major(2, 3),
            b: MatrixLayout::column_major(3, 2),
            c: MatrixLayout::column_major(2, 2).with_leading_dimension(3),
        };
        let problem = GemmProblem::new(matrices, DType::F32).unwrap();
        let (a, b) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0_f32, 0.0, 1.0, 2.0, 1.0, 0.0]);
        let expected = Expected::new(&problem, (&a, &b), vec![0, 1]);
        assert_eq!(expected.exact.o, [4.0, 4.0, 10.0, 13.0]);
        let c = [4.0_f32, 10.0, f32::NAN, 4.0, 13.0];
        assert!(expected.judge(&problem, &c).passed());
        let wrong = [4.0_f32, 10.0, f32::NAN, 4.0, 13.1];
        assert!(!expected.judge(&problem, &wrong).passed());
    }

    #[test]
    fn samples_are_distinct_rows_with_the_corners() {
        let layout = MatrixLayout::row_major;
        let matrices = Matrices { a: layout(100, 1), b: layout(1, 1), c: layout(100, 1) };
        let problem = GemmProblem::new(matrices, DType::F32).unwrap();
        let rows = sample(&problem, 20);
        assert!((15..=20).contains(&rows.len()) && rows.windows(2).all(|pair| pair[0] < pair[1]), "{rows:?}");
        assert_eq!((rows[0], rows[rows.len() - 1]), (0, 99));
        assert_eq!(sample(&problem, 200).len(), 100);
    }
}
