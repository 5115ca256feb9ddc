//! What `forward_sm90` takes.

use fa_kernels::entries::Tile;

use crate::{Problem, TensorLayout, Tensors};

/// Elements of 16 bytes, which tensor maps count strides in.
const CHUNK: usize = 8;

/// Why `forward_sm90` cannot run a problem, if it cannot.
pub(super) fn refusal(problem: &Problem) -> Option<String> {
    if problem.cu_seqlens().is_some() {
        return Some("a tensor map ends with its tensor, and not with a packed sequence".to_owned());
    }
    if problem.changes_scores() {
        return Some("it has no entries that change scores".to_owned());
    }
    if problem.softmax_scale() <= 0.0 {
        return Some(format!("softmax_scale is {}, and it takes positive ones", problem.softmax_scale()));
    }
    let Tensors { q, k, v, o } = problem.tensors();
    [("q", q), ("k", k), ("v", v), ("o", o)].into_iter().find_map(|(name, layout)| unmapped(name, layout))
}

/// The stride of a tensor that a tensor map cannot have, if there is one.
fn unmapped(name: &str, layout: &TensorLayout) -> Option<String> {
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

/// What a tile costs beside its blocks of keys, in such blocks: its first scores, its last product, and its
/// way out.
const TILE_OVERHEAD: u64 = 2;

/// Beyond so many tiles a block, the one that ends last hardly matters.
const MANY_TILES: usize = 64;

/// The order in which `blocks` blocks are done first.
///
/// Where all tiles see the same number of keys, it does not matter, and one head's follow one another. Under
/// a causal mask the longest go first. How even the shares are then depends on how the number of heads in a
/// section goes into the grid, so all are tried.
pub(super) fn order(problem: &Problem, tile: &Tile, blocks: u32) -> TileOrder {
    let (heads, block_m) = (problem.heads() * problem.batch(), tile.block_m as usize);
    let head_tiles = problem.seqlen_q().div_ceil(block_m);
    if !problem.causal() || problem.window().0.is_some() || heads * head_tiles <= blocks as usize {
        return TileOrder::default();
    }
    let head_bytes =
        problem.seqlen_k() * (problem.head_dim() + problem.head_dim_v()) * problem.dtype().bytes();
    let cached = (L2_BYTES / head_bytes).max(1) * problem.group();
    if heads * head_tiles > MANY_TILES * blocks as usize {
        return TileOrder { section: cached.min(heads) as u32, back_and_forth: true };
    }
    let costs: Vec<u64> = (0..head_tiles).rev().map(|index| cost(problem, tile, index)).collect();
    let candidates = (1..=heads.min(blocks as usize)).flat_map(|section| [(section, false), (section, true)]);
    let rated = candidates.map(|(section, back_and_forth)| {
        let order = TileOrder { section: section as u32, back_and_forth };
        let longest = longest_share(&costs, heads, order, blocks as usize) as f64;
        (if section > cached { longest * UNCACHED } else { longest }, order)
    });
    rated.min_by(|(a, _), (b, _)| a.total_cmp(b)).map_or_else(TileOrder::default, |(_, order)| order)
}

/// Blocks of keys that a causal tile meets, and what it costs beside.
fn cost(problem: &Problem, tile: &Tile, index: usize) -> u64 {
    let rows = ((index + 1) * tile.block_m as usize).min(problem.seqlen_q());
    let keys = (rows + problem.seqlen_k()).saturating_sub(problem.seqlen_q());
    TILE_OVERHEAD + keys.div_ceil(tile.block_n as usize) as u64
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
            let costs: Vec<u64> =
                (0..seqlen.div_ceil(192)).rev().map(|index| cost(&problem, &tile, index)).collect();
            let fair = (heads as u64 * costs.iter().sum::<u64>()) as f64 / f64::from(blocks);
            let share = |order| longest_share(&costs, heads, order, blocks as usize) as f64 / fair;
            let chosen = order(&problem, &tile, blocks);
            assert!(share(chosen) < 1.05, "{seqlen}: {chosen:?} {}", share(chosen));
            assert!(share(chosen) <= share(TileOrder { section: 16, back_and_forth: false }));
        }
    }

    fn reason(layout: TensorLayout, options: Options) -> Option<String> {
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        refusal(&Problem::new(tensors, DType::F16, options).unwrap())
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
        assert_eq!(
            refused(plain, Options { softcap: 5.0, ..Options::default() }),
            "it has no entries that change scores"
        );
        assert_eq!(
            refused(plain, Options { softmax_scale: Some(-1.0), ..Options::default() }),
            "softmax_scale is -1, and it takes positive ones"
        );
    }
}
