//! One thread's scratch memory.

use super::super::isa::Panel;
use super::STEP;
use crate::Problem;

/// Offsets into one thread's scratch memory, in fp32 elements.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    /// The owned rows across the lanes, [panels][head_dim, width] and [panels][head_dim_v, width].
    pub(super) first: usize,
    pub(super) second: usize,
    /// dQ or dK, and dV, in the same way.
    pub(super) of_first: usize,
    pub(super) of_second: usize,
    /// P, dS and, with a softcap, its slopes, of one panel: [STEP, width].
    pub(super) p: usize,
    pub(super) ds: usize,
    pub(super) slopes: usize,
    /// Rows of the others in fp32, [STEP, head_dim] and [STEP, head_dim_v], where they cannot be read in
    /// place.
    pub(super) step_first: usize,
    pub(super) step_second: usize,
    /// One row of a panel: 1 everywhere.
    pub(super) ones: usize,
    /// Two rows of a panel: limits of the mask, or slopes and diagonals of ALiBi.
    pub(super) lanes: usize,
    /// Two rows of a panel: shifts and deltas of its queries.
    pub(super) stats: usize,
    /// One row in fp32.
    pub(super) row: usize,
    /// Elements in all.
    pub(super) total: usize,
}

impl Scratch {
    pub(super) fn new(problem: &Problem, owned: usize, panel: Panel) -> Self {
        let mut total = 0;
        let mut take = |elements: usize| {
            let offset = total;
            // Each part starts on a cache line.
            total += elements.next_multiple_of(16);
            offset
        };
        let (head_dim, head_dim_v, width) = (problem.head_dim(), problem.head_dim_v(), panel.width);
        let [first, of_first] = [take(owned * head_dim), take(owned * head_dim)];
        let [second, of_second] = [take(owned * head_dim_v), take(owned * head_dim_v)];
        let [p, ds, slopes] = [take(STEP * width), take(STEP * width), take(STEP * width)];
        let (step_first, step_second) = (take(STEP * head_dim), take(STEP * head_dim_v));
        let (ones, lanes, stats) = (take(width), take(2 * width), take(2 * width));
        let row = take(problem.widest_head_dim());
        Self {
            first,
            second,
            of_first,
            of_second,
            p,
            ds,
            slopes,
            step_first,
            step_second,
            ones,
            lanes,
            stats,
            row,
            total,
        }
    }
}
