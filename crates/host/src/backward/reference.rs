//! What is right: gradients in f64, and the plain computation in the storage type beside them.
//!
//! Both follow the definition key/value head by head, share no code with any kernel, and read only what the
//! views reach and the mask leaves visible. Rows run over all cores; for problems too large to do in full,
//! [`BackwardProblem::sample`] picks the heads.

mod sinks;

use rayon::prelude::*;

use super::BackwardProblem;
use crate::{Element, Problem, TensorLayout, accuracy};
pub(crate) use sinks::{ExactSinks, OfSink};

/// A key/value head of a sequence, with the query heads that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHead {
    /// Index of the sequence.
    pub batch: usize,
    /// Key/value head.
    pub kv_head: usize,
}

/// Gradients of some key/value heads, in the order of the heads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradients<T> {
    /// Of each head [group, Sq, D].
    pub dq: Vec<T>,
    /// Of each head [Sk, D].
    pub dk: Vec<T>,
    /// Of each head [Sk, Dv].
    pub dv: Vec<T>,
}

impl<T> Gradients<T> {
    fn append(&mut self, other: Self) {
        self.dq.extend(other.dq);
        self.dk.extend(other.dk);
        self.dv.extend(other.dv);
    }
}

/// Gradients in f64, and how far roundings move them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exact {
    pub(crate) gradients: Gradients<f64>,
    /// How far one relative rounding to fp32 of each intermediate moves an element of dQ, dK and dV, at most
    /// and to first order; and beside that, about how far rounding O to the storage type does, which delta is
    /// made from. No computation in fp32 from a stored O can promise less.
    pub(crate) rounding: [f64; 3],
    /// How far storing O, dS and dQ moves an element of dQ, while they are normal numbers: the most of
    ///
    /// |softmax_scale · e · Σⱼ pⱼ tⱼ kⱼ| + u · √Σ_g (Σⱼ∈g |softmax_scale · dSⱼ kⱼ|)² + u · |dq|
    ///
    /// Here e = Σ (round(o) − o) · do is what the row's delta is off by, tⱼ the softcap's slope, and u the
    /// storage type's unit roundoff. 0 for fp32.
    ///
    /// The plain computation makes delta from P and dP, and has no e. Where elements of O are all rounded in
    /// one direction, e grows with their number and not with its square root: a sink that takes a little
    /// from the mean of two rows of V turns all ties one way.
    ///
    /// Each dS is rounded once, by u · |dS| at most, and independently of the others, but for those of a
    /// group g: numbers that are the same up to signs and powers of two are rounded by the same share, and
    /// add up. With dropout that keeps one of two keys they are dS and −dS. The plain computation rounds both
    /// alike, so that they cancel; with e they are no longer opposite, and may be a ulp apart.
    pub(crate) dq_stored: f64,
}

/// Unit roundoff of fp32.
const ROUNDOFF: f64 = 0.5 * f32::EPSILON as f64;

/// Host tensors that gradients follow from.
#[derive(Clone, Copy, Debug)]
pub struct GradientInputs<'a, T> {
    /// Queries.
    pub q: &'a [T],
    /// Keys.
    pub k: &'a [T],
    /// Values.
    pub v: &'a [T],
    /// Gradient of the output.
    pub dout: &'a [T],
    /// Gradient of the log-sum-exp.
    pub dlse: Option<&'a [f32]>,
}

impl BackwardProblem {
    /// Gradients of these heads in f64.
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn reference<T: Element>(&self, inputs: GradientInputs<'_, T>, heads: &[KvHead]) -> Gradients<f64> {
        self.exact(inputs, heads).gradients
    }

    /// [`Self::reference`], with what rounding to fp32 costs.
    pub(crate) fn exact<T: Element>(&self, inputs: GradientInputs<'_, T>, heads: &[KvHead]) -> Exact {
        let mut all = Exact::default();
        for &head in heads {
            let Exact { gradients, rounding, dq_stored } = HeadInputs::new(self, inputs, head).exact();
            all.gradients.append(gradients);
            all.dq_stored = all.dq_stored.max(dq_stored);
            all.rounding = std::array::from_fn(|index| all.rounding[index].max(rounding[index]));
        }
        all
    }

