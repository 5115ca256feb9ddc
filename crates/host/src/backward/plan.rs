//! Backward problem → launches: a pure function, with its reasons written beside each choice.

use std::fmt;

use fa_kernels::entries::{Algorithm, Entry, Target};

use super::BackwardProblem;
use crate::operation::{self, Launch};
use crate::plan::{built_for, check_heads, check_kernel, checked_grid, tile_too_large, unsupported_dtype};
use crate::{BackendKind, Device, Error, Plan, Result};

/// A kernel that computes gradients; what a person can ask for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackwardKernel {
    /// FlashAttention v2's backward pass on tensor cores (`mma.sync`): NVIDIA GPUs since sm_80 in 16-bit
    /// types up to head_dim 128, and the simulator.
    BackwardSm80,
    /// FlashAttention v2's backward pass on fp32 FMA: any NVIDIA GPU, and the simulator.
    BackwardSimt,
    /// The same on all cores with SIMD.
    BackwardCpu,
}

impl BackwardKernel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BackwardSm80, Self::BackwardSimt, Self::BackwardCpu];

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BackwardSm80 => "backward_sm80",
            Self::BackwardSimt => "backward_simt",
            Self::BackwardCpu => "backward_cpu",
        }
    }

    /// The kernels of a backend, the fastest first.
    pub const fn of_backend(backend: BackendKind) -> &'static [Self] {
        match backend {
            BackendKind::Cuda | BackendKind::Sim => &[Self::BackwardSm80, Self::BackwardSimt],
            BackendKind::Cpu => &[Self::BackwardCpu],
        }
    }
}

impl fmt::Display for BackwardKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the caller leaves open, the planner chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackwardRequest {
    /// The kernel.
    pub kernel: Option<BackwardKernel>,
    /// The entry of the launch that it is for, by its name.
    pub entry: Option<String>,
}

/// How a backward problem will be computed; its workspace is delta, fp32 for each row.
pub type BackwardPlan = Plan<BackwardProblem>;

type Choice = operation::Choice<BackwardProblem>;

/// Chooses the launches for `problem` on `device`.
///
/// # Errors
/// When the kernel or the entry asked for is not there, the device's shared memory is too small, or a grid
/// would be too large.
pub(super) fn plan(problem: &BackwardProblem, device: &Device, request: &BackwardRequest) -> Result<Choice> {
    let available = BackwardKernel::of_backend(device.backend);
    check_kernel(request.kernel, available, device.backend, BackwardKernel::name)?;
    if device.backend == BackendKind::Cpu {
        if let Some(name) = &request.entry {
            return Err(no_such_entry(problem, name));
        }
        let reasons = vec!["backward_cpu: P and dS by recomputation, on all cores".to_owned()];
        return Ok(Choice::on_cpu(BackwardKernel::BackwardCpu, reasons));
    }
    check_heads(problem.forward())?;
    let chosen = choose_kernel(problem, device, request)?;
    of_kernel(problem, device, request, chosen)
}

/// The kernel asked for, or the fastest that takes the problem, and why.
fn choose_kernel(
    problem: &BackwardProblem,
    device: &Device,
    request: &BackwardRequest,
) -> Result<(BackwardKernel, String)> {
    match (request.kernel, refusal_of_sm80(problem, device)) {
        (Some(kernel @ BackwardKernel::BackwardSm80), Some(reason)) => {
            Err(Error::UnfitKernel { kernel: kernel.name(), reason })
        }
        (Some(kernel), _) => Ok((kernel, format!("{kernel} was asked for"))),
        (None, None) => Ok((BackwardKernel::BackwardSm80, "backward_sm80: on tensor cores".to_owned())),
        (None, Some(reason)) => {
            let why = format!("backward_simt: on fp32 FMA; not backward_sm80: {reason}");
            Ok((BackwardKernel::BackwardSimt, why))
        }
    }
}

