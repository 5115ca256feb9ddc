//! What `forward_sm90` takes.

mod shares;
#[cfg(test)]
mod tests;
mod varlen;

use fa_kernels::attention::alignment::head_start::HeadStart;
use fa_kernels::config::Sm90Config;
use fa_kernels::entries::Tile;
use shares::{Shares, longest_share};

use crate::{Problem, TensorLayout};

/// Elements of 16 bytes, which tensor maps count strides in.
pub(super) const CHUNK: usize = 8;

/// Elements of 32 bytes, a sector, which L2 moves whole.
pub(super) const SECTOR: usize = 16;

/// Whether heads start at other places than multiples of 16 bytes.
pub(crate) const fn is_shifted(layout: &TensorLayout) -> bool {
    layout.heads > 1 && !layout.stride_head.is_multiple_of(CHUNK)
}

/// How many elements behind a multiple of 16 bytes a head's rows start.
fn shift(layout: &TensorLayout, head: usize) -> usize {
    HeadStart::of(layout.stride_head as u64, head as u32, 0).shift as usize
}

/// The most columns that boxes of a tensor at `address` may start before their head, of `columns` in a tile:
/// to begin with sectors of 32 bytes where that would make a difference, and the same one in all rows.
pub(crate) fn margin(address: u64, layout: &TensorLayout, columns: u32) -> u32 {
    let in_sectors = |length: usize, stride: usize| length == 1 || stride.is_multiple_of(SECTOR);
    let alike = address.is_multiple_of(2 * SECTOR as u64)
        && in_sectors(layout.batch, layout.stride_batch)
        && in_sectors(layout.seqlen, layout.stride_seq);
    if alike && !in_sectors(layout.heads, layout.stride_head) { columns - layout.head_dim as u32 } else { 0 }
}

/// Columns of a tile that the heads of a tensor reach to, each from the last multiple of 16 bytes on.
pub(super) fn columns(layout: &TensorLayout) -> usize {
    // Eight heads show all there is.
    (0..layout.heads.min(CHUNK)).map(|head| shift(layout, head) + layout.head_dim).max().unwrap_or(0)
}

/// A head of Q that starts otherwise than its head of K, if there is one: their columns do not meet.
pub(super) fn apart(q: &TensorLayout, k: &TensorLayout) -> Option<String> {
    let group = q.heads / k.heads;
    // Starts repeat after eight heads, so eight groups, and eight heads of each, show all there is.
    let mut pairs = (0..k.heads.min(CHUNK))
        .flat_map(|kv_head| (0..group.min(CHUNK)).map(move |of_group| (kv_head * group + of_group, kv_head)));
    pairs.find_map(|(head, kv_head)| {
        let (of_q, of_k) = (shift(q, head), shift(k, kv_head));
        (of_q != of_k).then(|| {
            format!("q's head {head} starts {of_q} elements behind a multiple of {CHUNK}, its head {kv_head} of k {of_k}")
        })
    })
}

/// Why a tensor's rows cannot be read where they are, wherever its heads start.
pub(super) fn unreadable(name: &str, layout: &TensorLayout) -> Option<String> {
    let classes = HeadStart::classes(layout.stride_head as u64);
    let heads_of_class =
        ("heads", layout.heads.div_ceil(classes), classes.saturating_mul(layout.stride_head));
    unmapped_axes(name, layout).or_else(|| unmapped_axis(name, heads_of_class)).or_else(|| {
        let needed = columns(layout);
        (needed > crate::MAX_HEAD_DIM).then(|| {
            format!(
                "{name}'s heads start up to {} elements behind a multiple of {CHUNK}, and reach to column {needed} of \
                 tiles of {}",
                needed - layout.head_dim,
                crate::MAX_HEAD_DIM
            )
        })
    })
}

/// The stride of a tensor that one tensor map of all its heads cannot have, if there is one.
pub(crate) fn unmapped(name: &str, layout: &TensorLayout) -> Option<String> {
    unmapped_axes(name, layout).or_else(|| unmapped_axis(name, ("heads", layout.heads, layout.stride_head)))
}

/// As [`unmapped`], of the axes of sequences and rows.
fn unmapped_axes(name: &str, layout: &TensorLayout) -> Option<String> {
    let axes = [("batch", layout.batch, layout.stride_batch), ("seqlen", layout.seqlen, layout.stride_seq)];
    axes.into_iter().find_map(|axis| unmapped_axis(name, axis))
}

fn unmapped_axis(name: &str, (axis, length, stride): (&str, usize, usize)) -> Option<String> {
    (!is_mappable((length, stride), 2)).then(|| {
        format!(
            "{name}'s {axis} stride is {stride} elements, and tensor maps take positive multiples of {CHUNK} below 2^39"
        )
    })
}

/// Whether a tensor map of elements of so many bytes can have an axis of this length and stride.
pub(super) fn is_mappable((length, stride): (usize, usize), element_bytes: usize) -> bool {
    let chunk = 16 / element_bytes;
    // The axis of a single index takes no steps.
    length <= 1 || (stride > 0 && stride.is_multiple_of(chunk) && stride < (1 << 40) / element_bytes)
}

