//! The problems that every kernel must get right, as data: lengths that fill no tile, single rows, rows
//! that see no key, heads that share keys, and both orders of the axes.

use std::ops::RangeInclusive;

use flash_attention::forward::{Descale, Dropout, Factor};
use flash_attention::{DType, Options, Problem, Result, Tensors};

mod small;

use super::args::Sizes;
use crate::problem::{Layout, alibi_slopes, sinks};

/// One problem, but for storage type and head_dim, which are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    /// Its number, from which the seed of its inputs follows.
    pub(super) index: usize,
    batch: usize,
    seq: usize,
    kv_seq: usize,
    features: Features,
    kv_heads: usize,
    group: usize,
    layout: Layout,
    width: Width,
}

/// What a case asks for beside its shape.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Features {
    causal: bool,
    window: (Option<usize>, Option<usize>),
    softcap: f32,
    alibi: bool,
    sinks: bool,
    /// Probability that a weight is dropped.
    dropout: f32,
    /// Each sequence of the batch is shorter than the one before, and one in three is empty.
    packed: bool,
    /// Sequences use a part of their keys, none, or all.
    used: bool,
    narrow: Narrow,
}

/// Which head_dim is about half of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Narrow {
    Neither,
    /// That of Q and K.
    Q,
    /// That of V and O.
    V,
}

const PLAIN: Features = Features {
    causal: false,
    window: (None, None),
    softcap: 0.0,
    alibi: false,
    sinks: false,
    dropout: 0.0,
    packed: false,
    used: false,
    narrow: Narrow::Neither,
};
const CAUSAL: Features = Features { causal: true, ..PLAIN };

/// A window of so many keys to the left and right of the diagonal.
const fn window(left: usize, right: usize) -> Features {
    Features { window: (Some(left), Some(right)), ..PLAIN }
}

/// Which of the head_dims that a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Smallest,
    /// An odd one in the middle: no row but the first starts on a 16-byte boundary.
    Odd,
    Largest,
}

impl Width {
    fn of(self, head_dims: &RangeInclusive<usize>) -> usize {
        let (smallest, largest) = (*head_dims.start(), *head_dims.end());
        match self {
            Self::Smallest => smallest,
            Self::Odd => (usize::midpoint(smallest, largest) | 1).min(largest),
            Self::Largest => largest,
        }
    }
}

/// The head_dims that a kernel is verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadDims {
    /// Those for which the planner comes to it.
    pub(super) range: RangeInclusive<usize>,
    /// The largest of V and O.
    pub(super) most_v: usize,
    /// What they are multiples of.
    pub(super) step: usize,
}

impl HeadDims {
    /// Those of a range, of V and O too.
    pub(super) const fn all(range: RangeInclusive<usize>, step: usize) -> Self {
        Self { most_v: *range.end(), range, step }
    }
}

/// (Sq, Sk): those of FlashAttention's own tests that fill no tile, one that fills many, and multiples of
/// eight rows, which can be read class by class.
const PAIRS: [(usize, usize); 8] =
    [(1, 1), (239, 1), (799, 3), (113, 203), (1023, 1024), (4224, 4224), (1000, 2040), (112, 200)];

/// Beside those, (Sq, Sk, features, group).
const FEATURES: [(usize, usize, Features, usize); 22] = [
    (1023, 1024, window(0, 0), 1),
    (1023, 1024, Features { window: (Some(333), None), ..CAUSAL }, 2),
    (113, 203, window(50, 40), 2),
    (799, 333, Features { window: (None, Some(70)), ..PLAIN }, 1),
    (1023, 1024, Features { softcap: 15.0, ..CAUSAL }, 2),
    (113, 203, Features { softcap: 0.5, ..window(50, 40) }, 1),
    (1023, 1024, Features { alibi: true, ..CAUSAL }, 1),
    (203, 113, Features { softcap: 5.0, alibi: true, ..PLAIN }, 2),
    (799, 333, Features { packed: true, ..CAUSAL }, 1),
    (113, 203, Features { packed: true, alibi: true, ..window(60, 30) }, 2),
    (113, 203, Features { narrow: Narrow::V, ..CAUSAL }, 2),
    (203, 113, Features { narrow: Narrow::Q, softcap: 5.0, ..PLAIN }, 1),
    (1023, 1024, Features { sinks: true, ..CAUSAL }, 2),
    (799, 333, Features { sinks: true, packed: true, ..CAUSAL }, 1),
    (203, 113, Features { sinks: true, softcap: 5.0, alibi: true, ..window(60, 30) }, 2),
    (4224, 4224, Features { sinks: true, window: (Some(128), None), ..CAUSAL }, 1),
    (1023, 1024, Features { dropout: 0.1, ..CAUSAL }, 2),
    (113, 203, Features { dropout: 0.5, packed: true, alibi: true, ..PLAIN }, 1),
    (1023, 1024, Features { used: true, ..PLAIN }, 2),
    (1023, 1024, Features { used: true, ..CAUSAL }, 1),
    (799, 333, Features { used: true, packed: true, softcap: 5.0, ..CAUSAL }, 2),
    (113, 203, Features { used: true, alibi: true, dropout: 0.5, ..window(60, 30) }, 1),
];

