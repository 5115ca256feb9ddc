use super::*;
use crate::forward::Dropout;
use crate::{DType, Options, TensorLayout, Tensors, reference};
use half::{bf16, f16};

/// Normal-like values, the same for the same seed.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = 2 * seed + 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| 2.0 * (uniform() + uniform() + uniform())).collect()
}

/// B = 2, three query heads to each of two key/value heads, Sq = 5, Sk = 4, D = 3, Dv = 2.
fn tensors() -> Tensors {
    Tensors {
        q: TensorLayout::bshd(2, 5, 6, 3),
        k: TensorLayout::bhsd(2, 4, 2, 3),
        v: TensorLayout::bshd(2, 4, 2, 2),
        o: TensorLayout::bhsd(2, 5, 6, 2),
    }
}

/// Q, K, V and dO, and dlse.
struct Inputs {
    tensors: [Vec<f32>; 4],
    dlse: Vec<f32>,
}

impl Inputs {
    fn new(problem: &Problem) -> Self {
        let Tensors { q, k, v, o } = *problem.tensors();
        let tensors = [(q, 1), (k, 2), (v, 3), (o, 4)].map(|(at, seed)| values(at.span(), seed));
        Self { tensors, dlse: values(problem.lse_len(), 5) }
    }

    fn gradients(&self) -> GradientInputs<'_, f32> {
        let [q, k, v, dout] = &self.tensors;
        GradientInputs { q, k, v, dout, dlse: Some(&self.dlse) }
    }

    /// Σ dO ∘ O + Σ dlse ∘ lse in f64, the latter of rows that see a key or have a sink.
    fn loss(&self, problem: &Problem) -> f64 {
        let [q, k, v, dout] = &self.tensors;
        let rows = reference::all(problem);
        let exact = reference::rows(problem, q, k, v, &rows);
        let dout = reference::gather(problem, dout, &rows);
        let dlse = rows.iter().map(|at| self.dlse[problem.lse_index(at.batch, at.head, at.row)]);
        let of_o = exact.o.iter().zip(dout).map(|(o, dout)| o * f64::from(dout)).sum::<f64>();
        let of_lse = exact.lse.iter().zip(dlse).filter(|(lse, _)| lse.is_finite());
        of_o + of_lse.map(|(lse, dlse)| lse * f64::from(dlse)).sum::<f64>()
    }
}

/// Compares a gradient with central differences of a loss at `value` ± a step and its double: their
/// difference is three times the error of the better one, to the order of the step's square.
fn check_slope(what: &str, (exact, value): (f64, f32), magnitude: f64, mut loss: impl FnMut(f32) -> f64) {
    let mut difference = |step: f32| {
        let (to, from) = (value + step, value - step);
        (loss(to) - loss(from)) / (f64::from(to) - f64::from(from))
    };
    let step = 1.0 / 1024.0;
    let (near, far) = (difference(step), difference(2.0 * step));
    loss(value);
    if exact.is_nan() {
        // No sequence has the row, so it moves nothing.
        assert_eq!((near, far), (0.0, 0.0));
        return;
    }
    let rounding = 16.0 * f64::EPSILON * magnitude / f64::from(step);
    assert!(
        (exact - near).abs() <= (near - far).abs() + rounding,
        "{what}: {exact}, {near} by differences, {far} by larger ones"
    );
}

/// All gradients of `problem` against differences of the forward reference.
fn check(problem: impl Fn(Options) -> Problem, options: &Options) {
    let backward = BackwardProblem::like(problem(options.clone())).unwrap();
    let inputs = &mut Inputs::new(backward.forward());
    let magnitude = inputs.loss(backward.forward()).abs() + 1.0;
    check_tensors(&backward, inputs, magnitude);
    let Some(sinks) = &options.sinks else {
        assert!(backward.sinks_reference(inputs.gradients()).is_empty());
        return;
    };
    for (index, exact) in backward.sinks_reference(inputs.gradients()).into_iter().enumerate() {
        check_slope(&format!("sink {index}"), (exact, sinks[index]), magnitude, |to| {
            let mut sinks = sinks.clone();
            sinks[index] = to;
            inputs.loss(&problem(Options { sinks: Some(sinks), ..options.clone() }))
        });
    }
}

