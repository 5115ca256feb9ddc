//! Appending → one launch: a pure function.

use fa_kernels::attention::append;
use fa_kernels::entries::{Algorithm, Entry};

use super::AppendProblem;
use crate::operation::{Choice, Launch};
use crate::plan::{built_for, check_target, checked_grid, unsupported_dtype};
use crate::{BackendKind, Device, Error, Plan, Result, TensorLayout};

/// The kernels that append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AppendKernel {
    /// 16 bytes a thread where rows allow it: any NVIDIA GPU, and the simulator.
    Append,
    /// Row after row.
    AppendCpu,
}

impl AppendKernel {
    /// The name that messages and documents use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::AppendCpu => "append_cpu",
        }
    }
}

/// How new keys and values will be appended.
pub type AppendPlan = Plan<AppendProblem>;

/// Chooses the launch for `problem` on `device`.
///
/// # Errors
/// When the device is too old, or the grid would be too large.
pub(super) fn plan(problem: &AppendProblem, device: &Device) -> Result<Choice<AppendProblem>> {
    if device.backend == BackendKind::Cpu {
        let reason = "append_cpu: K, V and Q beside one another, each row after row".to_owned();
        return Ok(Choice::on_cpu(AppendKernel::AppendCpu, vec![reason]));
    }
    let missing = || unsupported_dtype(AppendKernel::Append.name(), Algorithm::Append, problem.dtype());
    let entry = built_for(Algorithm::Append, problem.dtype()).next().ok_or_else(missing)?;
    check_target(entry, device, AppendKernel::Append.name())?;
    let grid = checked_grid(blocks(problem).into_iter().sum())?;
    let reason = format!("append: one launch, a row in threads of 16 bytes; {grid} blocks");
    Ok(Choice {
        kernel: AppendKernel::Append,
        tile: None,
        launches: vec![Launch::new(entry, grid)],
        unaligned: Vec::new(),
        workspace_bytes: 0,
        reasons: vec![reason],
    })
}

/// Plans one given entry.
///
/// # Errors
/// When it does not append, is for another storage type, or does not run on the device.
pub(super) fn plan_entry(
    problem: &AppendProblem,
    device: &Device,
    entry: &'static Entry,
) -> Result<Choice<AppendProblem>> {
    let unfit = |reason: String| Err(Error::UnfitEntry { entry: entry.name, reason });
    if entry.algorithm != Algorithm::Append {
        return unfit("it is no kernel that appends".to_owned());
    }
    if entry.dtype != problem.dtype().name() {
        return unfit(format!("it is for {}, the problem is {}", entry.dtype, problem.dtype()));
    }
    let choice = plan(problem, device)?;
    Ok(Choice {
        launches: choice.launches.iter().map(|launch| Launch { entry, ..*launch }).collect(),
        ..choice
    })
}

/// Threads of a head of a row.
pub(super) fn pieces(problem: &AppendProblem, layout: &TensorLayout, rotary_dim: usize) -> u32 {
    let interleaved = problem.options().rotary.is_some_and(|rotary| rotary.interleaved);
    let bytes = problem.dtype().bytes() as u32;
    append::pieces(layout.head_dim as u32, rotary_dim as u32, interleaved, bytes)
}

/// Blocks of a sequence whose heads have so many threads each.
pub(super) fn sequence_blocks(layout: &TensorLayout, pieces: u32) -> usize {
    (layout.seqlen * layout.heads).div_ceil((append::THREADS / pieces) as usize)
}

/// Blocks of K, V and Q.
fn blocks(problem: &AppendProblem) -> [u128; 3] {
    let tensors = problem.tensors();
    let of = |layout: &TensorLayout, rotary_dim| {
        let of_sequence = sequence_blocks(layout, pieces(problem, layout, rotary_dim));
        layout.batch as u128 * of_sequence as u128
    };
    let rotary_dim = problem.rotary_dim();
    let of_queries = problem.queries().map_or(0, |queries| of(&queries.q, rotary_dim));
    [of(&tensors.k, rotary_dim), of(&tensors.v, 0), of_queries]
}