/// Pairs of query and key beyond which a case is long.
const LONG: usize = 1 << 21;

/// What cases are chosen for and run on: an entry, or a kernel of the CPU.
pub(super) trait Takes: Sync {
    /// Those of one family run the same source with other constants.
    fn family(&self) -> String;

    /// The constants, but for the storage type, in words.
    fn tile(&self) -> String;

    /// Rows and keys of a block.
    fn block(&self) -> (usize, usize);

    fn dtype(&self) -> DType;

    fn head_dims(&self) -> HeadDims;

    /// Whether the planner comes to it for `problem`, whose head_dim is one of its own.
    fn takes(&self, problem: &Problem) -> bool;
}

/// The cases of each target.
pub(super) fn cases<T: Takes>(sizes: Sizes, targets: &[T]) -> Vec<Vec<Case>> {
    match sizes {
        Sizes::Small => small::cases(targets),
        Sizes::Full => vec![full(); targets.len()],
    }
}

/// The least of a family in work, but with more columns than one row of 128 bytes has, where there is such a
/// one.
pub(super) fn of_each_family<T: Takes>(targets: Vec<T>) -> Vec<T> {
    let work = |target: &T| {
        let ((block_m, block_n), columns) = (target.block(), *target.head_dims().range.end());
        (columns <= 128 / target.dtype().bytes(), block_m * block_n * columns)
    };
    let mut chosen: Vec<T> = Vec::new();
    for target in targets {
        match chosen.iter_mut().find(|other| other.family() == target.family()) {
            None => chosen.push(target),
            Some(other) if work(&target) < work(other) => *other = target,
            Some(_) => {}
        }
    }
    chosen
}

/// The cases for devices, of many tiles too.
fn full() -> Vec<Case> {
    let layout = |index: usize| Layout::ALL[index % 2];
    // Three widths and an even number of everything else: in turn, each meets each.
    let width = |index: usize| [Width::Smallest, Width::Odd, Width::Largest][index % 3];
    let variants = [(PLAIN, 1), (PLAIN, 2), (CAUSAL, 1), (CAUSAL, 2)];
    let of_pair = |(seq, kv_seq)| variants.map(move |(features, group)| (seq, kv_seq, features, group));
    let all = PAIRS.into_iter().flat_map(of_pair).chain(FEATURES).enumerate();
    all.map(|(index, (seq, kv_seq, features, group))| {
        let batch = if features.packed {
            5
        } else if seq * kv_seq > LONG {
            1
        } else {
            2
        };
        let (layout, width) = (layout(index / 4 + index), width(index));
        Case { index, batch, seq, kv_seq, features, kv_heads: 2, group, layout, width }
    })
    .collect()
}

impl Case {
    /// The problem for a kernel of this storage type that takes these head_dims.
    pub(super) fn problem(&self, dtype: DType, head_dims: &HeadDims) -> Result<Problem> {
        let &HeadDims { ref range, most_v, step } = head_dims;
        let Features { causal, window, softcap, alibi, sinks: has_sinks, dropout, packed, used, narrow } =
            self.features;
        let widest = self.width.of(range).next_multiple_of(step);
        let half = (widest / 2 + 1).next_multiple_of(step);
        let head_dim = if narrow == Narrow::Q { half } else { widest };
        let head_dim_v = if narrow == Narrow::V { half } else { widest.min(most_v) };
        let (cu_seqlens_q, cu_seqlens_k) = (self.offsets(self.seq, 0), self.offsets(self.kv_seq, 1));
        let rows = |offsets: &[u32], seq| if packed { offsets[self.batch] as usize } else { seq };
        let batch = if packed { 1 } else { self.batch };
        let heads = self.kv_heads * self.group;
        let q = |head_dim| self.layout.tensor(batch, rows(&cu_seqlens_q, self.seq), heads, head_dim);
        let k =
            |head_dim| self.layout.tensor(batch, rows(&cu_seqlens_k, self.kv_seq), self.kv_heads, head_dim);
        // Each sequence has slopes of its own, and in every second case sinks.
        let values = self.batch * heads;
        let sinks = has_sinks.then(|| sinks(if self.index.is_multiple_of(2) { values } else { heads }));
        let alibi_slopes = alibi.then(|| alibi_slopes(values));
        let dropout = Some(Dropout { probability: dropout, seed: 1 << 40, offset: 7 });
        let descale = (dtype == DType::E4m3).then(|| self.descale());
        let options =
            Options { causal, window, softcap, alibi_slopes, sinks, dropout, descale, ..Options::default() };
        let tensors = Tensors { q: q(head_dim), k: k(head_dim), v: k(head_dim_v), o: q(head_dim_v) };
        let problem = if packed {
            Problem::varlen(tensors, dtype, options, &cu_seqlens_q, &cu_seqlens_k)?
        } else {
            Problem::new(tensors, dtype, options)?
        };
        if used { problem.with_seqused_k(&used_keys(&problem)) } else { Ok(problem) }
    }

