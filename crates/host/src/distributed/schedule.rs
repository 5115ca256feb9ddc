//! What a rank does, as data: which rows are gathered where, and who waits for whom.

mod backward;
mod staged;

use std::ops::Range;

use super::{Half, Shard};
use crate::append::AppendProblem;
use crate::backward::BackwardProblem;
use crate::{DType, Problem, Result};
use staged::{Staged, gathered_keys, place_keys};

/// Key/value heads of a sequence that are gathered and attended to together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The sequence.
    pub batch: usize,
    /// The heads.
    pub kv_heads: Range<usize>,
}

/// Which tensor is gathered: K and V for the queries of all ranks, and in a backward pass the others, for the
/// keys of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Keys.
    K,
    /// Values.
    V,
    /// Queries.
    Q,
    /// Gradient of the output.
    Dout,
    /// Log-sum-exp.
    Lse,
    /// delta = rowsum(dO ∘ O).
    Delta,
}

impl Gathered {
    /// How many there are.
    pub const COUNT: usize = 6;

    /// Its place in lists of all.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Storage type of its elements, of a problem of this one.
    pub const fn dtype(self, problem: DType) -> DType {
        match self {
            Self::Lse | Self::Delta => DType::F32,
            _ => problem,
        }
    }
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

/// A half's rows of two tensors of a stage's heads on their way to where they belong in the gathered ones:
/// appended to a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Index of the stage.
    pub stage: usize,
    /// The tensors: K and V, Q and dO, or lse and delta.
    pub tensors: [Gathered; 2],
    /// The problem, over views.
    pub problem: AppendProblem,
    /// Elements of the rank's tensors before the views' first.
    pub from: [usize; 2],
    /// Elements of the gathered tensors before the caches' first.
    pub to: [usize; 2],
    /// Rows of the cache before the half's.
    pub before: usize,
}

/// A part of a backward pass, over views: delta of the rank's own rows, dQ of a half's queries over gathered
/// K and V, or dK and dV of a half's keys over gathered Q, dO, lse and delta.
#[derive(Clone, Debug, PartialEq)]
pub struct Differentiate {
    /// Index of the stage; of none for delta.
    pub stage: Option<usize>,
    /// The problem, whose gradients lie as what they are of.
    pub problem: BackwardProblem,
    /// Elements of Q before the view's first, the rank's or the gathered one, and of dQ.
    pub q: usize,
    /// Elements of K, and of dK.
    pub k: usize,
    /// Elements of V, and of dV.
    pub v: usize,
    /// Elements of O, and of dO.
    pub o: usize,
    /// Elements of lse, and of delta.
    pub lse: usize,
}

/// Work of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A half's rows go to where they belong.
    Place(Box<Place>),
    /// Other ranks' rows of a stage's heads come.
    Gather {
        /// Index of the stage.
        stage: usize,
        /// Gathers that may run in any order, and are one group of calls.
        gathers: Vec<Gather>,
    },
    /// A half's queries of a stage.
    Attend(Box<Attend>),
    /// A part of a backward pass.
    Differentiate(Box<Differentiate>),
    /// Packed sequences that are the rank's as they are, over its own tensors from their first elements on.
    Own(Box<Problem>),
}

/// Where steps run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Gathers, by copy engines.
    Copies,
    /// Attention of one half, and of every second stage: the last tiles of one hide in the others' work. The
    /// lane of so many; blocks of even lanes, which have the long tiles, come before those of the others.
    Attention(usize),
}

impl Stream {
    /// Streams of attention.
    pub const LANES: usize = 4;
}

/// Key/value heads of each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageHeads {
    /// Of the first, whose gather nothing hides.
    pub first: usize,
    /// Of each other, at most so many times as many as of the one before, which hides its gather.
    pub growth: usize,
}

impl StageHeads {
    /// Products of a GPU, FLOPs a second, and bytes that copy engines bring it: the forward pass at D=128 on
    /// an H200 at its power limit, and gathers of large pieces over NVLink.
    const FLOPS: f64 = 650e12;
    const BYTES: f64 = 300e9;

