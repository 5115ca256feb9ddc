//! How the queries of a key/value head are divided into units, of which dS is stored at a time.

use fa_kernels::attention::stored_ds::{GRANULE, PANEL};

use super::{Tiles, panel_bytes};
use crate::Problem;

/// Queries of a unit are multiples of these: whole tiles of queries of each kernel.
const LEAST_ROWS: usize = 2 * GRANULE as usize;

/// A unit: query heads of a key/value head, and queries of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::backward) struct Division {
    pub(super) heads: usize,
    /// In whole tiles of queries.
    pub(super) rows: usize,
}

/// All divisions; those alone into units of at most so many queries, rounded up to whole tiles, where that is
/// given.
pub(super) fn all(forward: &Problem, most: Option<usize>) -> Vec<Division> {
    let whole = Division::whole(forward);
    let most = most.map_or(whole.rows, |most| most.clamp(1, whole.rows).next_multiple_of(LEAST_ROWS));
    let halves = std::iter::successors(Some(Division { heads: 1, rows: most }), |division| {
        let rows = (division.rows / 2).next_multiple_of(LEAST_ROWS);
        (rows < division.rows).then_some(Division { rows, ..*division })
    });
    let is_whole = most == whole.rows && whole.heads > 1;
    is_whole.then_some(whole).into_iter().chain(halves).collect()
}

impl Division {
    /// A key/value head is one unit.
    pub(super) fn whole(forward: &Problem) -> Self {
        Self { heads: forward.group(), rows: forward.seqlen_q().next_multiple_of(LEAST_ROWS) }
    }

    /// As many units as can be.
    pub(super) const LEAST: Self = Self { heads: 1, rows: LEAST_ROWS };

    /// Units of a key/value head.
    pub(super) fn units(&self, forward: &Problem) -> usize {
        forward.group() / self.heads * forward.seqlen_q().div_ceil(self.rows)
    }

    /// Panels of a head of a unit: of whole steps.
    pub(super) fn panels(&self, forward: &Problem, tiles: &Tiles) -> usize {
        forward.seqlen_q().min(self.rows).next_multiple_of(tiles.step).div_ceil(PANEL as usize)
    }

    /// Bytes of dS of a unit.
    pub(super) fn unit_bytes(&self, forward: &Problem, tiles: &Tiles) -> u64 {
        panel_bytes(forward).saturating_mul((self.panels(forward, tiles) * self.heads) as u64)
    }

    /// Bytes of dK and dV of a key/value head between its units.
    pub(super) fn carried_bytes(&self, forward: &Problem, tiles: &Tiles) -> u64 {
        if self.units(forward) == 1 {
            return 0;
        }
        tiles.carried_bytes.saturating_mul(tiles.of_keys(forward) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options, TensorLayout, Tensors};
    use fa_kernels::entries::Algorithm;

    fn problem(seqlen: usize, heads: usize) -> Problem {
        let [q, kv] = [heads, 2].map(|heads| TensorLayout::bshd(1, seqlen, heads, 64));
        Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F16, Options::default()).unwrap()
    }

    #[test]
    fn heads_are_divided_first_and_then_their_queries() {
        let of = |seqlen, heads, rows| {
            all(&problem(seqlen, heads), rows).into_iter().map(|it| (it.heads, it.rows)).collect::<Vec<_>>()
        };
        assert_eq!(of(1000, 8, None), [(4, 1024), (1, 1024), (1, 512), (1, 256)]);
        assert_eq!(of(1500, 2, None), [(1, 1536), (1, 768), (1, 512), (1, 256)]);
        assert_eq!(of(100, 2, None), [(1, 256)]);
        assert_eq!(of(1000, 8, Some(300)), [(1, 512), (1, 256)]);
        assert_eq!(of(1000, 8, Some(usize::MAX)), of(1000, 8, None));
    }

    #[test]
    fn units_have_panels_for_all_their_queries() {
        for head_dim in [64, 96, 128, 129, 145, 192, 256] {
            for seqlen in [1, 31, 33, 64, 65, 97, 129, 250] {
                let layout = TensorLayout::bshd(1, seqlen, 2, head_dim);
                let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
                let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
                let tiles = Tiles::of_problem(&problem, Algorithm::BackwardKeysDsSm90).unwrap();
                let panels = Division::whole(&problem).panels(&problem, &tiles);
                let [steps, rows] = [tiles.step, PANEL as usize].map(|of| seqlen.next_multiple_of(of));
                assert_eq!(panels * PANEL as usize, steps.max(rows), "{head_dim} {seqlen}");
            }
        }
    }

    #[test]
    fn units_have_all_queries_once() {
        for (seqlen, heads) in [(1000, 8), (1500, 2), (64, 4), (257, 2)] {
            let problem = problem(seqlen, heads);
            for division in all(&problem, None) {
                let rows = division.rows * division.heads * division.units(&problem);
                let of_head = seqlen.next_multiple_of(division.rows) * problem.group();
                assert_eq!(rows, of_head, "{division:?}");
                let carries = division
                    .carried_bytes(&problem, &Tiles { step: 64, keys: 128, queries: 256, carried_bytes: 1 });
                assert_eq!(carries > 0, division.units(&problem) > 1, "{division:?}");
            }
        }
    }
}