    /// The plain computation of these heads' gradients: products accumulate in fp32, and P, dP, dS and the
    /// gradients, of each query head before they are summed over a group, are rounded to the storage type, as
    /// an unfused implementation stores them.
    ///
    /// # Panics
    /// When a buffer is shorter than its view.
    pub fn standard<T: Element>(&self, inputs: GradientInputs<'_, T>, heads: &[KvHead]) -> Gradients<T> {
        let mut all = Gradients { dq: Vec::new(), dk: Vec::new(), dv: Vec::new() };
        heads.iter().for_each(|&head| all.append(HeadInputs::new(self, inputs, head).standard()));
        all
    }
}

/// One head's rows of Q, K, V and dO, in f64, in which products of fp32 numbers are exact.
struct HeadInputs<'a> {
    problem: &'a Problem,
    head: KvHead,
    /// Unit roundoff of the storage type.
    stored: f64,
    /// Rounds to the storage type.
    round: fn(f64) -> f64,
    /// [group·Sq] rows.
    q: Vec<Vec<f64>>,
    dout: Vec<Vec<f64>>,
    /// [group·Sq] numbers.
    dlse: Vec<f32>,
    /// [Sk] rows.
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
}

/// What a query row gives its own gradient and those of the keys that it sees, from key `first` on.
struct RowPart<F> {
    first: usize,
    /// P, as V sees it.
    p: Vec<F>,
    /// dS before the factor softmax_scale.
    ds: Vec<F>,
    dq: Vec<F>,
    /// What the row gives its sink's gradient; 0 without sinks.
    dsink: F,
}

/// How far off O may be before it is stored, in roundings to fp32. Means of a few keys often lie halfway
/// between two numbers of the storage type; there the row's sum in fp32, which all its elements are divided
/// by, decides.
const SLIPS: [f64; 3] = [0.0, -8.0, 8.0];

/// How far delta, made from O as it is stored, moves dS of each key that a query row sees.
struct OfStoredO {
    /// If elements are off by a roundoff, each in any direction.
    by_chance: Vec<f64>,
    /// If elements are the exact ones, rounded: once for each of [`SLIPS`].
    by_rounding: [Vec<f64>; SLIPS.len()],
    /// The same of the sink's part.
    of_sink: (f64, [f64; SLIPS.len()]),
    /// How far that, and storing dS and dQ, moves an element of dQ: [`Exact::dq_stored`] of a row.
    dq: f64,
}

impl<'a> HeadInputs<'a> {
    fn new<T: Element>(
        backward: &'a BackwardProblem,
        GradientInputs { q, k, v, dout, dlse }: GradientInputs<'_, T>,
        head: KvHead,
    ) -> Self {
        let problem = backward.forward();
        let KvHead { batch, kv_head } = head;
        let wide = |data: &[T]| data.iter().map(|value| f64::from(value.to_f32())).collect::<Vec<_>>();
        let places = || {
            let heads = kv_head * problem.group()..(kv_head + 1) * problem.group();
            let rows = 0..problem.query_rows(batch).len();
            heads.flat_map(move |head| rows.clone().map(move |row| (head, row)))
        };
        let queries = |layout: &TensorLayout, data: &[T]| -> Vec<_> {
            let at = |(head, row)| problem.query_index(layout, batch, row, head);
            places().map(|place| wide(&data[at(place)..][..layout.head_dim])).collect()
        };
        let keys = |layout: &TensorLayout, data: &[T]| -> Vec<_> {
            let at = |key| problem.key_index(layout, batch, key, kv_head);
            let rows = 0..problem.key_rows(batch).len();
            rows.map(|key| wide(&data[at(key)..][..layout.head_dim])).collect()
        };
        let tensors = problem.tensors();
        Self {
            problem,
            head,
            stored: T::DTYPE.roundoff(),
            round: |exact| f64::from(T::from_f32(exact as f32).to_f32()),
            q: queries(&tensors.q, q),
            dout: queries(&backward.layouts().dout, dout),
            dlse: places()
                .map(|(head, row)| dlse.map_or(0.0, |dlse| dlse[problem.lse_index(batch, head, row)]))
                .collect(),
            k: keys(&tensors.k, k),
            v: keys(&tensors.v, v),
        }
    }

    /// Query head and row of the `index`-th query row.
    fn place(&self, index: usize) -> (usize, usize) {
        let rows = self.problem.query_rows(self.head.batch).len();
        (self.head.kv_head * self.problem.group() + index / rows, index % rows)
    }