    /// One head in the first stage, and in the others as many as are gathered while those before are attended
    /// to.
    pub fn of(shard: &Shard) -> Self {
        let (problem, world) = (shard.problem(), shard.world() as f64);
        let (sq, sk) = (problem.seqlen_q() as f64, problem.seqlen_k() as f64);
        let seen = match problem.window() {
            (None, None) => sk,
            (left, right) => {
                let reach = |side: Option<usize>, all: f64| side.map_or(all, |side| (side as f64).min(all));
                (reach(left, sk - sq / 2.0) + reach(right, sq / 2.0)).min(sk)
            }
        };
        let columns = (problem.head_dim() + problem.head_dim_v()) as f64;
        let attends = 2.0 * columns * sq * seen * problem.group() as f64 / world / Self::FLOPS;
        let bytes = problem.dtype().bytes() as f64;
        let gathers = (sk * (world - 1.0) / world * columns * bytes / Self::BYTES).max(1e-9);
        Self { first: 1, growth: ((attends / gathers) as usize).max(1) }
    }

    /// All stages of a rank: sequences one after another.
    fn stages(self, shard: &Shard) -> Vec<Staged<'_>> {
        let kv_heads = shard.problem().kv_heads();
        let mut most = self.first.max(1);
        let mut stages: Vec<Staged<'_>> = Vec::new();
        for cut in shard.cut() {
            let mut end = 0;
            while end < kv_heads {
                let next = kv_heads.min(end.saturating_add(most));
                most = (next - end).saturating_mul(self.growth.max(1));
                let stage = Stage { batch: cut.sequence, kv_heads: end..next };
                stages.push(Staged::behind(stages.last(), (shard, cut), stage));
                end = next;
            }
        }
        stages
    }
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

/// A rank's work of a forward or backward pass, in an order in which it may be enqueued.
///
/// Gathered K has the stages one after another, each of which is [2N·L, heads, D], contiguous, where L is
/// [`Cut::chunk_len`](super::Cut::chunk_len) of the sequence's keys, and V the same with Dv: chunks lie in
/// the order of their rows, and are one piece each. So do Q and dO, with chunks of queries; lse and delta
/// are [heads, 2N·L].
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// What is gathered and attended to together, in order.
    pub stages: Vec<Stage>,
    /// The work.
    pub steps: Vec<Step>,
    /// Elements of the gathered tensors, in the order of [`Gathered`].
    pub gathered: [usize; Gathered::COUNT],
}

impl Schedule {
    /// The forward pass of a rank's part, with so many key/value heads a stage, at least one.
    ///
    /// # Errors
    /// As [`Problem::new`] and [`AppendProblem::new`], for the parts' tensors.
    pub fn forward(shard: &Shard, heads: StageHeads) -> Result<Self> {
        let stages = heads.stages(shard);
        let mut steps = Vec::new();
        let placed = place_keys(&stages, &mut steps)?;
        if let Some(own) = shard.whole_sequences()? {
            // They wait for nobody: attention while the first heads are gathered.
            let work = Work::Own(Box::new(own));
            steps.push(Step { stream: Stream::Attention(Stream::LANES - 1), work, after: vec![] });
        }
        for (stage, placed) in stages.iter().zip(placed) {
            let gather = steps.len();
            let work = Work::Gather { stage: stage.index, gathers: stage.key_gathers() };
            steps.push(Step { stream: Stream::Copies, work, after: placed.into_iter().collect() });
            // In a zigzag under a causal mask the high half sees more keys: its long tiles begin first.
            for (lane, half) in [Half::High, Half::Low].into_iter().enumerate() {
                if let Some(attend) = stage.attend(half)? {
                    let stream = Stream::Attention((2 * stage.index + lane) % Stream::LANES);
                    let work = Work::Attend(Box::new(attend));
                    steps.push(Step { stream, work, after: vec![gather] });
                }
            }
        }
        let [k, v] = gathered_keys(shard, &stages);
        let stages = stages.into_iter().map(|staged| staged.stage).collect();
        Ok(Self { stages, steps, gathered: [k, v, 0, 0, 0, 0] })
    }
}

#[cfg(test)]
mod tests;
