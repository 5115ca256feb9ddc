//! Tensors read through their strides, against copies to contiguous ones and back.

use std::time::Instant;

use anyhow::Result;
use flash_attention::{BackendKind, DType, Element, Problem, TensorLayout};
use rayon::prelude::*;

use crate::args::{LabArgs, named};
use crate::inputs::normal;
use crate::lab::{self, Case, Each, Group, ITERATIONS, Lab, Recipe, Row, RunRecord, Shared, Unit};
use crate::measure::with_element;
use crate::problem::{Layout, Shape};

const RECIPE: Recipe = Recipe {
    name: "layout",
    what: "[B, L, H, D] and [B, H, L, D] read through strides, and what copies to contiguous tensors and back would add",
    reported_elsewhere: Some(
        "on an A100, B,H,S,D = 12,64,256,64: 364.1 µs with copies, 120.6 without, 98.7 with PyTorch's attention; \
         16,128,784,128: 7392, 3845, 4085 µs",
    ),
    axis: None,
    iterations: ITERATIONS,
    scaled: true,
};

/// B, H, S, D.
const GPU_SHAPES: [[usize; 4]; 2] = [[12, 64, 256, 64], [16, 128, 784, 128]];
const CPU_SHAPES: [[usize; 4]; 2] = [[1, 16, 256, 64], [1, 8, 392, 128]];
const SIM_SHAPES: [[usize; 4]; 1] = [[1, 2, 64, 64]];

/// Arguments of `layout`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Storage type of Q, K, V and O
    #[arg(long, default_value = "f16", value_parser = named(&DType::RESULTS, DType::name))]
    dtype: DType,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        for &[batch, heads, seq, head_dim] in lab.pick(&GPU_SHAPES[..], &CPU_SHAPES, &SIM_SHAPES) {
            let shape = Shape { batch, heads, seq, head_dim, dtype: args.dtype, causal: false };
            let name = format!("B={batch} H={heads} S={seq} D={head_dim}");
            let case = |layout, axes| {
                Ok::<_, anyhow::Error>(Case::named(format!("{name} {axes}"), shape.problem(layout)?))
            };
            let strided = case(Layout::Bshd, "[B, L, H, D]")?;
            let contiguous = case(Layout::Bhsd, "[B, H, L, D]")?;
            let group =
                |case, layout| Group { case, layout, contenders: vec![lab.contender(&case.problem, None)] };
            let groups = vec![group(&strided, Layout::Bshd), group(&contiguous, Layout::Bhsd)];
            let rows = lab.contest_of(groups)?;
            lab.peer_with_copies(&strided, Layout::Bshd)?;
            copies(lab, &contiguous.problem, &name, rows.start)?;
        }
        if lab.kind() == BackendKind::Cuda {
            lab.note(
                "the copies are four contiguous ones of the tensors' bytes within the device's memory: a copy that \
                 swaps axes is no faster",
            );
        }
        Ok(())
    })
}

/// Adds a row for the four copies, with what a call between them takes over one that reads through strides,
/// whose row is the one before the contiguous call's.
fn copies(lab: &mut Lab, problem: &Problem, name: &str, strided: usize) -> Result<()> {
    let times = with_element!(problem.dtype(), time_copies(lab, problem))?;
    let kernel = lab.rows()[strided + 1].median().zip(lab.rows()[strided].median());
    let mut row = Row { case: name.to_owned(), series: "the copies alone".to_owned(), ..Row::default() };
    if let Some((kernel, strided)) = kernel {
        let with_copies = kernel + times.median_s;
        row.put("call with copies", Unit::Seconds, with_copies);
        row.put("that over strides", Unit::Times, with_copies / strided);
    }
    row.measurement = Some(RunRecord::of_times(times));
    lab.push(row)?;
    Ok(())
}

/// Times copies of Q, K and V to the other order of axes, and of O back.
fn time_copies<T: Element>(lab: &Lab, problem: &Problem) -> Result<crate::record::TimesRecord> {
    let layout = problem.tensors().q;
    let bytes = 4 * layout.span() * T::DTYPE.bytes();
    if let Some(mut copy) = lab.session.backend.device_copy(bytes)? {
        return lab.time_alone(
            "copies",
            &mut Each(|| {
                copy.flush_cache()?;
                Ok(copy.time()?)
            }),
        );
    }
    let TensorLayout { seqlen, heads, head_dim, .. } = layout;
    let from = normal::<T>(lab.seed, 0, layout.span());
    let mut to = vec![T::default(); from.len()];
    lab.time_alone(
        "copies",
        &mut Each(|| {
            let start = Instant::now();
            for _ in 0..4 {
                to.par_chunks_mut(head_dim * heads).enumerate().for_each(|(row, target)| {
                    let (batch, seq) = (row / seqlen, row % seqlen);
                    for (head, target) in target.chunks_mut(head_dim).enumerate() {
                        target.copy_from_slice(&from[layout.row(batch, seq, head)..][..head_dim]);
                    }
                });
            }
            Ok(start.elapsed())
        }),
    )
}
