//! Every kernel under the roof that bandwidth and arithmetic set (Williams, Waterman, Patterson 2009), both
//! measured in the same run.

use anyhow::Result;
use flash_attention::decode::DecodeRequest;
use flash_attention::{DType, Element, Error, Kernel};

use super::decode::measure as measure_decode;
use crate::args::{LabArgs, named};
use crate::decode::Shape as DecodeShape;
use crate::lab::{self, Case, Contender, ITERATIONS, Lab, Recipe, Row, Shared, Unit, square};
use crate::measure::with_element;
use crate::problem::{Layout, Shape};
use crate::record::tensor_bytes;

const RECIPE: Recipe = Recipe {
    name: "roofline",
    what: "kernels by operations for each byte, under the roof of copy bandwidth and matrix products measured in this run",
    reported_elsewhere: Some("an A100 has 1.5 TB/s of device memory and 19 TB/s of shared memory"),
    axis: Some("operational intensity (FLOP/B)"),
    iterations: ITERATIONS,
    scaled: true,
};

/// Arguments of `roofline`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Storage type of all tensors
    #[arg(long, default_value = "f16", value_parser = named(&DType::RESULTS, DType::name))]
    dtype: DType,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let dtype = args.dtype;
        let bandwidth = lab.copy_bandwidth()?;
        let mut peak = lab.mma_peak(dtype)?.unwrap_or(0.0);
        let mut placed = Vec::new();
        for &size in lab.pick(&[1024, 4096, 8192][..], &[256, 1024], &[64]) {
            let product = square(dtype, size)?;
            let row = lab.planned_product(&format!("M=N=K={size}"), product)?.start;
            peak = peak.max(lab.rows()[row].flops().unwrap_or(0.0));
            placed.push((row, product.bytes() as f64));
        }
        let (batch, heads) = lab.pick((4, 16), (1, 4), (1, 1));
        for &(seq, head_dim) in
            lab.pick(&[(512, 64), (4096, 64), (4096, 128)][..], &[(256, 64), (1024, 64)], &[(64, 64)])
        {
            let shape = Shape { batch, heads, seq, head_dim, dtype, causal: false };
            let case = Case::named(format!("S={seq} D={head_dim}"), shape.problem(Layout::Bhsd)?);
            let first = lab.contender(&case.problem, None);
            // Decode has rows of its own.
            let is_other = |kernel: &&Kernel| kernel.name() != first.series && **kernel != Kernel::Decode;
            let others = Kernel::of_backend(lab.kind()).iter().filter(is_other);
            let others: Vec<_> = others.map(|&kernel| lab.contender(&case.problem, Some(kernel))).collect();
            let contenders: Vec<_> = std::iter::once(first).chain(others).collect();
            let bytes = |contender: &Contender<flash_attention::Plan>| {
                // Scores are written, read, written as weights, and read again; copies for tensor maps are
                // written and read.
                let passes = contender.plan.as_ref().map_or(0, |plan| match plan.kernel() {
                    Kernel::Standard => 4 * plan.workspace_bytes(),
                    _ => 2 * plan.workspace_bytes(),
                });
                (tensor_bytes(&case.problem) + passes) as f64
            };
            let bytes: Vec<_> = contenders.iter().map(bytes).collect();
            placed.extend(lab.contest(&case, Layout::Bhsd, contenders)?.zip(bytes));
        }
        placed.extend(with_element!(dtype, decode(lab))?);
        for (row, bytes) in placed {
            place(lab, row, bytes, bandwidth, peak);
        }
        lab.figure("the roof over bytes", Unit::BytesPerSecond, bandwidth);
        lab.figure("the roof over operations", Unit::Flops, peak);
        lab.figure("the ridge between them", Unit::Intensity, peak / bandwidth);
        lab.note(
            "bytes are the least that the launches of a kernel move: each one's inputs and outputs once",
        );
        lab.note("the roof over operations is the fastest matrix product of this run");
        Ok(())
    })
}

/// One query against a long cache: the kernel that bandwidth bounds.
fn decode<T: Element>(lab: &mut Lab) -> Result<Option<(usize, f64)>> {
    let (batch, heads, kv_heads, seq_k) = lab.pick((16, 32, 8, 8192), (1, 8, 2, 2048), (1, 4, 1, 64));
    let (head_dim, seq_q, page_size) = (128, 1, None);
    let (dtype, causal, softmax_scale) = (T::DTYPE, false, None);
    let shape = DecodeShape {
        batch,
        heads,
        kv_heads,
        head_dim,
        seq_q,
        seq_k,
        page_size,
        row_multiple: 1,
        tree_mask: false,
        latent: false,
        dtype,
        causal,
        softmax_scale,
    };
    let problem = shape.problem()?;
    let session = std::rc::Rc::clone(&lab.session);
    let name = format!("decode Sk={seq_k}");
    let plan = match session.backend.plan(&problem, &DecodeRequest::default()) {
        Err(error @ (Error::UnsupportedDType { .. } | Error::KernelNeedsDevice { .. })) => {
            lab.push(Row::refused(&name, "decode", error.to_string()))?;
            return Ok(None);
        }
        plan => plan?,
    };
    let bytes = tensor_bytes(problem.dense()) as f64;
    Ok(Some((measure_decode::<T>(lab, &problem, &plan, None)?, bytes)))
}

/// Says where a row stands under the roof.
fn place(lab: &mut Lab, row: usize, bytes: f64, bandwidth: f64, peak: f64) {
    let measured = &lab.rows()[row];
    let (Some(reached), Some(median)) = (measured.flops(), measured.median()) else { return };
    let intensity = reached * median / bytes;
    let roof = peak.min(intensity * bandwidth);
    let row = lab.row_mut(row);
    row.x = Some(intensity);
    row.put("operational intensity", Unit::Intensity, intensity);
    row.put("roof here", Unit::Flops, roof);
    row.put("of the roof", Unit::Percent, 100.0 * reached / roof);
}