fn check_tensors(backward: &BackwardProblem, inputs: &mut Inputs, magnitude: f64) {
    let problem = backward.forward();
    let tensors = problem.tensors();
    let mut spread = [&tensors.q, &tensors.k, &tensors.v].map(|layout| vec![f64::NAN; layout.span()]);
    for head in backward.heads() {
        let gradients = backward.reference(inputs.gradients(), &[head]);
        let KvHead { batch, kv_head } = head;
        let (rows, keys) = (problem.query_rows(batch).len(), problem.key_rows(batch).len());
        for (index, dq) in gradients.dq.chunks_exact(3).enumerate() {
            let head = kv_head * problem.group() + index / rows;
            let at = problem.query_index(&tensors.q, batch, index % rows, head);
            spread[0][at..][..3].copy_from_slice(dq);
        }
        for key in 0..keys {
            let at = problem.key_index(&tensors.k, batch, key, kv_head);
            spread[1][at..][..3].copy_from_slice(&gradients.dk[3 * key..][..3]);
            let at = problem.key_index(&tensors.v, batch, key, kv_head);
            spread[2][at..][..2].copy_from_slice(&gradients.dv[2 * key..][..2]);
        }
    }
    for (tensor, gradients) in spread.iter().enumerate() {
        for (index, &exact) in gradients.iter().enumerate() {
            let value = inputs.tensors[tensor][index];
            let what = format!("tensor {tensor}, element {index}");
            check_slope(&what, (exact, value), magnitude, |to| {
                inputs.tensors[tensor][index] = to;
                inputs.loss(problem)
            });
        }
    }
}

#[test]
fn gradients_are_the_slopes_of_the_forward_reference() {
    let alibi_slopes = Some((1..=12).map(|head| 0.1 * head as f32).collect());
    let options = [
        Options::default(),
        Options { causal: true, ..Options::default() },
        Options { window: (Some(1), Some(1)), softmax_scale: Some(-0.7), ..Options::default() },
        Options { softcap: 0.8, ..Options::default() },
        Options { alibi_slopes, softcap: 1.5, causal: true, ..Options::default() },
        Options { dropout: Some(Dropout { probability: 0.3, seed: 1, offset: 2 }), ..Options::default() },
        Options { sinks: Some(values(6, 6)), causal: true, ..Options::default() },
        Options { sinks: Some(values(12, 7)), softcap: 0.8, ..Options::default() },
    ];
    for options in options {
        check(|options| Problem::new(tensors(), DType::F32, options).unwrap(), &options);
    }
}

#[test]
fn packed_sequences_have_gradients_of_their_own() {
    let tensors = Tensors {
        q: TensorLayout::bshd(1, 11, 4, 3),
        k: TensorLayout::bshd(1, 12, 2, 3),
        v: TensorLayout::bshd(1, 12, 2, 2),
        o: TensorLayout::bshd(1, 11, 4, 2),
    };
    // The third sequence has no queries, the fourth no keys, and the last rows are nobody's.
    let (q, k) = ([0, 3, 7, 7, 10], [0, 5, 8, 11, 11]);
    for sinks in [None, Some(values(4, 6)), Some(values(16, 7))] {
        let options = Options { causal: true, sinks, ..Options::default() };
        check(|options| Problem::varlen(tensors, DType::F32, options, &q, &k).unwrap(), &options);
    }
}

#[test]
fn rows_and_keys_that_see_nothing_have_gradients_of_zero() {
    let q = TensorLayout::bshd(1, 3, 1, 2);
    let kv = TensorLayout::bshd(1, 2, 1, 2);
    let options = Options { window: (None, Some(0)), ..Options::default() };
    let forward = Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F32, options).unwrap();
    let problem = BackwardProblem::like(forward).unwrap();
    let mut inputs = Inputs::new(problem.forward());
    inputs.dlse[..2].copy_from_slice(&[f32::NAN, 0.0]);
    let inputs = inputs.gradients();
    // Of three queries and two keys the first sees none, and the second only one: P = 1 whatever its score
    // is.
    let gradients = problem.reference(inputs, &problem.heads());
    assert_eq!(gradients.dq[..4], [0.0; 4]);
    assert_eq!(problem.standard(inputs, &problem.heads()).dq[..4], [0.0; 4]);
    assert!(gradients.dq[4..].iter().all(|dq| *dq != 0.0));
}

#[test]
fn samples_have_the_first_and_the_last_head() {
    let problem =
        BackwardProblem::like(Problem::new(tensors(), DType::F32, Options::default()).unwrap()).unwrap();
    let all = problem.heads();
    assert_eq!(problem.sample(9), all);
    assert_eq!(problem.sample(2), [all[0], all[3]]);
    assert_eq!(problem.sample(1), [all[0]]);
}

