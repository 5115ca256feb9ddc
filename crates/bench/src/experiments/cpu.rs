//! The forward pass on the CPU, beside PyTorch's on as many threads.

use anyhow::Result;
use flash_attention::{BackendKind, DType};

use super::published::case;
use crate::args::{BackendArgs, Grid, LabArgs, at_least_one, named};
use crate::failure::usage;
use crate::lab::{self, ITERATIONS, Recipe, Shared};
use crate::peer::Implementation;
use crate::problem::{Layout, Shape};

const RECIPE: Recipe = Recipe {
    name: "cpu",
    what: "the forward pass on the CPU, beside PyTorch's on as many threads",
    reported_elsewhere: None,
    axis: Some("sequence length (rows)"),
    iterations: ITERATIONS,
    scaled: false,
};

/// The published grid: B=1 H=8 in fp32.
const SEQS: [usize; 2] = [1024, 4096];
const HEAD_DIMS: [usize; 2] = [64, 128];

/// Arguments of `cpu`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The problems whose figures are published, in place of one
    #[arg(long, value_parser = named(&Grid::ALL, Grid::name))]
    #[arg(conflicts_with_all = ["batch", "heads", "dim", "seq"])]
    grid: Option<Grid>,
    /// Number of sequences
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Heads of Q, K and V
    #[arg(long, default_value_t = 8)]
    heads: usize,
    /// Sequence lengths [default: 1024]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = at_least_one)]
    seq: Vec<usize>,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256 [default: 64]
    #[arg(long, alias = "head-dim", value_name = "ELEMENTS,…", value_delimiter = ',')]
    dim: Vec<usize>,
    /// Storage type of Q, K, V and O
    #[arg(long, default_value = "f32", value_parser = named(&DType::ALL, DType::name))]
    dtype: DType,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    if let Some(kind) = args.lab.backend.backend.filter(|&kind| kind != BackendKind::Cpu) {
        return Err(usage(format!(
            "--backend {kind}: this experiment runs on the CPU; `forward` runs on others"
        )));
    }
    if let Some(ordinal) = args.lab.backend.device {
        return Err(usage(format!("--device {ordinal} chooses a GPU, but this experiment runs on the CPU")));
    }
    let backend = BackendArgs { backend: Some(BackendKind::Cpu), device: None };
    let on_cpu = LabArgs { backend, ..args.lab.clone() };
    lab::run(&RECIPE, &on_cpu, shared, |lab| {
        lab.compare_with(&[Implementation::Default, Implementation::Flash2]);
        let Args { batch, heads, dtype, .. } = *args;
        let or = |asked: &[usize], grid: &[usize]| match asked {
            _ if args.grid.is_some() => grid.to_vec(),
            [] => grid[..1].to_vec(),
            asked => asked.to_vec(),
        };
        for head_dim in or(&args.dim, &HEAD_DIMS) {
            for (mask, causal) in [("full", false), ("causal", true)] {
                for seq in or(&args.seq, &SEQS) {
                    let shape = Shape { batch, heads, seq, head_dim, dtype, causal };
                    let case = case(head_dim, seq, mask, shape.problem(Layout::Bhsd)?);
                    let contender = lab.contender(&case.problem, None);
                    lab.contest(&case, Layout::Bhsd, vec![contender])?;
                }
            }
        }
        lab.add_headline();
        Ok(())
    })
}
