//! The JSON document: what was measured, on what, and how. `README.md` describes it.

use flash_attention::{Device, Plan, Problem};
use serde::Serialize;

use crate::measure::Measurement;
use crate::problem::Layout;
use crate::session::{REVISION, Session, VERSION, ptx_compiler};

/// Version of the document; a field that changes its meaning or goes away raises it.
const SCHEMA: u32 = 1;

/// What every document begins with.
#[derive(Debug, Serialize)]
pub(crate) struct Header {
    schema: u32,
    experiment: &'static str,
    fa_bench: &'static str,
    revision: &'static str,
    ptx_compiler: Option<&'static str>,
    backend: &'static str,
    backend_reason: String,
    device: DeviceRecord,
    seed: u64,
}

impl Header {
    pub(crate) fn new(experiment: &'static str, session: &Session, seed: u64) -> Self {
        Self {
            schema: SCHEMA,
            experiment,
            fa_bench: VERSION,
            revision: REVISION,
            ptx_compiler: ptx_compiler().ok(),
            backend: session.kind().name(),
            backend_reason: session.backend.reason().to_owned(),
            device: DeviceRecord::new(session.device()),
            seed,
        }
    }
}

#[derive(Debug, Serialize)]
struct DeviceRecord {
    name: String,
    driver: String,
    compute_capability: u32,
    multiprocessors: u32,
    /// None where there is no limit: in the simulator.
    memory_bytes: Option<u64>,
}

impl DeviceRecord {
    fn new(device: &Device) -> Self {
        Self {
            name: device.name.clone(),
            driver: device.driver.clone(),
            compute_capability: device.compute_capability,
            multiprocessors: device.multiprocessors,
            memory_bytes: Some(device.memory).filter(|&bytes| bytes != u64::MAX),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct ProblemRecord {
    batch: usize,
    cu_seqlens: Option<(Vec<u32>, Vec<u32>)>,
    heads: usize,
    kv_heads: usize,
    seq: usize,
    kv_seq: usize,
    head_dim: usize,
    head_dim_v: usize,
    dtype: &'static str,
    layout: &'static str,
    causal: bool,
    window: (Option<usize>, Option<usize>),
    softmax_scale: f32,
    softcap: f32,
    alibi: bool,
    flops: f64,
    tensor_bytes: u64,
}

impl ProblemRecord {
    pub(crate) fn new(problem: &Problem, layout: Layout) -> Self {
        Self {
            batch: problem.batch(),
            cu_seqlens: problem.cu_seqlens().map(|(q, k)| (q.to_vec(), k.to_vec())),
            heads: problem.heads(),
            kv_heads: problem.kv_heads(),
            seq: problem.seqlen_q(),
            kv_seq: problem.seqlen_k(),
            head_dim: problem.head_dim(),
            head_dim_v: problem.head_dim_v(),
            dtype: problem.dtype().name(),
            layout: layout.name(),
            causal: problem.causal(),
            window: problem.window(),
            softmax_scale: problem.softmax_scale(),
            softcap: problem.softcap(),
            alibi: problem.alibi_slopes().is_some(),
            flops: problem.flops(),
            tensor_bytes: tensor_bytes(problem),
        }
    }
}

/// Bytes of Q, K, V and O: what any kernel must move at least.
pub(crate) fn tensor_bytes(problem: &Problem) -> u64 {
    let tensors = problem.tensors();
    let elements = [tensors.q, tensors.k, tensors.v, tensors.o].map(|tensor| tensor.elements());
    elements.iter().sum::<usize>() as u64 * problem.dtype().bytes() as u64
}

#[derive(Debug, Serialize)]
pub(crate) struct PlanRecord {
    kernel: &'static str,
    tile: Option<(usize, usize)>,
    steps: Vec<StepRecord>,
    reasons: Vec<String>,
}

#[derive(Debug, Serialize)]
struct StepRecord {
    entry: &'static str,
    grid: u32,
    threads: u32,
    shared_bytes: u32,
}

impl PlanRecord {
    pub(crate) fn new(plan: &Plan) -> Self {
        let step = |step: &flash_attention::Step| StepRecord {
            entry: step.entry.name,
            grid: step.grid,
            threads: step.entry.threads,
            shared_bytes: step.entry.shared_bytes,
        };
        Self {
            kernel: plan.kernel.name(),
            tile: plan.tile,
            steps: plan.steps.iter().map(step).collect(),
            reasons: plan.reasons.clone(),
        }
    }
}

/// What one kernel did, in seconds and bytes.
#[derive(Debug, Serialize)]
pub(crate) struct MeasurementRecord {
    warmup_runs: usize,
    times_s: Vec<f64>,
    pub(crate) median_s: f64,
    p20_s: f64,
    p80_s: f64,
    min_s: f64,
    max_s: f64,
    pub(crate) tflops: f64,
    effective_bytes_per_s: f64,
    extra_bytes: u64,
    launches: usize,
    rows_checked: usize,
    max_error: f64,
    bound: f64,
    lse_max_error: f64,
    lse_bound: f64,
    unwritten: usize,
    passed: bool,
}

impl MeasurementRecord {
    pub(crate) fn new(problem: &Problem, measurement: &Measurement) -> Self {
        let Measurement { times, verdict, extra_bytes, launches } = measurement;
        let median = times.median();
        Self {
            warmup_runs: times.warmup_runs,
            times_s: times.seconds.clone(),
            median_s: median,
            p20_s: times.quantile(0.2),
            p80_s: times.quantile(0.8),
            min_s: times.quantile(0.0),
            max_s: times.quantile(1.0),
            tflops: problem.flops() / median / 1e12,
            effective_bytes_per_s: tensor_bytes(problem) as f64 / median,
            extra_bytes: *extra_bytes,
            launches: *launches,
            rows_checked: verdict.rows,
            max_error: verdict.output.max_error,
            bound: verdict.output.bound,
            lse_max_error: verdict.lse.max_error,
            lse_bound: verdict.lse.bound,
            unwritten: verdict.unwritten,
            passed: verdict.passed(),
        }
    }
}
