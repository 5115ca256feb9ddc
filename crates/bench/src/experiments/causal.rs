//! What a causal mask costs: a kernel that skips the hidden tiles takes about half the time.

use anyhow::Result;

use crate::args::{LabArgs, at_least_one};
use crate::lab::{self, Case, Group, ITERATIONS, Lab, Recipe, Row, Shared, Unit};
use crate::problem::{Layout, Shape, ShapeArgs};

const RECIPE: Recipe = Recipe {
    name: "causal",
    what: "the same problem without and with a causal mask, fused and unfused, in time and per useful operation",
    reported_elsewhere: Some("at B=4 H=32 S=2048 D=64 the mask costs 7.5 % fused and 16.2 % unfused"),
    axis: None,
    iterations: ITERATIONS,
    scaled: true,
};

const CASES: [(&str, bool); 2] = [("full", false), ("causal", true)];

/// Arguments of `causal`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence length [default: 2048; cpu: 1024; sim: 128]
    #[arg(long, value_parser = at_least_one)]
    seq: Option<usize>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let sizes = lab.pick((4, 32, 64), (1, 4, 64), (1, 1, 64));
        let seq = args.seq.unwrap_or(lab.pick(2048, 1024, 128));
        let case = |(name, causal)| {
            let shape = Shape { causal, ..args.shape.shape(sizes, seq) };
            Ok(Case::named(name, shape.problem(Layout::Bhsd)?))
        };
        let cases = CASES.into_iter().map(case).collect::<Result<Vec<_>>>()?;
        let group =
            |case| Group { case, layout: Layout::Bhsd, contenders: lab.flash_and_standard(&case.problem) };
        let groups = cases.iter().map(group).collect();
        lab.contest_of(groups)?.for_each(|row| compare(lab, row));
        Ok(())
    })
}

/// Sets a row beside the same kernel's without a mask, if it has one.
fn compare(lab: &mut Lab, index: usize) {
    let row = &lab.rows()[index];
    if row.case != "causal" {
        return;
    }
    let full = lab.rows().iter().find(|other| other.case == "full" && other.series == row.series);
    let speed = |row: &Row| row.measurement.as_ref().and_then(|run| run.tflops);
    let time = full.and_then(Row::median).zip(row.median()).map(|(full, causal)| causal / full);
    let per_flop = full.and_then(speed).zip(speed(row)).map(|(full, causal)| full / causal);
    let row = lab.row_mut(index);
    if let (Some(time), Some(per_flop)) = (time, per_flop) {
        row.put("time over the full mask's", Unit::Times, time);
        row.put("time per useful FLOP over the full mask's", Unit::Times, per_flop);
    }
}
