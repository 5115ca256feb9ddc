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

/// What the choice depends on beside the problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) panel: Panel,
    pub(super) threads: usize,
    /// Bytes of the first- and second-level data caches of one core.
    pub(super) l1: usize,
    pub(super) l2: usize,
}

impl Machine {
    /// This machine, with the register panel of the instruction set in use.
    pub(super) fn here(panel: Panel) -> Self {
        let (l1, l2) = caches();
        Self { panel, threads: rayon::current_num_threads(), l1, l2 }
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
        Some(block_n) => (block_n, "BLOCK_N as asked".to_owned()),
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

/// The weights of one panel are read once for each register tile of V's columns: they should stay in L1.
fn default_block_n(machine: Machine) -> (usize, String) {
    let Panel { width, rows, .. } = machine.panel;
    let fitting = machine.l1 * 3 / 4 / (width * size_of::<f32>());
    let block_n = (fitting / rows * rows).max(rows);
    (
        block_n,
        format!("a panel of {block_n} x {width} weights takes 3/4 of an L1 of {} KiB", machine.l1 >> 10),
    )
}

/// Many queries per pass over K and V, while Qᵀ and Oᵀ take half of L2 and every thread gets several tasks.
fn default_block_m(problem: &Problem, machine: Machine, columns: usize) -> (usize, String) {
    let width = machine.panel.width;
    let heads = problem.batch() * problem.kv_heads();
    let fitting = (machine.l2 / 2 / (2 * problem.head_dim() * size_of::<f32>()) / width).clamp(1, 4);
    let tasks = |panels: usize| heads * columns.div_ceil(panels * width);
    let wanted = 4 * machine.threads;
    let panels = (1..=fitting).rev().find(|&panels| tasks(panels) >= wanted).unwrap_or(1);
    let why = if panels == fitting {
        "the most that L2 holds"
    } else {
        "small enough for several tasks per thread"
    };
    (panels * width, format!("{panels} panels of {width} queries: {why}"))
}

/// Bytes of the first- and second-level data caches, or the smallest usual ones where they cannot be read.
fn caches() -> (usize, usize) {
    static FOUND: std::sync::OnceLock<(usize, usize)> = std::sync::OnceLock::new();
    *FOUND.get_or_init(|| {
        let read = |index: usize, name: &str| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
            std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
        };
        let size = |level: &str| {
            (0..4).find_map(|index| {
                let data = read(index, "level")? == level && read(index, "type")? != "Instruction";
                let kib: usize = read(index, "size")?.strip_suffix('K')?.parse().ok()?;
                data.then_some(kib << 10)
            })
        };
        (size("1").unwrap_or(32 << 10), size("2").unwrap_or(256 << 10))
    })
}
