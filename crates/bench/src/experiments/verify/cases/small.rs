//! The cases for the simulator: few tiles, yet more than one in either direction, chosen for each entry so
//! that the entries of a kernel together meet all pairs of what a case is made of.

use flash_attention::Problem;
use rayon::prelude::*;

use super::super::cover::{self, Candidate, Subject};
use super::{CAUSAL, Case, Features, Narrow, PLAIN, Width, window};
use super::{Layout, Takes};

/// Masks by which of a row's keys are seen, some with sinks.
const MASKS: [Features; 5] = [
    PLAIN,
    Features { sinks: true, ..CAUSAL },
    window(20, 5),
    Features { sinks: true, window: (Some(10), None), ..CAUSAL },
    Features { window: (None, Some(5)), ..PLAIN },
];

/// (softcap, ALiBi).
const SCORES: [(f32, bool); 4] = [(0.0, false), (15.0, false), (0.0, true), (0.5, true)];

/// (batch, key/value heads, query heads of each, packed, used).
const HEADS: [(usize, usize, usize, bool, bool); 7] = [
    (1, 1, 1, false, false),
    (1, 1, 2, false, false),
    (1, 2, 1, false, false),
    (2, 1, 1, false, false),
    (2, 1, 1, false, true),
    (4, 1, 1, true, false),
    (4, 1, 2, true, true),
];

const DROPOUT: [f32; 2] = [0.0, 0.3];

const NARROW: [Narrow; 3] = [Narrow::Neither, Narrow::Q, Narrow::V];

const WIDTHS: [Width; 3] = [Width::Smallest, Width::Odd, Width::Largest];

/// (Sq, Sk) for a tile: single rows and keys, rows that see no key under a causal mask, parts of tiles,
/// multiples of eight rows (which can be read class by class), whole tiles, and whole tiles with a part
/// behind them.
const fn lengths(block_m: usize, block_n: usize) -> [(usize, usize); LENGTHS] {
    [
        (1, 1),
        (37, 1),
        (3, 70),
        (70, 37),
        (40, 72),
        (136, 72),
        (block_m, 2 * block_n),
        (block_m + 6, 2 * block_n + 7),
    ]
}

const LENGTHS: usize = 8;

/// Values of each dimension of a combination.
const EXTENTS: [usize; 8] = [
    LENGTHS,
    MASKS.len(),
    Layout::ALL.len(),
    WIDTHS.len(),
    NARROW.len(),
    HEADS.len(),
    SCORES.len(),
    DROPOUT.len(),
];

/// A combination, by the number of its value in each dimension.
type Combination = [usize; EXTENTS.len()];

/// All combinations.
fn combinations() -> Vec<Combination> {
    let count = EXTENTS.iter().product();
    let combination = |mut index: usize| {
        EXTENTS.map(|extent| {
            let value = index % extent;
            index /= extent;
            value
        })
    };
    (0..count).map(combination).collect()
}

/// The case of a combination for the tile of `target`; `index` is its number among all combinations.
fn case(index: usize, combination: &Combination, target: &impl Takes) -> Case {
    let [length, mask, layout, width, narrow, heads, scores, dropout] = *combination;
    let (block_m, block_n) = target.block();
    let (seq, kv_seq) = lengths(block_m, block_n)[length];
    let (batch, kv_heads, group, packed, used) = HEADS[heads];
    let (softcap, alibi) = SCORES[scores];
    let dropout = DROPOUT[dropout];
    let narrow = NARROW[narrow];
    let features = Features { softcap, alibi, dropout, packed, used, narrow, ..MASKS[mask] };
    let (layout, width) = (Layout::ALL[layout], WIDTHS[width]);
    Case { index, batch, seq, kv_seq, features, kv_heads, group, layout, width }
}

/// What the targets of one family are for the choice of their cases.
struct Family {
    combinations: Vec<(usize, Combination)>,
    candidates: Vec<Candidate>,
    subjects: Vec<Subject>,
}

impl Family {
    /// Of targets that all have the same [`Takes::family`].
    fn new<T: Takes>(targets: &[&T]) -> Self {
        let takes = |target: &T, (index, combination): &(usize, Combination)| {
            takes(target, &case(*index, combination, target))
        };
        // Most families take none of the changed scores, or draw no dropout.
        let mut combinations: Vec<_> = combinations().into_iter().enumerate().collect();
        for at in [EXTENTS.len() - 2, EXTENTS.len() - 1] {
            let taken = |value: usize| {
                let mut with = combinations.iter().filter(|(_, combination)| combination[at] == value);
                with.any(|combination| takes(targets[0], combination))
            };
            let taken: Vec<bool> = (0..EXTENTS[at]).map(taken).collect();
            combinations.retain(|(_, combination)| taken[combination[at]]);
        }
        let mut tiles = Vec::new();
        let mut subject = |target: &&T| {
            let tile = target.tile();
            let number = tiles.iter().position(|other| *other == tile).unwrap_or(tiles.len());
            if number == tiles.len() {
                tiles.push(tile);
            }
            Subject {
                traits: vec![number, target.dtype() as usize],
                takes: combinations.par_iter().map(|combination| takes(target, combination)).collect(),
            }
        };
        let subjects = targets.iter().map(&mut subject).collect();
        let candidate = |(_, combination): &(usize, Combination)| Candidate {
            values: combination.to_vec(),
            cost: cost(combination),
        };
        let candidates = combinations.iter().map(candidate).collect();
        Self { combinations, candidates, subjects }
    }

