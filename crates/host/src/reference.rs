//! What is right: attention in f64, and the plain computation in the storage type beside it.
//!
//! Both follow the definition row by row, share no code with any kernel, and read only what the
//! views reach and the mask leaves visible. They run over all cores; for problems too large to do in
//! full, [`sample`] picks the rows.

mod e4m3;

use rayon::prelude::*;

use crate::{DType, Element, Problem};

/// One query row of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index of the sequence.
    pub batch: usize,
    /// Query head.
    pub head: usize,
    /// Row of the sequence.
    pub row: usize,
}

/// Attention in f64, of all rows or some.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Output, [rows, Dv]; with all rows, contiguous [B, Sq, H, Dv], or [total_q, H, Dv] of a packed batch.
    pub o: Vec<f64>,
    /// Log-sum-exp, natural: [rows]; with all rows, [B, H, Sq], or [H, total_q] of a packed batch.
    pub lse: Vec<f64>,
    /// How far one relative rounding to fp32 of each intermediate moves an element of the output, at most: to
    /// first order, 2⁻²⁴ · max Σⱼ (pⱼ ((aⱼ + bⱼ) |vⱼ − o| + |vⱼ|) + |oⱼ|). Here aⱼ = |softmax_scale| · Σ |q ·
    /// kⱼ| + |bias| are the terms of score j, bⱼ = |softmax_scale| · Σ |partial sums of q · kⱼ|, and oⱼ =
    /// Σᵢ≤ⱼ pᵢ vᵢ.
    ///
    /// A sum's error is at most the sum of its partial sums' roundings (Higham 2002, section 3.3), and comes
    /// near that where the terms are equal, so that each is rounded in the same direction. No computation in
    /// fp32 can promise less.
    ///
    /// Of e4m3 also what sums of its products may lose (`reference/e4m3.rs`).
    pub output_rounding: f64,
    /// How far rounding each weight to the storage type, by chance and independently of the others, and then
    /// O to its own moves an element, at most: u · (√Σⱼ (pⱼ vⱼ)² + |o|). A plain computation is now and then
    /// free of both, where a row sees one key. A kernel whose running maximum lags behind rounds that key's
    /// weight too. 0 for fp32.
    pub weight_rounding: f64,
    /// The same for the lse, without partial sums: 2⁻²⁴ · max (Σⱼ pⱼ aⱼ + |lse| + 1).
    pub lse_rounding: f64,
    /// And of the scores' partial sums alone: 2⁻²⁴ · max Σⱼ pⱼ bⱼ, and what sums of products of e4m3 may
    /// lose.
    pub lse_sums: f64,
}

/// Unit roundoff of fp32.
const ROUNDOFF: f64 = 0.5 * f32::EPSILON as f64;

/// Every row, in the order of O: [B, Sq, H].
pub fn all(problem: &Problem) -> Vec<Row> {
    let of_row = |batch, row| (0..problem.heads()).map(move |head| Row { batch, head, row });
    (0..problem.batch())
        .flat_map(|batch| (0..problem.query_rows(batch).len()).flat_map(move |row| of_row(batch, row)))
        .collect()
}

/// `count` rows, or all if there are no more: the first and last row of the first and last head, and
/// others spread over the problem by a fixed rule, which hits every position within a tile.
pub fn sample(problem: &Problem, count: usize) -> Vec<Row> {
    let heads = problem.heads();
    // First row of each sequence, over all heads, and of what follows the last.
    let mut firsts = vec![0];
    for batch in 0..problem.batch() {
        firsts.push(firsts[batch] + heads * problem.query_rows(batch).len());
    }
    let total = firsts[problem.batch()];
    if count >= total {
        return all(problem);
    }
    let row = |index: usize| {
        let batch = firsts.partition_point(|&first| first <= index) - 1;
        let (rows, index) = (problem.query_rows(batch).len(), index - firsts[batch]);
        Row { batch, head: index / rows, row: index % rows }
    };
    let (first, last) = (row(0), row(total - 1));
    let corners = [0, problem.query_rows(first.batch).len() - 1, total - 1 - last.row, total - 1];
    // Multiples of the golden ratio, modulo 1, are spread evenly at every count.
    let spread = (0..count).map(|i| ((i as f64 * 0.618_033_988_749_895).fract() * total as f64) as usize);
    let mut indices: Vec<_> = corners.into_iter().chain(spread).collect();
    indices.truncate(count);
    indices.sort_unstable();
    indices.dedup();
    indices.into_iter().map(row).collect()
}