    /// ALiBi's term of a score.
    fn bias(&self, head: usize, row: usize, key: usize) -> f64 {
        -f64::from(self.problem.alibi_slope(self.head.batch, head))
            * self.problem.distance(self.head.batch, row, key)
    }

    /// What dropout multiplies a weight by.
    fn kept(&self, head: usize, row: usize, key: usize) -> f32 {
        self.problem.dropout_factor(self.head.batch, head, row, key)
    }

    fn exact(&self) -> Exact {
        let rows: Vec<_> = (0..self.q.len()).into_par_iter().map(|index| self.exact_row(index)).collect();
        let scale = f64::from(self.problem.softmax_scale());
        let keys: Vec<_> = (0..self.k.len())
            .into_par_iter()
            .map(|key| {
                let mut dk: [_; 3 + SLIPS.len()] =
                    std::array::from_fn(|_| vec![0.0; self.problem.head_dim()]);
                let mut dv: [_; 2] = std::array::from_fn(|_| vec![0.0; self.problem.head_dim_v()]);
                for ((row, moved, stored), (q, dout)) in rows.iter().zip(self.q.iter().zip(&self.dout)) {
                    let Some(at) = key.checked_sub(row.first).filter(|&at| at < row.p.len()) else {
                        continue;
                    };
                    let ([sum, dv_moved], [dk_sum, dk_moved, ..]) = (&mut dv, &mut dk);
                    add(sum, dout, row.p[at]);
                    add_magnitude(dv_moved, dout, moved.p[at]);
                    add_partial_sum(dv_moved, sum);
                    add(dk_sum, q, scale * row.ds[at]);
                    add_magnitude(dk_moved, q, scale * moved.ds[at]);
                    add_partial_sum(dk_moved, dk_sum);
                    add_square(&mut dk[2], q, scale * stored.by_chance[at]);
                    for (dk, by_rounding) in dk[3..].iter_mut().zip(&stored.by_rounding) {
                        add(dk, q, scale * by_rounding[at]);
                    }
                }
                let [dk, mut dk_moved, by_chance, by_rounding @ ..] = dk;
                // Errors that rows have by chance are independent. That of rounding is the same in rows that
                // are alike.
                for (at, moved) in dk_moved.iter_mut().enumerate() {
                    *moved += by_chance[at].sqrt() + largest(by_rounding.iter().map(|sums| sums[at]));
                }
                ([dk, dk_moved], dv)
            })
            .collect();
        let mut exact = Exact::default();
        let mut most = [0.0_f64; 3];
        for (row, moved, stored) in rows {
            most[0] = most[0].max(largest(moved.dq.iter().copied()));
            exact.dq_stored = exact.dq_stored.max(stored.dq);
            exact.gradients.dq.extend(row.dq);
        }
        for ([dk, dk_moved], [dv, dv_moved]) in keys {
            most[1] = most[1].max(largest(dk_moved.iter().copied()));
            most[2] = most[2].max(largest(dv_moved.iter().copied()));
            exact.gradients.dk.extend(dk);
            exact.gradients.dv.extend(dv);
        }
        exact.rounding = most.map(|most| ROUNDOFF * most);
        exact
    }

