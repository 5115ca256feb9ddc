//! The problems that every kernel must get right, as data: lengths that fill no tile, single rows, rows
//! that see no key, heads that share keys, and both orders of the axes.

use std::ops::RangeInclusive;

use flash_attention::{BackendKind, DType, Options, Problem, Result, Tensors};

use crate::problem::Layout;

/// One problem, but for storage type and head_dim, which are the kernel's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    batch: usize,
    seq: usize,
    kv_seq: usize,
    causal: bool,
    kv_heads: usize,
    group: usize,
    layout: Layout,
    width: Width,
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

/// (Sq, Sk): those of FlashAttention's own tests that fill no tile, and one that fills many.
const PAIRS: [(usize, usize); 6] = [(1, 1), (239, 1), (799, 3), (113, 203), (1023, 1024), (4224, 4224)];

/// For the simulator, (Sq, Sk, causal, group): few tiles, yet more than one in either direction.
const SIM_CASES: [(usize, usize, bool, usize); 10] = [
    (1, 1, false, 1),
    (37, 1, true, 2),
    (3, 70, false, 2),
    (70, 37, true, 1),
    (33, 65, true, 2),
    (33, 65, false, 1),
    (3, 70, true, 1),
    (70, 37, false, 1),
    (70, 135, true, 2),
    (135, 70, false, 2),
];

/// The cases of a backend.
pub(crate) fn cases(backend: BackendKind) -> Vec<Case> {
    let layout = |index: usize| Layout::ALL[index % 2];
    // Three widths and an even number of everything else: in turn, each meets each.
    let width = |index: usize| [Width::Smallest, Width::Odd, Width::Largest][index % 3];
    match backend {
        BackendKind::Sim => SIM_CASES
            .into_iter()
            .enumerate()
            .map(|(index, (seq, kv_seq, causal, group))| {
                let (layout, width) = (layout(index), width(index));
                Case { batch: 1, seq, kv_seq, causal, kv_heads: 1, group, layout, width }
            })
            .collect(),
        BackendKind::Cuda | BackendKind::Cpu => {
            let variants = [(false, 1), (false, 2), (true, 1), (true, 2)];
            let of_pair = |(seq, kv_seq)| {
                let batch = if seq * kv_seq > 1 << 21 { 1 } else { 2 };
                variants.map(|(causal, group)| (batch, seq, kv_seq, causal, group))
            };
            let all = PAIRS.into_iter().flat_map(of_pair).enumerate();
            all.map(|(index, (batch, seq, kv_seq, causal, group))| {
                let (layout, width) = (layout(index / 4 + index), width(index));
                Case { batch, seq, kv_seq, causal, kv_heads: 2, group, layout, width }
            })
            .collect()
        }
    }
}

impl Case {
    /// The problem for a kernel of this storage type that takes these head_dims.
    pub(crate) fn problem(&self, dtype: DType, head_dims: &RangeInclusive<usize>) -> Result<Problem> {
        let head_dim = self.width.of(head_dims);
        let q = self.layout.tensor(self.batch, self.seq, self.kv_heads * self.group, head_dim);
        let k = self.layout.tensor(self.batch, self.kv_seq, self.kv_heads, head_dim);
        let options = Options { causal: self.causal, softmax_scale: None };
        Problem::new(Tensors { q, k, v: k, o: q }, dtype, options)
    }

    pub(crate) const fn layout(&self) -> Layout {
        self.layout
    }
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
    fn every_backend_meets_every_feature() {
        for backend in BackendKind::ALL {
            let cases = cases(backend);
            let meets = |feature: &dyn Fn(&Case) -> bool| cases.iter().any(feature);
            assert!(meets(&|case| case.causal && case.seq > case.kv_seq), "{backend}: rows that see no key");
            assert!(meets(&|case| case.causal && case.seq < case.kv_seq));
            for (causal, layout) in
                [false, true].into_iter().flat_map(|c| Layout::ALL.map(|layout| (c, layout)))
            {
                assert!(
                    meets(&|case| (case.causal, case.layout) == (causal, layout)),
                    "{backend} {causal} {layout:?}"
                );
            }
            for width in [Width::Smallest, Width::Odd, Width::Largest] {
                assert!(meets(&|case| case.width == width && case.causal), "{backend} {width:?}");
                assert!(meets(&|case| case.width == width && case.group == 2), "{backend} {width:?}");
            }
        }
    }
}
