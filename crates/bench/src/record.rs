//! The JSON document: what was measured, on what, and how. `README.md` describes it.

use std::borrow::Cow;

use flash_attention::backward::BackwardPlan;
use flash_attention::decode::DecodePlan;
use flash_attention::gemm::GemmPlan;
use flash_attention::operation::Launch;
use flash_attention::{Device, Operation, Plan, Problem};
use serde::{Deserialize, Serialize};

use crate::measure::Measurement;
use crate::problem::{Layout, dropout};
use crate::session::{REVISION, Session, VERSION, ptx_compiler};
use crate::timer::Times;

/// Version of the document; a field that changes its meaning or goes away raises it.
pub(crate) const SCHEMA: u32 = 1;

/// What every document begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub(crate) schema: u32,
    /// Which experiment.
    pub experiment: Cow<'static, str>,
    /// Version of the program.
    pub fa_bench: Cow<'static, str>,
    /// The sources that the program was built from.
    pub revision: Cow<'static, str>,
    /// What compiled the kernels.
    pub ptx_compiler: Option<Cow<'static, str>>,
    /// `cuda`, `cpu` or `sim`.
    pub backend: Cow<'static, str>,
    /// Why that backend.
    pub backend_reason: String,
    /// What it ran on.
    pub device: DeviceRecord,
    /// Of the inputs.
    pub seed: u64,
}

impl Header {
    pub(crate) fn new(experiment: &'static str, session: &Session, seed: u64) -> Self {
        Self {
            schema: SCHEMA,
            experiment: experiment.into(),
            fa_bench: VERSION.into(),
            revision: REVISION.into(),
            ptx_compiler: ptx_compiler().ok().map(Cow::from),
            backend: session.kind().name().into(),
            backend_reason: session.backend.reason().to_owned(),
            device: DeviceRecord::new(session.device()),
            seed,
        }
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// The maker's name for it.
    pub name: String,
    /// The driver, or what stands in for it.
    pub driver: String,
    /// major·10 + minor; 0 where there is none.
    pub compute_capability: u32,
    /// Multiprocessors of a GPU, threads of a CPU.
    pub multiprocessors: u32,
    /// None where there is no limit: in the simulator.
    pub memory_bytes: Option<u64>,
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

/// The process that ran other people's kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRecord {
    /// As in `PyTorch 2.11.0`.
    pub name: String,
    /// Its interpreter.
    pub program: String,
    /// Where it ran, in its own words.
    pub device: String,
}

/// A problem, as its arguments and what follows from them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProblemRecord {
    batch: usize,
    cu_seqlens: Option<(Vec<u32>, Vec<u32>)>,
    heads: usize,
    kv_heads: usize,
    /// Query rows, of the longest sequence.
    pub seq: usize,
    kv_seq: usize,
    /// Elements of a row of Q and K.
    pub head_dim: usize,
    head_dim_v: usize,
    /// The storage type, as in `f16`.
    pub dtype: Cow<'static, str>,
    layout: Cow<'static, str>,
    /// Whether a causal mask hides keys.
    pub causal: bool,
    window: (Option<usize>, Option<usize>),
    softmax_scale: f32,
    softcap: f32,
    alibi: bool,
    /// Documents from before there was any have none.
    #[serde(default)]
    dropout: f32,
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
            dtype: problem.dtype().name().into(),
            layout: layout.name().into(),
            causal: problem.causal(),
            window: problem.window(),
            softmax_scale: problem.softmax_scale(),
            softcap: problem.softcap(),
            alibi: problem.alibi_slopes().is_some(),
            dropout: dropout(problem),
            flops: problem.flops(),
            tensor_bytes: tensor_bytes(problem),
        }
    }

    /// Whether it is self-attention of equally long sequences with nothing beside a causal mask.
    pub fn is_plain(&self) -> bool {
        let windowed = self.window.0.is_some() || self.window.1 != self.causal.then_some(0);
        self.cu_seqlens.is_none()
            && self.seq == self.kv_seq
            && self.head_dim == self.head_dim_v
            && !windowed
            && self.softcap == 0.0
            && !self.alibi
            && self.dropout == 0.0
    }

    /// Batch, heads of Q and heads of K and V.
    pub const fn sizes(&self) -> [usize; 3] {
        [self.batch, self.heads, self.kv_heads]
    }
}

