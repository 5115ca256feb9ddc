//! Which way to store dS is estimated to be the fastest, of those that fit a workspace.

use fa_kernels::attention::stored_ds::PIECE;

use super::division::{self, Division};
use super::estimate::Estimate;
use super::{Storage, Stored, Tiles, kv_heads};
use crate::backward::BackwardProblem;
use crate::{Device, Problem};

/// Bytes of the least that can be stored at a time.
pub(in crate::backward) fn least_bytes(forward: &Problem, tiles: &Tiles) -> u64 {
    let division = Division::LEAST;
    let whole = Division::whole(forward).unit_bytes(forward, tiles);
    division.unit_bytes(forward, tiles).saturating_add(division.carried_bytes(forward, tiles)).min(whole)
}

/// The way to store dS that is estimated to be the fastest of those that are allowed, or of those that fit
/// where no units of so few queries do; `None` where there is none, or scores may be computed `twice` and
/// that is faster.
pub(in crate::backward) fn fastest(
    problem: &BackwardProblem,
    device: &Device,
    tiles: Tiles,
    (Storage { limit, unit_rows }, twice): (Storage, bool),
) -> Option<Stored> {
    let forward = problem.forward();
    let estimate = Estimate::new(forward, device);
    let of_units = |unit_rows: Option<usize>| {
        let ways = division::all(forward, unit_rows).into_iter().flat_map(|division| {
            let rounds = rounds(forward, device, (division, tiles));
            rounds
                .into_iter()
                .filter_map(move |heads| Stored::within(forward, (division, tiles), heads, limit))
        });
        let timed = ways.map(|stored| (estimate.stored(&stored), stored));
        timed.min_by(|(a, _), (b, _)| a.total_cmp(b))
    };
    // Units carry dK and dV: a whole head may fit where its parts do not.
    let (cycles, stored) = of_units(unit_rows).or_else(|| of_units(None))?;
    (!twice || cycles < estimate.recomputed()).then_some(stored)
}

/// How many key/value heads might take turns: all where each is one unit. Else so many that their tiles of
/// keys are twice as many as blocks, which seldom wait for one another then, or a half, a quarter, and so on.
fn rounds(forward: &Problem, device: &Device, (division, tiles): (Division, Tiles)) -> Vec<usize> {
    let heads = kv_heads(forward);
    if division.units(forward) == 1 {
        return vec![heads];
    }
    let enough = (2 * device.multiprocessors as usize).div_ceil(tiles.of_keys(forward).max(1));
    let most = heads.min(enough.max(1));
    std::iter::successors(Some(most), |&heads| (heads > 1).then_some(heads.div_ceil(2))).collect()
}

