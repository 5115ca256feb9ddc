//! What a rank does, as data: which rows are gathered where, and who waits for whom.

use std::ops::Range;

use super::{Half, Shard};
use crate::{Problem, Result, TensorLayout, Tensors};

/// Key/value heads of a sequence that are gathered and attended to together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The sequence.
    pub batch: usize,
    /// The heads.
    pub kv_heads: Range<usize>,
}

/// Which tensor is gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Keys.
    K,
    /// Values.
    V,
}

/// An all-gather in place: each rank's piece already lies where it belongs, the r-th behind r others, or
/// behind those of the ranks above r where they are `reversed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// The tensor.
    pub tensor: Gathered,
    /// Element of the gathered tensor where the first piece begins.
    pub first: usize,
    /// Elements of a piece.
    pub piece: usize,
    /// Whether the last rank's piece comes first.
    pub reversed: bool,
}

impl Gather {
    /// Elements of a rank's piece.
    pub const fn piece_of(&self, rank: usize, world: usize) -> Range<usize> {
        let place = if self.reversed { world - 1 - rank } else { rank };
        let first = self.first + place * self.piece;
        first..first + self.piece
    }
}

/// Attention of a half's queries of a stage over the keys that they may see.
#[derive(Clone, Debug, PartialEq)]
pub struct Attend {
    /// Index of the stage.
    pub stage: usize,
    /// Whose queries.
    pub half: Half,
    /// The problem, over views.
    pub problem: Problem,
    /// Elements of the rank's Q and O before the views' first.
    pub q: usize,
    /// The same of O.
    pub o: usize,
    /// Elements of the gathered K before the view's first.
    pub k: usize,
    /// The same of V.
    pub v: usize,
    /// Elements of the rank's lse before the view's first.
    pub lse: usize,
}

/// Work of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// The rank's rows of K and V go to where they belong in the gathered ones, all heads at once.
    Place,
    /// Other ranks' rows of a stage's heads come.
    Gather {
        /// Index of the stage.
        stage: usize,
        /// Gathers that may run in any order, and are one group of calls.
        gathers: Vec<Gather>,
    },
    /// A half's queries of a stage.
    Attend(Box<Attend>),
}

/// Where steps run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Gathers, by copy engines.
    Copies,
    /// Attention of one half: the last tiles of one hide in the other's work.
    Attention(Half),
}

/// A step: work on a stream, behind the stream's earlier steps and those in `after`.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The stream.
    pub stream: Stream,
    /// The work.
    pub work: Work,
    /// Indices of steps of other streams that end before it begins.
    pub after: Vec<usize>,
}

/// A rank's work of a forward pass, in an order in which it may be enqueued.
///
/// Gathered K is [B, Hkv, 2N·L, D], contiguous, where L is [`Cut::chunk_len`](super::Cut::chunk_len) of keys,
/// and V the same with Dv: chunks lie in the order of their rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// What is gathered and attended to together, in order.
    pub stages: Vec<Stage>,
    /// The work.
    pub steps: Vec<Step>,
    /// Elements of the gathered K and V.
    pub gathered: [usize; 2],
}

impl Schedule {
    /// The forward pass of a rank's part, with so many key/value heads a stage, at least one.
    ///
    /// # Errors
    /// As [`Problem::new`], for the parts' tensors.
    pub fn forward(shard: &Shard, heads_per_stage: usize) -> Result<Self> {
        let problem = shard.problem();
        let (batch, kv_heads) = (problem.tensors().k.batch, problem.kv_heads());
        let stages: Vec<_> = (0..batch)
            .flat_map(|batch| {
                let firsts = (0..kv_heads).step_by(heads_per_stage.max(1));
                firsts.map(move |first| Stage {
                    batch,
                    kv_heads: first..kv_heads.min(first + heads_per_stage.max(1)),
                })
            })
            .collect();
        let place = Step { stream: Stream::Attention(Half::Low), work: Work::Place, after: vec![] };
        let mut steps = vec![place];
        for (index, stage) in stages.iter().enumerate() {
            let gather = steps.len();
            let after = if index == 0 { vec![0] } else { vec![] };
            let work = Work::Gather { stage: index, gathers: gathers(shard, stage) };
            steps.push(Step { stream: Stream::Copies, work, after });
            for half in Half::ALL {
                if let Some(attend) = attend(shard, (index, stage), half)? {
                    let (stream, work) = (Stream::Attention(half), Work::Attend(Box::new(attend)));
                    steps.push(Step { stream, work, after: vec![gather] });
                }
            }
        }
        let rows = gathered_rows(shard);
        let heads = batch * kv_heads * rows;
        Ok(Self { stages, steps, gathered: [heads * problem.head_dim(), heads * problem.head_dim_v()] })
    }
}

