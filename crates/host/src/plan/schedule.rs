//! In which order the blocks of a persistent grid take the tiles, so that the last one ends early.

mod shares;
#[cfg(test)]
mod tests;
mod varlen;

use fa_kernels::config::Sm90Config;
use fa_kernels::entries::Tile;
use shares::{Shares, longest_share};

use super::cost::h200::{
    LONG_TILE, MANY_TILES, MAX_SHORT_TILES, MAX_SINGLE_ROUNDS, UNCACHED, WORTH_SINGLE_TILES,
};
use super::cost::{Costs, cached_heads, has_short_tiles, short_block_m, tiles, whole_tiles};
use crate::Problem;

/// In which order a persistent grid goes through the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileOrder {
    /// Heads whose tiles are computed at about the same time.
    pub(crate) heads_per_swizzle: u32,
    /// Whether the blocks take tiles back and forth.
    pub(crate) snake_order: bool,
    /// Tiles of each head, its first ones, that lack the last warpgroup's rows; they go last.
    pub(crate) short_tiles: u32,
    /// Tiles, the last ones, that are a block each, behind those that take the others in turn.
    pub(crate) tail_tiles: u32,
    /// From one sequence of a packed batch to that whose tiles come next, modulo their number.
    pub(crate) sequence_step: u32,
    /// Whether a launch before puts the tiles into an order, from which each block takes the next one when it
    /// is done.
    pub(crate) is_found_before: bool,
}

impl Default for TileOrder {
    /// One head's tiles after the other's.
    fn default() -> Self {
        Self {
            heads_per_swizzle: 1,
            snake_order: false,
            short_tiles: 0,
            tail_tiles: 0,
            sequence_step: 1,
            is_found_before: false,
        }
    }
}

/// How a tile would run: the blocks that take tiles in turn, the order, and about how many cycles until the
/// last block ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    pub(super) tiles: u32,
    pub(super) blocks: u32,
    pub(super) order: TileOrder,
    pub(super) cycles: f64,
}

impl Schedule {
    /// The schedule, or where it has short tiles one without.
    pub(super) fn of_whole_tiles(self, problem: &Problem, tile: &Tile) -> Self {
        if self.order.short_tiles == 0 {
            return self;
        }
        let tiles = tiles(problem, tile, 0) as u32;
        let order = TileOrder { short_tiles: 0, tail_tiles: 0, ..self.order };
        Self { tiles, blocks: self.blocks.min(tiles), order, ..self }
    }

    /// How its tiles are taken.
    pub(super) fn reason(&self) -> String {
        let Self { tiles, blocks, order, .. } = self;
        let TileOrder { heads_per_swizzle, tail_tiles, is_found_before, .. } = order;
        let single = match tail_tiles {
            0 if *is_found_before => {
                "; a launch before them puts the tiles of sequences with the most keys first, and who is \
                                      done with one takes the next"
                    .to_owned()
            }
            0 => String::new(),
            _ => format!(
                "; the last {tail_tiles} tiles are a block each, for whichever multiprocessor is done first"
            ),
        };
        format!(
            "{blocks} blocks, which stay on their multiprocessors, for {tiles} tiles, those of {heads_per_swizzle} heads \
             together{single}"
        )
    }
}

/// The schedule of `tile` that is done first where so many blocks run at once.
///
/// Where all tiles see about the same number of keys, their order does not matter, and one head's follow one
/// another; but their number rarely goes into the grid, and short ones at the end fill the last round. Under
/// a causal mask the longest go first. How even the shares are then depends on how the number of heads in a
/// swizzle goes into the grid, so all are tried; and where that leaves them uneven, the last rounds' tiles
/// are a block each. Long ones all are, since multiprocessors drift apart however evenly they are dealt out.
pub(super) fn schedule(problem: &Problem, tile: &Tile, places: u32) -> Schedule {
    if problem.is_packed() {
        return varlen::schedule(problem, tile, places);
    }
    let heads = problem.heads() * problem.batch();
    let masks_right_alone = masks_right_alone(problem);
    let cached = cached_heads(problem);
    let all_tiles = |short_tiles| tiles(problem, tile, short_tiles);
    let blocks = all_tiles(0).min(places.max(1) as usize);
    let rate = |order: TileOrder| {
        let longest = longest_share(&Costs::of_head(problem, tile, order.short_tiles), heads, order, blocks);
        let slower = if order.heads_per_swizzle as usize > cached { UNCACHED } else { 1.0 };
        (longest as f64 * slower, order)
    };
    let plain = TileOrder::default();
    let (cycles, order) = if all_tiles(0) > MANY_TILES * blocks {
        let heads_per_swizzle = if masks_right_alone { cached.min(heads) as u32 } else { 1 };
        let costs = Costs::of_head(problem, tile, 0).whole;
        let whole: u64 = costs.iter().sum();
        let order = if costs.iter().any(|&cycles| cycles >= LONG_TILE) {
            let tail_tiles = (all_tiles(0) - blocks) as u32;
            TileOrder { heads_per_swizzle, tail_tiles, ..plain }
        } else {
            TileOrder { heads_per_swizzle, snake_order: masks_right_alone, ..plain }
        };
        ((heads as u64 * whole) as f64 / blocks as f64, order)
    } else if all_tiles(0) <= blocks {
        rate(plain)
    } else {
        let orders = orders(problem, tile, blocks);
        let in_turn = orders.iter().flat_map(|&order| snake_order(order, masks_right_alone));
        // Where a block has two warpgroups, an H200 gained nothing by single tiles of equal sequences.
        let is_worth =
            |order: &&TileOrder| has_short_tiles(tile) && order.heads_per_swizzle as usize <= cached;
        let single = orders.iter().filter(is_worth);
        let single = single.flat_map(|&order| with_single_tiles(order, all_tiles(order.short_tiles), blocks));
        quicker(quickest(in_turn.map(rate)), quickest(single.map(rate)))
    };
    Schedule { blocks: blocks as u32, tiles: all_tiles(order.short_tiles) as u32, order, cycles }
}

