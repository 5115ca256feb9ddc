//! What `forward_sm90` takes.

mod packed;

use fa_kernels::entries::Tile;

use crate::{Problem, TensorLayout, Tensors};

/// Elements of 16 bytes, which tensor maps count strides in.
const CHUNK: usize = 8;

/// Why `forward_sm90` cannot run a problem, if it cannot.
pub(super) fn refusal(problem: &Problem) -> Option<String> {
    let Tensors { q, k, v, .. } = problem.tensors();
    let unmapped = [("q", q), ("k", k), ("v", v)].into_iter().find_map(|(name, layout)| {
        unmapped_axes(name, layout).or_else(|| {
            let heads_along_columns = is_shifted(layout);
            if heads_along_columns { too_wide(name, layout) } else { unmapped(name, layout) }
        })
    });
    unmapped.or_else(|| apart(problem)).or_else(|| {
        let (needed, held) = (columns(problem), crate::MAX_HEAD_DIM);
        (needed > held).then(|| {
            format!("its heads start up to 7 elements behind a multiple of {CHUNK}, and reach to column {needed} of tiles of {held}")
        })
    })
}

/// Whether heads start at other places than multiples of 16 bytes. They then lie along the columns of their tensor map.
pub(crate) const fn is_shifted(layout: &TensorLayout) -> bool {
    layout.heads > 1 && !layout.stride_head.is_multiple_of(CHUNK)
}

/// How many elements behind a multiple of 16 bytes a head's rows start.
const fn shift(layout: &TensorLayout, head: usize) -> usize {
    if is_shifted(layout) { head * layout.stride_head % CHUNK } else { 0 }
}

/// Columns of a tile that the heads of Q, K and V reach to, each from the last multiple of 16 bytes on.
pub(super) fn columns(problem: &Problem) -> usize {
    let Tensors { q, v, .. } = problem.tensors();
    // Eight heads show all there is.
    let widest = |layout: &TensorLayout| {
        (0..layout.heads.min(CHUNK)).map(|head| shift(layout, head) + layout.head_dim).max().unwrap_or(0)
    };
    widest(q).max(widest(v))
}

/// A head of Q that starts otherwise than its head of K, if there is one: their columns do not meet.
fn apart(problem: &Problem) -> Option<String> {
    let Tensors { q, k, .. } = problem.tensors();
    (0..problem.heads()).find_map(|head| {
        let kv_head = head / problem.group();
        let (of_q, of_k) = (shift(q, head), shift(k, kv_head));
        (of_q != of_k).then(|| {
            format!("q's head {head} starts {of_q} elements behind a multiple of {CHUNK}, its head {kv_head} of k {of_k}")
        })
    })
}

/// A row of all heads that is too long for a tensor map.
fn too_wide(name: &str, layout: &TensorLayout) -> Option<String> {
    let columns = (layout.heads - 1) * layout.stride_head + layout.head_dim;
    (columns > i32::MAX as usize).then(|| {
        format!("{name}'s heads reach over {columns} elements, and a box starts at most at {}", i32::MAX)
    })
}

/// The stride of a tensor that a tensor map cannot have, if there is one.
pub(crate) fn unmapped(name: &str, layout: &TensorLayout) -> Option<String> {
    unmapped_axes(name, layout).or_else(|| unmapped_axis(name, ("heads", layout.heads, layout.stride_head)))
}

/// As [`unmapped`], of the axes of sequences and rows.
fn unmapped_axes(name: &str, layout: &TensorLayout) -> Option<String> {
    let axes = [("batch", layout.batch, layout.stride_batch), ("seqlen", layout.seqlen, layout.stride_seq)];
    axes.into_iter().find_map(|axis| unmapped_axis(name, axis))
}

fn unmapped_axis(name: &str, (axis, length, stride): (&str, usize, usize)) -> Option<String> {
    // The axis of a single index takes no steps.
    (length > 1 && (stride == 0 || !stride.is_multiple_of(CHUNK) || stride >= 1 << 39)).then(|| {
        format!(
            "{name}'s {axis} stride is {stride} elements, and tensor maps take positive multiples of {CHUNK} below 2^39"
        )
    })
}

/// In which order a persistent grid goes through the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileOrder {
    /// Heads whose tiles are computed at about the same time.
    pub(crate) section: u32,
    /// Whether the blocks take tiles back and forth.
    pub(crate) back_and_forth: bool,
    /// From one sequence of a packed batch to that whose tiles come next, modulo their number.
    pub(crate) sequence_step: u32,
}

