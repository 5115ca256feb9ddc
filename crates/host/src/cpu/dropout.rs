//! Dropout on a panel of weights.

use fa_kernels::params::Dropout;

/// Multiplies `values` [rows, width] by what dropout multiplies the weights by whose head (of all sequences),
/// query and key `at` gives for a row and a lane.
pub(super) fn apply(
    dropout: &Dropout,
    values: &mut [f32],
    width: usize,
    at: impl Fn(usize, usize) -> (usize, usize, usize),
) {
    for (row, values) in values.chunks_exact_mut(width).enumerate() {
        for (lane, value) in values.iter_mut().enumerate() {
            let (head, query, key) = at(row, lane);
            let keeps = dropout.keeps(head as u32, query as u32, key as u32);
            *value *= if keeps { dropout.scale } else { 0.0 };
        }
    }
}