/// Orders that are worth a try: swizzles of heads under a causal mask, and short tiles.
fn orders(problem: &Problem, tile: &Tile, blocks: usize) -> Vec<TileOrder> {
    let plain = TileOrder::default();
    if !masks_right_alone(problem) {
        let most = if has_short_tiles(tile) { MAX_SHORT_TILES } else { 0 };
        return (0..=most).map(|short_tiles| TileOrder { short_tiles, ..plain }).collect();
    }
    let short = match short_tiles_that_fit(problem, tile) {
        0 => vec![0],
        fit => vec![0, fit],
    };
    let heads = problem.heads() * problem.batch();
    // Many numbers of heads are alike: of the larger ones every eighth does.
    let swizzles = (1..=heads.min(blocks) as u32).filter(|swizzle| *swizzle <= 16 || swizzle % 8 == 0);
    let order = |heads_per_swizzle, short_tiles| TileOrder { heads_per_swizzle, short_tiles, ..plain };
    swizzles.flat_map(|swizzle| short.iter().map(move |&short_tiles| order(swizzle, short_tiles))).collect()
}

/// Whether the mask hides keys on the right alone.
fn masks_right_alone(problem: &Problem) -> bool {
    problem.causal() && problem.window().0.is_none()
}

/// The order, with tiles taken by turns from the first block on, and where that may differ back and forth
/// too.
fn snake_order(order: TileOrder, may_differ: bool) -> impl Iterator<Item = TileOrder> + Clone {
    let both = [false, true].into_iter().take(if may_differ { 2 } else { 1 });
    both.map(move |snake_order| TileOrder { snake_order, ..order })
}

/// The order with the tiles of some last rounds as a block each, of so many tiles and blocks that take the
/// others in turn.
fn with_single_tiles(order: TileOrder, tiles: usize, blocks: usize) -> impl Iterator<Item = TileOrder> {
    let (rounds, rest) = ((tiles / blocks) as u32, (tiles % blocks) as u32);
    (1..=MAX_SINGLE_ROUNDS.min(rounds.saturating_sub(1)))
        .map(move |rounds| TileOrder { tail_tiles: rest + rounds * blocks as u32, ..order })
}

/// The order in turn, or that with single tiles where it is worth them.
fn quicker(in_turn: (f64, TileOrder), single: (f64, TileOrder)) -> (f64, TileOrder) {
    if single.0 < in_turn.0 * (1.0 - WORTH_SINGLE_TILES) { single } else { in_turn }
}

/// The least number of short tiles with which the last tile of a head is full.
fn short_tiles_that_fit(problem: &Problem, tile: &Tile) -> u32 {
    let is_full = |short: &u32| {
        let short_rows = short * short_block_m(tile);
        let rows = short_rows + whole_tiles(problem, tile, *short) * tile.block_m;
        rows < problem.seqlen_q() as u32 + Sm90Config::WARPGROUP_ROWS
    };
    if has_short_tiles(tile) { (0..3).find(is_full).unwrap_or(0) } else { 0 }
}

/// The first of the orders with the fewest cycles; of none, that is the default's.
fn quickest(rated: impl Iterator<Item = (f64, TileOrder)>) -> (f64, TileOrder) {
    rated.min_by(|(a, _), (b, _)| a.total_cmp(b)).unwrap_or((f64::INFINITY, TileOrder::default()))
}