/// In which order a persistent grid goes through the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileOrder {
    /// Heads whose tiles are computed at about the same time.
    pub(crate) section: u32,
    /// Whether the blocks take tiles back and forth.
    pub(crate) back_and_forth: bool,
    /// Tiles of each head, its first ones, that lack the last warpgroup's rows; they go last.
    pub(crate) short_tiles: u32,
    /// Tiles, the last ones, that are a block each, behind those that take the others in turn.
    pub(crate) single_tiles: u32,
    /// From one sequence of a packed batch to that whose tiles come next, modulo their number.
    pub(crate) sequence_step: u32,
}

impl Default for TileOrder {
    /// One head's tiles after the other's.
    fn default() -> Self {
        Self { section: 1, back_and_forth: false, short_tiles: 0, single_tiles: 0, sequence_step: 1 }
    }
}

/// Tiles of a head that have all rows of `tile`, behind so many short ones; the last may reach beyond the
/// head.
pub(crate) fn whole_tiles(problem: &Problem, tile: &Tile, short_tiles: u32) -> u32 {
    let short_rows = short_tiles * short_block_m(tile);
    (problem.seqlen_q() as u32).saturating_sub(short_rows).div_ceil(tile.block_m)
}

/// Tiles of all heads.
pub(crate) fn tiles(problem: &Problem, tile: &Tile, short_tiles: u32) -> usize {
    let rows = |batch| problem.query_rows(batch).len();
    let of_a_head: usize = if problem.cu_seqlens().is_some() {
        (0..problem.batch()).map(|batch| rows(batch).div_ceil(tile.block_m as usize)).sum()
    } else {
        problem.batch() * (whole_tiles(problem, tile, short_tiles) + short_tiles) as usize
    };
    problem.heads() * of_a_head
}

/// Bytes of K and V that stay in L2, of which Hopper has 50 MiB.
const L2_BYTES: usize = 32 << 20;

/// What is left of a block's speed where K and V come from device memory, as a reciprocal.
const UNCACHED: f64 = 1.05;

/// Beyond so many tiles a block, the one that ends last hardly matters.
const MANY_TILES: usize = 64;

/// The most rounds of tiles that are a block each.
const MAX_SINGLE_ROUNDS: u32 = 4;

/// What tiles that are a block each must save, as a share; where less was estimated, an H200 showed no gain.
const WORTH_SINGLE_TILES: f64 = 0.01;

/// The most short tiles of a head: three times two are as many rows as twice three.
const MAX_SHORT_TILES: u32 = 8;

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
    /// How its tiles are taken.
    pub(super) fn reason(&self) -> String {
        let Self { tiles, blocks, order: TileOrder { section, single_tiles, .. }, .. } = self;
        let single = match single_tiles {
            0 => String::new(),
            _ => format!(
                "; the last {single_tiles} tiles are a block each, for whichever multiprocessor is done first"
            ),
        };
        format!(
            "{blocks} blocks, which stay on their multiprocessors, for {tiles} tiles, those of {section} heads \
             together{single}"
        )
    }
}

/// The schedule of `tile` on so many multiprocessors that is done first.
///
/// Where all tiles see about the same number of keys, their order does not matter, and one head's follow one
/// another; but their number rarely goes into the grid, and short ones at the end fill the last round. Under
/// a causal mask the longest go first. How even the shares are then depends on how the number of heads in a
/// section goes into the grid, so all are tried; and where that leaves them uneven, the last rounds' tiles
/// are a block each.
pub(super) fn schedule(problem: &Problem, tile: &Tile, multiprocessors: u32) -> Schedule {
    if problem.cu_seqlens().is_some() {
        return varlen::schedule(problem, tile, multiprocessors);
    }
    let heads = problem.heads() * problem.batch();
    let masks_right_alone = masks_right_alone(problem);
    let cached = cached_heads(problem);
    let all_tiles = |short_tiles| tiles(problem, tile, short_tiles);
    let blocks = all_tiles(0).min(multiprocessors.max(1) as usize);
    let rate = |order: TileOrder| {
        let longest = longest_share(&Costs::of_head(problem, tile, order.short_tiles), heads, order, blocks);
        let slower = if order.section as usize > cached { UNCACHED } else { 1.0 };
        (longest as f64 * slower, order)
    };
    let plain = TileOrder::default();
    let (cycles, order) = if all_tiles(0) > MANY_TILES * blocks {
        let section = if masks_right_alone { cached.min(heads) as u32 } else { 1 };
        let whole: u64 = Costs::of_head(problem, tile, 0).whole.iter().sum();
        let order = TileOrder { section, back_and_forth: masks_right_alone, ..plain };
        ((heads as u64 * whole) as f64 / blocks as f64, order)
    } else if all_tiles(0) <= blocks {
        rate(plain)
    } else {
        let orders = orders(problem, tile, blocks);
        let in_turn = orders.iter().flat_map(|&order| back_and_forth(order, masks_right_alone));
        let single = orders.iter().filter(|order| order.section as usize <= cached);
        let single =
            single.flat_map(|&order| with_single_tiles(order, tile, all_tiles(order.short_tiles), blocks));
        quicker(quickest(in_turn.map(rate)), quickest(single.map(rate)))
    };
    Schedule { blocks: blocks as u32, tiles: all_tiles(order.short_tiles) as u32, order, cycles }
}

