//! What an unaligned head_dim costs: 128 against 129 (rows that start on no 16-byte boundary), and the
//! staircase of every head_dim.

use anyhow::Result;
use flash_attention::Problem;
use flash_attention::forward::MAX_HEAD_DIM;

use crate::args::{KernelArgs, LabArgs};
use crate::lab::{self, Case, Contender, Lab, Recipe, Row, Shared, Unit};
use crate::peer::Implementation;
use crate::problem::{Defaults, ProblemArgs};

const RECIPE: Recipe = Recipe {
    name: "alignment",
    what: "head_dim 128 against 129, and how latency climbs over every head_dim",
    reported_elsewhere: Some(
        "a drop of more than 20 % means that neither padding nor coalescing was thought of",
    ),
    axis: Some("head_dim (elements)"),
    iterations: 100,
    scaled: true,
};

/// The two that are compared.
const PAIR: [usize; 2] = [128, 129];

/// Tensor cores take 16 columns at once: a kernel cannot be faster between two multiples.
const STEP: usize = 16;

/// Arguments of `alignment`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    problem: ProblemArgs,
    #[command(flatten)]
    kernel: KernelArgs,
    /// First and last head_dim of the staircase [default: 32,256; cpu: 120,132; sim: 128,129]
    #[arg(long, value_name = "FIRST,LAST", value_parser = staircase)]
    staircase: Option<(usize, usize)>,
    #[command(flatten)]
    lab: LabArgs,
}

/// As in `32,256`.
fn staircase(text: &str) -> Result<(usize, usize), String> {
    let ends: Vec<_> = text.split(',').map(|end| end.trim().parse().unwrap_or(0)).collect();
    match ends[..] {
        [first, last] if 1 <= first && first <= last && last <= MAX_HEAD_DIM => Ok((first, last)),
        _ => Err(format!("two head_dims of 1 to {MAX_HEAD_DIM} are needed, as in 32,256")),
    }
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let defaults = lab.pick(
            Defaults { batch: 16, heads: 16, seq: 2048 },
            Defaults { batch: 1, heads: 4, seq: 512 },
            Defaults { batch: 1, heads: 1, seq: 64 },
        );
        let pair = PAIR.map(|head_dim| {
            let case = Case::named(format!("D={head_dim}"), args.problem.problem(head_dim, defaults)?);
            let row = measure(lab, args, case)?;
            let record = lab.rows()[row].plan.clone();
            record.iter().for_each(|plan| lab.note(format!("D={head_dim}: {}", plan.reasons())));
            Ok::<_, anyhow::Error>(row)
        });
        let [even, odd] = pair;
        compare(lab, even?, odd?);
        let (first, last) = args.staircase.unwrap_or(lab.pick((32, 256), (120, 132), (128, 129)));
        // Hundreds of problems: few runs of smaller ones show the steps as well.
        let defaults = Defaults { batch: defaults.batch.min(4), ..defaults };
        lab.effort.iterations = lab.effort.iterations.min(20);
        lab.compare_with(&[Implementation::Default]);
        for head_dim in first..=last {
            let case = Case::at("staircase D", head_dim, args.problem.problem(head_dim, defaults)?);
            measure(lab, args, case)?;
        }
        climb(lab);
        Ok(())
    })
}

/// Measures one head_dim, and says how its rows start.
fn measure(lab: &mut Lab, args: &Args, case: Case<Problem>) -> Result<usize> {
    let plan = lab.session.backend.plan(&case.problem, &args.kernel.request())?;
    let contender = Contender { series: plan.kernel().name().to_owned(), plan: Ok(plan) };
    let row = lab.contest(&case, args.problem.layout, vec![contender])?.start;
    let tensors = case.problem.tensors();
    // Every row starts at a multiple of what the strides are all multiples of.
    let strides =
        [tensors.k.stride_seq, tensors.k.stride_head].map(|stride| stride * case.problem.dtype().bytes());
    let aligned = strides.iter().map(|stride| 1_u64 << stride.trailing_zeros().min(7)).min().unwrap_or(1);
    lab.row_mut(row).put("rows start at multiples of", Unit::Bytes, aligned as f64);
    Ok(row)
}

/// 129 against 128, by their rows.
fn compare(lab: &mut Lab, even: usize, odd: usize) {
    let run = |row: usize| lab.rows()[row].measurement.as_ref();
    let (Some(even), Some(odd)) = (run(even), run(odd)) else { return };
    let increase = 100.0 * (odd.times.median_s / even.times.median_s - 1.0);
    let drop = even.tflops.zip(odd.tflops).map(|(even, odd)| 100.0 * (1.0 - odd / even));
    lab.figure("head_dim 129 against 128: latency increase", Unit::Percent, increase);
    // TFLOP/s counts the extra column.
    drop.into_iter()
        .for_each(|drop| lab.figure("head_dim 129 against 128: performance drop", Unit::Percent, drop));
}

/// Sets every head_dim beside the next multiple of a step.
fn climb(lab: &mut Lab) {
    for index in 0..lab.rows().len() {
        let row = &lab.rows()[index];
        let Some(x) = row.x else { continue };
        let next = (x as usize).next_multiple_of(STEP);
        // Whatever the kernel: falling back to a slower one is what shows here.
        let same_side = |other: &&Row| other.plan.is_some() == row.plan.is_some();
        let step = lab.rows().iter().filter(same_side).find(|other| other.x == Some(next as f64));
        let over = row.median().zip(step.and_then(Row::median)).map(|(own, step)| own / step);
        if let (Some(over), false) = (over, x as usize == next) {
            lab.row_mut(index).put("time over its step's", Unit::Times, over);
        }
    }
}
