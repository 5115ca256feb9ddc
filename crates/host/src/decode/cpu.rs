//! Decode problems on the CPU backend: its forward pass, on one sequence after another.

use std::ops::Range;

use super::{CacheData, DecodeInputs, DecodeProblem};
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
    let dense = problem.dense();
    let out = dense.tensors().o;
    let used = problem.used(inputs, batch);
    let o = &mut o[out.row(batch, 0, 0)..];
    if used == 0 {
        for (head, lse) in lse.chunks_exact_mut(out.seqlen).enumerate() {
            lse.fill(dense.scores().sink(batch, head));
        }
        for (row, head) in (0..out.seqlen).flat_map(|row| (0..out.heads).map(move |head| (row, head))) {
            o[out.row(0, row, head)..][..out.head_dim].fill(T::Output::from_f32(0.0));
        }
        return Ok(0);
    }
    let whole = 0..dense.kv_heads();
    let Some(descales) = problem.descales() else {
        return run_heads(problem, inputs, batch, whole, None, o, lse);
    };
    // Of heads with factors of their own, one at a time.
    let mut most = 0;
    for kv_head in whole {
        let descale = Some(descales.of(batch, kv_head));
        most = most.max(run_heads(problem, inputs, batch, kv_head..kv_head + 1, descale, o, lse)?);
    }
    Ok(most)
}

/// Some key/value heads of a sequence with keys, of e4m3 with their factors; `o` and `lse` are the
/// sequence's.
fn run_heads<T: Element>(
    problem: &DecodeProblem,
    inputs: &DecodeInputs<'_, T>,
    batch: usize,
    kv_heads: Range<usize>,
    descale: Option<[f32; 2]>,
    o: &mut [T::Output],
    lse: &mut [f32],
) -> Result<u64> {
    let dense = problem.dense();
    let Tensors { q, o: out, .. } = *dense.tensors();
    let used = problem.used(inputs, batch);
    let heads = dense.group() * kv_heads.start..dense.group() * kv_heads.end;
    let read = |cache: &TensorLayout, data: CacheData<'_, T>| {
        let rows = (0..used).flat_map(|key| kv_heads.clone().map(move |head| (key, head)));
        let row = |(key, head)| data.row(problem.row(cache, inputs, batch, key, head), cache.head_dim);
        rows.flat_map(row).collect::<Vec<T>>()
    };
    let mut gathered = None;
    let contiguous = |head_dim| TensorLayout::bshd(1, used, kv_heads.len(), head_dim);
    let in_place = problem.max_pages().is_none();
    let (k, v, k_layout, v_layout) = match (inputs.k, inputs.v) {
        (CacheData::Same(k), CacheData::Same(v)) if in_place => {
            let layouts = [problem.k(), problem.v()];
            let [k, v] = [(k, layouts[0]), (v, layouts[1])]
                .map(|(data, layout)| &data[layout.row(batch, 0, kv_heads.start)..]);
            let part = |layout: &TensorLayout| TensorLayout {
                batch: 1,
                seqlen: used,
                heads: kv_heads.len(),
                ..*layout
            };
            (k, v, part(layouts[0]), part(layouts[1]))
        }
        (k, v) => {
            let [k, v] = gathered.insert([read(problem.k(), k), read(problem.v(), v)]);
            (&k[..], &v[..], contiguous(dense.head_dim()), contiguous(dense.head_dim_v()))
        }
    };
    let of_heads = |layout: TensorLayout| TensorLayout { batch: 1, heads: heads.len(), ..layout };
    let tensors = Tensors { q: of_heads(q), k: k_layout, v: v_layout, o: of_heads(out) };
    let mut part = dense.part(tensors, batch, heads.clone())?;
    if let Some(factors) = descale {
        part = part.with_cache_descale(factors);
    }
    let q = &inputs.q[q.row(batch, 0, heads.start)..];
    let o = &mut o[out.row(0, 0, heads.start)..];
    let lse = &mut lse[heads.start * out.seqlen..heads.end * out.seqlen];
    let stats = cpu::forward_with(&part, Config::default(), q, k, v, o, Some(lse))?;
    let copies: usize = gathered.iter().flatten().map(|copy| size_of_val(&copy[..])).sum();
    Ok((stats.extra_bytes + copies) as u64)
}
