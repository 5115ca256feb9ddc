//! What a rank does, as data: which rows are gathered where, and who waits for whom.

use std::ops::Range;

use super::shard::CutSequence;
use super::{Half, Shard};
use crate::append::{AppendOptions, AppendProblem, AppendTensors};
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

impl Gathered {
    /// Its place in lists of both.
    pub const fn index(self) -> usize {
        self as usize
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

/// A half's rows of a stage's heads on their way to where they belong in the gathered ones: appended to a
/// cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Index of the stage.
    pub stage: usize,
    /// The problem, over views.
    pub problem: AppendProblem,
    /// Elements of the rank's K before the view's first.
    pub k: usize,
    /// The same of V.
    pub v: usize,
    /// Elements of the gathered K before the cache's first.
    pub k_cache: usize,
    /// The same of V.
    pub v_cache: usize,
    /// Rows of the cache before the half's.
    pub before: usize,
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

    /// Heads of all stages: sequences one after another.
    fn stages(self, cut: &[CutSequence], kv_heads: usize) -> Vec<Stage> {
        let mut most = self.first.max(1);
        let mut stages = Vec::new();
        for batch in cut.iter().map(|cut| cut.sequence) {
            let mut end = 0;
            while end < kv_heads {
                let next = kv_heads.min(end.saturating_add(most));
                most = (next - end).saturating_mul(self.growth.max(1));
                stages.push(Stage { batch, kv_heads: end..next });
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

/// A rank's work of a forward pass, in an order in which it may be enqueued.
///
/// Gathered K has the stages one after another, each of which is [2N·L, heads, D], contiguous, where L is
/// [`Cut::chunk_len`](super::Cut::chunk_len) of the sequence's keys, and V the same with Dv: chunks lie in the order of
/// their rows, and are one piece each.
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
    /// As [`Problem::new`] and [`AppendProblem::new`], for the parts' tensors.
    pub fn forward(shard: &Shard, heads: StageHeads) -> Result<Self> {
        let problem = shard.problem();
        let stages = heads.stages(shard.cut(), problem.kv_heads());
        let mut steps = Vec::new();
        let mut before = 0;
        let mut placed = Vec::new();
        for (index, stage) in stages.iter().enumerate() {
            let Some(cut) = shard.cut().iter().find(|cut| cut.sequence == stage.batch) else { continue };
            let stage = Staged { shard, index, stage, cut, before };
            for half in Half::ALL {
                if let Some(place) = stage.place(half)? {
                    // What the first stage waits for is not behind the others' rows.
                    let stream = Stream::Attention(if index == 0 { 0 } else { Stream::LANES - 1 });
                    steps.push(Step { stream, work: Work::Place(Box::new(place)), after: vec![] });
                }
            }
            before += stage.rows() * stage.stage.kv_heads.len();
            placed.push((stage, steps.len().checked_sub(1)));
        }
        if let Some(own) = shard.whole_sequences()? {
            // They wait for nobody: attention while the first heads are gathered.
            let work = Work::Own(Box::new(own));
            steps.push(Step { stream: Stream::Attention(Stream::LANES - 1), work, after: vec![] });
        }
        for (stage, placed) in placed {
            let (gather, index) = (steps.len(), stage.index);
            let work = Work::Gather { stage: index, gathers: stage.gathers() };
            steps.push(Step { stream: Stream::Copies, work, after: placed.into_iter().collect() });
            // In a zigzag under a causal mask the high half sees more keys: its long tiles begin first.
            for (lane, half) in [Half::High, Half::Low].into_iter().enumerate() {
                if let Some(attend) = stage.attend(half)? {
                    let stream = Stream::Attention((2 * index + lane) % Stream::LANES);
                    let work = Work::Attend(Box::new(attend));
                    steps.push(Step { stream, work, after: vec![gather] });
                }
            }
        }
        let gathered = [problem.head_dim(), problem.head_dim_v()].map(|columns| before * columns);
        Ok(Self { stages, steps, gathered })
    }
}

/// A stage of a rank, with its sequence.
#[derive(Clone, Copy)]
struct Staged<'a> {
    shard: &'a Shard,
    index: usize,
    stage: &'a Stage,
    cut: &'a CutSequence,
    /// Rows of the gathered K and V, of one head each, before the stage's.
    before: usize,
}

impl Staged<'_> {
    /// Rows of each head of the gathered K and V.
    const fn rows(&self) -> usize {
        2 * self.shard.world() * self.cut.keys.chunk_len()
    }

    /// What a half's rows are appended to; none where it has no rows.
    fn place(&self, half: Half) -> Result<Option<Place>> {
        let Self { shard, index, stage, cut, before } = *self;
        let (keys, own) = (cut.keys, shard.tensors());
        let (rows, heads) = (keys.rows_of(shard.rank(), half), stage.kv_heads.len());
        if rows.is_empty() {
            return Ok(None);
        }
        let first = cut.first[1] + keys.local_start(shard.rank(), half);
        let new = |layout: &TensorLayout| TensorLayout { batch: 1, seqlen: rows.len(), heads, ..*layout };
        let cache = |of: &TensorLayout| TensorLayout::bshd(1, self.rows(), heads, of.head_dim);
        let (k_cache, v_cache) = (cache(&own.k), cache(&own.v));
        let tensors = AppendTensors { k: new(&own.k), v: new(&own.v), k_cache, v_cache };
        Ok(Some(Place {
            stage: index,
            problem: AppendProblem::new(tensors, shard.problem().dtype(), AppendOptions::default())?,
            k: own.k.row(cut.batch, first, stage.kv_heads.start),
            v: own.v.row(cut.batch, first, stage.kv_heads.start),
            k_cache: before * k_cache.head_dim,
            v_cache: before * v_cache.head_dim,
            before: keys.chunk_of(shard.rank(), half) * keys.chunk_len(),
        }))
    }

    /// The gathers of a stage.
    fn gathers(&self) -> Vec<Gather> {
        let Self { shard, stage, before, .. } = *self;
        let (keys, problem) = (self.cut.keys, shard.problem());
        let tensors = [(Gathered::K, problem.head_dim()), (Gathered::V, problem.head_dim_v())];
        // Where a rank's chunks are neighbours, both come at once.
        let are_neighbours = keys.chunk_of(0, Half::High) == 1;
        let world = shard.world();
        let parts: &[(usize, usize, bool)] =
            if are_neighbours { &[(0, 2, false)] } else { &[(0, 1, false), (world, 1, true)] };
        let of_tensor = |(tensor, columns)| {
            let chunk_elements = keys.chunk_len() * stage.kv_heads.len() * columns;
            parts.iter().map(move |&(chunk, chunks, reversed)| Gather {
                tensor,
                first: before * columns + chunk * chunk_elements,
                piece: chunks * chunk_elements,
                reversed,
            })
        };
        tensors.into_iter().flat_map(of_tensor).collect()
    }

    /// Attention of a half's queries of a stage; none where it has no rows.
    ///
    /// Queries from q₀ to before q₁ of a sequence see no key from `end` on. A problem over the keys before
    /// `end` aligns masks to its last key, which is `beyond` keys behind the diagonal of the last query.
    fn attend(&self, half: Half) -> Result<Option<Attend>> {
        let Self { shard, index, stage, cut, before } = *self;
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
        let heads = stage.kv_heads.start * whole.group()..stage.kv_heads.end * whole.group();
        let own = shard.tensors();
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
            stage: index,
            half,
            problem: problem.with_lse_strides(heads.len() * lse_head, lse_head)?,
            q: own.q.row(cut.batch, first_row, heads.start),
            o: own.o.row(cut.batch, first_row, heads.start),
            k: before * k.head_dim,
            v: before * v.head_dim,
            lse: (cut.batch * whole.heads() + heads.start) * lse_head + first_row,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::distributed::Partition;
    use crate::{DType, Options};
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

        /// What is wrong with a rank's schedule, if anything is: a key that is read before it came, or came
        /// too often.
        fn defect(&self, shard: &Shard) -> Option<String> {
            let before = self.before();
            let mut gathered = HashSet::new();
            for (index, step) in self.steps.iter().enumerate() {
                match &step.work {
                    Work::Place(_) | Work::Own(_) => {}
                    Work::Gather { stage, gathers } => {
                        let is_place =
                            |step: &Step| matches!(&step.work, Work::Place(place) if place.stage == *stage);
                        let came =
                            before[index].iter().filter(|&&other| is_place(&self.steps[other])).count();
                        if came < self.steps.iter().filter(|step| is_place(step)).count() {
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
                    Work::Attend(attend) => {
                        let came = |of: Gathered| {
                            let steps = before[index].iter().map(|&other| &self.steps[other].work);
                            let gathers = steps.filter_map(|work| match work {
                                Work::Gather { gathers, .. } => Some(gathers),
                                _ => None,
                            });
                            let pieces = gathers.flatten().filter(move |gather| gather.tensor == of);
                            let world = shard.world();
                            pieces.flat_map(move |gather| {
                                (0..world).map(move |rank| gather.piece_of(rank, world))
                            })
                        };
                        let keys = attend.problem.tensors();
                        for (tensor, first, layout) in
                            [(Gathered::K, attend.k, keys.k), (Gathered::V, attend.v, keys.v)]
                        {
                            if !covers(came(tensor).collect(), first..first + layout.span()) {
                                return Some(format!("step {index} reads {tensor:?} before it came"));
                            }
                        }
                    }
                }
            }
            None
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
                    let cut = shard.cut()[stage.batch];
                    let first = cut.queries.rows_of(rank, attend.half).start;
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
