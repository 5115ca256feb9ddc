//! Decode problems on the CPU backend: its forward pass, on one sequence after another, and in a tree on one
//! query after another.

use std::ops::Range;

use super::{DecodeInputs, DecodeProblem};
use crate::cpu::{self, Config};
use crate::{Element, Result, TensorLayout, Tensors};

/// Runs a decode problem whose buffers were checked, and returns the bytes of memory that it took beside
/// them.
pub(crate) fn run<T: Element>(
    problem: &DecodeProblem,
    inputs: &DecodeInputs<'_, T>,
    o: &mut [T::Output],
    lse: &mut [f32],
) -> Result<u64> {
    let rows = problem.dense().heads() * problem.dense().seqlen_q();
    let mut most = 0;
    for (batch, lse) in lse.chunks_exact_mut(rows).enumerate().take(problem.dense().batch()) {
        most = most.max(run_sequence(problem, inputs, batch, o, lse)?);
    }
    Ok(most)
}

/// One sequence; `lse` is its own.
fn run_sequence<T: Element>(
    problem: &DecodeProblem,
    inputs: &DecodeInputs<'_, T>,
    batch: usize,
    o: &mut [T::Output],
    lse: &mut [f32],
) -> Result<u64> {
    let seqlen_q = problem.dense().seqlen_q();
    if !problem.has_tree_mask() {
        return run_rows(problem, inputs, (batch, 0..seqlen_q), o, lse);
    }
    let mut most = 0;
    let mut of_row = vec![0.0; problem.dense().heads()];
    for row in 0..seqlen_q {
        most = most.max(run_rows(problem, inputs, (batch, row..row + 1), o, &mut of_row)?);
        lse[row..].iter_mut().step_by(seqlen_q).zip(&of_row).for_each(|(lse, &of_row)| *lse = of_row);
    }
    Ok(most)
}

/// Rows of a sequence that see the same keys but for a mask of the forward pass; `lse` is theirs, [H, rows].
fn run_rows<T: Element>(
    problem: &DecodeProblem,
    inputs: &DecodeInputs<'_, T>,
    (batch, rows): (usize, Range<usize>),
    o: &mut [T::Output],
    lse: &mut [f32],
) -> Result<u64> {
    let dense = problem.dense();
    let of_rows = |layout: TensorLayout| TensorLayout { batch: 1, seqlen: rows.len(), ..layout };
    let Tensors { q, o: out, .. } = *dense.tensors();
    let keys = problem.visible_keys(inputs, batch, rows.start);
    let used = keys.len();
    let o = &mut o[out.row(batch, rows.start, 0)..];
    let q_rows = &inputs.q[q.row(batch, rows.start, 0)..];
    let (q, out) = (of_rows(q), of_rows(out));
    if used == 0 {
        for (head, lse) in lse.chunks_exact_mut(out.seqlen).enumerate() {
            lse.fill(dense.scores().sink(batch, head));
        }
        for (row, head) in (0..out.seqlen).flat_map(|row| (0..out.heads).map(move |head| (row, head))) {
            o[out.row(0, row, head)..][..out.head_dim].fill(T::Output::from_f32(0.0));
        }
        return Ok(0);
    }
    let is_copied = problem.max_pages().is_some() || problem.has_tree_mask();
    let gathered = is_copied.then(|| {
        [(problem.k(), inputs.k), (problem.v(), inputs.v)].map(|(cache, data)| {
            let rows = keys.iter().flat_map(|&key| (0..cache.heads).map(move |head| (key, head)));
            rows.flat_map(|(key, head)| {
                &data[problem.row(cache, inputs, batch, key, head)..][..cache.head_dim]
            })
            .copied()
            .collect::<Vec<T>>()
        })
    });
    let (k, v, k_layout, v_layout) = match &gathered {
        Some([k, v]) => {
            let of = |head_dim| TensorLayout::bshd(1, used, dense.kv_heads(), head_dim);
            (&k[..], &v[..], of(dense.head_dim()), of(dense.head_dim_v()))
        }
        None => {
            let (k, v) = (problem.k(), problem.v());
            let one = |layout: &TensorLayout| TensorLayout { batch: 1, seqlen: used, ..*layout };
            (&inputs.k[k.row(batch, 0, 0)..], &inputs.v[v.row(batch, 0, 0)..], one(k), one(v))
        }
    };
    let tensors = Tensors { q, k: k_layout, v: v_layout, o: out };
    let sequence = dense.part(tensors, batch, 0..dense.heads())?;
    let stats = cpu::forward_with(&sequence, Config::default(), q_rows, k, v, o, Some(lse))?;
    let copies: usize = gathered.iter().flatten().map(|copy| size_of_val(&copy[..])).sum();
    Ok((stats.extra_bytes + copies) as u64)
}