/// Bytes of Q, K, V and O: what any kernel must move at least.
pub(crate) fn tensor_bytes(problem: &Problem) -> u64 {
    let tensors = problem.tensors();
    let inputs: usize = [tensors.q, tensors.k, tensors.v].iter().map(|tensor| tensor.elements()).sum();
    let dtype = problem.dtype();
    (inputs * dtype.bytes() + tensors.o.elements() * dtype.output().bytes()) as u64
}

/// Which kernel and tile, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanRecord {
    /// Its name.
    pub kernel: Cow<'static, str>,
    /// BLOCK_M and BLOCK_N, for a product of matrices BLOCK_K too, where the kernel has them to choose.
    pub tile: Option<Vec<usize>>,
    steps: Vec<StepRecord>,
    reasons: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StepRecord {
    entry: Cow<'static, str>,
    grid: u32,
    threads: u32,
    shared_bytes: u32,
}

impl PlanRecord {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self::from_parts(plan.kernel().name(), plan)
    }

    pub(crate) fn of_decode(plan: &DecodePlan) -> Self {
        Self::from_parts(plan.kernel().name(), plan)
    }

    pub(crate) fn of_backward(plan: &BackwardPlan) -> Self {
        Self::from_parts(plan.kernel().name(), plan)
    }

    /// Why, in one line.
    pub(crate) fn reasons(&self) -> String {
        self.reasons.join("; ")
    }

    /// The names of its entries, or on the CPU of the kernel.
    pub(crate) fn entries(&self) -> String {
        let entries: Vec<_> = self.steps.iter().map(|step| &*step.entry).collect();
        if entries.is_empty() { self.kernel.to_string() } else { entries.join(" + ") }
    }

    pub(crate) fn of_product(plan: &GemmPlan) -> Self {
        let tile = plan.launches().first().map(|launch| launch.entry.tile);
        let tile =
            tile.map(|tile| [tile.block_m, tile.block_n, tile.block_k].map(|size| size as usize).into());
        Self { tile, ..Self::from_parts(plan.kernel().name(), plan) }
    }

    fn from_parts<O: Operation>(kernel: &'static str, plan: &Plan<O>) -> Self {
        let step = |launch: &Launch<O>| StepRecord {
            entry: launch.entry.name.into(),
            grid: launch.grid,
            threads: launch.entry.threads,
            shared_bytes: launch.shared_bytes,
        };
        Self {
            kernel: kernel.into(),
            tile: plan.tile().map(|(block_m, block_n)| vec![block_m, block_n]),
            steps: plan.launches().iter().map(step).collect(),
            reasons: plan.reasons().to_vec(),
        }
    }
}

/// The timed runs, in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimesRecord {
    warmup_runs: usize,
    /// All timed runs in their order.
    pub times_s: Vec<f64>,
    /// Half of the runs take less.
    pub median_s: f64,
    /// A fifth of the runs takes less.
    pub p20_s: f64,
    /// Four fifths of the runs take less.
    pub p80_s: f64,
    min_s: f64,
    max_s: f64,
}

impl TimesRecord {
    pub(crate) fn new(times: &Times) -> Self {
        Self {
            warmup_runs: times.warmup_runs,
            times_s: times.seconds.clone(),
            median_s: times.median(),
            p20_s: times.quantile(0.2),
            p80_s: times.quantile(0.8),
            min_s: times.quantile(0.0),
            max_s: times.quantile(1.0),
        }
    }
}

/// What one kernel did, in seconds and bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MeasurementRecord {
    #[serde(flatten)]
    pub(crate) times: TimesRecord,
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

/// What a run does at the least, whatever the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) flops: f64,
    /// Of tensors that are read or written.
    pub(crate) bytes: u64,
}

impl MeasurementRecord {
    pub(crate) fn new(Work { flops, bytes }: Work, measurement: &Measurement) -> Self {
        let Measurement { times, verdict, extra_bytes, launches } = measurement;
        let median = times.median();
        Self {
            times: TimesRecord::new(times),
            tflops: flops / median / 1e12,
            effective_bytes_per_s: bytes as f64 / median,
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

    /// Timed runs, and launches of a run.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.times.times_s.len(), self.launches)
    }
}
