//! Decode problems on the CPU backend: its forward pass, on one sequence after another, in a tree on one
//! query after another, and of a cache in e4m3 on one key/value head after another.

use std::ops::Range;

use super::{CacheData, DecodeInputs, DecodeProblem};
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
        // Queries of a tree see other keys each.
        let step = if problem.has_tree_mask() { 1 } else { rows.max(1) };
        for first in (0..rows).step_by(step) {
            let part = Part { problem, inputs, batch, rows: first..first + step };
            let own = &mut own_lse[..dense.heads() * step];
            most = most.max(part.run(o, own)?);
            for (head, own) in own.chunks_exact(step).enumerate() {
                lse[dense.lse_index(batch, head, first)..][..step].copy_from_slice(own);
            }
        }
    }
    Ok(most)
}

/// Rows of a sequence that see the same keys but for a mask of the forward pass.
struct Part<'a, T> {
    problem: &'a DecodeProblem,
    inputs: &'a DecodeInputs<'a, T>,
    batch: usize,
    rows: Range<usize>,
}

impl<T: Element> Part<'_, T> {
    /// The layout of these rows, from the first of them on.
    fn layout(&self, layout: TensorLayout) -> TensorLayout {
        TensorLayout { batch: 1, seqlen: self.rows.len(), ..layout }
    }

    /// Index of their first one.
    fn first(&self, layout: &TensorLayout) -> usize {
        self.problem.dense().query_index(layout, self.batch, self.rows.start, 0)
    }

    /// Computes them; `lse` is theirs, [H, rows].
    fn run(&self, o: &mut [T::Output], lse: &mut [f32]) -> Result<u64> {
        let &Self { problem, inputs, batch, .. } = self;
        let dense = problem.dense();
        let o = &mut o[self.first(&dense.tensors().o)..];
        let out = self.layout(dense.tensors().o);
        let keys = problem.visible_keys(inputs, batch, self.rows.start);
        if keys.is_empty() {
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
            return self.run_heads(&keys, whole, None, o, lse);
        };
        // Of heads with factors of their own, one at a time.
        let mut most = 0;
        for kv_head in whole {
            let descale = Some(descales.of(batch, kv_head));
            most = most.max(self.run_heads(&keys, kv_head..kv_head + 1, descale, o, lse)?);
        }
        Ok(most)
    }

    /// Some key/value heads, of e4m3 with their factors; `o` begins with the first row.
    fn run_heads(
        &self,
        keys: &[usize],
        kv_heads: Range<usize>,
        descale: Option<[f32; 2]>,
        o: &mut [T::Output],
        lse: &mut [f32],
    ) -> Result<u64> {
        let &Self { problem, inputs, batch, .. } = self;
        let dense = problem.dense();
        let Tensors { q, o: out, .. } = *dense.tensors();
        let q_first = self.first(&q);
        let [q, out] = [q, out].map(|layout| self.layout(layout));
        let heads = dense.group() * kv_heads.start..dense.group() * kv_heads.end;
        let read = |cache: &TensorLayout, data: CacheData<'_, T>| {
            let rows = keys.iter().flat_map(|&key| kv_heads.clone().map(move |head| (key, head)));
            let row = |(key, head)| data.row(problem.row(cache, inputs, batch, key, head), cache.head_dim);
            rows.flat_map(row).collect::<Vec<T>>()
        };
        let mut gathered = None;
        let contiguous = |head_dim| TensorLayout::bshd(1, keys.len(), kv_heads.len(), head_dim);
        let in_place = problem.max_pages().is_none() && !problem.has_tree_mask();
        let (k, v, k_layout, v_layout) = match (inputs.k, problem.values(inputs)) {
            (CacheData::Same(k), CacheData::Same(v)) if in_place => {
                let layouts = [problem.k(), problem.v()];
                let [k, v] = [(k, layouts[0]), (v, layouts[1])]
                    .map(|(data, layout)| &data[layout.row(batch, 0, kv_heads.start)..]);
                let part = |layout: &TensorLayout| TensorLayout {
                    batch: 1,
                    seqlen: keys.len(),
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
        let of_heads = |layout: TensorLayout| TensorLayout { heads: heads.len(), ..layout };
        let tensors = Tensors { q: of_heads(q), k: k_layout, v: v_layout, o: of_heads(out) };
        let mut part = dense.part(tensors, batch, heads.clone())?;
        if let Some(factors) = descale {
            part = part.with_cache_descale(factors);
        }
        let q = &inputs.q[q_first + heads.start * q.stride_head..];
        let o = &mut o[out.row(0, 0, heads.start)..];
        let lse = &mut lse[heads.start * out.seqlen..heads.end * out.seqlen];
        let stats = cpu::forward_with(&part, Config::default(), q, k, v, o, Some(lse))?;
        let copies: usize = gathered.iter().flatten().map(|copy| size_of_val(&copy[..])).sum();
        Ok((stats.extra_bytes + copies) as u64)
    }
}
