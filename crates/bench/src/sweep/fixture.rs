//! A sweep of three tiles of forward_simt on two head_dims, one of which does not build.

use std::time::Duration;

use fa_kernels::config::Limits;
use fa_kernels::shipped::Resources;
use flash_attention::accuracy::Accuracy;
use flash_attention::{BackendKind, DType, Options, Problem, TensorLayout, Tensors};

use super::built::{Built, Module, Tools};
use super::document::{Document, Rejected, Row};
use super::family::Family;
use super::shape::Shape;
use super::space::{Candidate, Point, Space};
use crate::args::BackendArgs;
use crate::check::Verdict;
use crate::measure::Measurement;
use crate::problem::Layout;
use crate::record::{Header, MeasurementRecord, Work};
use crate::session::Session;
use crate::timer::Times;

/// The tile that runs.
pub(super) const FASTEST: &str = "forward_simt_f32_m32_n32_d64_b2";
/// The tile whose result the tests call wrong.
pub(super) const WRONG: &str = "forward_simt_f32_m64_n32_d64_b2";
/// The tile that does not build.
pub(super) const BROKEN: &str = "forward_simt_f32_m128_n32_d64_b2";

pub(super) fn space() -> Space {
    Space {
        kernel: Family::ForwardSimt,
        dtype: DType::F32,
        block_m: vec![32, 64, 128, 60],
        block_n: vec![32],
        warps: Vec::new(),
        stages: Vec::new(),
        min_blocks: vec![2],
        head_dims: vec![64, 60],
        operands: Vec::new(),
    }
}

/// Three feasible tiles, and one that is not.
pub(super) fn candidates() -> Vec<Candidate> {
    let mut candidates = space().candidates(&Limits::of(90));
    // Its registers would be rejected; here it stands for one whose build fails.
    for candidate in &mut candidates {
        if candidate.variant.id() == BROKEN {
            candidate.verdict = Ok(());
        }
    }
    candidates
}

pub(super) fn problems() -> Vec<Problem> {
    space().points().into_iter().map(|point| problem(point.head_dim)).collect()
}

fn problem(head_dim: usize) -> Problem {
    let layout = TensorLayout::bshd(1, 16, 2, head_dim);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    Problem::new(tensors, DType::F32, Options { causal: true, ..Options::default() }).unwrap()
}

pub(super) fn built() -> Built {
    let result = |candidate: &Candidate| {
        let id = candidate.variant.id();
        if id == BROKEN {
            return (id, Err("the gates refuse it: spill".to_owned()));
        }
        let resources = Resources {
            arch: "sm_90".to_owned(),
            registers: 100,
            spill_stores: 0,
            spill_loads: 0,
            stack: 0,
            static_shared: 0,
        };
        let ptx = format!(".visible .entry {}()", candidate.variant.name());
        let module = Module { ptx, sha256: format!("hash of {id}"), resources: vec![resources] };
        (id, Ok(module))
    };
    let feasible = candidates().into_iter().filter(|candidate| candidate.verdict.is_ok());
    Built {
        space: space(),
        tools: Tools {
            source_sha256: "source".to_owned(),
            compiler: "rustc".to_owned(),
            ptxas: "13".to_owned(),
        },
        revision: "revision".to_owned(),
        variants: feasible.map(|candidate| result(&candidate)).collect(),
    }
}

pub(super) fn document() -> Document {
    let cpu = BackendArgs { backend: Some(BackendKind::Cpu), device: None };
    let mut header = Header::new("sweep", &Session::open(&cpu).unwrap(), 0);
    header.device.name = "NVIDIA Test GPU".to_owned();
    // A host's free memory changes from one call to the next, a GPU's size does not.
    header.device.memory_bytes = None;
    Document {
        header,
        kernel: "forward_simt".to_owned(),
        dtype: "f32".to_owned(),
        tools: built().tools,
        shape: Shape::new(&problem(64), Layout::Bshd, None),
        rows: Vec::new(),
        rejected: candidates().iter().filter_map(Rejected::of).collect(),
    }
}

/// A row of head_dim 64, with its latency or with an error.
pub(super) fn row(id: &str, seconds: Option<f64>) -> Row {
    row_of(id, 64, seconds)
}

pub(super) fn row_of(id: &str, head_dim: usize, seconds: Option<f64>) -> Row {
    let built = built();
    let candidates = candidates();
    let candidate = candidates.iter().find(|candidate| candidate.variant.id() == id).unwrap();
    let module = built.variants[id].as_ref().ok();
    let point = Point { head_dim, operands: None };
    let mut row = Row::new(&candidate.variant, point, &built.tools, module);
    row.measurement = seconds.map(|seconds| measurement(Duration::from_secs_f64(seconds)));
    row.error = seconds.is_none().then(|| "not built: the gates refuse it: spill".to_owned());
    row
}

pub(super) fn measurement(latency: Duration) -> MeasurementRecord {
    let accuracy =
        Accuracy { max_error: 1e-7, standard_error: None, bound: 1e-6, mismatches: 0, elements: 32 };
    let measurement = Measurement {
        times: Times { warmup_runs: 1, seconds: vec![latency.as_secs_f64(); 3] },
        verdict: Verdict { output: accuracy, lse: accuracy, unwritten: 0, rows: 32 },
        extra_bytes: 0,
        launches: 1,
    };
    MeasurementRecord::new(Work { flops: 65536.0, bytes: 1 << 14 }, &measurement)
}