    /// A query row in f64, how far roundings of 1 move its parts, and how far that of O moves its dS, in the
    /// same unit.
    fn exact_row(&self, index: usize) -> (RowPart<f64>, RowPart<f64>, OfStoredO) {
        let problem = self.problem;
        let (head, row) = self.place(index);
        let (scale, softcap) = (f64::from(problem.softmax_scale()), f64::from(problem.softcap()));
        let seen = problem.visible_keys(self.head.batch, row);
        let (q, dout) = (&self.q[index], &self.dout[index]);
        let mut scores = Vec::new();
        // Terms of each score, and d score / d (softmax_scale·q·k).
        let (mut terms, mut slopes) = (Vec::new(), Vec::new());
        for key in seen.clone() {
            let (product, bias) = (scale * dot(q, &self.k[key]), self.bias(head, row, key));
            let bent = if softcap == 0.0 { 0.0 } else { (product / softcap).tanh() };
            scores.push(if softcap == 0.0 { product } else { softcap * bent } + bias);
            // Each partial sum is rounded once.
            let products = dot_of_magnitudes(q, &self.k[key])
                + partial_sums(q, &self.k[key]) / accuracy::GRADIENT_ROUNDINGS;
            terms.push(scale.abs() * products + bias.abs());
            slopes.push(1.0 - bent * bent);
        }
        let sink = f64::from(problem.scores().sink(self.head.batch, head));
        let has_sink = sink != f64::NEG_INFINITY;
        let max = scores.iter().copied().fold(sink, f64::max);
        let of_sink = if has_sink { (sink - max).exp() } else { 0.0 };
        let lse = max + (scores.iter().map(|score| (score - max).exp()).sum::<f64>() + of_sink).ln();
        let p: Vec<_> = scores.iter().map(|score| (score - lse).exp()).collect();
        let kept: Vec<_> = seen.clone().map(|key| f64::from(self.kept(head, row, key))).collect();
        let of_keys = |product: fn(&[f64], &[f64]) -> f64| -> Vec<_> {
            seen.clone().zip(&kept).map(|(key, kept)| kept * product(dout, &self.v[key])).collect()
        };
        // A sum in fp32, term by term, is off by about √n / 3 roundings of its terms' magnitudes where these
        // have one sign, and by one of each partial sum where they are equal; what dP and delta share does
        // not cancel.
        let sum = ((problem.head_dim_v() as f64).sqrt() / 3.0).max(1.0);
        let dp: Vec<_> = of_keys(dot);
        let dp_sums = of_keys(partial_sums);
        let dp_terms = of_keys(dot_of_magnitudes).into_iter().zip(dp_sums);
        let dp_terms: Vec<_> =
            dp_terms.map(|(terms, sums)| (sum * terms).max(sums / accuracy::GRADIENT_ROUNDINGS)).collect();
        let plain = dot(&p, &dp);
        let dlse = f64::from(self.dlse[index]);
        let delta = plain - dlse;
        let lse_moved = dot(&p, &terms) + lse.abs() + 1.0;
        let mut delta_moved: f64 =
            (0..p.len()).map(|j| p[j] * (terms[j] * (dp[j] - plain).abs() + dp_terms[j])).sum();
        if dlse != 0.0 {
            delta_moved += delta.abs();
        }
        let delta_stored =
            self.delta_stored(seen.clone().zip(p.iter().zip(&kept).map(|(p, kept)| p * kept)), dout);
        let (mut dsink, mut dsink_moved, mut of_sink) = (0.0, 0.0, (0.0, [0.0; SLIPS.len()]));
        if has_sink {
            let p = (sink - lse).exp();
            dsink = -p * delta;
            // One for the product; terms of a sum in fp32 are rounded about as often as a tree is deep.
            let relative = lse_moved + sink.abs() + (sink - lse).abs() + 4.0;
            dsink_moved = relative * dsink.abs() + p * delta_moved;
            of_sink = (p * delta_stored.0, delta_stored.1.map(|delta| p * delta));
        }
        let of_keys = |delta| p.iter().zip(&slopes).map(|(p, slope)| p * slope * delta).collect::<Vec<_>>();
        let (by_chance, by_rounding) = (of_keys(delta_stored.0), delta_stored.1.map(of_keys));
        let part = |p, dsink| RowPart {
            first: seen.start,
            p,
            ds: Vec::new(),
            dq: vec![0.0; problem.head_dim()],
            dsink,
        };
        let (mut part, mut moved) = (part(p, dsink), part(Vec::new(), dsink_moved));
        for (j, key) in seen.clone().enumerate() {
            let (p, distance) = (part.p[j], dp[j] - delta);
            let relative = terms[j] + lse_moved;
            let ds = p * distance * slopes[j];
            let bending = if softcap == 0.0 { 0.0 } else { 2.0 + 2.0 * terms[j] / softcap * slopes[j] };
            let ds_moved = p * slopes[j] * (relative * distance.abs() + dp_terms[j] + delta_moved)
                + p * distance.abs() * bending;
            add(&mut part.dq, &self.k[key], scale * ds);
            add_magnitude(&mut moved.dq, &self.k[key], scale * (ds_moved + ds.abs()));
            add_partial_sum(&mut moved.dq, &part.dq);
            part.ds.push(ds);
            moved.p.push(kept[j] * p * (relative + 1.0));
            moved.ds.push(ds_moved + ds.abs());
        }
        part.p.iter_mut().zip(kept).for_each(|(p, kept)| *p *= kept);
        // All keys of a row are moved by the same delta, and cancel in part.
        let mut together = vec![0.0; problem.head_dim()];
        seen.zip(&by_chance).for_each(|(key, stored)| add(&mut together, &self.k[key], scale * stored));
        add_magnitude(&mut moved.dq, &together, 1.0);
        let dq = largest(by_rounding.iter().map(|by_rounding| self.dq_stored(&part, by_rounding)));
        (part, moved, OfStoredO { by_chance, by_rounding, of_sink, dq })
    }