/// Two keys that share a row evenly; O is between two numbers of fp16 in each column, and rounded down.
#[test]
fn what_storage_costs_dq_is_what_was_derived() {
    let (columns, ulp) = (160, f16::EPSILON.to_f64());
    let (qk, v) = (|rows| TensorLayout::bshd(1, rows, 1, 1), |rows| TensorLayout::bshd(1, rows, 1, columns));
    let options = Options { softmax_scale: Some(0.5), ..Options::default() };
    let problem = |dtype| {
        let tensors = Tensors { q: qk(1), k: qk(2), v: v(2), o: v(1) };
        BackwardProblem::like(Problem::new(tensors, dtype, options.clone()).unwrap()).unwrap()
    };
    let (q, k, dout) = ([f16::ZERO], [3.0, 1.0].map(f16::from_f32), vec![f16::ONE; columns]);
    let values = [f16::ONE, f16::ONE + f16::EPSILON].map(|value| vec![value; columns]).concat();
    let problem16 = problem(DType::F16);
    let inputs = GradientInputs { q: &q, k: &k, v: &values, dout: &dout, dlse: None };
    let exact = problem16.exact(inputs, &problem16.heads());
    let (columns, u) = (columns as f64, DType::F16.roundoff());
    // A column gives delta an error of half a ulp, and dS minus or plus a quarter of one.
    let (e, ds) = (columns * ulp / 2.0, columns * ulp / 4.0);
    assert_eq!(exact.gradients.dq, [0.5 * ds * (1.0 - 3.0)]);
    let [of_o, of_ds, of_dq] = [0.5 * e * 0.5 * (3.0 + 1.0), u * 0.5 * ds * (3.0 + 1.0), u * ds];
    assert!((exact.dq_stored / (of_o + of_ds + of_dq) - 1.0).abs() < 1e-12);
    // What independent roundings of O promise is less.
    assert!(accuracy::GRADIENT_ROUNDINGS * exact.rounding[0] < exact.dq_stored);

    let wide = |values: &[f16]| values.iter().map(|value| value.to_f32()).collect::<Vec<_>>();
    let [q, k, values, dout] = [&q[..], &k, &values, &dout].map(wide);
    let problem32 = problem(DType::F32);
    let inputs = GradientInputs { q: &q, k: &k, v: &values, dout: &dout, dlse: None };
    assert_eq!(problem32.exact(inputs, &problem32.heads()).dq_stored, 0.0);
}

/// O is the mean of two keys, often halfway between two numbers of bf16, and the same in all rows. A sum in
/// fp32 that is off in its last bit rounds all ties of a row one way, so dK's errors of rows add up.
#[test]
fn ties_of_o_may_be_rounded_either_way() {
    let (rows, columns) = (32, 41);
    let (qk, of_v) =
        (|rows| TensorLayout::bshd(1, rows, 1, 1), |rows| TensorLayout::bshd(1, rows, 1, columns));
    let tensors = Tensors { q: qk(rows), k: qk(2), v: of_v(2), o: of_v(rows) };
    let problem =
        BackwardProblem::like(Problem::new(tensors, DType::Bf16, Options::default()).unwrap()).unwrap();
    let near_one = |count, seed| -> Vec<_> {
        values(count, seed).into_iter().map(|x| bf16::from_f32(1.0 + 0.25 * x)).collect()
    };
    let (q, k) = ([bf16::from_f32(3.0); 32], [bf16::from_f32(3.0); 2]);
    for seed in 0..8 {
        let (v, dout) = (near_one(2 * columns, seed), near_one(rows * columns, 8 + seed));
        let inputs = GradientInputs { q: &q, k: &k, v: &v, dout: &dout, dlse: None };
        let exact = problem.exact(inputs, &problem.heads());
        let wide = |x: &bf16| x.to_f64();
        for slip in [-1e-7, 1e-7] {
            let mean = |column: usize| 0.5 * (wide(&v[column]) + wide(&v[columns + column]));
            let off: Vec<_> =
                (0..columns).map(mean).map(|o| bf16::from_f64(o * (1.0 + slip)).to_f64() - o).collect();
            // dS of either key is off by P · the error of delta.
            let of_delta = dout
                .chunks(columns)
                .map(|dout| dout.iter().zip(&off).map(|(x, off)| wide(x) * off).sum::<f64>());
            let dk_off = 3.0 * 0.5 * of_delta.sum::<f64>();
            let bound = accuracy::GRADIENT_ROUNDINGS * exact.rounding[1];
            assert!(dk_off.abs() <= bound, "{seed}, {slip}: dK is off by {dk_off}, bound {bound}");
        }
    }
}