/// Why `backward_sm80` does not take the problem, if it does not.
fn refusal_of_sm80(problem: &BackwardProblem, device: &Device) -> Option<String> {
    let forward = problem.forward();
    let built = built_for(Algorithm::BackwardKeysSm80, forward.dtype());
    let Some(widest) = built.map(|entry| entry.tile.head_dim).max() else {
        return Some("tensor cores take 16-bit types only".to_owned());
    };
    if !Target::Sm80.runs_on(device.compute_capability) {
        return Some(format!("{} is sm_{}, and it needs sm_80", device.name, device.compute_capability));
    }
    let head_dim = forward.widest_head_dim();
    if head_dim > widest as usize {
        return Some(format!("its registers hold head_dim {widest} at most, and this is {head_dim}"));
    }
    if forward.changes_scores() || forward.softmax_scale() <= 0.0 {
        return Some("nothing but a positive factor may lie between products and scores".to_owned());
    }
    forward.dropout().map(|_| "it drops no weights".to_owned())
}

/// Whether a launch's blocks own keys, and not queries.
const fn owns_keys(algorithm: Algorithm) -> bool {
    use Algorithm::{BackwardKeys, BackwardKeysDropout, BackwardKeysSm80};
    matches!(algorithm, BackwardKeys | BackwardKeysDropout | BackwardKeysSm80)
}

/// The launches of a GPU kernel.
fn of_kernel(
    problem: &BackwardProblem,
    device: &Device,
    request: &BackwardRequest,
    (kernel, why): (BackwardKernel, String),
) -> Result<Choice> {
    let forward = problem.forward();
    let mut plan = Choice {
        kernel,
        tile: None,
        launches: Vec::new(),
        unaligned: None,
        workspace_bytes: 4 * forward.lse_len() as u64,
        reasons: vec![
            why,
            "a launch that owns keys and one that owns queries, so that nothing is added up by atomics and each run gives the \
             same bits"
                .to_owned(),
        ],
    };
    let launches = if kernel == BackwardKernel::BackwardSm80 {
        [Algorithm::BackwardDelta, Algorithm::BackwardKeysSm80, Algorithm::BackwardQueriesSm80]
    } else if forward.dropout().is_some() {
        plan.reasons.push("dropout: by the entries that draw again which weights were kept".to_owned());
        [Algorithm::BackwardDelta, Algorithm::BackwardKeysDropout, Algorithm::BackwardQueriesDropout]
    } else {
        [Algorithm::BackwardDelta, Algorithm::BackwardKeys, Algorithm::BackwardQueries]
    };
    let is_for = |algorithm, name: &String| {
        built_for(algorithm, forward.dtype())
            .any(|entry| entry.name == name && entry.tile.head_dim as usize >= forward.widest_head_dim())
    };
    if let Some(name) = request.entry.as_ref().filter(|name| !launches.iter().any(|&it| is_for(it, name))) {
        return Err(no_such_entry(problem, name));
    }
    for algorithm in launches {
        let asked = request.entry.as_deref().filter(|name| is_for(algorithm, &(*name).to_owned()));
        let entry = choose_entry(problem, device, (kernel, algorithm), asked)?;
        let (block_m, block_n) = (entry.tile.block_m as usize, entry.tile.block_n as usize);
        let (rows, heads) = if owns_keys(algorithm) {
            (forward.seqlen_k().div_ceil(block_n), forward.kv_heads())
        } else {
            (forward.seqlen_q().div_ceil(block_m), forward.heads())
        };
        let blocks = rows as u128 * heads as u128 * forward.batch() as u128;
        plan.launches.push(Launch::new(entry, checked_grid(blocks)?));
        plan.reasons.push(reason(problem, device, entry, asked.is_some()));
    }
    Ok(plan)
}

