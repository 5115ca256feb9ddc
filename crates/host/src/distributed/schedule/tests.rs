//! What schedules of random problems lack, if anything.

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
                let came = before[index].iter().filter(|&&other| is_needed(&self.steps[other].work)).count();
                came < self.steps.iter().filter(|step| is_needed(&step.work)).count()
            };
            let is_delta = |work: &Work| matches!(work, Work::Differentiate(part) if part.stage.is_none());
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
                        let of_head = |head| of_queries.insert((stage.batch, head, whole_row));
                        prop_assert!(heads.clone().all(of_head));
                    }
                } else {
                    let half = half_at(&own.k, part.k, &cut.keys, stage.kv_heads.start).unwrap();
                    let rows = cut.keys.rows_of(rank, half);
                    for row in 0..sq {
                        let seen = whole.visible_keys(stage.batch, row);
                        let in_part = seen.start.max(rows.start)..seen.end.min(rows.end).max(rows.start);
                        let found = forward.visible_keys(0, row);
                        let found = found.start + rows.start..found.end + rows.start;
                        let are_none = found.is_empty() && in_part.is_empty();
                        prop_assert!(found == in_part || are_none, "{:?} {:?}", found, in_part);
                    }
                    for row in rows {
                        let of_head = |head| of_keys.insert((stage.batch, head, row));
                        prop_assert!(stage.kv_heads.clone().all(of_head));
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