impl Default for TileOrder {
    /// One head's tiles after the other's.
    fn default() -> Self {
        Self { section: 1, back_and_forth: false, sequence_step: 1 }
    }
}

/// Bytes of K and V that stay in L2, of which Hopper has 50 MiB.
const L2_BYTES: usize = 32 << 20;

/// What is left of a block's speed where K and V come from device memory, as a reciprocal.
const UNCACHED: f64 = 1.05;

/// Beyond so many tiles a block, the one that ends last hardly matters.
const MANY_TILES: usize = 64;

/// How a tile would run: the grid, its order, and about how many cycles until the last block ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    pub(super) tiles: usize,
    pub(super) grid: u32,
    pub(super) order: TileOrder,
    pub(super) cycles: f64,
}

/// The schedule of `tiles` tiles on so many multiprocessors that is done first.
///
/// Where all tiles see about the same number of keys, their order does not matter, and one head's follow one
/// another. Under a causal mask the longest go first. How even the shares are then depends on how the number
/// of heads in a section goes into the grid, so all are tried.
pub(super) fn schedule(problem: &Problem, tile: &Tile, multiprocessors: u32) -> Schedule {
    if problem.cu_seqlens().is_some() {
        return packed::schedule(problem, tile, multiprocessors);
    }
    let (heads, block_m) = (problem.heads() * problem.batch(), tile.block_m as usize);
    let head_tiles = problem.seqlen_q().div_ceil(block_m);
    let tiles = heads * head_tiles;
    let blocks = tiles.min(multiprocessors.max(1) as usize);
    let costs = costs(problem, tile, (problem.seqlen_q(), problem.seqlen_k()));
    let masks_right_alone = problem.causal() && problem.window().0.is_none();
    let cached = cached_heads(problem);
    let rate = |order: TileOrder| {
        let longest = longest_share(&costs, heads, order, blocks) as f64;
        (if order.section as usize > cached { longest * UNCACHED } else { longest }, order)
    };
    let (cycles, order) = if tiles > MANY_TILES * blocks {
        let section = if masks_right_alone { cached.min(heads) } else { 1 };
        let order =
            TileOrder { section: section as u32, back_and_forth: masks_right_alone, ..TileOrder::default() };
        ((heads as u64 * costs.iter().sum::<u64>()) as f64 / blocks as f64, order)
    } else if masks_right_alone && tiles > blocks {
        let orders = (1..=heads.min(blocks) as u32).flat_map(|section| {
            [false, true].map(|back_and_forth| TileOrder { section, back_and_forth, ..TileOrder::default() })
        });
        let best = orders.map(rate).min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.unwrap_or_else(|| rate(TileOrder::default()))
    } else {
        rate(TileOrder::default())
    };
    Schedule { tiles, grid: blocks as u32, order, cycles }
}

/// The costs of a head's tiles in a sequence of so many queries and keys, in the order that they are taken in.
fn costs(problem: &Problem, tile: &Tile, (seqlen_q, seqlen_k): (usize, usize)) -> Vec<u64> {
    let tiles = 0..seqlen_q.div_ceil(tile.block_m as usize);
    let mut costs: Vec<_> = tiles.map(|index| cost(problem, tile, (seqlen_q, seqlen_k), index)).collect();
    if problem.window().1.is_some() {
        costs.reverse();
    }
    costs
}

/// Heads whose K and V stay in L2.
fn cached_heads(problem: &Problem) -> usize {
    let head_bytes =
        problem.seqlen_k() * (problem.head_dim() + problem.head_dim_v()) * problem.dtype().bytes();
    (L2_BYTES / head_bytes).max(1) * problem.group()
}

/// About how many cycles a tile takes: its blocks of keys, and its first scores, last product and way out.
///
/// Fitted to an H200: each score costs two multiply-adds for each column at 94 % of the tensor cores' 1,024 a
/// cycle, or, where columns are few, its exponential and what goes with it.
fn cost(problem: &Problem, tile: &Tile, (seqlen_q, seqlen_k): (usize, usize), index: usize) -> u64 {
    let first_row = index * tile.block_m as usize;
    let last_row = (first_row + tile.block_m as usize).min(seqlen_q) - 1;
    let (left, right) = problem.window();
    let end = right.map_or(seqlen_k, |right| {
        (last_row + 1 + seqlen_k).saturating_add(right).saturating_sub(seqlen_q).min(seqlen_k)
    });
    let first = left.map_or(0, |left| (first_row + seqlen_k).saturating_sub(seqlen_q.saturating_add(left)));
    let blocks = end.saturating_sub(first).div_ceil(tile.block_n as usize);
    let (overhead, slower) = if tile.block_m == 192 { (4_200, 1.0) } else { (3_300, 1.06) };
    let score = (f64::from(tile.head_dim) / 1_024.0 / 0.94).max(0.0977);
    let block = f64::from(tile.block_m * tile.block_n) * score * slower;
    overhead + (blocks as f64 * block) as u64
}