    /// Factors of tensors, of heads, and of each sequence's heads.
    fn descale(&self) -> Descale {
        let of = |factor: f32, index: usize| match (self.index + index) % 3 {
            0 => Factor::Tensor(factor),
            lists => {
                let len = if lists == 1 { self.kv_heads } else { self.batch * self.kv_heads };
                Factor::Heads((0..len).map(|head| factor * [1.0, 0.5, 1.25][head % 3]).collect())
            }
        };
        Descale { q: of(0.5, 0), k: of(1.5, 1), v: of(3.0, 2) }
    }

    /// Where the sequences of a packed batch begin, the longest of `longest` rows; every third from `empty` +
    /// 1 on has none.
    fn offsets(&self, longest: usize, empty: usize) -> Vec<u32> {
        let length = |index: usize| if index % 3 == empty + 1 { 0 } else { longest / (index + 1) };
        (0..=self.batch).map(|batch| (0..batch).map(length).sum::<usize>() as u32).collect()
    }

    /// Whether it has more pairs of query and key than a reference of whole heads has time for.
    pub(super) const fn is_long(&self) -> bool {
        self.seq * self.kv_seq > LONG
    }

    pub(super) const fn layout(&self) -> Layout {
        self.layout
    }
}

/// How many of its keys each sequence uses: most, all but one, none and all.
fn used_keys(problem: &Problem) -> Vec<i32> {
    let of = |batch: usize| {
        let keys = problem.key_rows(batch).len();
        [(2 * keys).div_ceil(3), keys.saturating_sub(1), 0, keys][batch % 4] as i32
    };
    (0..problem.batch()).map(of).collect()
}

/// A target and the cases that it runs on.
pub(super) struct WithCases<T> {
    pub(super) target: T,
    pub(super) cases: Vec<Case>,
}

/// The cases of a group, each once.
pub(super) fn distinct<'a, T: 'a>(group: impl IntoIterator<Item = &'a WithCases<T>>) -> Vec<Case> {
    let mut distinct: Vec<Case> = Vec::new();
    for case in group.into_iter().flat_map(|of| &of.cases) {
        if !distinct.contains(case) {
            distinct.push(*case);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_stay_in_their_bucket() {
        let of = |range: RangeInclusive<usize>| {
            [Width::Smallest, Width::Odd, Width::Largest].map(|width| width.of(&range))
        };
        assert_eq!(of(129..=160), [129, 145, 160]);
        assert_eq!(of(1..=256), [1, 129, 256]);
        assert_eq!(of(8..=8), [8, 8, 8]);
    }

    #[test]
    fn full_sizes_meet_every_feature() {
        let cases = full();
        let meets = |feature: &dyn Fn(&Case) -> bool| cases.iter().any(feature);
        let causal = |case: &Case| case.features.causal;
        assert!(meets(&|case| causal(case) && case.seq > case.kv_seq), "rows that see no key");
        assert!(meets(&|case| causal(case) && case.seq < case.kv_seq));
        for (mask, layout) in
            [PLAIN, CAUSAL].into_iter().flat_map(|mask| Layout::ALL.map(|layout| (mask, layout)))
        {
            assert!(meets(&|case| (case.features, case.layout) == (mask, layout)), "{mask:?} {layout:?}");
        }
        assert!(meets(&|case| case.features.window.0.is_some() && causal(case)), "a window");
        assert!(meets(&|case| matches!(case.features.window, (Some(_), Some(_)))), "a window");
        assert!(meets(&|case| case.features.softcap != 0.0 && causal(case)), "a softcap");
        assert!(meets(&|case| case.features.alibi && causal(case)), "ALiBi");
        assert!(meets(&|case| case.features.sinks && causal(case)), "sinks");
        assert!(meets(&|case| case.features.packed && causal(case)), "a packed batch");
        for packed in [false, true] {
            assert!(meets(&|case| case.features.used && case.features.packed == packed), "used keys");
        }
        assert!(meets(&|case| case.features.dropout > 0.0 && causal(case)), "dropout");
        for narrow in [Narrow::Q, Narrow::V] {
            assert!(meets(&|case| case.features.narrow == narrow), "{narrow:?}");
        }
        for width in [Width::Smallest, Width::Odd, Width::Largest] {
            assert!(meets(&|case| case.width == width && causal(case)), "{width:?}");
            assert!(meets(&|case| case.width == width && case.group == 2), "{width:?}");
        }
    }
}