    fn choose(&self) -> Vec<Vec<usize>> {
        cover::choose(&self.subjects, &self.candidates)
    }
}

/// Whether `target` takes a case; no problem of a combination is one that the library refuses.
fn takes(target: &impl Takes, case: &Case) -> bool {
    let problem = case.problem(target.dtype(), &target.head_dims());
    problem.is_ok_and(|problem: Problem| target.takes(&problem))
}

/// Pairs of query and key, for a tile of middling size.
fn cost([length, _, _, _, _, heads, ..]: &Combination) -> usize {
    let ((seq, kv_seq), (batch, kv_heads, group, ..)) = (lengths(64, 64)[*length], HEADS[*heads]);
    seq * kv_seq * batch * kv_heads * group
}

/// The cases of each target: those of one family together meet all pairs that they can.
pub(super) fn cases<T: Takes>(targets: &[T]) -> Vec<Vec<Case>> {
    let mut cases = vec![Vec::new(); targets.len()];
    let mut families: Vec<String> = targets.iter().map(Takes::family).collect();
    families.sort();
    families.dedup();
    for family in families {
        let members: Vec<usize> =
            (0..targets.len()).filter(|&index| targets[index].family() == family).collect();
        let targets: Vec<&T> = members.iter().map(|&index| &targets[index]).collect();
        let family = Family::new(&targets);
        for ((member, target), chosen) in members.iter().zip(targets).zip(family.choose()) {
            let of_index = |at: usize| {
                let (index, combination) = &family.combinations[at];
                case(*index, combination, target)
            };
            cases[*member] = chosen.into_iter().map(of_index).collect();
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use flash_attention::{Backend, BackendKind, Kernel};

    use super::super::super::{backward, targets};
    use super::*;

    /// The families of a backend's attention kernels, by name.
    fn families<T: Takes>(targets: &[T]) -> Vec<(String, Vec<&T>)> {
        let mut families: Vec<(String, Vec<&T>)> = Vec::new();
        for target in targets {
            match families.iter_mut().find(|(name, _)| *name == target.family()) {
                Some((_, members)) => members.push(target),
                None => families.push((target.family(), vec![target])),
            }
        }
        families
    }

    fn assert_covered<T: Takes>(targets: &[T]) {
        for (name, members) in families(targets) {
            let family = Family::new(&members);
            let chosen = family.choose();
            let uncovered = cover::uncovered(&family.subjects, &family.candidates, &chosen);
            assert!(uncovered.is_empty(), "{name}: {uncovered:?}");
            assert!(chosen.iter().all(|chosen| chosen.len() >= 2), "{name}: an entry with fewer cases");
        }
    }

    #[test]
    fn all_pairs_that_the_entries_of_a_kernel_can_meet_are_there() {
        assert_covered(&targets::targets(BackendKind::Sim, None));
        assert_covered(&backward::targets(BackendKind::Sim));
    }

    fn assert_none_refused<T: Takes>(targets: &[T]) {
        for (name, members) in families(targets) {
            for (index, combination) in combinations().iter().enumerate() {
                let (target, case) = (members[0], case(index, combination, members[0]));
                if let Err(error) = case.problem(target.dtype(), &target.head_dims()) {
                    panic!("{name}: {case:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn the_library_refuses_none_of_the_combinations() {
        assert_none_refused(&targets::targets(BackendKind::Sim, None));
        assert_none_refused(&backward::targets(BackendKind::Sim));
    }

    #[test]
    fn the_simulators_fused_kernels_meet_every_value() {
        let targets = targets::targets(BackendKind::Sim, Some(Kernel::ForwardSimt));
        let of_f32: Vec<_> = targets.iter().filter(|target| target.family() == targets[0].family()).collect();
        let family = Family::new(&of_f32);
        let chosen = family.choose();
        // Without dropout, whose entries are others: every other dimension whole.
        for (at, extent) in EXTENTS.into_iter().enumerate().take(EXTENTS.len() - 1) {
            for value in 0..extent {
                let meets = |index: &usize| family.candidates[*index].values[at] == value;
                assert!(chosen.iter().flatten().any(meets), "dimension {at}, value {value}");
            }
        }
    }

    #[test]
    fn every_case_leads_the_planner_to_its_entries() {
        let backend = Backend::simulator(0);
        let targets = targets::targets(BackendKind::Sim, None);
        for (target, cases) in targets.iter().zip(cases(&targets)) {
            for case in cases {
                let problem = case.problem(target.dtype, &target.head_dims).unwrap();
                let plan = target.plan(&problem, &backend).unwrap();
                assert_eq!(target.missing_from(&plan), None, "{case:?}");
            }
        }
    }
}
