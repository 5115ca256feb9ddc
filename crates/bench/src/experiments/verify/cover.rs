//! Which combinations to run, so that all pairs of their values are there: a greedy covering array.
//!
//! Most defects need one value or two together (Kuhn, Wallace and Gallo, IEEE TSE 30(6), 2004). All pairs are
//! a small part of all products.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// A combination: one value of each dimension.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// The number of its value in each dimension.
    pub(super) values: Vec<usize>,
    /// What a run costs, in any unit: of two that cover as much, the cheaper one is taken.
    pub(super) cost: usize,
}

/// What candidates are run on; its traits pair with their values.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// The number of its value in each dimension of the subjects.
    pub(super) traits: Vec<usize>,
    /// Whether it takes each candidate.
    pub(super) takes: Vec<bool>,
}

/// For each subject the candidates to run on it, as indices: every pair of values or traits that some subject
/// can meet is met by one of them. The subjects take turns, so that each has about as many as the others.
pub(super) fn choose(subjects: &[Subject], candidates: &[Candidate]) -> Vec<Vec<usize>> {
    let numbers = Numbers::new(subjects, candidates);
    let of_candidates: Vec<Vec<usize>> =
        candidates.iter().map(|candidate| numbers.of(numbers.traits, &candidate.values)).collect();
    let of_subjects: Vec<Vec<usize>> =
        subjects.iter().map(|subject| numbers.of(0, &subject.traits)).collect();
    let mut missing = vec![false; numbers.count * numbers.count];
    for (subject, traits) in subjects.iter().zip(&of_subjects) {
        for (values, _) in of_candidates.iter().zip(&subject.takes).filter(|(_, takes)| **takes) {
            pairs(traits, values).for_each(|(a, b)| missing[a * numbers.count + b] = true);
        }
    }
    // What a candidate would add only falls as others are taken: a heap by what it once was needs few of them
    // counted again (Minoux 1978, accelerated greedy).
    let gain = |traits: &[usize], index: usize, missing: &[bool]| {
        pairs(traits, &of_candidates[index]).filter(|(a, b)| missing[a * numbers.count + b]).count()
    };
    let of_subject = |(subject, traits): (&Subject, &Vec<usize>)| -> BinaryHeap<_> {
        let taken = (0..candidates.len()).filter(|&index| subject.takes[index]);
        taken
            .map(|index| (gain(traits, index, &missing), Reverse(candidates[index].cost), Reverse(index)))
            .collect()
    };
    let mut heaps: Vec<_> = subjects.iter().zip(&of_subjects).map(of_subject).collect();
    let mut chosen = vec![Vec::new(); subjects.len()];
    loop {
        let mut found = false;
        for ((heap, traits), chosen) in heaps.iter_mut().zip(&of_subjects).zip(&mut chosen) {
            while let Some(mut best) = heap.peek_mut() {
                let (once, _, Reverse(index)) = *best;
                let now = gain(traits, index, &missing);
                if now == 0 {
                    PeekMut::pop(best);
                } else if now < once {
                    best.0 = now;
                } else {
                    pairs(traits, &of_candidates[index])
                        .for_each(|(a, b)| missing[a * numbers.count + b] = false);
                    chosen.push(index);
                    found = true;
                    break;
                }
            }
        }
        if !found {
            return chosen;
        }
    }
}

/// All pairs of what a subject and a candidate have together.
fn pairs<'a>(traits: &'a [usize], values: &'a [usize]) -> impl Iterator<Item = (usize, usize)> {
    let behind = |all: &'a [usize], at: usize| all[at + 1..].iter().copied();
    let of_trait = move |(at, a): (usize, &usize)| {
        let a = *a;
        behind(traits, at).chain(values.iter().copied()).map(move |b| (a, b))
    };
    let of_value = move |(at, a): (usize, &usize)| {
        let a = *a;
        behind(values, at).map(move |b| (a, b))
    };
    traits.iter().enumerate().flat_map(of_trait).chain(values.iter().enumerate().flat_map(of_value))
}

/// A number for each value of each dimension, those of the subjects first.
struct Numbers {
    /// The first number of each dimension.
    first: Vec<usize>,
    /// Dimensions of the subjects.
    traits: usize,
    count: usize,
}

impl Numbers {
    fn new(subjects: &[Subject], candidates: &[Candidate]) -> Self {
        let traits = subjects.first().map_or(0, |subject| subject.traits.len());
        let values = candidates.first().map_or(0, |candidate| candidate.values.len());
        let of_subjects = |at: usize| subjects.iter().map(|subject| subject.traits[at]).max();
        let of_candidates = |at: usize| candidates.iter().map(|candidate| candidate.values[at]).max();
        let largest = (0..traits).map(of_subjects).chain((0..values).map(of_candidates));
        let mut count = 0;
        let first = largest.map(|largest| {
            let first = count;
            count += largest.map_or(0, |largest| largest + 1);
            first
        });
        let first = first.collect();
        Self { first, traits, count }
    }