/// Attention in f64 of every row.
///
/// # Panics
/// When a buffer is shorter than its view.
pub fn forward<T: Element>(problem: &Problem, q: &[T], k: &[T], v: &[T]) -> Reference {
    let all = all(problem);
    let mut reference = rows(problem, q, k, v, &all);
    let by_row = std::mem::take(&mut reference.lse);
    reference.lse = vec![0.0; problem.lse_len()];
    for (at, lse) in all.iter().zip(by_row) {
        reference.lse[problem.lse_index(at.batch, at.head, at.row)] = lse;
    }
    reference
}

/// Attention in f64 of the given rows, in their order.
///
/// # Panics
/// When a buffer is shorter than its view.
pub fn rows<T: Element>(problem: &Problem, q: &[T], k: &[T], v: &[T], rows: &[Row]) -> Reference {
    exact_rows(problem, &|at| Inputs::new(problem, (q, k, v), at), rows)
}

/// As [`rows`], compiled once for all types.
fn exact_rows(problem: &Problem, inputs: Source<'_>, rows: &[Row]) -> Reference {
    let exact: Vec<_> = rows.par_iter().map(|&at| exact_row(problem, &inputs(at), at)).collect();
    let largest = |part: fn(&Exact) -> f64| exact.iter().map(part).fold(0.0, f64::max);
    Reference {
        output_rounding: largest(|row| row.output_rounding),
        weight_rounding: largest(|row| row.weight_rounding),
        lse_rounding: largest(|row| row.lse_rounding),
        lse_sums: largest(|row| row.lse_sums),
        lse: exact.iter().map(|row| row.lse).collect(),
        o: exact.into_iter().flat_map(|row| row.o).collect(),
    }
}

/// The plain computation of every row in the storage type, [B, Sq, H, Dv]: see [`standard_rows`].
///
/// # Panics
/// When a buffer is shorter than its view.
pub fn standard<T: Element>(problem: &Problem, q: &[T], k: &[T], v: &[T]) -> Vec<T::Output> {
    standard_rows(problem, q, k, v, &all(problem))
}

/// The plain computation of the given rows, [rows, Dv]: products accumulate in fp32, and scores, weights and
/// output are each rounded to the storage type, as an unfused implementation stores them. It is the baseline
/// (`out_pt`) of FlashAttention's test rule. Of e4m3 that is the type of the weights alone, before their sum
/// divides them, with a factor of 2⁸; scores stay in fp32, and the output has O's type.
///
/// # Panics
/// When a buffer is shorter than its view.
pub fn standard_rows<T: Element>(
    problem: &Problem,
    q: &[T],
    k: &[T],
    v: &[T],
    rows: &[Row],
) -> Vec<T::Output> {
    let o = stored_rows(problem, &|at| Inputs::new(problem, (q, k, v), at), rows);
    o.into_iter().map(T::Output::from_f32).collect()
}

/// As [`standard_rows`] before O is stored, compiled once for all types.
fn stored_rows(problem: &Problem, inputs: Source<'_>, rows: &[Row]) -> Vec<f32> {
    rows.par_iter().flat_map_iter(|&at| standard_row(problem, &inputs(at), at)).collect()
}

/// The given rows of a tensor in the layout of O, [rows, Dv].
///
/// # Panics
/// When the buffer is shorter than its view.
pub fn gather<T: Element>(problem: &Problem, o: &[T], rows: &[Row]) -> Vec<T> {
    let layout = &problem.tensors().o;
    let row = |at: &Row| &o[problem.query_index(layout, at.batch, at.row, at.head)..][..layout.head_dim];
    rows.iter().flat_map(row).copied().collect()
}

