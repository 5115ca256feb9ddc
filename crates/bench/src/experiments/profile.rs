//! Where the time of a call goes: Chrome traces of fused and unfused attention, for Perfetto and
//! chrome://tracing.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use flash_attention::timing::LaunchSpan;
use flash_attention::{BackendKind, Device, Element, Plan, Problem, shipped};
use serde_json::{Value, json};

use crate::args::{LabArgs, at_least_one};
use crate::inputs::Inputs;
use crate::json;
use crate::lab::{self, Case, Lab, Recipe, Shared, Unit};
use crate::measure::with_element;
use crate::nvtx;
use crate::problem::{Layout, ShapeArgs};
use crate::record::PlanRecord;

const RECIPE: Recipe = Recipe {
    name: "profile",
    what: "one long kernel against a train of them: traces of fused and unfused attention from device events",
    reported_elsewhere: Some("3 to 5 kernels unfused, 1 fused"),
    axis: None,
    iterations: 20,
    scaled: true,
};

/// Runs in a trace.
const RUNS: usize = 5;

/// The traces' names, in the order of the kernels.
const FILES: [&str; 2] = ["trace_fa_on.json", "trace_fa_off.json"];

/// Arguments of `profile`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence length [default: 4096; cpu: 512; sim: 64]
    #[arg(long, value_parser = at_least_one)]
    seq: Option<usize>,
    /// The folder of the two traces
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    traces: PathBuf,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    let files = FILES.map(|file| args.traces.join(file));
    for file in &files {
        json::check_writable(file)?;
    }
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let sizes = lab.pick((32, 16, 128), (1, 4, 64), (1, 1, 64));
        let seq = args.seq.unwrap_or(lab.pick(4096, 512, 64));
        let case = Case::at("S", seq, args.shape.shape(sizes, seq).problem(Layout::Bhsd)?);
        let contenders = lab.flash_and_standard(&case.problem);
        let plans: Vec<_> = contenders.iter().map(|one| one.plan.as_ref().ok().cloned()).collect();
        let rows = lab.contest(&case, Layout::Bhsd, contenders)?;
        for ((index, plan), file) in rows.zip(plans).zip(files) {
            let Some(plan) = plan.filter(|_| lab.rows()[index].not_run.is_none()) else { continue };
            let (trace, kernels) = with_element!(case.problem.dtype(), trace(lab, &case.problem, &plan))?;
            json::write(&file, &trace)?;
            lab.row_mut(index).put("kernels in a run", Unit::Count, kernels as f64);
            lab.note(format!("{} is the trace of {}", file.display(), plan.kernel()));
        }
        if lab.kind() != BackendKind::Cuda {
            lab.note("without a GPU a run is one bar: there are no launches to see");
        }
        Ok(())
    })
}

/// Some runs as a trace, and how many kernels one has.
fn trace<T: Element>(lab: &Lab, problem: &Problem, plan: &Plan) -> Result<(Value, usize)> {
    let inputs = Inputs::<T>::random(problem, lab.seed);
    let mut prepared = lab.session.backend.prepare(plan, inputs.tensors())?;
    prepared.time()?;
    let start = Instant::now();
    let mut events = vec![name(0, "process_name", "fa-bench"), name(0, "thread_name", "host")];
    events.push(name(1, "thread_name", &lab.session.device().name));
    let (mut kernels, entries) = (0, PlanRecord::new(plan).entries());
    for run in 0..RUNS {
        prepared.flush_cache()?;
        let begin = start.elapsed().as_secs_f64();
        let range = nvtx::range(&entries);
        let spans = prepared.trace()?;
        drop(range);
        let end = start.elapsed().as_secs_f64();
        events.push(bar(0, &format!("run {run}: enqueue and wait"), begin, end, json!({})));
        // The two clocks meet where the host has waited for the last launch.
        let zero = end - spans.last().map_or(0.0, |span| span.end.as_secs_f64());
        for LaunchSpan { name, begin, end } in &spans {
            let named = if plan.launches().is_empty() { plan.kernel().name() } else { name };
            let arguments = arguments(plan, name, lab.session.device());
            events.push(bar(1, named, zero + begin.as_secs_f64(), zero + end.as_secs_f64(), arguments));
        }
        kernels = spans.len();
    }
    Ok((json!({ "displayTimeUnit": "ms", "traceEvents": events }), kernels))
}

/// The name of the process or of one of its tracks.
fn name(track: u32, what: &str, name: &str) -> Value {
    json!({ "ph": "M", "pid": 1, "tid": track, "name": what, "args": { "name": name } })
}

/// A bar between two times in seconds.
fn bar(track: u32, name: &str, begin: f64, end: f64, arguments: Value) -> Value {
    let (ts, dur) = (1e6 * begin, 1e6 * (end - begin));
    json!({ "ph": "X", "pid": 1, "tid": track, "name": name, "ts": ts, "dur": dur, "args": arguments })
}

/// Grid, block and resources of a launch.
fn arguments(plan: &Plan, name: &str, device: &Device) -> Value {
    let Some(step) = plan.launches().iter().chain(plan.unaligned()).find(|launch| launch.entry.name == name)
    else {
        return json!({});
    };
    let resources = shipped::entry(name).ok().and_then(|entry| entry.resources.last());
    let registers = resources.map(|resources| resources.registers);
    json!({
        "grid": step.grid,
        "block": step.entry.threads,
        "shared memory (bytes)": step.shared_bytes,
        "registers": registers,
        "spilled (bytes)": resources.map(|resources| resources.spill_stores + resources.spill_loads),
        "occupancy (%)": registers.map(|registers| occupancy(step.entry.threads, registers, step.shared_bytes, device)),
    })
}

/// Of the threads that a multiprocessor has room for, how many its blocks fill (CUDA C++ Programming Guide,
/// technical specifications: 65,536 registers, given to a warp in 256s, and 2,048 threads, 1,536 on sm_86 and
/// sm_89, 1,024 on sm_75).
fn occupancy(threads: u32, registers: u32, shared_bytes: u32, device: &Device) -> f64 {
    let room = match device.compute_capability {
        75 => 1024,
        86 | 89 | 120 => 1536,
        _ => 2048,
    };
    let of_warp = (32 * registers).next_multiple_of(256);
    let by_registers = 65_536 / (of_warp * threads.div_ceil(32)).max(1);
    // The driver keeps a KiB of each block's shared memory.
    let by_shared = device.shared_per_multiprocessor as u32 / (shared_bytes + 1024);
    let blocks = by_registers.min(by_shared).min(room / threads);
    100.0 * f64::from(blocks * threads) / f64::from(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupancy_is_what_registers_and_shared_memory_leave() {
        let sim = flash_attention::sim::Sim::new(0);
        let of = |threads, registers, shared| occupancy(threads, registers, shared, sim.device());
        assert_eq!(of(128, 255, 0), 100.0 * 2.0 * 128.0 / 2048.0);
        assert_eq!(of(128, 32, 100 * 1024), 100.0 * 2.0 * 128.0 / 2048.0);
        assert_eq!(of(256, 32, 0), 100.0);
    }
}
