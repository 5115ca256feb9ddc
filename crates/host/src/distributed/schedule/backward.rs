//! The backward pass of a rank's part: dQ of its own queries over all ranks' keys, and dK and dV of its own
//! keys over all ranks' queries. Nothing that was computed is sent, and no sums are added up.

use super::staged::{Staged, chunk_gathers, gathered_keys, gathered_rows, place_keys};
use super::{Differentiate, Gather, Gathered, Place, Schedule, StageHeads, Step, Stream, Work};
use crate::append::{AppendOptions, AppendProblem, AppendTensors};
use crate::backward::{BackwardPart, BackwardProblem, GradientLayouts};
use crate::distributed::{Half, Shard, refuse};
use crate::{DType, Problem, Result, TensorLayout, Tensors};

impl Schedule {
    /// The backward pass of a rank's part, with so many key/value heads a stage, at least one: first all
    /// stages of keys, which its queries meet, and then as many of queries, which its keys meet.
    ///
    /// dO lies as O, and each gradient as what it is of.
    ///
    /// # Errors
    /// When the problem is packed, or has a left window, ALiBi or sinks, and as [`BackwardProblem::new`] and
    /// [`AppendProblem::new`], for the parts' tensors.
    pub fn backward(shard: &Shard, heads: StageHeads) -> Result<Self> {
        if let Some(reason) = refusal(shard.problem()) {
            return refuse(reason.to_owned());
        }
        let of_keys = heads.stages(shard);
        let count = of_keys.len();
        let mut steps = Vec::new();
        for batch in 0..shard.problem().batch() {
            let work = Work::Differentiate(Box::new(delta_part(shard, batch)?));
            steps.push(Step { stream: Stream::Attention(0), work, after: vec![] });
        }
        let deltas: Vec<_> = (0..steps.len()).collect();
        let mut placed = place_keys(&of_keys, &mut steps)?;
        let of_queries = of_keys.iter().map(|stage| Staged { index: count + stage.index, ..stage.clone() });
        let stages: Vec<_> = of_keys.iter().cloned().chain(of_queries).collect();
        for stage in &stages[count..] {
            for half in Half::ALL {
                for place in stage.query_rows(half)? {
                    let stream = Stream::Attention(Stream::LANES - 1);
                    let after =
                        if place.tensors.contains(&Gathered::Delta) { deltas.clone() } else { vec![] };
                    steps.push(Step { stream, work: Work::Place(Box::new(place)), after });
                }
            }
            placed.push(steps.len().checked_sub(1));
        }
        for (stage, placed) in stages.iter().zip(placed) {
            let (gather, index) = (steps.len(), stage.index);
            let meets_keys = index < count;
            let gathers = if meets_keys { stage.key_gathers() } else { stage.query_gathers() };
            let work = Work::Gather { stage: index, gathers };
            steps.push(Step { stream: Stream::Copies, work, after: placed.into_iter().collect() });
            // In a zigzag under a causal mask late queries see more keys, and early keys are seen by more.
            let halves = if meets_keys { [Half::High, Half::Low] } else { [Half::Low, Half::High] };
            for (lane, half) in halves.into_iter().enumerate() {
                let part = if meets_keys { stage.queries_part(half)? } else { stage.keys_part(half)? };
                if let Some(part) = part {
                    let stream = Stream::Attention((2 * index + lane) % Stream::LANES);
                    let work = Work::Differentiate(Box::new(part));
                    let after = if meets_keys { [&deltas[..], &[gather]].concat() } else { vec![gather] };
                    steps.push(Step { stream, work, after });
                }
            }
        }
        let ([k, v], [q, dout, stats]) = (gathered_keys(shard, &stages), gathered_queries(shard, &stages));
        let stages = stages.iter().map(|staged| staged.stage.clone()).collect();
        Ok(Self { stages, steps, gathered: [k, v, q, dout, stats, stats] })
    }
}