/// Orders that are worth a try: sections of heads under a causal mask, and short tiles.
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
    let sections = (1..=heads.min(blocks) as u32).filter(|section| *section <= 16 || section % 8 == 0);
    let order = |section, short_tiles| TileOrder { section, short_tiles, ..plain };
    sections.flat_map(|section| short.iter().map(move |&short_tiles| order(section, short_tiles))).collect()
}

/// Whether the mask hides keys on the right alone.
fn masks_right_alone(problem: &Problem) -> bool {
    problem.causal() && problem.window().0.is_none()
}

/// The order, with tiles taken by turns from the first block on, and where that may differ back and forth
/// too.
fn back_and_forth(order: TileOrder, may_differ: bool) -> impl Iterator<Item = TileOrder> + Clone {
    let both = [false, true].into_iter().take(if may_differ { 2 } else { 1 });
    both.map(move |back_and_forth| TileOrder { back_and_forth, ..order })
}

/// The order with the tiles of some last rounds as a block each, of so many tiles and blocks that take the
/// others in turn. Not where a block has two warpgroups: with HEAD_DIM 256 an H200 took longer then.
fn with_single_tiles(
    order: TileOrder,
    tile: &Tile,
    tiles: usize,
    blocks: usize,
) -> impl Iterator<Item = TileOrder> + use<> {
    let (rounds, rest) = ((tiles / blocks) as u32, (tiles % blocks) as u32);
    let most = if has_short_tiles(tile) { MAX_SINGLE_ROUNDS.min(rounds.saturating_sub(1)) } else { 0 };
    (1..=most).map(move |rounds| TileOrder { single_tiles: rest + rounds * blocks as u32, ..order })
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

/// Rows of a short tile.
fn short_block_m(tile: &Tile) -> u32 {
    Sm90Config::short_block_m(tile.block_m)
}

/// Whether there are short tiles.
fn has_short_tiles(tile: &Tile) -> bool {
    short_block_m(tile) < tile.block_m
}

/// Heads whose K and V stay in L2.
fn cached_heads(problem: &Problem) -> usize {
    let head_bytes =
        problem.seqlen_k() * (problem.head_dim() + problem.head_dim_v()) * problem.dtype().bytes();
    (L2_BYTES / head_bytes).max(1) * problem.group()
}

/// What a head's tiles cost, the whole ones and the short ones, each in the order that they go in.
struct Costs {
    whole: Vec<u64>,
    short: Vec<u64>,
}

impl Costs {
    fn of_head(problem: &Problem, tile: &Tile, short_tiles: u32) -> Self {
        let lengths = (problem.seqlen_q(), problem.seqlen_k());
        let short_rows = short_block_m(tile);
        let whole = (short_tiles * short_rows, tile.block_m, whole_tiles(problem, tile, short_tiles));
        let short = (0, short_rows, short_tiles);
        Self { whole: costs(problem, tile, lengths, whole), short: costs(problem, tile, lengths, short) }
    }
}

/// The costs of so many tiles of so many rows from the first one on, in the order that they are taken in, in
/// a sequence of so many queries and keys.
fn costs(
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
/// Fitted to an H200: a step costs 240 cycles, and each of its scores two multiply-adds for each column at
/// some 1,024 a cycle, or, where columns are few, its exponential and what goes with it; half as much again
/// where it is masked, as one block of keys at each end is.
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
    let (overhead, rows, slower) = match (has_short_tiles(tile), existing) {
        (true, 1) => (4_200, 64, 1.7),
        (true, 2) => (4_200, 128, 1.12),
        (true, _) => (4_200, tile.block_m, 1.0),
        (false, _) => (3_300, tile.block_m, 1.06),
    };
    let element_bytes = problem.dtype().bytes() as u32;
    let step = scores_cycles(tile, rows, element_bytes) * slower;
    let masked = 0.5 * f64::from(u8::from(left.is_some()) + u8::from(right.is_some()));
    overhead + (blocks as f64 * (step + STEP_CYCLES) + masked * step) as u64
}

/// Cycles of a step beside its scores.
const STEP_CYCLES: f64 = 240.0;

/// Cycles that the scores of so many rows and a block of keys take. 8-bit columns take half as long.
fn scores_cycles(tile: &Tile, rows: u32, element_bytes: u32) -> f64 {
    let score = (f64::from(tile.head_dim * element_bytes) / 2_048.0 * 0.94).max(0.088);
    f64::from(rows * tile.block_n) * score
}

/// Cycles of a step of a whole tile of 16-bit columns.
pub(super) fn step_cycles(tile: &Tile) -> f64 {
    scores_cycles(tile, tile.block_m, 2) + STEP_CYCLES
}
