//! The order in which a persistent grid goes through the sequences of a packed batch.

use std::cmp::Reverse;

use fa_kernels::entries::Tile;
use fa_kernels::params::ScheduleParams;

use super::{Schedule, Shares, TileOrder, quicker, quickest, snake_order, with_single_tiles};
use crate::Problem;
use crate::plan::cost::h200::{BOUNDED_SINGLE_ROUNDS, LAUNCH_CYCLES, MAX_SINGLE_ROUNDS, OTHER_LENGTHS};
use crate::plan::cost::{cached_heads, costs, tiles};

/// Tiles whose shares are computed to find an order, at most: once with all in turn, and once with single
/// tiles.
const TRIED_TILES: usize = 1 << 20;

/// The schedule that is done first, of those that go through the sequences in steps of equal length.
///
/// Each sequence has as many tiles as it needs, and the blocks of the grid take them in turn. A list of the
/// sequences by their length would balance best, but the launch has no memory for one; among the steps one is
/// nearly as good, and what it leaves uneven the last rounds' tiles level, each a block of its own. Where the
/// device alone has the lengths, no step can be chosen, and a launch before makes such a list.
pub(super) fn schedule(problem: &Problem, tile: &Tile, places: u32) -> Schedule {
    let (heads, batch) = (problem.heads(), problem.batch());
    let sequences: Vec<_> = (0..batch)
        .map(|batch| {
            let lengths = (problem.query_rows(batch).len(), problem.key_rows(batch).len());
            all_costs(problem, tile, lengths)
        })
        .collect();
    let all_tiles = tiles(problem, tile, 0);
    // Without any tile there still is a launch.
    let blocks = all_tiles.min(places as usize).max(1);
    let swizzle = heads.min(cached_heads(problem));
    let tried = TRIED_TILES / all_tiles.max(1) / 2;
    if tried == 0 {
        // So many tiles a block even each other out in any order.
        let total = heads as f64 * sequences.iter().flatten().map(|&cost| cost as f64).sum::<f64>();
        let order = TileOrder { heads_per_swizzle: swizzle as u32, ..TileOrder::default() };
        let cycles = total / blocks as f64;
        return Schedule { tiles: all_tiles as u32, blocks: blocks as u32, order, cycles };
    }
    if problem.has_bounds_alone() {
        let in_turn = of_bounds(problem, tile, &sequences, (blocks, swizzle));
        return quicker_found(problem, &sequences, in_turn);
    }
    let rate = |order: TileOrder| {
        let mut shares = Shares::new(blocks, order, all_tiles);
        let mut index = 0;
        for _ in 0..batch {
            shares.take(&sequences[index], heads, swizzle);
            index = (index + order.sequence_step as usize) % batch;
        }
        (shares.longest() as f64, order)
    };
    // What comes after so many steps is a product of 32 bits.
    let most_steps = if batch > usize::from(u16::MAX) { 2 } else { batch.max(2) };
    let steps = (1..most_steps).filter(|&step| gcd(step, batch) == 1);
    let order = |step| TileOrder {
        heads_per_swizzle: swizzle as u32,
        sequence_step: step as u32,
        ..TileOrder::default()
    };
    let in_turn: Vec<_> = steps.take(tried).flat_map(|step| snake_order(order(step), true)).collect();
    let single = in_turn.iter().take(2 * tried / MAX_SINGLE_ROUNDS as usize);
    let single = single.flat_map(|&order| with_single_tiles(order, all_tiles, blocks));
    let (cycles, order) = quicker(quickest(in_turn.iter().copied().map(rate)), quickest(single.map(rate)));
    Schedule { tiles: all_tiles as u32, blocks: blocks as u32, order, cycles }
}

/// The schedule of sequences of any lengths within bounds, about as long as those of these costs.
///
/// Whichever blocks are behind when tiles were taken in turn, the last rounds' single tiles level it. Beyond
/// what these sequences have, tiles that the bounds allow are counted on not to be there.
fn of_bounds(
    problem: &Problem,
    tile: &Tile,
    sequences: &[Vec<u64>],
    (blocks, swizzle): (usize, usize),
) -> Schedule {
    let heads = problem.heads();
    let most = tiles(problem, tile, 0);
    let assumed = heads * sequences.iter().map(Vec::len).sum::<usize>();
    let counted_on = assumed.min(most);
    let absent = most - counted_on;
    let rounds = (counted_on / blocks).saturating_sub(1).min(BOUNDED_SINGLE_ROUNDS);
    let tail = if rounds == 0 { 0 } else { absent + counted_on % blocks + rounds * blocks };
    let order = |tail| TileOrder {
        heads_per_swizzle: swizzle as u32,
        tail_tiles: tail as u32,
        ..TileOrder::default()
    };
    let mut shares = Shares::new(blocks, order(tail - absent.min(tail)), assumed);
    sequences.iter().for_each(|costs| shares.take(costs, heads, swizzle));
    let cycles = shares.longest() as f64;
    Schedule { tiles: most as u32, blocks: blocks as u32, order: order(tail), cycles }
}