/// The cost of the block with the largest share; `costs` are those of a head's tiles in their order.
fn longest_share(costs: &[u64], heads: usize, order: TileOrder, blocks: usize) -> u64 {
    let mut shares = Shares::new(blocks, order.back_and_forth);
    shares.take(costs, heads, order.section as usize);
    shares.longest()
}

/// What the blocks of a grid have taken so far.
struct Shares {
    costs: Vec<u64>,
    back_and_forth: bool,
    taken: usize,
}

impl Shares {
    fn new(blocks: usize, back_and_forth: bool) -> Self {
        Self { costs: vec![0; blocks], back_and_forth, taken: 0 }
    }

    /// Deals out the tiles of so many heads, section by section.
    fn take(&mut self, costs: &[u64], heads: usize, section: usize) {
        let sections = (0..heads).step_by(section).map(|first| section.min(heads - first));
        let ordered =
            sections.flat_map(|heads| costs.iter().flat_map(move |&cost| std::iter::repeat_n(cost, heads)));
        let blocks = self.costs.len();
        for cost in ordered {
            let (round, place) = (self.taken / blocks, self.taken % blocks);
            let back = self.back_and_forth && round % 2 == 1;
            self.costs[if back { blocks - 1 - place } else { place }] += cost;
            self.taken += 1;
        }
    }

    fn longest(&self) -> u64 {
        self.costs.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options};

    fn causal(batch: usize, seqlen: usize, heads: usize) -> Problem {
        let layout = TensorLayout::bshd(batch, seqlen, heads, 128);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        Problem::new(tensors, DType::F16, Options { causal: true, ..Options::default() }).unwrap()
    }

    #[test]
    fn shares_of_a_causal_problem_are_nearly_even() {
        let tile = Tile { block_m: 192, block_n: 80, head_dim: 128 };
        for (batch, seqlen) in [(4, 4096), (16, 1024), (2, 8192), (1, 16_384)] {
            let problem = causal(batch, seqlen, 16);
            let (heads, blocks) = (16 * batch, 132);
            let costs = costs(&problem, &tile, (seqlen, seqlen));
            let fair = (heads as u64 * costs.iter().sum::<u64>()) as f64 / f64::from(blocks);
            let share = |order| longest_share(&costs, heads, order, blocks as usize) as f64 / fair;
            let chosen = schedule(&problem, &tile, blocks).order;
            assert!(share(chosen) < 1.05, "{seqlen}: {chosen:?} {}", share(chosen));
            assert!(share(chosen) <= share(TileOrder { section: 16, ..TileOrder::default() }));
        }
    }

    fn reason(layout: TensorLayout, options: Options) -> Option<String> {
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        refusal(&Problem::new(tensors, DType::F16, options).unwrap())
    }

    #[test]
    fn short_sequences_take_the_tile_that_they_fill() {
        let quickest = |seqlen: usize| {
            let layout = TensorLayout::bshd(16_384 / seqlen, seqlen, 16, 128);
            let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
            let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
            let cycles =
                |block_m, block_n| schedule(&problem, &Tile { block_m, block_n, head_dim: 128 }, 132).cycles;
            if cycles(192, 80) < cycles(128, 128) { 192 } else { 128 }
        };
        assert_eq!([512, 16_384].map(quickest), [128, 192]);
    }

    #[test]
    fn each_refusal_names_what_is_in_the_way() {
        let plain = TensorLayout::bshd(2, 30, 3, 40);
        assert_eq!(reason(plain, Options::default()), None);
        let refused = |layout, options| reason(layout, options).unwrap();
        assert_eq!(
            refused(TensorLayout::bshd(2, 30, 3, 41), Options::default()),
            "q's batch stride is 3690 elements, and tensor maps take positive multiples of 8 below 2^39"
        );
        assert_eq!(reason(TensorLayout::bshd(1, 30, 1, 48), Options::default()), None);
        assert_eq!(reason(plain, Options { softcap: 5.0, ..Options::default() }), None);
    }
}
