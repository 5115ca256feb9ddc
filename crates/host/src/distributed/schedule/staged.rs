//! A stage of a rank, and what its keys and values need.

use std::ops::Range;

use super::{Attend, Gather, Gathered, Place, Stage, Step, Stream, Work};
use crate::append::{AppendOptions, AppendProblem, AppendTensors};
use crate::distributed::shard::CutSequence;
use crate::distributed::{Cut, Half, Shard};
use crate::{Result, TensorLayout, Tensors};

/// A stage of a rank, with its sequence.
#[derive(Clone)]
pub(super) struct Staged<'a> {
    pub(super) shard: &'a Shard,
    pub(super) cut: &'a CutSequence,
    /// Its index among the schedule's.
    pub(super) index: usize,
    pub(super) stage: Stage,
    /// Rows of the gathered K and V, of one head each, before the stage's.
    pub(super) keys_before: usize,
    /// The same of Q and dO.
    pub(super) queries_before: usize,
}

impl<'a> Staged<'a> {
    /// Behind another one in the schedule and in the gathered tensors, or the first.
    pub(super) fn behind(
        other: Option<&Self>,
        (shard, cut): (&'a Shard, &'a CutSequence),
        stage: Stage,
    ) -> Self {
        let index = other.map_or(0, |other| other.index + 1);
        let keys_before = other.map_or(0, Self::keys_end);
        let queries_before = other.map_or(0, Self::queries_end);
        Self { shard, cut, index, stage, keys_before, queries_before }
    }

    /// Rows of the gathered K and V, of one head each, up to the stage's last.
    pub(super) fn keys_end(&self) -> usize {
        self.keys_before + gathered_rows(&self.cut.keys) * self.stage.kv_heads.len()
    }

    /// The same of Q and dO.
    pub(super) fn queries_end(&self) -> usize {
        self.queries_before + gathered_rows(&self.cut.queries) * self.query_heads().len()
    }

    /// Query heads of the stage's key/value heads.
    pub(super) fn query_heads(&self) -> Range<usize> {
        let group = self.shard.problem().group();
        self.stage.kv_heads.start * group..self.stage.kv_heads.end * group
    }

    /// What a half's keys and values are appended to; none where it has no rows.
    fn key_rows(&self, half: Half) -> Result<Option<Place>> {
        let Self { shard, cut, index, stage, keys_before, .. } = self;
        let (keys, own) = (cut.keys, shard.tensors());
        let (rows, heads) = (keys.rows_of(shard.rank(), half), stage.kv_heads.len());
        if rows.is_empty() {
            return Ok(None);
        }
        let first = cut.first[1] + keys.local_start(shard.rank(), half);
        let new = |layout: &TensorLayout| TensorLayout { batch: 1, seqlen: rows.len(), heads, ..*layout };
        let cache = |of: &TensorLayout| TensorLayout::bshd(1, gathered_rows(&keys), heads, of.head_dim);
        let (k_cache, v_cache) = (cache(&own.k), cache(&own.v));
        let tensors = AppendTensors { k: new(&own.k), v: new(&own.v), k_cache, v_cache };
        Ok(Some(Place {
            stage: *index,
            tensors: [Gathered::K, Gathered::V],
            problem: AppendProblem::new(tensors, shard.problem().dtype(), AppendOptions::default())?,
            from: [&own.k, &own.v].map(|layout| layout.row(cut.batch, first, stage.kv_heads.start)),
            to: [keys_before * k_cache.head_dim, keys_before * v_cache.head_dim],
            before: keys.chunk_of(shard.rank(), half) * keys.chunk_len(),
        }))
    }

    /// The gathers of the keys and values.
    pub(super) fn key_gathers(&self) -> Vec<Gather> {
        let (keys, problem) = (&self.cut.keys, self.shard.problem());
        let tensors = [(Gathered::K, problem.head_dim()), (Gathered::V, problem.head_dim_v())];
        let of_tensor = |(tensor, columns)| {
            let chunk = keys.chunk_len() * self.stage.kv_heads.len() * columns;
            chunk_gathers(keys, tensor, self.keys_before * columns, chunk)
        };
        tensors.into_iter().flat_map(of_tensor).collect()
    }

