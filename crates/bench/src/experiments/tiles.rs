//! Every built tile that takes the problem, timed; the others with the reason.

use std::cmp::Ordering;

use anyhow::Result;
use fa_kernels::entries::{Entry, Tile, entries};
use flash_attention::{BackendKind, Kernel, Plan, Problem, Request, shipped};

use crate::args::{LabArgs, at_least_one};
use crate::lab::{self, Case, Contender, ITERATIONS, Lab, Recipe, Row, Shared, Unit};
use crate::problem::{Layout, Shape, ShapeArgs};

const RECIPE: Recipe = Recipe {
    name: "tiles",
    what: "every built (BLOCK_M, BLOCK_N) that takes the problem, with what it needs; `cargo xtask bench sweep` builds more",
    reported_elsewhere: None,
    axis: None,
    iterations: ITERATIONS,
    scaled: true,
};

const CPU_BLOCKS: ([usize; 3], [usize; 3]) = ([16, 64, 256], [32, 128, 512]);

/// Arguments of `tiles`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence length [default: 2048; cpu: 512; sim: 64]
    #[arg(long, value_parser = at_least_one)]
    seq: Option<usize>,
    /// With a causal mask
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let sizes = lab.pick((4, 32, 64), (1, 4, 64), (1, 1, 64));
        let seq = args.seq.unwrap_or(lab.pick(2048, 512, 64));
        let shape = Shape { causal: args.causal, ..args.shape.shape(sizes, seq) };
        let case = Case::at("S", seq, shape.problem(Layout::Bhsd)?);
        let problem = &case.problem;
        let rows = if lab.kind() == BackendKind::Cpu {
            let contenders = cpu_tiles(lab, problem);
            lab.contest(&case, Layout::Bhsd, contenders)?
        } else {
            let found: Vec<_> = tiles(problem).collect();
            let contender = |entry: &&'static Entry| Contender {
                series: entry.name.to_owned(),
                plan: Plan::of_entry(problem, lab.session.device(), entry),
            };
            let contenders = found.iter().map(contender).collect();
            let rows = lab.contest(&case, Layout::Bhsd, contenders)?;
            rows.clone().zip(found).for_each(|(row, entry)| needs(lab.row_mut(row), entry));
            rows
        };
        for index in rows.clone() {
            let row = lab.row_mut(index);
            if let Some([_, block_n]) = row.plan.as_ref().and_then(|plan| plan.tile.as_deref()) {
                let block_n = *block_n;
                row.put("loop trips", Unit::Count, seq.div_ceil(block_n) as f64);
            }
        }
        let timed = rows.filter_map(|row| lab.rows()[row].median().map(|median| (row, median)));
        let order = |a: &(usize, f64), b: &(usize, f64)| a.1.partial_cmp(&b.1).unwrap_or(Ordering::Equal);
        if let Some((best, median)) = timed.min_by(order) {
            lab.figure(format!("fastest: {}", lab.rows()[best].series), Unit::Seconds, median);
        }
        Ok(())
    })
}

/// The entries of the problem's storage type with the least HEAD_DIM of their kernel that holds its rows, and
/// those that have a HEAD_DIM_V and multiply no more columns.
fn tiles(problem: &Problem) -> impl Iterator<Item = &'static Entry> {
    let dtype = problem.dtype().name();
    let (qk, v) = (problem.head_dim() as u32, problem.head_dim_v() as u32);
    let of = move |kernel: Kernel| {
        let algorithm = kernel.tiled();
        let held = move |entry: &&Entry| {
            let Tile { head_dim, head_dim_v, .. } = entry.tile;
            Some(entry.algorithm) == algorithm && entry.dtype == dtype && head_dim >= qk && head_dim_v >= v
        };
        let of_one_width = |tile: &Tile| tile.head_dim_v == tile.head_dim;
        let widths = entries().filter(held).map(|entry| &entry.tile).filter(|tile| of_one_width(tile));
        let least = widths.map(|tile| tile.head_dim).min();
        entries().filter(held).filter(move |Entry { tile, .. }| match least {
            Some(least) if of_one_width(tile) => tile.head_dim == least,
            Some(least) => tile.head_dim + tile.head_dim_v <= 2 * least,
            None => false,
        })
    };
    Kernel::ALL.into_iter().flat_map(of)
}

/// What a tile takes of a multiprocessor.
fn needs(row: &mut Row, entry: &Entry) {
    row.put("threads", Unit::Count, entry.threads.into());
    row.put("shared memory", Unit::Bytes, entry.shared_bytes.into());
    let resources = shipped::entry(entry.name).ok().and_then(|entry| entry.resources.last());
    if let Some(resources) = resources {
        row.put("registers", Unit::Count, resources.registers.into());
        row.put("spilled", Unit::Bytes, f64::from(resources.spill_stores + resources.spill_loads));
    }
}

/// Tiles of the CPU's kernel, the planner's own among them.
fn cpu_tiles(lab: &Lab, problem: &Problem) -> Vec<Contender<flash_attention::Plan>> {
    let (ms, ns) = CPU_BLOCKS;
    let pairs = ms.into_iter().flat_map(|m| ns.map(|n| (Some(m), Some(n))));
    let requests = std::iter::once((None, None)).chain(pairs);
    let contender = |(block_m, block_n): (Option<usize>, Option<usize>)| {
        let request = Request { kernel: Some(Kernel::ForwardCpu), block_m, block_n, ..Request::default() };
        let chosen = match (block_m, block_n) {
            (Some(m), Some(n)) => format!("forward_cpu {m}x{n}"),
            _ => "forward_cpu, the planner's tile".to_owned(),
        };
        Contender { series: chosen, plan: lab.session.backend.plan(problem, &request) }
    };
    requests.map(contender).collect()
}