    /// [`Exact::dq_stored`] of a row whose delta, from the rounded O, moves each dS so far.
    fn dq_stored(&self, row: &RowPart<f64>, by_rounding: &[f64]) -> f64 {
        if self.stored <= ROUNDOFF {
            return 0.0;
        }
        let scale = f64::from(self.problem.softmax_scale());
        let mantissa = |&key: &usize| (row.ds[key] as f32).to_bits() << 9;
        let mut keys: Vec<_> = (0..row.ds.len()).collect();
        keys.sort_unstable_by_key(mantissa);
        let [mut of_o, mut alike, mut squares] = [(); 3].map(|()| vec![0.0; row.dq.len()]);
        for group in keys.chunk_by(|a, b| mantissa(a) == mantissa(b)) {
            alike.fill(0.0);
            for &key in group {
                let k = &self.k[row.first + key];
                add(&mut of_o, k, scale * ROUNDOFF * by_rounding[key]);
                add_magnitude(&mut alike, k, scale * row.ds[key]);
            }
            add_square(&mut squares, &alike, self.stored);
        }
        let all = of_o.iter().zip(squares).zip(&row.dq);
        all.map(|((of_o, square), dq)| of_o.abs() + square.sqrt() + self.stored * dq.abs())
            .fold(0.0, f64::max)
    }

    /// About how far rounding O's elements to the storage type, independently of one another, moves delta,
    /// and how far rounding the exact elements does, off by each of [`SLIPS`]; both in roundings to fp32.
    /// `weights` are those of V's rows.
    fn delta_stored(
        &self,
        weights: impl Iterator<Item = (usize, f64)>,
        dout: &[f64],
    ) -> (f64, [f64; SLIPS.len()]) {
        let mut o = vec![0.0; dout.len()];
        weights.for_each(|(key, weight)| add(&mut o, &self.v[key], weight));
        let squares = o.iter().zip(dout).map(|(o, dout)| (o * dout).powi(2)).sum::<f64>();
        let rounded = SLIPS.map(|slip| {
            // In fp32 a slip is an error of its own, which is counted elsewhere.
            let near = if self.stored > ROUNDOFF { 1.0 + slip * ROUNDOFF } else { 1.0 };
            let of_each = o.iter().zip(dout).map(|(&o, dout)| ((self.round)(near * o) - o) * dout);
            of_each.sum::<f64>() / ROUNDOFF
        });
        (self.stored / ROUNDOFF * squares.sqrt(), rounded)
    }

    fn standard<T: Element>(&self) -> Gradients<T> {
        let rows: Vec<_> =
            (0..self.q.len()).into_par_iter().map(|index| self.standard_row::<T>(index)).collect();
        let scale = self.problem.softmax_scale();
        let of_head = rows.len() / self.problem.group();
        let mut all = Gradients {
            dq: rows.iter().flat_map(|row| row.dq.iter().map(|&value| T::from_f32(value))).collect(),
            dk: Vec::new(),
            dv: Vec::new(),
        };
        let keys: Vec<_> = (0..self.k.len())
            .into_par_iter()
            .map(|key| {
                let sum = |columns: usize,
                           others: &[Vec<f64>],
                           weight: fn(&RowPart<f32>) -> &[f32],
                           factor: f32| {
                    let mut sum = vec![0.0_f32; columns];
                    // A sequence without queries has no rows to be divided among heads.
                    for first in (0..rows.len()).step_by(of_head.max(1)) {
                        let mut of_one = vec![0.0_f32; columns];
                        for (row, other) in rows[first..][..of_head].iter().zip(&others[first..]) {
                            let at = key.checked_sub(row.first).filter(|&at| at < row.p.len());
                            let weight = at.map_or(0.0, |at| weight(row)[at]);
                            of_one.iter_mut().zip(other).for_each(|(sum, &x)| *sum += weight * x as f32);
                        }
                        sum.iter_mut().zip(of_one).for_each(|(sum, x)| *sum += stored::<T>(factor * x));
                    }
                    sum.into_iter().map(T::from_f32).collect::<Vec<_>>()
                };
                (
                    sum(self.problem.head_dim(), &self.q, |row| &row.ds, scale),
                    sum(self.problem.head_dim_v(), &self.dout, |row| &row.p, 1.0),
                )
            })
            .collect();
        for (dk, dv) in keys {
            all.dk.extend(dk);
            all.dv.extend(dv);
        }
        all
    }