/// The entry asked for, or of the smallest HEAD_DIM that is enough the first that fits: the list has the
/// fastest first.
fn choose_entry(
    problem: &BackwardProblem,
    device: &Device,
    (kernel, algorithm): (BackwardKernel, Algorithm),
    asked: Option<&str>,
) -> Result<&'static Entry> {
    let forward = problem.forward();
    let built = || {
        built_for(algorithm, forward.dtype())
            .filter(|entry| entry.tile.head_dim as usize >= forward.widest_head_dim())
            .filter(|entry| asked.is_none_or(|name| name == entry.name))
    };
    let kernel = kernel.name();
    let columns = built()
        .map(|entry| entry.tile.head_dim)
        .min()
        .ok_or_else(|| unsupported_dtype(kernel, algorithm, forward.dtype()))?;
    let of_columns = || built().filter(|entry| entry.tile.head_dim == columns);
    of_columns().find(|entry| entry.shared_bytes as usize <= device.shared_per_block).ok_or_else(|| {
        match of_columns().min_by_key(|entry| entry.shared_bytes) {
            Some(smallest) => tile_too_large(forward, device, &smallest.tile, smallest.shared_bytes.into()),
            None => unsupported_dtype(kernel, algorithm, forward.dtype()),
        }
    })
}

/// What a launch is for, and why with this tile.
fn reason(problem: &BackwardProblem, device: &Device, entry: &Entry, asked: bool) -> String {
    let forward = problem.forward();
    let (m, n, columns) = (entry.tile.block_m, entry.tile.block_n, entry.tile.head_dim);
    let (what, tile) = match entry.algorithm {
        Algorithm::BackwardDelta => {
            let p = forward.lse_len() as u128 * forward.seqlen_k() as u128 * forward.dtype().bytes() as u128;
            return format!(
                "delta = rowsum(dO * O) first, in {} bytes of workspace; P, which is not stored, would take {p}",
                4 * forward.lse_len()
            );
        }
        algorithm if owns_keys(algorithm) => {
            ("dK and dV", format!("BLOCK_N {n} keys of a block x BLOCK_M {m}"))
        }
        _ => ("dQ", format!("BLOCK_M {m} queries of a block x BLOCK_N {n}")),
    };
    format!(
        "{what}: {tile} at HEAD_DIM {columns}, {} whose {} bytes of shared memory fit the {} of a block",
        if asked { "asked for," } else { "the first tile listed" },
        entry.shared_bytes,
        device.shared_per_block
    )
}

