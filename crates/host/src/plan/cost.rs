//! How many tiles a problem has for `forward_sm90`, and about how many cycles each takes.

pub(crate) mod h200;

use fa_kernels::config::Sm90Config;
use fa_kernels::entries::Tile;

use self::h200::{
    COLUMNS_PER_CYCLE, FEW_WARPGROUPS, L2_BYTES, LEAST_SCORE_CYCLES, MASKED, STEP_CYCLES, TILE_CYCLES,
    TOGETHER, TWO_WARPGROUPS,
};
use crate::Problem;

/// Tiles of a head that have all rows of `tile`, behind so many short ones; the last may reach beyond the
/// head.
pub(crate) fn whole_tiles(problem: &Problem, tile: &Tile, short_tiles: u32) -> u32 {
    let short_rows = short_tiles * short_block_m(tile);
    (problem.seqlen_q() as u32).saturating_sub(short_rows).div_ceil(tile.block_m)
}

/// Tiles of all heads, or their most where the device alone has the sequences' offsets.
pub(crate) fn tiles(problem: &Problem, tile: &Tile, short_tiles: u32) -> usize {
    let rows = |batch| problem.query_rows(batch).len();
    let of_a_head: usize = if problem.has_bounds_alone() {
        let (batch, rows) = (problem.batch(), tile.block_m as usize);
        let of_longest = batch * problem.seqlen_q().div_ceil(rows);
        of_longest.min(problem.tensors().q.seqlen / rows + batch)
    } else if problem.is_packed() {
        (0..problem.batch()).map(|batch| rows(batch).div_ceil(tile.block_m as usize)).sum()
    } else {
        problem.batch() * (whole_tiles(problem, tile, short_tiles) + short_tiles) as usize
    };
    problem.heads() * of_a_head
}

/// Rows of a short tile.
pub(super) fn short_block_m(tile: &Tile) -> u32 {
    Sm90Config::short_block_m(tile.block_m)
}

/// Whether there are short tiles.
pub(super) fn has_short_tiles(tile: &Tile) -> bool {
    short_block_m(tile) < tile.block_m
}

/// Heads whose K and V stay in L2.
pub(crate) fn cached_heads(problem: &Problem) -> usize {
    (L2_BYTES / (problem.seqlen_k() * row_bytes(problem))).max(1) * problem.group()
}

/// Key/value heads whose query heads' Q and dO stay in L2.
pub(crate) fn cached_kv_heads(problem: &Problem) -> usize {
    (L2_BYTES / (problem.seqlen_q() * problem.group() * row_bytes(problem))).max(1)
}

/// Bytes of a row of K and V, or of Q and dO.
fn row_bytes(problem: &Problem) -> usize {
    (problem.head_dim() + problem.head_dim_v()) * problem.dtype().bytes()
}

/// What a head's tiles cost, the whole ones and the short ones, each in the order that they go in.
pub(super) struct Costs {
    pub(super) whole: Vec<u64>,
    pub(super) short: Vec<u64>,
}

impl Costs {
    pub(super) fn of_head(problem: &Problem, tile: &Tile, short_tiles: u32) -> Self {
        let lengths = (problem.seqlen_q(), problem.seqlen_k());
        let short_rows = short_block_m(tile);
        let whole = (short_tiles * short_rows, tile.block_m, whole_tiles(problem, tile, short_tiles));
        let short = (0, short_rows, short_tiles);
        Self { whole: costs(problem, tile, lengths, whole), short: costs(problem, tile, lengths, short) }
    }
}

/// The costs of so many tiles of so many rows from the first one on, in the order that they are taken in, in
/// a sequence of so many queries and keys.
pub(super) fn costs(
    problem: &Problem,
    tile: &Tile,
    lengths: (usize, usize),
    (first_row, rows, count): (u32, u32, u32),
) -> Vec<u64> {
    let tiles = (0..count).map(|index| (first_row + index * rows, rows));
    let mut costs: Vec<_> = tiles.map(|rows| cost(problem, tile, lengths, rows)).collect();
    if problem.window().1.is_some() {
        // The longest go first.
        costs.reverse();
    }
    costs
}

/// About how many cycles `rows` rows of queries take: their blocks of keys, and their first scores, last
/// product and way out.
///
/// A step costs the same whatever its rows, and each of its scores a multiply-add for each column of K and of
/// V, or, where columns are few, its exponential; a block of keys at each end that a mask cuts costs more.
fn cost(
    problem: &Problem,
    tile: &Tile,
    (seqlen_q, seqlen_k): (usize, usize),
    (first_row, rows): (u32, u32),
) -> u64 {
    let first_row = first_row as usize;
    if first_row >= seqlen_q {
        return 0;
    }
    let last_row = (first_row + rows as usize).min(seqlen_q) - 1;
    let (left, right) = problem.window();
    let end = right.map_or(seqlen_k, |right| {
        (last_row + 1 + seqlen_k).saturating_add(right).saturating_sub(seqlen_q).min(seqlen_k)
    });
    let first = left.map_or(0, |left| (first_row + seqlen_k).saturating_sub(seqlen_q.saturating_add(left)));
    let blocks = end.saturating_sub(first).div_ceil(tile.block_n as usize);
    let existing = (last_row + 1 - first_row).div_ceil(Sm90Config::WARPGROUP_ROWS as usize);
    let together = blocks_together(tile);
    let (overhead, rows, slower) = match (has_short_tiles(tile), existing) {
        _ if together > 1 => (TOGETHER.0, together * tile.block_m, TOGETHER.1),
        (true, 1) => (TILE_CYCLES.0, 64, FEW_WARPGROUPS.0),
        (true, 2) => (TILE_CYCLES.0, 128, FEW_WARPGROUPS.1),
        (true, _) => (TILE_CYCLES.0, tile.block_m, 1.0),
        (false, _) => (TILE_CYCLES.1, tile.block_m, TWO_WARPGROUPS),
    };
    let element_bytes = problem.dtype().bytes() as u32;
    let step = scores_cycles(tile, rows, element_bytes) * slower;
    let share = if together > 1 { TOGETHER.2 } else { MASKED };
    let masked = share * f64::from(u8::from(left.is_some()) + u8::from(right.is_some()));
    overhead + (blocks as f64 * (step + STEP_CYCLES) + masked * step) as u64
}

/// Blocks that share a multiprocessor.
fn blocks_together(tile: &Tile) -> u32 {
    let &Tile { block_m, block_n, head_dim, head_dim_v, .. } = tile;
    Sm90Config { block_m, block_n, head_dim, head_dim_v, element_bytes: 2 }.blocks()
}

/// Cycles that the scores of so many rows and a block of keys take. 8-bit columns take half as long.
fn scores_cycles(tile: &Tile, rows: u32, element_bytes: u32) -> f64 {
    let (columns, share) = COLUMNS_PER_CYCLE;
    let products = f64::from((tile.head_dim + tile.head_dim_v) * element_bytes) / 2.0;
    let score = (products / columns * share).max(LEAST_SCORE_CYCLES);
    f64::from(rows * tile.block_n) * score
}

/// Cycles of a step of a whole tile of 16-bit columns.
pub(super) fn step_cycles(tile: &Tile) -> f64 {
    scores_cycles(tile, tile.block_m, 2) + STEP_CYCLES
}
