//! The same problem through FlashAttention as version 1, 2 and 3 have it: what each idea buys.

use std::fmt::Display;
use std::ops::Range;

use anyhow::Result;
use flash_attention::backward::BackwardKernel;
use flash_attention::{BackendKind, DType, Kernel, Problem};

use super::backward::race_of_kernels;
use crate::args::{LabArgs, at_least_one};
use crate::lab::{self, Case, ITERATIONS, Lab, Recipe, Row, Shared, Unit};
use crate::measure::with_output_element;
use crate::problem::{Layout, ShapeArgs};

const RECIPE: Recipe = Recipe {
    name: "generations",
    what: "one problem through unfused attention and each generation of FlashAttention that the backend runs",
    reported_elsewhere: Some(
        "up to 7.6 times as fast as unfused, with a 20th of its memory and a 9th of its traffic",
    ),
    axis: None,
    iterations: ITERATIONS,
    scaled: true,
};

/// What a reader calls each kernel.
const GENERATIONS: [(Kernel, &str); 5] = [
    (Kernel::Standard, "unfused: scores, softmax and values as kernels of their own"),
    (Kernel::ForwardSimt, "v1: fused tiles and online softmax, fp32 FMA"),
    (Kernel::ForwardSm80, "v2: mma.sync, the outer loop over Q, rows split over warps"),
    (Kernel::ForwardSm90, "v3: wgmma and tensor maps, producer and consumers, products beside softmax"),
    (Kernel::ForwardCpu, "on the CPU: fused tiles and online softmax, SIMD on all cores"),
];

/// As [`GENERATIONS`], of the backward pass.
const BACKWARD: [(BackwardKernel, &str); 4] = [
    (BackwardKernel::BackwardSimt, "v1 and v2: P by recomputation, fp32 FMA, scores computed twice"),
    (BackwardKernel::BackwardSm80, "v2: the same on mma.sync"),
    (BackwardKernel::BackwardSm90, "v3: wgmma and tensor maps, scores computed once where dS can be stored"),
    (BackwardKernel::BackwardCpu, "on the CPU: P by recomputation, SIMD on all cores"),
];

/// Arguments of `generations`.
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
        let case = Case::at("S", seq, args.shape.shape(sizes, seq).problem(Layout::Bhsd)?);
        let here = Kernel::of_backend(lab.kind());
        let of_backend: Vec<_> =
            GENERATIONS.into_iter().filter(|(kernel, _)| here.contains(kernel)).collect();
        let contenders =
            of_backend.iter().map(|&(kernel, _)| lab.contender(&case.problem, Some(kernel))).collect();
        let rows = lab.contest(&case, Layout::Bhsd, contenders)?;
        tell(lab, rows, &of_backend);
        if case.problem.dtype() != DType::E4m3 {
            backward(lab, &case)?;
        }
        if lab.kind() == BackendKind::Cpu {
            lab.note("versions 1, 2 and 3 are GPU kernels; what each idea buys shows on a GPU alone");
        }
        Ok(())
    })
}

/// The backward pass by all of its kernels.
fn backward(lab: &mut Lab, case: &Case<Problem>) -> Result<()> {
    let here = BackwardKernel::of_backend(lab.kind());
    let of_backend: Vec<_> = BACKWARD.into_iter().filter(|(kernel, _)| here.contains(kernel)).collect();
    let kernels: Vec<_> = of_backend.iter().map(|&(kernel, _)| kernel).collect();
    let rows = with_output_element!(case.problem.dtype(), race_of_kernels(lab, case, &kernels))?;
    tell(lab, rows, &of_backend);
    Ok(())
}

/// Says what each row's kernel is, and how much faster than the one before.
fn tell<K: Display>(lab: &mut Lab, rows: Range<usize>, ideas: &[(K, &str)]) {
    let mut before = None;
    for index in rows {
        let of_row = |(kernel, _): &&(K, &str)| kernel.to_string() == lab.rows()[index].series;
        if let Some((kernel, idea)) = ideas.iter().find(of_row) {
            lab.note(format!("{kernel} is {idea}"));
        }
        let median = Row::median(&lab.rows()[index]);
        if let (Some(before), Some(median)) = (before, median) {
            lab.row_mut(index).put("speedup over the one before", Unit::Times, before / median);
        }
        before = median.or(before);
    }
}