/// What a backward pass does not take that a forward pass does, if the problem has it.
fn refusal(problem: &Problem) -> Option<&'static str> {
    let lists = problem.per_head();
    let unfit = [
        (problem.is_packed(), "packed sequences have no gradients together so far"),
        (problem.window().0.is_some(), "gradients under a left window count keys from a tile's first row"),
        (lists.alibi_slopes.is_some(), "gradients with ALiBi count from the last key of a chunk"),
        (lists.sinks.is_some(), "the gradient of sinks is a sum over the rows of all ranks"),
    ];
    unfit.into_iter().find(|(is_unfit, _)| *is_unfit).map(|(_, reason)| reason)
}

/// Layouts of gradients that lie as what they are of.
const fn like(tensors: &Tensors) -> GradientLayouts {
    GradientLayouts { dout: tensors.o, dq: tensors.q, dk: tensors.k, dv: tensors.v }
}

/// delta of a rank's rows of a sequence.
fn delta_part(shard: &Shard, batch: usize) -> Result<Differentiate> {
    let (whole, own) = (shard.problem(), shard.tensors());
    let one = |layout: &TensorLayout| TensorLayout { batch: 1, ..*layout };
    let tensors = Tensors { q: one(&own.q), k: one(&own.k), v: one(&own.v), o: one(&own.o) };
    let problem = whole.part_in_window(tensors, batch, 0..whole.heads(), (None, None))?;
    Ok(Differentiate {
        stage: None,
        problem: BackwardProblem::part(problem, like(&tensors), BackwardPart::Delta)?,
        q: own.q.row(batch, 0, 0),
        k: own.k.row(batch, 0, 0),
        v: own.v.row(batch, 0, 0),
        o: own.o.row(batch, 0, 0),
        lse: batch * whole.heads() * own.q.seqlen,
    })
}

