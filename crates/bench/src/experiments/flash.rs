//! Fused against unfused attention over the sequence length.

use anyhow::Result;

use crate::args::{LabArgs, at_least_one};
use crate::lab::{self, Case, ITERATIONS, Recipe, Shared};
use crate::problem::{Layout, Shape, ShapeArgs};

const RECIPE: Recipe = Recipe {
    name: "flash",
    what: "fused against unfused attention over the sequence length",
    reported_elsewhere: Some(
        "on an RTX 4090 at B=4 H=8 D=64, S = 512, 1024, 2048, 4096: 0.8, 2.5, 9.0, 35 ms with PyTorch's attention, \
         0.7, 2.0, 6.5, 22 ms fused",
    ),
    axis: Some("sequence length (rows)"),
    iterations: ITERATIONS,
    scaled: true,
};

/// Arguments of `flash`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence lengths [default: 512 to 16384; cpu: 128 to 1024; sim: 64, 128]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = at_least_one)]
    seq: Vec<usize>,
    /// With a causal mask
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let sizes = lab.pick((4, 8, 64), (1, 4, 64), (1, 1, 64));
        let gpu = [512, 1024, 2048, 4096, 8192, 16384];
        for seq in lab.list(&args.seq, &gpu, &[128, 256, 512, 1024], &[64, 128]) {
            let shape = Shape { causal: args.causal, ..args.shape.shape(sizes, seq) };
            let case = Case::at("S", seq, shape.problem(Layout::Bhsd)?);
            let contenders = lab.flash_and_standard(&case.problem);
            lab.contest(&case, Layout::Bhsd, contenders)?;
        }
        Ok(())
    })
}