    /// One row as an unfused implementation computes it.
    fn standard_row<T: Element>(&self, index: usize) -> RowPart<f32> {
        let problem = self.problem;
        let (head, row) = self.place(index);
        let (scale, softcap) = (problem.softmax_scale(), problem.softcap());
        let seen = problem.visible_keys(self.head.batch, row);
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a * b) as f32).sum::<f32>();
        let (mut scores, mut slopes) = (Vec::new(), Vec::new());
        for key in seen.clone() {
            let score = scale * product(&self.q[index], &self.k[key]);
            let bent = if softcap == 0.0 { 0.0 } else { stored::<T>((score / softcap).tanh()) };
            let capped = if softcap == 0.0 { score } else { softcap * (score / softcap).tanh() };
            scores.push(stored::<T>(capped + self.bias(head, row, key) as f32));
            slopes.push(1.0 - bent * bent);
        }
        let sink = problem.scores().sink(self.head.batch, head);
        let max = scores.iter().copied().fold(sink, f32::max);
        let weights: Vec<_> = scores.iter().map(|score| (score - max).exp()).collect();
        let of_sink = if sink == f32::NEG_INFINITY { 0.0 } else { (sink - max).exp() };
        let sum = weights.iter().sum::<f32>() + of_sink;
        let mut p: Vec<_> = weights.iter().map(|weight| stored::<T>(weight / sum)).collect();
        let kept: Vec<_> = seen.clone().map(|key| self.kept(head, row, key)).collect();
        let dp = seen.clone().map(|key| stored::<T>(product(&self.dout[index], &self.v[key])));
        let dp: Vec<_> = dp.zip(&kept).map(|(dp, kept)| stored::<T>(dp * kept)).collect();
        let delta = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum::<f32>() - self.dlse[index];
        let dsink = if of_sink == 0.0 { 0.0 } else { stored::<T>(stored::<T>(of_sink / sum) * -delta) };
        let ds: Vec<_> =
            (0..p.len()).map(|j| stored::<T>(stored::<T>(p[j] * (dp[j] - delta)) * slopes[j])).collect();
        let mut dq = vec![0.0_f32; problem.head_dim()];
        for (ds, key) in ds.iter().zip(seen.clone()) {
            dq.iter_mut().zip(&self.k[key]).for_each(|(dq, &k)| *dq += ds * k as f32);
        }
        dq.iter_mut().for_each(|dq| *dq *= scale);
        p.iter_mut().zip(kept).for_each(|(p, kept)| *p = stored::<T>(*p * kept));
        RowPart { first: seen.start, p, ds, dq, dsink }
    }
}

/// A value as it is read back from the storage type.
fn stored<T: Element>(value: f32) -> f32 {
    T::from_f32(value).to_f32()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn dot_of_magnitudes(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum()
}

/// The largest magnitude.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.map(f64::abs).fold(0.0, f64::max)
}

/// Sum of the magnitudes of the partial sums of a·b: what one rounding of each of them moves the last one by,
/// at most.
fn partial_sums(a: &[f64], b: &[f64]) -> f64 {
    let mut sum = 0.0_f64;
    let partial = |(a, b): (&f64, &f64)| {
        sum += a * b;
        sum.abs()
    };
    a.iter().zip(b).map(partial).sum()
}

fn add(sum: &mut [f64], values: &[f64], factor: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

/// Counts one rounding of each element of a sum that is under way.
fn add_partial_sum(moved: &mut [f64], sum: &[f64]) {
    moved.iter_mut().zip(sum).for_each(|(moved, sum)| *moved += sum.abs() / accuracy::GRADIENT_ROUNDINGS);
}

fn add_magnitude(sum: &mut [f64], values: &[f64], factor: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += (factor * value).abs());
}

fn add_square(sum: &mut [f64], values: &[f64], factor: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += (factor * value).powi(2));
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
