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
    /// lane of so many.
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
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::backward::BackwardPart;
    use crate::distributed::{Cut, Partition};
    use crate::{Options, TensorLayout, Tensors};
    use proptest::prelude::*;

    impl Schedule {
        /// Steps that end before each one begins.
        fn before(&self) -> Vec<HashSet<usize>> {
            let mut before: Vec<HashSet<usize>> = Vec::new();
            for (index, step) in self.steps.iter().enumerate() {
                let of_stream = (0..index).rev().find(|&other| self.steps[other].stream == step.stream);
                let direct = step.after.iter().copied().chain(of_stream);
                let all = direct.flat_map(|other| before[other].iter().copied().chain([other])).collect();
                before.push(all);
            }
            before
        }

        /// What is wrong with a rank's schedule, if anything is: a row that is read before it came, or came
        /// too often.
        fn defect(&self, shard: &Shard) -> Option<String> {
            let before = self.before();
            let mut gathered = HashSet::new();
            for (index, step) in self.steps.iter().enumerate() {
                let missing = |is_needed: &dyn Fn(&Work) -> bool| {
                    let came =
                        before[index].iter().filter(|&&other| is_needed(&self.steps[other].work)).count();
                    came < self.steps.iter().filter(|step| is_needed(&step.work)).count()
                };
                let is_delta =
                    |work: &Work| matches!(work, Work::Differentiate(part) if part.stage.is_none());
                match &step.work {
                    Work::Place(place) => {
                        if place.tensors.contains(&Gathered::Delta) && missing(&is_delta) {
                            return Some(format!("step {index} places delta before it is there"));
                        }
                    }
                    Work::Gather { stage, gathers } => {
                        let is_placed = |work: &Work| matches!(work, Work::Place(of) if of.stage == *stage);
                        if missing(&is_placed) {
                            return Some(format!("step {index} sends rows that are not placed"));
                        }
                        for gather in gathers {
                            for rank in 0..shard.world() {
                                let piece = gather.piece_of(rank, shard.world());
                                if !piece.is_empty() && !gathered.insert((gather.tensor as u8, piece.start)) {
                                    return Some(format!("step {index} gathers what came before"));
                                }
                            }
                        }
                    }
                    Work::Attend(_) | Work::Differentiate(_) | Work::Own(_) => {
                        if step.work.reads_delta() && missing(&is_delta) {
                            return Some(format!("step {index} reads delta before it is there"));
                        }
                        for (tensor, range) in step.work.reads() {
                            if !covers(self.came(&before[index], tensor, shard.world()), range) {
                                return Some(format!("step {index} reads {tensor:?} before it came"));
                            }
                        }
                    }
                }
            }
            None
        }

        /// What of a gathered tensor came in these steps.
        fn came(&self, steps: &HashSet<usize>, tensor: Gathered, world: usize) -> Vec<Range<usize>> {
            let gathers = steps.iter().filter_map(|&step| match &self.steps[step].work {
                Work::Gather { gathers, .. } => Some(gathers),
                _ => None,
            });
            let pieces = gathers.flatten().filter(|gather| gather.tensor == tensor);
            pieces.flat_map(|gather| (0..world).map(|rank| gather.piece_of(rank, world))).collect()
        }
    }

    impl Work {
        /// Whether it reads delta of the rank's own rows.
        fn reads_delta(&self) -> bool {
            matches!(self, Self::Differentiate(part) if part.problem.computes() == BackwardPart::Queries)
        }

        /// What it reads of gathered tensors.
        fn reads(&self) -> Vec<(Gathered, Range<usize>)> {
            let from = |first: usize, layout: TensorLayout| first..first + layout.span();
            match self {
                Self::Attend(attend) => {
                    let Tensors { k, v, .. } = *attend.problem.tensors();
                    vec![(Gathered::K, from(attend.k, k)), (Gathered::V, from(attend.v, v))]
                }
                Self::Differentiate(part) => {
                    let Tensors { q, k, v, o } = *part.problem.forward().tensors();
                    let lse = part.lse..part.lse + part.problem.forward().lse_len();
                    match part.problem.computes() {
                        BackwardPart::Queries => {
                            vec![(Gathered::K, from(part.k, k)), (Gathered::V, from(part.v, v))]
                        }
                        BackwardPart::Keys => vec![
                            (Gathered::Q, from(part.q, q)),
                            (Gathered::Dout, from(part.o, o)),
                            (Gathered::Lse, lse.clone()),
                            (Gathered::Delta, lse),
                        ],
                        _ => vec![],
                    }
                }
                Self::Place(_) | Self::Gather { .. } | Self::Own(_) => vec![],
            }
        }
    }

    /// Whether ranges have all of another one.
    fn covers(mut ranges: Vec<Range<usize>>, needed: Range<usize>) -> bool {
        ranges.sort_by_key(|range| range.start);
        let end = ranges
            .into_iter()
            .fold(needed.start, |end, range| if range.start <= end { end.max(range.end) } else { end });
        end >= needed.end
    }

    fn problem(
        [batch, kv_heads, group]: [usize; 3],
        (sq, sk): (usize, usize),
        window: (Option<usize>, Option<usize>),
    ) -> Problem {
        let of = |rows, heads| TensorLayout::bshd(batch, rows, heads, 8);
        let (q, k) = (of(sq, kv_heads * group), of(sk, kv_heads));
        let options = Options { window, ..Options::default() };
        Problem::new(Tensors { q, k, v: k, o: q }, DType::F16, options).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Each pair that sees each other is one rank's, and is computed once.
        #[test]
        fn each_pair_is_computed_once_after_its_key_came(
            heads in [1..3_usize, 1..4, 1..3],
            (world, more, keys) in (1..9_usize, 0..60_usize, 0..40_usize),
            window in (proptest::option::of(0..90_usize), proptest::option::of(0..90_usize)),
            (is_zigzag, first, growth) in (any::<bool>(), 1..3_usize, 1..5_usize),
        ) {
            let partition = if is_zigzag { Partition::ZigZag } else { Partition::Contiguous };
            let sq = 2 * world + more;
            let whole = problem(heads, (sq, sq + keys), window);
            let mut seen = HashSet::new();
            for rank in 0..world {
                let shard = Shard::new(&whole, rank, world, partition).unwrap();
                let schedule = Schedule::forward(&shard, StageHeads { first, growth }).unwrap();
                prop_assert_eq!(schedule.defect(&shard), None);
                for step in &schedule.steps {
                    let Work::Attend(attend) = &step.work else { continue };
                    let stage = &schedule.stages[attend.stage];
                    let first = shard.cut()[stage.batch].queries.rows_of(rank, attend.half).start;
                    for (row, head) in (0..attend.problem.seqlen_q()).flat_map(|row| {
                        (0..attend.problem.heads()).map(move |head| (row, head))
                    }) {
                        let head = stage.kv_heads.start * whole.group() + head;
                        let keys = attend.problem.visible_keys(0, row);
                        prop_assert!(seen.insert((stage.batch, head, first + row)));
                        let expected = whole.visible_keys(stage.batch, first + row);
                        prop_assert!(keys == expected || keys.is_empty() && expected.is_empty());
                    }
                }
            }
            prop_assert_eq!(seen.len(), whole.batch() * whole.heads() * sq);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// dQ of each query over the keys that it sees, and dK and dV of each key over the queries that see
        /// it, are one rank's, and are computed once.
        #[test]
        fn each_gradient_is_computed_once_after_its_rows_came(
            heads in [1..3_usize, 1..4, 1..3],
            (world, more, keys) in (1..9_usize, 0..60_usize, 0..40_usize),
            right in proptest::option::of(0..90_usize),
            (is_zigzag, first, growth) in (any::<bool>(), 1..3_usize, 1..5_usize),
        ) {
            let partition = if is_zigzag { Partition::ZigZag } else { Partition::Contiguous };
            let sq = 2 * world + more;
            let whole = problem(heads, (sq, sq + keys), (None, right));
            let (mut of_queries, mut of_keys) = (HashSet::new(), HashSet::new());
            for rank in 0..world {
                let shard = Shard::new(&whole, rank, world, partition).unwrap();
                let schedule = Schedule::backward(&shard, StageHeads { first, growth }).unwrap();
                prop_assert_eq!(schedule.defect(&shard), None);
                for step in &schedule.steps {
                    let Work::Differentiate(part) = &step.work else { continue };
                    let Some(stage) = part.stage.map(|stage| &schedule.stages[stage]) else { continue };
                    let (forward, own) = (part.problem.forward(), shard.tensors());
                    let cut = shard.cut()[stage.batch];
                    // Which half it is, its views say.
                    let half_at = |layout: &TensorLayout, at: usize, cut: &Cut, head: usize| {
                        Half::ALL.into_iter().find(|&half| {
                            !cut.rows_of(rank, half).is_empty()
                                && layout.row(stage.batch, cut.local_start(rank, half), head) == at
                        })
                    };
                    if part.problem.computes() == BackwardPart::Queries {
                        let head = stage.kv_heads.start * whole.group();
                        let half = half_at(&own.q, part.q, &cut.queries, head).unwrap();
                        let rows = cut.queries.rows_of(rank, half);
                        prop_assert_eq!(forward.seqlen_q(), rows.len());
                        for (row, whole_row) in rows.enumerate() {
                            let seen = whole.visible_keys(stage.batch, whole_row);
                            prop_assert_eq!(forward.visible_keys(0, row), seen);
                            let heads = head..head + forward.heads();
                            prop_assert!(heads.clone().all(|head| of_queries.insert((stage.batch, head, whole_row))));
                        }
                    } else {
                        let half = half_at(&own.k, part.k, &cut.keys, stage.kv_heads.start).unwrap();
                        let rows = cut.keys.rows_of(rank, half);
                        for row in 0..sq {
                            let seen = whole.visible_keys(stage.batch, row);
                            let in_part = seen.start.max(rows.start)..seen.end.min(rows.end).max(rows.start);
                            let found = forward.visible_keys(0, row);
                            let found = found.start + rows.start..found.end + rows.start;
                            prop_assert!(found == in_part || found.is_empty() && in_part.is_empty(), "{:?} {:?}", found, in_part);
                        }
                        for row in rows {
                            prop_assert!(stage.kv_heads.clone().all(|head| of_keys.insert((stage.batch, head, row))));
                        }
                    }
                }
            }
            prop_assert_eq!(of_queries.len(), whole.batch() * whole.heads() * sq);
            prop_assert_eq!(of_keys.len(), whole.batch() * whole.kv_heads() * (sq + keys));
        }
    }

    #[test]
    fn a_gradient_that_nobody_waits_for_is_found() {
        let whole = problem([1, 2, 1], (64, 64), (None, Some(0)));
        let shard = Shard::new(&whole, 1, 4, Partition::ZigZag).unwrap();
        let schedule = Schedule::backward(&shard, StageHeads { first: 1, growth: 1 }).unwrap();
        assert_eq!(schedule.defect(&shard), None);
        let awaited: HashSet<_> = schedule.steps.iter().flat_map(|step| step.after.clone()).collect();
        // delta, four gathers, and what is placed for each of them.
        assert_eq!(awaited.len(), 9);
        for step in awaited {
            let mut changed = schedule.clone();
            changed.steps.iter_mut().for_each(|other| other.after.retain(|&after| after != step));
            assert!(changed.defect(&shard).is_some(), "{:?}", schedule.steps[step].stream);
        }
    }

    #[test]
    fn a_step_that_does_not_wait_is_found() {
        let whole = problem([1, 2, 1], (64, 64), (None, Some(0)));
        let shard = Shard::new(&whole, 1, 4, Partition::ZigZag).unwrap();
        let schedule = Schedule::forward(&shard, StageHeads { first: 1, growth: 1 }).unwrap();
        assert_eq!(schedule.defect(&shard), None);
        let mut found = 0;
        for index in 0..schedule.steps.len() {
            for dropped in 0..schedule.steps[index].after.len() {
                let mut changed = schedule.clone();
                changed.steps[index].after.remove(dropped);
                found += usize::from(changed.defect(&shard).is_some());
            }
        }
        // Two gathers wait for rows that are placed, and attention of two halves and stages for gathers.
        assert_eq!(found, 6);
        let mut twice = schedule.clone();
        twice.steps.push(schedule.steps[4].clone());
        assert!(twice.defect(&shard).unwrap().contains("came before"));
    }
}