fn no_such_entry(problem: &BackwardProblem, name: &str) -> Error {
    let forward = problem.forward();
    Error::NoSuchEntry { name: name.to_owned(), dtype: forward.dtype(), head_dim: forward.widest_head_dim() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use crate::{DType, Options, Problem, TensorLayout, Tensors};

    const SIMT: Option<BackwardKernel> = Some(BackwardKernel::BackwardSimt);

    fn problem(head_dim: usize) -> BackwardProblem {
        let q = TensorLayout::bshd(2, 100, 6, head_dim);
        let kv = TensorLayout::bshd(2, 300, 2, head_dim);
        let tensors = Tensors { q, k: kv, v: kv, o: q };
        BackwardProblem::like(Problem::new(tensors, DType::F16, Options::default()).unwrap()).unwrap()
    }

    fn plan(head_dim: usize, shared: usize, entry: Option<&str>) -> Result<BackwardPlan> {
        let device = Device { shared_per_block: shared, ..Sim::new(0).device().clone() };
        let request = BackwardRequest { kernel: SIMT, entry: entry.map(str::to_owned) };
        Plan::new(&problem(head_dim), &device, &request)
    }

    #[test]
    fn one_launch_owns_keys_and_one_queries() {
        let plan = plan(64, 227 << 10, None).unwrap();
        let launches: Vec<_> =
            plan.launches().iter().map(|launch| (launch.entry.name, launch.grid)).collect();
        let expected = [
            ("backward_delta_f16", 2 * 6 * 4),
            ("backward_keys_f16_m64_n64_d64", 2 * 2 * 5),
            ("backward_queries_f16_m64_n64_d64", 2 * 6 * 2),
        ];
        assert_eq!(launches, expected);
        assert_eq!((plan.workspace_bytes(), plan.reasons().len()), (4 * 2 * 6 * 100, 5));
    }

    #[test]
    fn small_devices_have_a_tile_of_each_head_dim() {
        for head_dim in [1, 64, 65, 128, 256] {
            let plan = plan(head_dim, 64 << 10, None).unwrap();
            assert!(plan.launches().iter().all(|launch| launch.entry.shared_bytes <= 64 << 10));
        }
        let error = plan(256, 32 << 10, None).unwrap_err().to_string();
        assert!(error.ends_with("simulated GPU has 32768 per block"), "{error}");
    }

    #[test]
    fn an_entry_can_be_asked_for() {
        let name = "backward_queries_f16_m32_n16_d128";
        let plan = |head_dim| plan(head_dim, 227 << 10, Some(name));
        let names: Vec<_> = plan(64).unwrap().launches().iter().map(|launch| launch.entry.name).collect();
        assert_eq!(names, ["backward_delta_f16", "backward_keys_f16_m64_n64_d64", name]);
        let error = plan(129).unwrap_err().to_string();
        assert_eq!(error, format!("entry {name} is not built, or not for f16 at head_dim 129"));
    }

    #[test]
    fn tensor_cores_are_taken_where_they_can_be_and_else_there_is_a_reason() {
        let sim = Sim::new(0).device().clone();
        let plan = |problem: &BackwardProblem, device: &Device, kernel| {
            Plan::new(problem, device, &BackwardRequest { kernel, entry: None })
        };
        let fast = plan(&problem(64), &sim, None).unwrap();
        let names: Vec<_> = fast.launches().iter().map(|launch| (launch.entry.name, launch.grid)).collect();
        let expected = [
            ("backward_delta_f16", 2 * 6 * 4),
            ("backward_keys_sm80_f16_m32_n128_d64_w4", 2 * 2 * 3),
            ("backward_queries_sm80_f16_m128_n32_d64_w4", 2 * 6),
        ];
        assert_eq!(names, expected);
        let turing = Device { compute_capability: 75, ..sim.clone() };
        let of = |dtype, options| {
            let tensors = *problem(64).forward().tensors();
            BackwardProblem::like(Problem::new(tensors, dtype, options).unwrap()).unwrap()
        };
        let softcap = Options { softcap: 3.0, ..Options::default() };
        for (problem, device, reason) in [
            (of(DType::F32, Options::default()), &sim, "tensor cores take 16-bit types only"),
            (problem(64), &turing, "simulated GPU is sm_75, and it needs sm_80"),
            (problem(136), &sim, "its registers hold head_dim 128 at most, and this is 136"),
            (
                of(DType::F16, softcap),
                &sim,
                "nothing but a positive factor may lie between products and scores",
            ),
        ] {
            let plan = plan(&problem, device, None).unwrap();
            assert_eq!(plan.kernel(), BackwardKernel::BackwardSimt);
            assert_eq!(plan.reasons()[0], format!("backward_simt: on fp32 FMA; not backward_sm80: {reason}"));
        }
        let error = plan(&problem(136), &sim, Some(BackwardKernel::BackwardSm80)).unwrap_err().to_string();
        assert!(error.starts_with("kernel backward_sm80 cannot be run: its registers hold"), "{error}");
    }

    #[test]
    fn kernels_of_other_backends_are_refused() {
        let request = BackwardRequest { kernel: Some(BackwardKernel::BackwardCpu), entry: None };
        let error = Plan::new(&problem(8), Sim::new(0).device(), &request).unwrap_err().to_string();
        assert_eq!(
            error,
            "kernel backward_cpu does not run on backend sim; it has backward_sm80, backward_simt"
        );
    }
}