/// Gives the inputs of a row.
type Source<'a> = &'a (dyn Fn(Row) -> Inputs<'a> + Sync);

/// Reads the row of a visible key, counted from the first, in fp32, which holds each storage type.
type KeyRows<'a> = Box<dyn Fn(usize, &mut [f32]) + 'a>;

/// What one output row depends on.
struct Inputs<'a> {
    q: Vec<f32>,
    k: KeyRows<'a>,
    v: KeyRows<'a>,
    /// What dropout multiplies each visible key's weight by.
    kept: Vec<f32>,
    dtype: DType,
    /// Rounds to the storage type.
    round: fn(f32) -> f32,
    /// Rounds to that of O.
    round_output: fn(f32) -> f32,
}

impl<'a> Inputs<'a> {
    fn new<T: Element>(problem: &'a Problem, (q, k, v): (&'a [T], &'a [T], &'a [T]), at: Row) -> Self {
        let tensors = problem.tensors();
        let kv_head = at.head / problem.group();
        let keys = problem.visible_keys(at.batch, at.row);
        let first = keys.start;
        let rows = |layout: &'a crate::TensorLayout, data: &'a [T]| -> KeyRows<'a> {
            Box::new(move |key, row| {
                let start = problem.key_index(layout, at.batch, first + key, kv_head);
                widen(&data[start..][..layout.head_dim], row);
            })
        };
        let mut row = vec![0.0; problem.head_dim()];
        widen(&q[problem.query_index(&tensors.q, at.batch, at.row, at.head)..][..row.len()], &mut row);
        Self {
            q: row,
            k: rows(&tensors.k, k),
            v: rows(&tensors.v, v),
            kept: keys.map(|key| problem.dropout_factor(at.batch, at.head, at.row, key)).collect(),
            dtype: T::DTYPE,
            round: |value| T::from_f32(value).to_f32(),
            round_output: |value| T::Output::from_f32(value).to_f32(),
        }
    }

    /// Visible keys.
    fn len(&self) -> usize {
        self.kept.len()
    }

    /// Calls `each` with the number of every visible key, and its row of V.
    fn each_value(&self, head_dim_v: usize, mut each: impl FnMut(usize, &[f32])) {
        let mut v = vec![0.0; head_dim_v];
        for key in 0..self.len() {
            (self.v)(key, &mut v);
            each(key, &v);
        }
    }
}

/// Writes elements as fp32.
fn widen<T: Element>(elements: &[T], row: &mut [f32]) {
    row.iter_mut().zip(elements).for_each(|(wide, element)| *wide = element.to_f32());
}

#[derive(Default)]
struct Exact {
    o: Vec<f64>,
    lse: f64,
    output_rounding: f64,
    weight_rounding: f64,
    lse_rounding: f64,
    lse_sums: f64,
}

/// A score, with the sum of its terms' magnitudes, and that of its partial sums'.
struct Score {
    score: f64,
    terms: f64,
    sums: f64,
    /// What tensor cores may lose of it.
    cut: f64,
}

