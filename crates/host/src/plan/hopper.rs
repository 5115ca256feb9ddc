//! What `forward_sm90` takes.

use fa_kernels::entries::Tile;

use crate::{Problem, TensorLayout};

/// Elements of 16 bytes, which tensor maps count strides in.
pub(super) const CHUNK: usize = 8;

/// Why `forward_sm90` cannot run a problem, if it cannot. Its tensors may lie in any way: Q, K and V can be copied.
pub(super) fn refusal(problem: &Problem) -> Option<String> {
    let reason = "a tensor map ends with its tensor, and not with a packed sequence";
    problem.cu_seqlens().is_some().then(|| reason.to_owned())
}

/// The stride of a tensor that a tensor map cannot have, if there is one.
pub(crate) fn unmapped(name: &str, layout: &TensorLayout) -> Option<String> {
    let axes = [
        ("batch", layout.batch, layout.stride_batch),
        ("seqlen", layout.seqlen, layout.stride_seq),
        ("heads", layout.heads, layout.stride_head),
    ];
    // The axis of a single index takes no steps.
    axes.into_iter().filter(|&(_, length, _)| length > 1).find_map(|(axis, _, stride)| {
        (stride == 0 || !stride.is_multiple_of(CHUNK) || stride >= 1 << 39).then(|| {
            format!("{name}'s {axis} stride is {stride} elements, and tensor maps take positive multiples of {CHUNK} below 2^39")
        })
    })
}

/// In which order a persistent grid goes through the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileOrder {
    /// Heads whose tiles are computed at about the same time.
    pub(crate) section: u32,
    /// Whether the blocks take tiles back and forth.
    pub(crate) back_and_forth: bool,
}

impl Default for TileOrder {
    /// One head's tiles after the other's.
    fn default() -> Self {
        Self { section: 1, back_and_forth: false }
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
    let (heads, block_m) = (problem.heads() * problem.batch(), tile.block_m as usize);
    let head_tiles = problem.seqlen_q().div_ceil(block_m);
    let tiles = heads * head_tiles;
    let blocks = tiles.min(multiprocessors.max(1) as usize);
    let costs: Vec<u64> = (0..head_tiles).rev().map(|index| cost(problem, tile, index)).collect();
    let masks_right_alone = problem.causal() && problem.window().0.is_none();
    let cached = cached_heads(problem);
    let rate = |order: TileOrder| {
        let longest = longest_share(&costs, heads, order, blocks) as f64;
        (if order.section as usize > cached { longest * UNCACHED } else { longest }, order)
    };
    let (cycles, order) = if tiles > MANY_TILES * blocks {
        let section = if masks_right_alone { cached.min(heads) } else { 1 };
        let order = TileOrder { section: section as u32, back_and_forth: masks_right_alone };
        ((heads as u64 * costs.iter().sum::<u64>()) as f64 / blocks as f64, order)
    } else if masks_right_alone && tiles > blocks {
        let orders = (1..=heads.min(blocks) as u32)
            .flat_map(|section| [false, true].map(|back_and_forth| TileOrder { section, back_and_forth }));
        let best = orders.map(rate).min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.unwrap_or_else(|| rate(TileOrder::default()))
    } else {
        rate(TileOrder::default())
    };
    Schedule { grid: blocks as u32, order, cycles }
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
fn cost(problem: &Problem, tile: &Tile, index: usize) -> u64 {
    let first_row = index * tile.block_m as usize;
    let last_row = (first_row + tile.block_m as usize).min(problem.seqlen_q()) - 1;
    let (seqlen_q, seqlen_k) = (problem.seqlen_q(), problem.seqlen_k());
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
    let mut shares = vec![0; blocks];
    let section = order.section as usize;
    let sections = (0..heads).step_by(section).map(|first| section.min(heads - first));
    let ordered =
        sections.flat_map(|heads| costs.iter().flat_map(move |&cost| std::iter::repeat_n(cost, heads)));
    for (index, cost) in ordered.enumerate() {
        let (round, place) = (index / blocks, index % blocks);
        let back = order.back_and_forth && round % 2 == 1;
        shares[if back { blocks - 1 - place } else { place }] += cost;
    }
    shares.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options, Tensors};

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
            let costs: Vec<u64> =
                (0..seqlen.div_ceil(192)).rev().map(|index| cost(&problem, &tile, index)).collect();
            let fair = (heads as u64 * costs.iter().sum::<u64>()) as f64 / f64::from(blocks);
            let share = |order| longest_share(&costs, heads, order, blocks as usize) as f64 / fair;
            let chosen = schedule(&problem, &tile, blocks).order;
            assert!(share(chosen) < 1.05, "{seqlen}: {chosen:?} {}", share(chosen));
            assert!(share(chosen) <= share(TileOrder { section: 16, back_and_forth: false }));
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
        assert_eq!(reason(TensorLayout::bshd(2, 30, 3, 41), Options::default()), None);
        assert_eq!(reason(plain, Options { softcap: 5.0, ..Options::default() }), None);
        let rows = TensorLayout::bshd(1, 30, 3, 40);
        let tensors = Tensors { q: rows, k: rows, v: rows, o: rows };
        let packed =
            Problem::varlen(tensors, DType::F16, Options::default(), &[0, 10, 30], &[0, 20, 30]).unwrap();
        assert_eq!(
            refusal(&packed).unwrap(),
            "a tensor map ends with its tensor, and not with a packed sequence"
        );
    }

    #[test]
    fn a_stride_that_no_map_has_is_named() {
        assert_eq!(
            unmapped("q", &TensorLayout::bshd(2, 30, 3, 41)).unwrap(),
            "q's batch stride is 3690 elements, and tensor maps take positive multiples of 8 below 2^39"
        );
        assert_eq!(unmapped("q", &TensorLayout::bshd(1, 30, 1, 48)), None);
        // A single index takes no steps.
        assert_eq!(unmapped("q", &TensorLayout::strided([1, 30, 1, 41], [7, 48, 3, 1])), None);
    }
}