/// Rows of each head of the gathered K and V.
fn gathered_rows(shard: &Shard) -> usize {
    2 * shard.world() * shard.keys().chunk_len()
}

/// The gathers of a stage's heads.
fn gathers(shard: &Shard, stage: &Stage) -> Vec<Gather> {
    let (keys, problem) = (shard.keys(), shard.problem());
    let tensors = [(Gathered::K, problem.head_dim()), (Gathered::V, problem.head_dim_v())];
    // Where a rank's chunks are neighbours, both come at once.
    let are_neighbours = keys.chunk_of(0, Half::High) == 1;
    let world = shard.world();
    let parts: &[(usize, usize, bool)] =
        if are_neighbours { &[(0, 2, false)] } else { &[(0, 1, false), (world, 1, true)] };
    let of_head = |kv_head: usize| {
        let head = (stage.batch * problem.kv_heads() + kv_head) * gathered_rows(shard);
        tensors.into_iter().flat_map(move |(tensor, columns)| {
            parts.iter().map(move |&(chunk, chunks, reversed)| Gather {
                tensor,
                first: (head + chunk * keys.chunk_len()) * columns,
                piece: chunks * keys.chunk_len() * columns,
                reversed,
            })
        })
    };
    stage.kv_heads.clone().flat_map(of_head).collect()
}

/// Attention of a half's queries of a stage; none where it has no rows.
///
/// Queries from q₀ to before q₁ of a sequence see no key from `end` on. A problem over the keys before `end`
/// aligns masks to its last key, which is `beyond` keys behind the diagonal of the last query.
fn attend(shard: &Shard, (index, stage): (usize, &Stage), half: Half) -> Result<Option<Attend>> {
    let (whole, rank) = (shard.problem(), shard.rank());
    let rows = shard.queries().rows_of(rank, half);
    if rows.is_empty() {
        return Ok(None);
    }
    let (left, right) = whole.window();
    let diagonal_end = rows.end + whole.seqlen_k() - whole.seqlen_q();
    let end =
        right.map_or(whole.seqlen_k(), |right| diagonal_end.saturating_add(right).min(whole.seqlen_k()));
    let beyond = end - diagonal_end;
    let window = (left.map(|left| left.saturating_add(beyond)), right.map(|right| right - beyond));
    let heads = stage.kv_heads.start * whole.group()..stage.kv_heads.end * whole.group();
    let own = shard.tensors();
    let first_row = shard.queries().local_start(rank, half);
    let queries =
        |layout: &TensorLayout| TensorLayout { batch: 1, seqlen: rows.len(), heads: heads.len(), ..*layout };
    let keys = |columns: usize| {
        let head = gathered_rows(shard) * columns;
        let shape = [1, end, stage.kv_heads.len(), columns];
        TensorLayout::strided(shape, [stage.kv_heads.len() * head, columns, head, 1])
    };
    let (k, v) = (keys(whole.head_dim()), keys(whole.head_dim_v()));
    let tensors = Tensors { q: queries(&own.q), k, v, o: queries(&own.o) };
    let problem = whole.part_in_window(tensors, stage.batch, heads.clone(), window)?;
    let first_head = stage.batch * whole.kv_heads() + stage.kv_heads.start;
    let lse_head = own.q.seqlen;
    Ok(Some(Attend {
        stage: index,
        half,
        problem: problem.with_lse_strides(heads.len() * lse_head, lse_head)?,
        q: own.q.row(stage.batch, first_row, heads.start),
        o: own.o.row(stage.batch, first_row, heads.start),
        k: first_head * k.stride_head,
        v: first_head * v.stride_head,
        lse: (stage.batch * whole.heads() + heads.start) * lse_head + first_row,
    }))
}