/// One row in f64, in which fp32 products are exact.
fn exact_row(problem: &Problem, inputs: &Inputs<'_>, at: Row) -> Exact {
    let scores = exact_scores(problem, inputs, at);
    let sink = f64::from(problem.scores().sink(at.batch, at.head));
    let mut o = vec![0.0; problem.head_dim_v()];
    if scores.iter().all(|score| score.score == f64::NEG_INFINITY) {
        let lse_rounding = if sink.is_finite() { ROUNDOFF * (sink.abs() + 1.0) } else { 0.0 };
        return Exact { o, lse: sink, lse_rounding, ..Exact::default() };
    }
    let max = scores.iter().map(|score| score.score).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<_> = scores.iter().map(|score| (score.score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let of_keys = max + sum.ln();
    let top = of_keys.max(sink);
    let lse = top + ((of_keys - top).exp() + (sink - top).exp()).ln();
    let kept = (of_keys - lse).exp() / sum;
    let weights: Vec<_> = weights.iter().map(|weight| weight * kept).collect();
    let v_descale = f64::from(problem.scores().v_descale_of(at.batch, at.head / problem.group()));
    let factor = |key: usize| f64::from(inputs.kept[key]) * v_descale;
    let mut moved = vec![0.0; o.len()];
    let mut squares = vec![0.0; o.len()];
    inputs.each_value(o.len(), |key, v| {
        for ((o, moved), v) in o.iter_mut().zip(&mut moved).zip(v) {
            *o += weights[key] * factor(key) * f64::from(*v);
            *moved += o.abs();
        }
    });
    inputs.each_value(o.len(), |key, v| {
        let (weight, score) = (weights[key], &scores[key]);
        let of_score = score.terms + score.sums + score.cut / ROUNDOFF;
        for (((moved, square), o), v) in moved.iter_mut().zip(&mut squares).zip(&o).zip(v) {
            let v = factor(key) * f64::from(*v);
            *moved += weight * (of_score * (v - o).abs() + v.abs());
            *square += (weight * v).powi(2);
        }
    });
    // A kernel may merge the sink as it merges parts of the keys: by log-sum-exps, which are rounded.
    let sunk = (sink - lse).exp();
    if sunk > 0.0 {
        let of_sink = sunk * (2.0 * of_keys.abs() + sink.abs() + 4.0);
        moved.iter_mut().zip(&o).for_each(|(moved, o)| *moved += of_sink * o.abs());
    }
    if inputs.dtype == DType::E4m3 {
        let largest = weights.iter().copied().fold(0.0, f64::max);
        // m follows every larger score, so that the largest weight is exact.
        squares = vec![0.0; o.len()];
        let mut terms = vec![(0.0_f64, 0.0_f64); o.len()];
        inputs.each_value(o.len(), |key, v| {
            for (((sum, most), square), v) in terms.iter_mut().zip(&mut squares).zip(v) {
                let term = weights[key] * v_descale * f64::from(*v).abs();
                (*sum, *most) = (*sum + term, most.max(term));
                *square += if weights[key] < largest { term * term } else { 0.0 };
            }
        });
        for (moved, (sum, most)) in moved.iter_mut().zip(terms) {
            *moved += (e4m3::SUMMED * sum + e4m3::outweighed(sum, most)) / ROUNDOFF;
        }
    }
    let of_weight = |(square, o): (&f64, &f64)| {
        inputs.dtype.roundoff() * square.sqrt() + inputs.dtype.output().roundoff() * o.abs()
    };
    let weight_rounding = match inputs.dtype {
        DType::F32 => 0.0,
        _ => squares.iter().zip(&o).map(of_weight).fold(0.0, f64::max),
    };
    let weighted = |part: fn(&Score) -> f64| -> f64 {
        weights.iter().zip(&scores).map(|(weight, score)| weight * part(score)).sum()
    };
    Exact {
        o,
        lse,
        output_rounding: ROUNDOFF * moved.into_iter().fold(0.0, f64::max),
        weight_rounding,
        lse_rounding: ROUNDOFF
            * (weighted(|score| score.terms)
                + if sunk > 0.0 { sunk * sink.abs() } else { 0.0 }
                + lse.abs()
                + 1.0),
        lse_sums: ROUNDOFF * weighted(|score| score.sums) + weighted(|score| score.cut),
    }
}

/// The scores of the visible keys.
fn exact_scores(problem: &Problem, inputs: &Inputs<'_>, at: Row) -> Vec<Score> {
    let scale = f64::from(problem.scores().softmax_scale_of(at.batch, at.head / problem.group()));
    let softcap = f64::from(problem.softcap());
    let capped = |score: f64| if softcap == 0.0 { score } else { softcap * (score / softcap).tanh() };
    let functions = problem.functions().and_then(|functions| functions.on_host().ok());
    let mut k = vec![0.0; inputs.q.len()];
    let mut products = vec![0.0; inputs.q.len()];
    let mut score = |index: usize, key: usize| {
        (inputs.k)(index, &mut k);
        let (mut sum, mut terms, mut sums) = (0.0, 0.0, 0.0);
        for ((product, q), k) in products.iter_mut().zip(&inputs.q).zip(&k) {
            *product = f64::from(*q) * f64::from(*k);
            sum += *product;
            terms += product.abs();
            sums += sum.abs();
        }
        let bias =
            -f64::from(problem.alibi_slope(at.batch, at.head)) * problem.distance(at.batch, at.row, key);
        let factor = scale.abs();
        let cut = if inputs.dtype == DType::E4m3 { factor * e4m3::cut(&products) } else { 0.0 };
        let score = capped(scale * sum) + bias;
        let terms = factor * terms + bias.abs();
        let Some(functions) = &functions else { return Score { score, terms, sums: factor * sums, cut } };
        let changed = functions.score(score as f32, problem.position(at.batch, at.head, at.row, key));
        let bias = f64::from(changed) - score;
        let terms = terms + if bias.is_finite() { bias.abs() } else { 0.0 };
        Score { score: changed.into(), terms, sums: factor * sums, cut }
    };
    problem.visible_keys(at.batch, at.row).enumerate().map(|(index, key)| score(index, key)).collect()
}

/// One row as an unfused implementation computes it, before it is stored.
fn standard_row(problem: &Problem, inputs: &Inputs<'_>, at: Row) -> Vec<f32> {
    let scale = inputs.dtype.weight_scale();
    let stored_weight = |value: f32| (inputs.round)(scale * value) / scale;
    // As FlashAttention does: divided first, the weights of long rows would vanish.
    let divides_last = inputs.dtype == DType::E4m3;
    let softcap = problem.softcap();
    let capped = |score: f32| if softcap == 0.0 { score } else { softcap * (score / softcap).tanh() };
    let slope = problem.alibi_slope(at.batch, at.head);
    let kv_head = at.head / problem.group();
    let softmax_scale = problem.scores().softmax_scale_of(at.batch, kv_head);
    let v_descale = problem.scores().v_descale_of(at.batch, kv_head);
    let functions = problem.functions().and_then(|functions| functions.on_host().ok());
    let mut k = vec![0.0; inputs.q.len()];
    let mut score = |index: usize, key: usize| {
        (inputs.k)(index, &mut k);
        let product: f32 = inputs.q.iter().zip(&k).map(|(q, k)| q * k).sum();
        let score = capped(softmax_scale * product) - slope * problem.distance(at.batch, at.row, key) as f32;
        let score = functions.as_ref().map_or(score, |functions| {
            functions.score(score, problem.position(at.batch, at.head, at.row, key))
        });
        if divides_last { score } else { (inputs.round_output)(score) }
    };
    let visible = problem.visible_keys(at.batch, at.row).enumerate();
    let scores: Vec<_> = visible.map(|(index, key)| score(index, key)).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return vec![0.0; problem.head_dim_v()];
    }
    let weights: Vec<_> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum = weights.iter().sum::<f32>() + (problem.scores().sink(at.batch, at.head) - max).exp();
    let mut o = vec![0.0_f32; problem.head_dim_v()];
    inputs.each_value(problem.head_dim_v(), |key, v| {
        let (weight, kept) = (weights[key], inputs.kept[key]);
        let weight = if divides_last { stored_weight(weight) / sum } else { stored_weight(weight / sum) };
        let weight = if kept == 1.0 { weight } else { stored_weight(weight * kept) };
        for (o, v) in o.iter_mut().zip(v) {
            *o += weight * v;
        }
    });
    o.iter().map(|o| v_descale * o).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options, TensorLayout, Tensors};

    fn problem(sq: usize, sk: usize, heads: usize, kv_heads: usize, d: usize, causal: bool) -> Problem {
        let q = TensorLayout::bshd(1, sq, heads, d);
        let kv = TensorLayout::bhsd(1, sk, kv_heads, d);
        let options = Options { causal, softmax_scale: Some(1.0), ..Options::default() };
        Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F32, options).unwrap()
    }

    #[test]
    fn two_keys_by_hand() {
        // Scores ln 3 and 0 give weights 3/4 and 1/4, and lse = ln 4.
        let k = [3.0_f32.ln(), 0.0];
        let reference = forward(&problem(1, 2, 1, 1, 1, false), &[1.0], &k, &[4.0, 8.0]);
        assert!((reference.o[0] - 5.0).abs() < 1e-6);
        assert!((reference.lse[0] - 4.0_f64.ln()).abs() < 1e-6);
        assert!(reference.output_rounding > 1e-8 && reference.output_rounding < 1e-6);
    }

    #[test]
    fn heads_of_a_group_share_keys_and_lse_is_head_major() {
        let problem = problem(2, 1, 4, 2, 1, false);
        let q: Vec<f32> = (1..=8).map(|i| i as f32).collect();
        let reference = forward(&problem, &q, &[1.0, 10.0], &[0.5, 0.25]);
        assert_eq!(reference.o, [0.5, 0.5, 0.25, 0.25, 0.5, 0.5, 0.25, 0.25]);
        assert_eq!(reference.lse, [1.0, 5.0, 2.0, 6.0, 30.0, 70.0, 40.0, 80.0]);
    }

    #[test]
    fn a_row_that_sees_no_key_is_zero() {
        let problem = problem(3, 1, 1, 1, 2, true);
        let reference = forward(&problem, &[1.0; 6], &[1.0; 2], &[7.0; 2]);
        assert_eq!(reference.o, [0.0, 0.0, 0.0, 0.0, 7.0, 7.0]);
        assert_eq!(reference.lse, [f64::NEG_INFINITY, f64::NEG_INFINITY, 2.0]);
        assert_eq!(standard(&problem, &[1.0_f32; 6], &[1.0; 2], &[7.0; 2]), [0.0, 0.0, 0.0, 0.0, 7.0, 7.0]);
    }

    #[test]
    fn a_sink_is_a_score_without_a_value() {
        // Scores ln 3 and 0 beside a sink of ln 4: weights 3/8 and 1/8, lse = ln 8.
        let of_keys = problem(3, 2, 1, 1, 1, true);
        let options = Options {
            causal: true,
            softmax_scale: Some(1.0),
            sinks: Some(vec![4.0_f32.ln()]),
            ..Options::default()
        };
        let problem = Problem::new(*of_keys.tensors(), DType::F32, options).unwrap();
        let (q, k, v) = ([0.0, 1.0, 1.0], [3.0_f32.ln(), 0.0], [4.0, 8.0]);
        let reference = forward(&problem, &q, &k, &v);
        let plain = standard(&problem, &q, &k, &v);
        for (row, (o, lse)) in [(0.0, 4.0_f64), (12.0 / 7.0, 7.0), (2.5, 8.0)].into_iter().enumerate() {
            assert!((reference.o[row] - o).abs() < 1e-6 && (f64::from(plain[row]) - o).abs() < 1e-6);
            assert!((reference.lse[row] - lse.ln()).abs() < 1e-6);
        }
    }

    #[test]
    fn samples_are_distinct_rows_with_the_corners() {
        let problem = problem(100, 1, 6, 2, 1, false);
        let rows = sample(&problem, 50);
        assert!((45..=50).contains(&rows.len()), "{}", rows.len());
        assert!(rows.windows(2).all(|pair| pair[0] != pair[1]));
        for (head, row) in [(0, 0), (0, 99), (5, 0), (5, 99)] {
            assert!(rows.contains(&Row { batch: 0, head, row }), "{head} {row}");
        }
        assert_eq!(sample(&problem, 1000), all(&problem));
    }
}
