use super::*;
use crate::forward::Dropout;
use crate::{DType, Options, TensorLayout, Tensors, reference};

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

/// Σ dO ∘ O in f64.
fn loss(problem: &Problem, [q, k, v, dout]: &[Vec<f32>; 4]) -> f64 {
    let rows = reference::all(problem);
    let o = reference::rows(problem, q, k, v, &rows).o;
    let dout = reference::gather(problem, dout, &rows);
    o.iter().zip(dout).map(|(o, dout)| o * f64::from(dout)).sum()
}

/// Central differences of the forward reference with a step and with its double: their difference is three
/// times the error of the better one, to the order of the step's square.
fn check(problem: Problem) {
    let tensors = *problem.tensors();
    let backward = BackwardProblem::like(problem).unwrap();
    let problem = backward.forward();
    let mut inputs = [(tensors.q, 1), (tensors.k, 2), (tensors.v, 3), (tensors.o, 4)]
        .map(|(at, seed)| values(at.span(), seed));
    let mut spread = [&tensors.q, &tensors.k, &tensors.v].map(|layout| vec![f64::NAN; layout.span()]);
    for head in backward.heads() {
        let gradients = backward.reference(inputs.each_ref().map(|input| &input[..]), &[head]);
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
    let magnitude = loss(problem, &inputs).abs() + 1.0;
    for tensor in 0..3 {
        for index in 0..spread[tensor].len() {
            let value = inputs[tensor][index];
            let mut difference = |step: f32| {
                let mut moved = |to: f32| {
                    inputs[tensor][index] = to;
                    (loss(problem, &inputs), f64::from(to))
                };
                let ((above, to), (below, from)) = (moved(value + step), moved(value - step));
                inputs[tensor][index] = value;
                (above - below) / (to - from)
            };
            let (step, exact) = (1.0 / 1024.0, spread[tensor][index]);
            let (near, far) = (difference(step), difference(2.0 * step));
            if exact.is_nan() {
                // No sequence has the row, so it moves nothing.
                assert_eq!((near, far), (0.0, 0.0));
                continue;
            }
            let rounding = 16.0 * f64::EPSILON * magnitude / f64::from(step);
            assert!(
                (exact - near).abs() <= (near - far).abs() + rounding,
                "tensor {tensor}, element {index}: {exact}, {near} by differences, {far} by larger ones"
            );
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
    ];
    for options in options {
        check(Problem::new(tensors(), DType::F32, options).unwrap());
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
    let options = Options { causal: true, ..Options::default() };
    check(Problem::varlen(tensors, DType::F32, options, &q, &k).unwrap());
}

#[test]
fn rows_and_keys_that_see_nothing_have_gradients_of_zero() {
    let q = TensorLayout::bshd(1, 3, 1, 2);
    let kv = TensorLayout::bshd(1, 2, 1, 2);
    let options = Options { window: (None, Some(0)), ..Options::default() };
    let forward = Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F32, options).unwrap();
    let problem = BackwardProblem::like(forward).unwrap();
    let [q, k, v, dout] = [(6, 1), (4, 2), (4, 3), (6, 4)].map(|(count, seed)| values(count, seed));
    let inputs = [&q[..], &k, &v, &dout];
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
