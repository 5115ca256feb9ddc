//! Appending on the CPU backend: K, V and Q beside one another.

use super::problem::{NewRow, rows_of};
use super::{AppendInputs, AppendOutputs, AppendProblem, AppendTensors};
use crate::Element;

/// Runs a problem whose buffers and lists were checked.
pub(super) fn run<T: Element>(
    problem: &AppendProblem,
    inputs: &AppendInputs<'_, T>,
    outputs: &mut AppendOutputs<'_, T>,
) {
    let AppendTensors { k, v, k_cache, v_cache } = *problem.tensors();
    let keys = |cache: &mut [T]| {
        for at in problem.new_rows() {
            let source = &inputs.k[k.row(at.batch, at.row, at.head)..][..k.head_dim];
            let target = &mut cache[problem.place(&k_cache, inputs, at)..][..k.head_dim];
            rotate(problem, inputs, problem.position(inputs, at), source, target);
        }
    };
    let values = |cache: &mut [T]| {
        for at in problem.new_rows() {
            let source = &inputs.v[v.row(at.batch, at.row, at.head)..][..v.head_dim];
            cache[problem.place(&v_cache, inputs, at)..][..v.head_dim].copy_from_slice(source);
        }
    };
    let queries = |q_out: &mut [T]| {
        let Some(queries) = problem.queries() else { return };
        for at @ NewRow { batch, row, head } in rows_of(&queries.q) {
            let source = &inputs.q[queries.q.row(batch, row, head)..][..queries.q.head_dim];
            let target = &mut q_out[queries.q_out.row(batch, row, head)..][..queries.q.head_dim];
            rotate(problem, inputs, problem.query_position(inputs, at), source, target);
        }
    };
    let AppendOutputs { k_cache, v_cache, q } = outputs;
    rayon::join(|| keys(k_cache), || rayon::join(|| values(v_cache), || queries(q)));
}

/// Writes a row, its pairs turned by the angles of a position.
fn rotate<T: Element>(
    problem: &AppendProblem,
    inputs: &AppendInputs<'_, T>,
    position: usize,
    source: &[T],
    target: &mut [T],
) {
    target.copy_from_slice(source);
    let Some(rotary) = problem.options().rotary else { return };
    let half = rotary.dim / 2;
    for pair in 0..half {
        let (first, second) = if rotary.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
        let angle = position * half + pair;
        let (cos, sin) = (inputs.cos[angle].to_f32(), inputs.sin[angle].to_f32());
        let (a, b) = (source[first].to_f32(), source[second].to_f32());
        target[first] = T::from_f32(a * cos - b * sin);
        target[second] = T::from_f32(a * sin + b * cos);
    }
}
