//! Memory beside Q, K, V and O, fused and unfused, as the allocator counts it.

use std::ops::Range;

use anyhow::Result;
use flash_attention::cuda::Cuda;
use flash_attention::{Element, Plan, Problem};

use crate::args::{LabArgs, at_least_one};
use crate::heap;
use crate::inputs::Inputs;
use crate::lab::{self, Case, Lab, Recipe, Shared, Unit};
use crate::measure::with_element;
use crate::peer::{AttentionCall, Call, Form, Implementation, Pass, Prepared};
use crate::problem::{Layout, ShapeArgs};

const RECIPE: Recipe = Recipe {
    name: "memory",
    what: "memory that fused and unfused attention take beside Q, K, V, O and lse, over the sequence length",
    reported_elsewhere: Some("S = 1024, 2048, 4096, 8192: 8, 32, 128, 512 MB unfused, 0.5, 1, 2, 4 MB fused"),
    axis: Some("sequence length (rows)"),
    iterations: 20,
    scaled: true,
};

/// The figure of a row that has its bytes.
const EXTRA: &str = "extra memory";

/// Arguments of `memory`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence lengths [default: 1024 to 8192; cpu: 256 to 2048; sim: 64]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = at_least_one)]
    seq: Vec<usize>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let sizes = lab.pick((4, 8, 64), (1, 2, 64), (1, 1, 64));
        for seq in lab.list(&args.seq, &[1024, 2048, 4096, 8192], &[256, 512, 1024, 2048], &[64]) {
            let case = Case::at("S", seq, args.shape.shape(sizes, seq).problem(Layout::Bhsd)?);
            let problem = &case.problem;
            let contenders = lab.flash_and_standard(problem);
            let plans: Vec<_> = contenders.iter().map(|one| one.plan.as_ref().ok().cloned()).collect();
            let rows = lab.contest(&case, Layout::Bhsd, contenders)?;
            for (index, plan) in rows.clone().zip(plans) {
                let Some(plan) = plan.filter(|_| lab.rows()[index].not_run.is_none()) else { continue };
                let extra = with_element!(problem.dtype(), extra_bytes(lab, problem, &plan))?;
                lab.row_mut(index).put(EXTRA, Unit::Bytes, extra as f64);
            }
            peer_memory(lab, problem, rows.clone())?;
            let extra = |index: usize| lab.rows()[index].figure(EXTRA);
            if let (Some(fused), Some(unfused)) = (extra(rows.start), extra(rows.start + 1)) {
                let saved = 100.0 * (1.0 - fused / unfused);
                lab.row_mut(rows.start).put("saved", Unit::Percent, saved);
            }
        }
        note_of_extra_memory(lab);
        Ok(())
    })
}

/// Says how extra memory was measured.
pub(super) fn note_of_extra_memory(lab: &mut Lab) {
    lab.note(lab.pick(
        "extra memory is what the device's free memory falls by, less what it falls by for the tensors alone; \
         the driver gives memory in chunks of up to 2 MiB",
        "extra memory is the most that a run takes from the heap, counted by the allocator",
        "extra memory is the most that a run takes from the heap; the simulator's own is part of it",
    ));
}

/// What a plan takes beside the tensors, by the allocator.
pub(super) fn extra_bytes<T: Element>(lab: &Lab, problem: &Problem, plan: &Plan) -> Result<u64> {
    let backend = &lab.session.backend;
    let inputs = Inputs::<T>::random(problem, lab.seed);
    let Some(cuda) = backend.as_cuda() else {
        let mut prepared = backend.prepare(plan, inputs.tensors())?;
        // The first run may fill what stays, such as the threads' own memory.
        prepared.time()?;
        let (bytes, ran) = heap::peak_of(|| prepared.time());
        ran?;
        return Ok(bytes);
    };
    let ran = || {
        let mut prepared = backend.prepare(plan, inputs.tensors())?;
        prepared.time()?;
        Ok(prepared)
    };
    // Loaded kernels stay.
    allocated(cuda, ran)?;
    let tensors = allocated(cuda, || Ok(cuda.tensor_memory(plan, inputs.tensors())?))?;
    Ok(allocated(cuda, ran)?.saturating_sub(tensors))
}

/// By how much the device's free memory falls for what `prepare` gives.
pub(super) fn allocated<P>(cuda: &Cuda, prepare: impl FnOnce() -> Result<P>) -> Result<u64> {
    let before = cuda.free_bytes()?;
    let prepared = prepare()?;
    let bytes = before.saturating_sub(cuda.free_bytes()?);
    drop(prepared);
    Ok(bytes)
}

/// Adds what the peer's calls among `rows` take.
fn peer_memory(lab: &mut Lab, problem: &Problem, rows: Range<usize>) -> Result<()> {
    let Some(peer) = lab.peer() else { return Ok(()) };
    let mut peer = peer.borrow_mut();
    let output = problem.tensors().o.elements() * problem.dtype().output().bytes();
    for index in rows {
        let row = lab.row_mut(index);
        let of_row = |implementation| {
            let (layout, form, pass) = (Layout::Bhsd, Form::Strided, Pass::Forward);
            let call = Call::Attention(AttentionCall { problem, layout, implementation, form, pass });
            (call.series() == row.series).then_some(call)
        };
        let call = Implementation::ALL.into_iter().find_map(of_row).filter(|_| row.not_run.is_none());
        let Some(call) = call else { continue };
        let Prepared::Ready(number) = peer.prepare(&call)? else { continue };
        // A call of PyTorch's makes its output.
        if let Ok(bytes) = peer.peak_bytes(number)? {
            row.put(EXTRA, Unit::Bytes, bytes.saturating_sub(output as u64) as f64);
        }
        peer.forget()?;
    }
    Ok(())
}