/// Elements of gathered Q and dO, and of lse or delta.
fn gathered_queries(shard: &Shard, stages: &[Staged<'_>]) -> [usize; 3] {
    let rows = stages.last().map_or(0, Staged::queries_end);
    [shard.problem().head_dim(), shard.problem().head_dim_v(), 1].map(|columns| rows * columns)
}

impl Staged<'_> {
    /// dQ of a half's queries; none where it has no rows.
    fn queries_part(&self, half: Half) -> Result<Option<Differentiate>> {
        let Some(attend) = self.attend(half)? else { return Ok(None) };
        let layouts = like(attend.problem.tensors());
        let problem = BackwardProblem::part(attend.problem, layouts, BackwardPart::Queries)?;
        let (q, k, v, o, lse) = (attend.q, attend.k, attend.v, attend.o, attend.lse);
        Ok(Some(Differentiate { stage: Some(self.index), problem, q, k, v, o, lse }))
    }

    /// dK and dV of a half's keys over all queries; none where it has no rows.
    ///
    /// Masks are aligned to the last of the half's keys, which is so many keys before the sequence's last.
    fn keys_part(&self, half: Half) -> Result<Option<Differentiate>> {
        let Self { shard, cut, stage, queries_before: before, .. } = self;
        let (whole, own) = (shard.problem(), shard.tensors());
        let rows = cut.keys.rows_of(shard.rank(), half);
        if rows.is_empty() {
            return Ok(None);
        }
        let behind = cut.keys.rows() - rows.end;
        let window = (None, whole.window().1.map(|right| right.saturating_add(behind)));
        let (heads, kv_heads) = (self.query_heads(), stage.kv_heads.len());
        let queries = |columns: usize| TensorLayout::bshd(1, cut.queries.rows(), heads.len(), columns);
        let own_rows =
            |layout: &TensorLayout| TensorLayout { batch: 1, seqlen: rows.len(), heads: kv_heads, ..*layout };
        let (q, o) = (queries(whole.head_dim()), queries(whole.head_dim_v()));
        let tensors = Tensors { q, k: own_rows(&own.k), v: own_rows(&own.v), o };
        let problem = whole.part_in_window(tensors, stage.batch, heads.clone(), window)?;
        let stride = gathered_rows(&cut.queries);
        let problem = problem.with_lse_strides(heads.len() * stride, stride)?;
        let first = cut.first[1] + cut.keys.local_start(shard.rank(), half);
        Ok(Some(Differentiate {
            stage: Some(self.index),
            problem: BackwardProblem::part(problem, like(&tensors), BackwardPart::Keys)?,
            q: before * q.head_dim,
            k: own.k.row(cut.batch, first, stage.kv_heads.start),
            v: own.v.row(cut.batch, first, stage.kv_heads.start),
            o: before * o.head_dim,
            lse: *before,
        }))
    }

    /// What a half's Q and dO, and its lse and delta, are appended to; nothing where it has no rows.
    fn query_rows(&self, half: Half) -> Result<Vec<Place>> {
        let Self { shard, cut, queries_before: before, .. } = self;
        let (queries, own) = (cut.queries, shard.tensors());
        let rows = queries.rows_of(shard.rank(), half);
        if rows.is_empty() {
            return Ok(vec![]);
        }
        let (all, heads) = (gathered_rows(&queries), self.query_heads());
        let first = cut.first[0] + queries.local_start(shard.rank(), half);
        let new = |layout: &TensorLayout| TensorLayout {
            batch: 1,
            seqlen: rows.len(),
            heads: heads.len(),
            ..*layout
        };
        let cache = |of: &TensorLayout| TensorLayout::bshd(1, all, heads.len(), of.head_dim);
        let place = |tensors, (k, k_cache), (v, v_cache), dtype, from, to| -> Result<Place> {
            let views = AppendTensors { k, v, k_cache, v_cache };
            Ok(Place {
                stage: self.index,
                tensors,
                problem: AppendProblem::new(views, dtype, AppendOptions::default())?,
                from,
                to,
                before: queries.chunk_of(shard.rank(), half) * queries.chunk_len(),
            })
        };
        // Of lse and delta heads come before rows.
        let stats = TensorLayout::bhsd(own.q.batch, own.q.seqlen, own.q.heads, 1);
        let stats_cache = TensorLayout::bhsd(1, all, heads.len(), 1);
        let row = |layout: &TensorLayout| layout.row(cut.batch, first, heads.start);
        Ok(vec![
            place(
                [Gathered::Q, Gathered::Dout],
                (new(&own.q), cache(&own.q)),
                (new(&own.o), cache(&own.o)),
                shard.problem().dtype(),
                [row(&own.q), row(&own.o)],
                [before * own.q.head_dim, before * own.o.head_dim],
            )?,
            place(
                [Gathered::Lse, Gathered::Delta],
                (new(&stats), stats_cache),
                (new(&stats), stats_cache),
                DType::F32,
                [row(&stats); 2],
                [*before; 2],
            )?,
        ])
    }

    /// The gathers of the queries, of their dO, lse and delta.
    fn query_gathers(&self) -> Vec<Gather> {
        let (cut, problem, heads) = (&self.cut.queries, self.shard.problem(), self.query_heads().len());
        let (before, all) = (self.queries_before, gathered_rows(cut));
        let tensors = [(Gathered::Q, problem.head_dim()), (Gathered::Dout, problem.head_dim_v())];
        let rows = tensors.into_iter().flat_map(|(tensor, columns)| {
            chunk_gathers(cut, tensor, before * columns, cut.chunk_len() * heads * columns)
        });
        let stats = [Gathered::Lse, Gathered::Delta].into_iter().flat_map(|tensor| {
            (0..heads).flat_map(move |head| chunk_gathers(cut, tensor, before + head * all, cut.chunk_len()))
        });
        rows.chain(stats).collect()
    }
}
