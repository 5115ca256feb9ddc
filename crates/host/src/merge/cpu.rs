//! A merge on the CPU, row by row.

use super::{MAX_PARTS, MergePart, MergeProblem};
use crate::Element;
use crate::forward::Outputs;

/// Merges parts whose buffers were checked.
pub(super) fn run<T: Element>(
    problem: &MergeProblem,
    parts: &[MergePart<'_, T>],
    outputs: &mut Outputs<'_, T>,
) {
    let o = problem.o();
    for row in 0..problem.lse_len() {
        let (batch, head, position) = (row / o.seqlen / o.heads, row / o.seqlen % o.heads, row % o.seqlen);
        let lse_of = |index: usize| {
            let layout = &problem.parts()[index].lse;
            parts[index].lse[layout.row(batch, position, head)]
        };
        let (factors, lse) = weigh(parts.len(), lse_of);
        if let Some(lses) = &mut outputs.lse {
            lses[row] = lse;
        }
        let first = o.row(batch, position, head);
        for column in 0..o.head_dim {
            let value_of = |(index, part): (usize, &MergePart<'_, T>)| {
                let first = problem.parts()[index].o.row(batch, position, head);
                match factors[index] {
                    // O of a part without keys is not read.
                    0.0 => 0.0,
                    factor => factor * part.o[first + column].to_f32(),
                }
            };
            let sum = parts.iter().enumerate().map(value_of).sum();
            outputs.o[first + column] = T::Output::from_f32(sum);
        }
    }
}

/// The factor of each part's O, and the log-sum-exp of the whole: 0 and −∞ where no part has a key.
fn weigh(count: usize, lse_of: impl Fn(usize) -> f32) -> ([f32; MAX_PARTS], f32) {
    let mut factors = [0.0; MAX_PARTS];
    let max = (0..count).map(&lse_of).fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return (factors, max);
    }
    let weights = &mut factors[..count];
    weights.iter_mut().enumerate().for_each(|(index, weight)| *weight = (lse_of(index) - max).exp());
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    (factors, max + sum.ln())
}
