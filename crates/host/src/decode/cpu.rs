//! Decode problems on the CPU backend: its forward pass, on one sequence after another.

use super::{DecodeInputs, DecodeProblem};
use crate::cpu::{self, Config};
use crate::{Element, Result, TensorLayout, Tensors};

/// Runs a decode problem whose buffers were checked, and returns the bytes of memory that it took beside
/// them. `own_lse` has room for the longest sequence's, [H, Sq].
pub(crate) fn run<T: Element>(
    problem: &DecodeProblem,
    inputs: &DecodeInputs<'_, T>,
    o: &mut [T::Output],
    lse: &mut [f32],
    own_lse: &mut [f32],
) -> Result<u64> {
    let dense = problem.dense();
    let mut most = 0;
    for batch in 0..dense.batch() {
        let rows = dense.query_rows(batch).len();
        if rows > 0 {
            most = most.max(run_sequence(problem, inputs, batch, o, &mut own_lse[..dense.heads() * rows])?);
            for (head, own) in own_lse.chunks_exact(rows).enumerate().take(dense.heads()) {
                lse[dense.lse_index(batch, head, 0)..][..rows].copy_from_slice(own);
            }
        }
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
    let dense = problem.dense();
    let Tensors { q, o: out, .. } = *dense.tensors();
    let first = |layout: &TensorLayout| dense.query_index(layout, batch, 0, 0);
    let used = problem.used(inputs, batch);
    let o = &mut o[first(&out)..];
    let q_first = first(&q);
    let [q, out] =
        [q, out].map(|layout| TensorLayout { batch: 1, seqlen: dense.query_rows(batch).len(), ..layout });
    if used == 0 {
        for (head, lse) in lse.chunks_exact_mut(out.seqlen).enumerate() {
            lse.fill(dense.scores().sink(batch, head));
        }
        for (row, head) in (0..out.seqlen).flat_map(|row| (0..out.heads).map(move |head| (row, head))) {
            o[out.row(0, row, head)..][..out.head_dim].fill(T::Output::from_f32(0.0));
        }
        return Ok(0);
    }
    let gathered = problem.max_pages().map(|_| {
        [(problem.k(), inputs.k), (problem.v(), inputs.v)].map(|(cache, data)| {
            let rows = (0..used).flat_map(|key| (0..cache.heads).map(move |head| (key, head)));
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
    let q = &inputs.q[q_first..];
    let stats = cpu::forward_with(&sequence, Config::default(), q, k, v, o, Some(lse))?;
    let copies: usize = gathered.iter().flatten().map(|copy| size_of_val(&copy[..])).sum();
    Ok((stats.extra_bytes + copies) as u64)
}
