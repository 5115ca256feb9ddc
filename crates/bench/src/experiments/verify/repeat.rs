//! The same run again: one that is right gives the same bits each time, and from a CUDA graph too.

use flash_attention::append::{AppendProblem, AppendResults};
use flash_attention::backward::{BackwardProblem, BackwardResults};
use flash_attention::decode::DecodeProblem;
use flash_attention::forward::Results;
use flash_attention::gemm::GemmProblem;
use flash_attention::merge::MergeProblem;
use flash_attention::{Element, Prepared, Problem, Result};
use rayon::prelude::*;

use crate::check::Verdict;

/// What can be run again.
pub(in crate::experiments) trait Repeatable {
    /// Of the outputs' elements.
    type Element: Element;

    /// The output.
    const OUTPUT: &'static str;

    /// What may be beside it, in fp32.
    const BESIDE: &'static str;

    /// Runs once over poisoned outputs.
    fn run_poisoned(&mut self) -> Result<()>;

    /// Runs in a replayed CUDA graph over poisoned outputs; false where there are no graphs.
    fn replay_poisoned(&mut self) -> Result<bool>;

    /// A copy of the output, and of what is beside it, of the last run.
    fn copied(&mut self) -> Result<(Vec<Self::Element>, Vec<f32>)>;
}

/// What the library prepares has the same methods, whatever it computes, but results of different types.
macro_rules! repeatable {
    ($problem:ty, $element:ty, [$output:literal, $beside:literal], $copied:expr) => {
        impl<T: Element> Repeatable for Prepared<'_, T, $problem> {
            type Element = $element;

            const OUTPUT: &'static str = $output;
            const BESIDE: &'static str = $beside;

            fn run_poisoned(&mut self) -> Result<()> {
                self.poison()?;
                self.run()
            }

            fn replay_poisoned(&mut self) -> Result<bool> {
                self.poison()?;
                Ok(self.time_replayed(1)?.is_some())
            }

            fn copied(&mut self) -> Result<(Vec<$element>, Vec<f32>)> {
                Ok($copied(self.outputs()?))
            }
        }
    };
}

repeatable!(Problem, T::Output, ["O", "lse"], |results: &Results<T>| (
    results.o.clone(),
    results.lse.clone()
));
repeatable!(DecodeProblem, T::Output, ["O", "lse"], |results: &Results<T>| (
    results.o.clone(),
    results.lse.clone()
));
repeatable!(AppendProblem, T, ["K, V and Q", ""], |results: &AppendResults<T>| {
    let AppendResults { k_cache, v_cache, q } = results;
    ([&k_cache[..], v_cache, q].concat(), Vec::new())
});
repeatable!(MergeProblem, T::Output, ["O", "lse"], |results: &Results<T>| (
    results.o.clone(),
    results.lse.clone()
));
repeatable!(GemmProblem, T, ["C", ""], |c: &Vec<T>| (c.clone(), Vec::new()));
repeatable!(BackwardProblem, T, ["dQ, dK and dV", "dsinks"], |gradients: &BackwardResults<T>| {
    let BackwardResults { dq, dk, dv, dsinks } = gradients;
    ([&dq[..], dk, dv].concat(), dsinks.clone().unwrap_or_default())
});

/// Runs what was judged until there are `repeats` runs, and in a graph: the verdict, or which run differs.
pub(super) fn repeated<R: Repeatable>(
    (mut repeatable, verdict): (R, Verdict),
    repeats: usize,
) -> Result<std::result::Result<Verdict, String>> {
    if !verdict.passed() || repeats == 1 {
        return Ok(Ok(verdict));
    }
    let first = repeatable.copied()?;
    let differs =
        |repeatable: &mut R| -> Result<Option<String>> { Ok(difference::<R>(&first, &repeatable.copied()?)) };
    for run in 2..=repeats {
        repeatable.run_poisoned()?;
        if let Some(what) = differs(&mut repeatable)? {
            return Ok(Err(format!("run {run} of {repeats} differs from the first in {what}")));
        }
    }
    if repeatable.replay_poisoned()?
        && let Some(what) = differs(&mut repeatable)?
    {
        return Ok(Err(format!("the replay of a CUDA graph differs from a launch in {what}")));
    }
    Ok(Ok(verdict))
}

pub(in crate::experiments) type Outputs<'a, T> = &'a (Vec<T>, Vec<f32>);

/// In what two runs' outputs differ.
pub(in crate::experiments) fn difference<R: Repeatable>(
    first: Outputs<'_, R::Element>,
    again: Outputs<'_, R::Element>,
) -> Option<String> {
    let of_output = unequal(&first.0, &again.0).map(|text| format!("{text} of {}", R::OUTPUT));
    of_output.or_else(|| unequal(&first.1, &again.1).map(|text| format!("{text} of {}", R::BESIDE)))
}

/// How many elements have other bits, and which is the first.
fn unequal<T: Element>(first: &[T], again: &[T]) -> Option<String> {
    // fp32 holds each value of the smaller types in bits of its own.
    let bits = |value: &T| value.to_f32().to_bits();
    let differs = |(a, b): (&T, &T)| bits(a) != bits(b);
    let count = first.par_iter().zip(again).filter(|&(a, b)| differs((a, b))).count();
    if count == 0 {
        return None;
    }
    let at = first.iter().zip(again).position(differs)?;
    Some(format!("{count} of {} elements (the first is number {at})", first.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash_attention::accuracy::Accuracy;
    use half::f16;

    /// Gives other outputs from a certain run on.
    struct Drifting {
        run: usize,
        changes_at: usize,
        graph: bool,
    }

    impl Repeatable for Drifting {
        type Element = f16;

        const OUTPUT: &'static str = "O";
        const BESIDE: &'static str = "lse";

        fn run_poisoned(&mut self) -> Result<()> {
            self.run += 1;
            Ok(())
        }

        fn replay_poisoned(&mut self) -> Result<bool> {
            self.run += 1;
            Ok(self.graph)
        }

        fn copied(&mut self) -> Result<(Vec<f16>, Vec<f32>)> {
            let zero = if self.run >= self.changes_at { f16::NEG_ZERO } else { f16::ZERO };
            Ok((vec![f16::NAN, zero, f16::ONE], vec![f32::NEG_INFINITY]))
        }
    }

    fn verdict(output: f64) -> Verdict {
        let accuracy =
            |max_error| Accuracy { max_error, standard_error: None, bound: 1.0, mismatches: 0, elements: 1 };
        Verdict { output: accuracy(output), lse: accuracy(0.0), unwritten: 0, rows: 1 }
    }

    fn result(changes_at: usize, graph: bool) -> std::result::Result<Verdict, String> {
        repeated((Drifting { run: 1, changes_at, graph }, verdict(0.0)), 4).unwrap()
    }

    #[test]
    fn one_other_bit_is_found_with_its_run() {
        let place = "1 of 3 elements (the first is number 1) of O";
        let message = |changes_at| result(changes_at, true).unwrap_err();
        assert_eq!(message(3), format!("run 3 of 4 differs from the first in {place}"));
        assert_eq!(message(5), format!("the replay of a CUDA graph differs from a launch in {place}"));
        assert!(result(5, false).is_ok(), "there was no replay");
        assert!(result(6, true).is_ok(), "NaN that is there each time is the same bits");
    }

    #[test]
    fn what_is_wrong_is_not_run_again() {
        let wrong = repeated((Drifting { run: 1, changes_at: 2, graph: false }, verdict(2.0)), 4).unwrap();
        assert!(!wrong.unwrap().passed());
    }
}