/// `in_turn`, or where that may be done later, the schedule of the same tiles from an order that a launch
/// before finds, with the longest first.
fn quicker_found(problem: &Problem, sequences: &[Vec<u64>], in_turn: Schedule) -> Schedule {
    let are_many = sequences.len() > ScheduleParams::MAX_SEQUENCES as usize;
    if are_many || in_turn.tiles <= in_turn.blocks {
        return in_turn;
    }
    let order = TileOrder { tail_tiles: 0, is_found_before: true, ..in_turn.order };
    let mut longest_first: Vec<_> = sequences.iter().collect();
    longest_first.sort_by_key(|costs| Reverse(costs.iter().max()));
    let (heads, swizzle) = (problem.heads(), order.heads_per_swizzle as usize);
    let mut shares = Shares::new(in_turn.blocks as usize, order, in_turn.tiles as usize);
    longest_first.iter().for_each(|costs| shares.take(costs, heads, swizzle));
    let cycles = LAUNCH_CYCLES + shares.longest() as f64;
    if cycles < OTHER_LENGTHS * in_turn.cycles { Schedule { order, cycles, ..in_turn } } else { in_turn }
}

/// The costs of the tiles of a head in a sequence of so many queries and keys.
fn all_costs(problem: &Problem, tile: &Tile, lengths: (usize, usize)) -> Vec<u64> {
    costs(problem, tile, lengths, (0, tile.block_m, (lengths.0 as u32).div_ceil(tile.block_m)))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options, TensorLayout, Tensors};

    fn packed(lengths: &[u32], heads: usize, causal: bool) -> Problem {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        let offsets: Vec<u32> = std::iter::once(0).chain(ends).collect();
        let total = offsets[lengths.len()].max(1) as usize;
        let layout = TensorLayout::bshd(1, total, heads, 128);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let options = Options { causal, ..Options::default() };
        Problem::varlen(tensors, DType::F16, options, &offsets, &offsets).unwrap()
    }

    #[test]
    fn shares_of_sequences_of_many_lengths_are_nearly_even() {
        let tile = Tile { block_m: 192, block_n: 80, head_dim: 128, head_dim_v: 128 };
        for (seed, causal) in [(1, false), (2, false), (3, true), (4, true)] {
            // 200 to 4,000 rows.
            let lengths: Vec<u32> = (0..64).map(|i| 200 + (i * 2_654_435 + seed * 97_531) % 3_801).collect();
            let problem = packed(&lengths, 16, causal);
            let chosen = schedule(&problem, &tile, 132);
            let all: u64 = (0..64)
                .flat_map(|batch| {
                    all_costs(&problem, &tile, (lengths[batch] as usize, lengths[batch] as usize))
                })
                .sum();
            let fair = (16 * all) as f64 / 132.0;
            assert!(chosen.cycles < 1.02 * fair, "{seed}: {:?} {}", chosen.order, chosen.cycles / fair);
            let tiles: u32 = lengths.iter().map(|length| length.div_ceil(192)).sum();
            assert_eq!(chosen.tiles, 16 * tiles);
        }
    }

    #[test]
    fn an_order_for_any_lengths_ends_soon_after_the_best_for_these() {
        let tile = Tile { block_m: 192, block_n: 80, head_dim: 128, head_dim_v: 128 };
        for (longest, bound, causal) in [(3_801, 1.03, false), (3_801, 1.03, true), (281, 1.1, false)] {
            let mut lengths: Vec<u32> = (0..64).map(|i| 20 + (i * 2_654_435) % longest).collect();
            let problem = packed(&lengths, 16, causal);
            let known = schedule(&problem, &tile, 132);
            let bounds = (problem.seqlen_q(), problem.seqlen_k());
            let chosen = schedule(&problem.on_device(bounds).unwrap(), &tile, 132);
            assert!(chosen.tiles >= known.tiles, "{chosen:?}");
            let mut order = chosen.order;
            if order.is_found_before {
                lengths.sort_by_key(|&rows| Reverse(rows));
            } else {
                let in_turn = chosen.tiles - order.tail_tiles;
                assert!(in_turn < known.tiles, "{chosen:?}");
                order.tail_tiles = known.tiles - in_turn;
            }
            let mut shares = Shares::new(chosen.blocks as usize, order, known.tiles as usize);
            for &rows in &lengths {
                let costs = all_costs(&problem, &tile, (rows as usize, rows as usize));
                shares.take(&costs, 16, order.heads_per_swizzle as usize);
            }
            let ratio = shares.longest() as f64 / known.cycles;
            assert!(ratio < bound, "{longest} {causal}: {ratio}");
        }
    }

    #[test]
    fn a_batch_without_rows_still_is_one_block() {
        let tile = Tile { block_m: 192, block_n: 80, head_dim: 128, head_dim_v: 128 };
        assert_eq!(schedule(&packed(&[0, 0, 0], 2, false), &tile, 132).blocks, 1);
    }
}
