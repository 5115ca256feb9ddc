//! The forward pass over the sequence length, beside other people's kernels.

use anyhow::Result;
use flash_attention::{Kernel, Problem};

use super::published::{Attention, RIVALS, case};
use crate::args::{Grid, LabArgs, at_least_one, named};
use crate::lab::{self, Case, Lab, Recipe, Shared};
use crate::problem::{Layout, Shape, ShapeArgs};

const RECIPE: Recipe = Recipe {
    name: "forward",
    what: "the forward pass over the sequence length, beside cuDNN, FlashAttention-2, PyTorch's default and FlashAttention-4",
    reported_elsewhere: None,
    axis: Some("sequence length (rows)"),
    iterations: 30,
    scaled: true,
};

/// Arguments of `forward`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The problems whose figures are published, in place of one; with --dim those of one head_dim [cpu, sim:
    /// smaller ones]
    #[arg(long, value_parser = named(&Grid::ALL, Grid::name))]
    #[arg(conflicts_with_all = ["batch", "heads", "seq", "causal", "layout"])]
    grid: Option<Grid>,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence lengths [default: 4096; cpu: 512; sim: 64]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = at_least_one)]
    seq: Vec<usize>,
    /// With a causal mask alone [default: without one, and with one]
    #[arg(long)]
    causal: bool,
    /// Order of the axes in memory: batch, seqlen, heads, head_dim
    #[arg(long, default_value = "bhsd", value_parser = named(&Layout::ALL, Layout::name))]
    layout: Layout,
    /// The kernel to run [default: the planner's choice]
    #[arg(long, value_parser = named(&Kernel::ALL, Kernel::name))]
    kernel: Option<Kernel>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        lab.compare_with(&RIVALS);
        lab.compare_at_power_limit();
        for case in args.cases(lab)? {
            let contender = lab.contender(&case.problem, args.kernel);
            lab.contest(&case, args.layout, vec![contender])?;
        }
        lab.add_headline();
        Ok(())
    })
}

impl Args {
    fn cases(&self, lab: &Lab) -> Result<Vec<Case<Problem>>> {
        let grid = Attention::of(lab);
        if self.grid.is_some() {
            return grid.cases(self.shape.dtype, self.shape.dim);
        }
        let head_dim = self.shape.dim.unwrap_or(128);
        let masks =
            [("full", false), ("causal", true)].into_iter().filter(|(_, causal)| *causal || !self.causal);
        let mut cases = Vec::new();
        for (mask, causal) in masks {
            for seq in lab.list(&self.seq, &[4096], &[512], &[64]) {
                let sizes = (grid.batch(seq), grid.heads(head_dim), head_dim);
                let shape = Shape { causal, ..self.shape.shape(sizes, seq) };
                cases.push(case(head_dim, seq, mask, shape.problem(self.layout)?));
            }
        }
        Ok(cases)
    }
}
