//! How many queries and keys make a tile: a pure function of the problem and the machine.

use super::Config;
use super::isa::Panel;
use crate::{Error, Problem, Result};

/// The largest BLOCK_M and BLOCK_N that can be asked for.
const LIMIT: usize = 1 << 16;

/// The tile that a call runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileChoice {
    /// Queries that one task holds while K and V stream past; a multiple of the register panel.
    pub block_m: usize,
    /// Keys between two updates of the running softmax.
    pub block_n: usize,
    /// Why these.
    pub reason: String,
}

impl std::fmt::Display for TileChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BLOCK_M = {}, BLOCK_N = {} ({})", self.block_m, self.block_n, self.reason)
    }
}

/// Queries beyond which reading, or packing, K and V once more costs nothing that can be measured.
const MOST_QUERIES: usize = 256;

/// Tasks that each thread should get, so that none waits long for the last.
const TASKS_PER_THREAD: usize = 4;

/// What the choice depends on beside the problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) panel: Panel,
    /// Keys that a block has a multiple of: those of a tile, or 1.
    pub(super) step: usize,
    pub(super) threads: usize,
    /// Bytes of the second-level cache of one core.
    pub(super) l2: usize,
}

impl Machine {
    /// This machine, with the register panel of the instruction set in use.
    pub(super) fn here(panel: Panel) -> Self {
        Self { panel, step: 1, threads: rayon::current_num_threads(), l2: l2_bytes() }
    }

    /// This machine where both products are in tiles of two by two: panels of 64 queries, blocks of 32 keys.
    pub(super) fn with_tiles() -> Self {
        Self { step: 32, ..Self::here(Panel { lanes: 16, width: 64, rows: 32 }) }
    }
}

/// Chooses the tile, or takes what `config` says.
///
/// # Errors
/// [`Error::NoSuchTile`] when `config` asks for 0 or for more than 65536.
pub(super) fn choose(problem: &Problem, machine: Machine, config: Config) -> Result<TileChoice> {
    let size = |value: Option<usize>| value.map_or_else(|| "any".to_owned(), |value| value.to_string());
    if [config.block_m, config.block_n].into_iter().flatten().any(|value| !(1..=LIMIT).contains(&value)) {
        return Err(Error::NoSuchTile {
            kernel: "cpu",
            block_m: size(config.block_m),
            block_n: size(config.block_n),
            head_dim: problem.head_dim(),
            available: format!("1 to {LIMIT} each"),
        });
    }
    let Panel { width, rows, .. } = machine.panel;
    let columns = problem.seqlen_q() * problem.group();
    let (block_n, why_n) = match config.block_n {
        Some(block_n) => (block_n.next_multiple_of(machine.step), "BLOCK_N as asked".to_owned()),
        None => default_block_n(machine),
    };
    let (block_m, why_m) = match config.block_m {
        Some(block_m) => (block_m.next_multiple_of(width), format!("BLOCK_M as asked, in panels of {width}")),
        None => default_block_m(problem, machine, columns),
    };
    let block_m = block_m.min(columns.next_multiple_of(width));
    let block_n = block_n.min(problem.seqlen_k().next_multiple_of(rows));
    Ok(TileChoice { block_m, block_n, reason: format!("{why_m}; {why_n}") })
}

/// Measured from 24 to 576 keys: speed is flat within 3 % around the best.
fn default_block_n(machine: Machine) -> (usize, String) {
    let width = machine.panel.width;
    if machine.step > 1 {
        let why = format!("128 rows of scores for panels of {width} queries leave L1 room for tiles");
        return (128, why);
    }
    // A narrow panel reads V twice as often as a wide one for the same work, and rows of 512 bytes
    // map to only eight sets of L1: with AVX2 48 keys are 7 % faster than 64 and more.
    if width < 64 {
        (48, format!("48 rows of V stay in L1 while panels of {width} queries read them"))
    } else {
        (96, format!("96 rows of weights for panels of {width} queries stay in L1"))
    }
}

/// Many queries per pass over K and V, while Qᵀ and Oᵀ take half of L2 and every thread gets several tasks.
fn default_block_m(problem: &Problem, machine: Machine, columns: usize) -> (usize, String) {
    let width = machine.panel.width;
    let heads = problem.batch() * problem.kv_heads();
    let columns_of_both = problem.head_dim() + problem.head_dim_v();
    let fitting = machine.l2 / 2 / (columns_of_both * size_of::<f32>()) / width;
    let fitting = fitting.clamp(1, MOST_QUERIES.div_ceil(width));
    let tasks = |panels: usize| heads * columns.div_ceil(panels * width);
    let wanted = TASKS_PER_THREAD * machine.threads;
    let panels = (1..=fitting).rev().find(|&panels| tasks(panels) >= wanted).unwrap_or(1);
    let why = if panels < fitting {
        format!("fewer than L2 holds, for {TASKS_PER_THREAD} tasks per thread")
    } else if panels * width < MOST_QUERIES {
        format!("Q and O take half of an L2 of {} KiB", machine.l2 >> 10)
    } else {
        "more would save no more loads of K and V".to_owned()
    };
    (panels * width, format!("{panels} panels of {width} queries: {why}"))
}

/// Bytes of the second-level cache, or the smallest usual size where it cannot be read.
fn l2_bytes() -> usize {
    static FOUND: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *FOUND.get_or_init(|| {
        let read = |index: usize, name: &str| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
            std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
        };
        let size = |index| {
            let kib: usize = read(index, "size")?.strip_suffix('K')?.parse().ok()?;
            (read(index, "level")? == "2").then_some(kib << 10)
        };
        (0..4).find_map(size).unwrap_or(256 << 10)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options, TensorLayout, Tensors};

    fn tile(seqlen: usize, head_dim: usize, threads: usize, config: Config) -> (usize, usize) {
        let layout = TensorLayout::bhsd(1, seqlen, 8, head_dim);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F32, Options::default()).unwrap();
        let machine =
            Machine { panel: Panel { lanes: 16, width: 64, rows: 6 }, step: 1, threads, l2: 1 << 20 };
        let choice = choose(&problem, machine, config).unwrap();
        (choice.block_m, choice.block_n)
    }

    #[test]
    fn blocks_shrink_until_threads_have_several_tasks() {
        assert_eq!(tile(4096, 64, 2, Config::default()), (256, 96));
        assert_eq!(tile(1024, 64, 16, Config::default()), (128, 96));
        assert_eq!(tile(1024, 64, 64, Config::default()), (64, 96));
    }

    #[test]
    fn blocks_of_keys_are_whole_tiles() {
        let layout = TensorLayout::bhsd(1, 1000, 8, 64);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::Bf16, Options::default()).unwrap();
        let panel = Panel { lanes: 16, width: 64, rows: 32 };
        let machine = Machine { panel, step: 32, threads: 2, l2: 2 << 20 };
        let block_n =
            |block_n| choose(&problem, machine, Config { block_n, ..Config::default() }).unwrap().block_n;
        assert_eq!([None, Some(50), Some(5000)].map(block_n), [128, 64, 1024]);
    }

    #[test]
    fn no_tile_is_larger_than_the_problem() {
        assert_eq!(tile(1, 64, 1, Config::default()), (64, 6));
        assert_eq!(tile(70, 64, 1, Config { block_m: Some(9999), block_n: Some(50), isa: None }), (128, 50));
    }
}