    /// The numbers of values that begin at dimension `at`.
    fn of(&self, at: usize, values: &[usize]) -> Vec<usize> {
        self.first[at..].iter().zip(values).map(|(first, value)| first + value).collect()
    }
}

/// The pairs that subjects could meet and do not, by dimension and value; for tests of what was chosen.
#[cfg(test)]
pub(super) fn uncovered(
    subjects: &[Subject],
    candidates: &[Candidate],
    chosen: &[Vec<usize>],
) -> Vec<[(usize, usize); 2]> {
    use std::collections::HashSet;

    // Written without `Numbers` and `pairs`, which it judges.
    let pairs = |all: &[(usize, usize)], met: &mut HashSet<[(usize, usize); 2]>| {
        for (at, a) in all.iter().enumerate() {
            met.extend(all[at + 1..].iter().map(|b| [*a, *b]));
        }
    };
    let (mut possible, mut there) = (HashSet::new(), HashSet::new());
    let mut taken_by_any = vec![false; candidates.len()];
    for (subject, chosen) in subjects.iter().zip(chosen) {
        let traits: Vec<_> = subject.traits.iter().copied().enumerate().collect();
        let values = |candidate: &Candidate| -> Vec<(usize, usize)> {
            candidate.values.iter().enumerate().map(|(at, value)| (traits.len() + at, *value)).collect()
        };
        for &index in chosen {
            pairs(&[traits.clone(), values(&candidates[index])].concat(), &mut there);
        }
        let taken = || candidates.iter().zip(&subject.takes).filter(|(_, takes)| **takes);
        let seen: HashSet<_> = taken().flat_map(|(candidate, _)| values(candidate)).collect();
        possible.extend(traits.iter().flat_map(|a| seen.iter().map(|b| [*a, *b])));
        if !seen.is_empty() {
            pairs(&traits, &mut possible);
        }
        for ((candidate, takes), any) in candidates.iter().zip(&subject.takes).zip(&mut taken_by_any) {
            if *takes && !*any {
                pairs(&values(candidate), &mut possible);
                *any = true;
            }
        }
    }
    possible.difference(&there).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(extents: &[usize]) -> Vec<Candidate> {
        let count: usize = extents.iter().product();
        let values = |mut index: usize| {
            extents.iter().map(|extent| (index % extent, index /= extent).0).collect::<Vec<_>>()
        };
        (0..count).map(|index| Candidate { values: values(index), cost: index % 5 }).collect()
    }

    #[test]
    fn all_pairs_are_there_in_a_small_part_of_all_products() {
        let candidates = candidates(&[5, 4, 3, 3, 2]);
        let subject = |index: usize| Subject {
            traits: vec![index / 2, index % 2],
            takes: candidates.iter().map(|candidate| index != 3 || candidate.values[0] == 2).collect(),
        };
        let subjects: Vec<_> = (0..6).map(subject).collect();
        let chosen = choose(&subjects, &candidates);
        assert!(uncovered(&subjects, &candidates, &chosen).is_empty());
        let count: usize = chosen.iter().map(Vec::len).sum();
        // 20 pairs of the largest two dimensions are the least.
        assert!((20..=30).contains(&count), "{count} of {}", 6 * candidates.len());
        assert!(chosen.iter().all(|chosen| chosen.len() >= 2), "{chosen:?}");
        assert!(chosen[3].iter().all(|&index| candidates[index].values[0] == 2), "what it does not take");
        assert_eq!(choose(&subjects, &candidates), chosen, "the same each time");
    }

    #[test]
    fn what_is_left_out_is_missed() {
        let candidates = candidates(&[2, 2]);
        let subjects = [Subject { traits: vec![0], takes: vec![true; 4] }];
        let mut chosen = choose(&subjects, &candidates);
        assert_eq!((chosen[0].len(), uncovered(&subjects, &candidates, &chosen)), (4, vec![]));
        let last = chosen[0].pop().unwrap();
        let [a, b] = [0, 1].map(|at| (at + 1, candidates[last].values[at]));
        assert_eq!(uncovered(&subjects, &candidates, &chosen), [[a, b]]);
    }

    #[test]
    fn nothing_to_choose_from_is_nothing_chosen() {
        assert!(choose(&[], &candidates(&[2, 2])).is_empty());
        let refuses = Subject { traits: vec![0], takes: vec![false; 4] };
        assert_eq!(choose(&[refuses], &candidates(&[2, 2])), [Vec::<usize>::new()]);
    }
}