    /// Attention of a half's queries; none where it has no rows.
    ///
    /// Queries from q₀ to before q₁ of a sequence see no key from `end` on. A problem over the keys before
    /// `end` aligns masks to its last key, which is `beyond` keys behind the diagonal of the last query.
    pub(super) fn attend(&self, half: Half) -> Result<Option<Attend>> {
        let Self { shard, cut, index, stage, keys_before, .. } = self;
        let (whole, rank) = (shard.problem(), shard.rank());
        let (rows, seqlen_k) = (cut.queries.rows_of(rank, half), cut.keys.rows());
        if rows.is_empty() {
            return Ok(None);
        }
        let (left, right) = whole.window();
        let diagonal_end = rows.end + seqlen_k - cut.queries.rows();
        let end = right.map_or(seqlen_k, |right| diagonal_end.saturating_add(right).min(seqlen_k));
        let beyond = end - diagonal_end;
        let window = (left.map(|left| left.saturating_add(beyond)), right.map(|right| right - beyond));
        let (own, heads) = (shard.tensors(), self.query_heads());
        let first_row = cut.first[0] + cut.queries.local_start(rank, half);
        let queries = |layout: &TensorLayout| TensorLayout {
            batch: 1,
            seqlen: rows.len(),
            heads: heads.len(),
            ..*layout
        };
        let keys = |columns: usize| TensorLayout::bshd(1, end, stage.kv_heads.len(), columns);
        let (k, v) = (keys(whole.head_dim()), keys(whole.head_dim_v()));
        let tensors = Tensors { q: queries(&own.q), k, v, o: queries(&own.o) };
        let problem = whole.part_in_window(tensors, stage.batch, heads.clone(), window)?;
        let lse_head = own.q.seqlen;
        Ok(Some(Attend {
            stage: *index,
            half,
            problem: problem.with_lse_strides(heads.len() * lse_head, lse_head)?,
            q: own.q.row(cut.batch, first_row, heads.start),
            o: own.o.row(cut.batch, first_row, heads.start),
            k: keys_before * k.head_dim,
            v: keys_before * v.head_dim,
            lse: (cut.batch * whole.heads() + heads.start) * lse_head + first_row,
        }))
    }
}

/// Places the keys and values of each stage, and gives the last step that does, of each.
pub(super) fn place_keys(stages: &[Staged<'_>], steps: &mut Vec<Step>) -> Result<Vec<Option<usize>>> {
    let mut placed = Vec::new();
    for stage in stages {
        for half in Half::ALL {
            if let Some(place) = stage.key_rows(half)? {
                // What the first stage waits for is not behind the others' rows.
                let stream = Stream::Attention(if stage.index == 0 { 0 } else { Stream::LANES - 1 });
                steps.push(Step { stream, work: Work::Place(Box::new(place)), after: vec![] });
            }
        }
        placed.push(steps.len().checked_sub(1));
    }
    Ok(placed)
}

/// Rows of each head of what is gathered of tensors that are cut like this.
pub(super) const fn gathered_rows(cut: &Cut) -> usize {
    2 * cut.world() * cut.chunk_len()
}

/// Elements of gathered K and V.
pub(super) fn gathered_keys(shard: &Shard, stages: &[Staged<'_>]) -> [usize; 2] {
    let rows = stages.last().map_or(0, Staged::keys_end);
    [shard.problem().head_dim(), shard.problem().head_dim_v()].map(|columns| rows * columns)
}

/// The gathers of chunks of so many elements each, which lie one behind the other from `first` on.
pub(super) fn chunk_gathers(
    cut: &Cut,
    tensor: Gathered,
    first: usize,
    chunk: usize,
) -> impl Iterator<Item = Gather> {
    // Where a rank's chunks are neighbours, both come at once.
    let are_neighbours = cut.chunk_of(0, Half::High) == 1;
    let parts: &[(usize, usize, bool)] =
        if are_neighbours { &[(0, 2, false)] } else { &[(0, 1, false), (1, 1, true)] };
    let behind = cut.world() * chunk;
    parts.iter().map(move |&(halves_before, chunks, reversed)| Gather {
        tensor,
        first: first + halves_before * behind,
        piece: chunks * chunk,
        reversed,
    })
}