impl Stored {
    /// Units of a division, with so many key/value heads in a round, and as many of them at a time as there
    /// is room for; `None` where there is no room for one.
    fn within(
        forward: &Problem,
        (division, tiles): (Division, Tiles),
        heads_of_round: usize,
        limit: u64,
    ) -> Option<Self> {
        let limit = limit.min(u64::from(PIECE) * u64::from(u32::MAX));
        let stored = Self { ring: 0, division, tiles, heads_of_round };
        let left = limit.checked_sub(stored.carried_bytes(forward))?;
        let most = stored.units(forward);
        let ring =
            usize::try_from(left / division.unit_bytes(forward, &tiles)).map_or(most, |ring| ring.min(most));
        (ring > 0).then_some(Self { ring, ..stored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward::DEFAULT_WORKSPACE_LIMIT;
    use crate::sim::Sim;
    use crate::{DType, Options, TensorLayout, Tensors};
    use fa_kernels::entries::Algorithm;

    fn problem(
        (batch, seqlen, heads, kv_heads): (usize, usize, usize, usize),
        causal: bool,
    ) -> BackwardProblem {
        let [q, kv] = [heads, kv_heads].map(|heads| TensorLayout::bshd(batch, seqlen, heads, 128));
        let options = Options { causal, ..Options::default() };
        BackwardProblem::like(Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F16, options).unwrap())
            .unwrap()
    }

    /// Query heads and queries of a unit, units at a time, and key/value heads of a round.
    fn chosen(
        shape: (usize, usize, usize, usize),
        causal: bool,
        limit: u64,
    ) -> Option<(usize, usize, usize, usize)> {
        let problem = problem(shape, causal);
        let tiles = Tiles::of_problem(problem.forward(), Algorithm::BackwardKeysDsSm90).unwrap();
        let stored =
            fastest(&problem, Sim::new(0).device(), tiles, (Storage { limit, unit_rows: None }, true))?;
        assert!(stored.limited_bytes(problem.forward()) <= limit);
        Some((stored.division.heads, stored.division.rows, stored.ring, stored.heads_of_round))
    }

    #[test]
    fn as_much_of_a_head_as_leaves_room_for_others_behind_it() {
        let (limit, full, causal) = (DEFAULT_WORKSPACE_LIMIT, false, true);
        // All heads, where they fit, or as many as fill the device and more.
        assert_eq!(chosen((16, 1024, 16, 16), full, limit), Some((1, 1024, 256, 256)));
        assert_eq!(chosen((4, 4096, 16, 16), full, limit), Some((1, 4096, 16, 64)));
        // Else runs of queries, or query heads that share keys one by one.
        assert_eq!(chosen((2, 8192, 16, 16), full, limit), Some((1, 4096, 7, 5)));
        assert_eq!(chosen((1, 16_384, 16, 16), full, limit), Some((1, 2048, 7, 3)));
        assert_eq!(chosen((1, 16_384, 16, 16), causal, limit), None);
        assert_eq!(chosen((4, 4096, 32, 8), causal, limit), Some((1, 4096, 14, 9)));
        assert_eq!(chosen((1, 4096, 8, 1), causal, limit), Some((1, 4096, 8, 1)));
        // Units of so few queries as fit beside so many keys cost more than scores that are computed twice.
        assert_eq!(chosen((1, 131_072, 16, 16), full, limit), None);
        // Units that would fit are too short.
        assert_eq!(chosen((4, 4096, 16, 16), full, 33 << 20), None);
    }

    #[test]
    fn where_memory_is_slow_scores_are_computed_twice() {
        let layout = TensorLayout::bshd(4, 4096, 32, 64);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
        let problem = BackwardProblem::like(problem).unwrap();
        let tiles = Tiles::of_problem(problem.forward(), Algorithm::BackwardKeysDsSm90).unwrap();
        let is_stored = |memory_bandwidth| {
            let device = Device { memory_bandwidth, ..Sim::new(0).device().clone() };
            let storage = Storage { limit: DEFAULT_WORKSPACE_LIMIT, unit_rows: None };
            fastest(&problem, &device, tiles, (storage, true)).is_some()
        };
        // An H200's, and an H100's; 0 is not known.
        assert_eq!([4_800, 3_350, 0].map(|gb| is_stored(gb * 1_000_000_000)), [true, false, true]);
    }

    #[test]
    fn a_workspace_is_never_larger_than_its_limit() {
        for (shape, limit) in [((3, 100, 6, 2), 1 << 20), ((1, 4096, 4, 4), 100 << 20), ((1, 1, 1, 1), 0)] {
            let problem = problem(shape, false);
            let forward = problem.forward();
            let tiles = Tiles::of_problem(forward, Algorithm::BackwardKeysDsSm90).unwrap();
            let stored =
                fastest(&problem, Sim::new(0).device(), tiles, (Storage { limit, unit_rows: None }, false));
            assert_eq!(stored.is_some(), least_bytes(forward, &tiles) <= limit);
            let Some(stored) = stored else { continue };
            let bytes = |ring| Stored { ring, ..stored }.limited_bytes(forward);
            let all = stored.units(forward);
            assert!(bytes(stored.ring) <= limit, "{shape:?} {stored:?}");
            assert!(stored.ring == all || bytes(stored.ring + 1) > limit, "{shape:?} {stored:?}");
        }
    }

    #[test]
    fn what_fits_in_any_units_is_stored_however_few_queries_are_asked_for() {
        for (shape, causal) in [((1, 376, 1, 1), false), ((2, 376, 8, 2), true), ((1, 1000, 4, 4), false)] {
            let problem = problem(shape, causal);
            let forward = problem.forward();
            let tiles = Tiles::of_problem(forward, Algorithm::BackwardKeysDsSm90).unwrap();
            let least = least_bytes(forward, &tiles);
            for (limit, rows) in [(least, 1), (least, 232), (least + 1000, 256), (2 * least, 500)] {
                let storage = Storage { limit, unit_rows: Some(rows) };
                let stored = fastest(&problem, Sim::new(0).device(), tiles, (storage, false));
                let stored = stored.unwrap_or_else(|| panic!("{shape:?}, {limit} bytes, {rows} queries"));
                assert!(stored.limited_bytes(forward) <= limit, "{shape:?} {stored:?}");
            }
        }
    }
}
